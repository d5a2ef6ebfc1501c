"""A store that cannot keep up makes producers wait at their sockets, not the node grow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from waiting import eventually_async

import tidegate
from tidegate.broker.node import Node
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Write
from tidegate.storage.memory import MemoryStore

MIB = 1024 * 1024


class StalledStore(MemoryStore):
    """A store that takes commits and answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self._later: list[asyncio.Task[None]] = []

    def submit(
        self,
        writes: Sequence[Write],
        done: Callable[[list[bool] | Exception], None],
        *,
        writer: int = 0,
    ) -> None:
        async def later() -> None:
            await self.answers.wait()
            super(StalledStore, self).submit(writes, done, writer=writer)

        self._later.append(asyncio.create_task(later()))


async def test_puts_are_bounded_while_the_store_stalls_and_all_arrive() -> None:
    store = StalledStore()
    node = Node(store, limits=NodeLimits(memory_bytes=16 * MIB))
    await node.start()
    try:
        async with tidegate.connect(node.address) as mq:
            await mq.create_queue("full")
            puts = [mq.put("full", bytes(MIB)) for _ in range(64)]
            await eventually_async(lambda: node.budget.is_flooded)
            # It reads no more: one frame may have been under way.
            await until_no_more_comes(node)
            assert node.budget.waiting_bytes <= 16 * MIB // 8 + 4 * MIB

            store.answers.set()
            ids = await asyncio.gather(*puts)

            assert sorted(ids) == list(range(ids[0], ids[0] + 64))
            assert node.budget.waiting_bytes == 0
    finally:
        await node.stop()


async def until_no_more_comes(node: Node) -> None:
    seen_bytes = [node.budget.waiting_bytes]

    def stands_still() -> bool:
        seen_bytes.append(node.budget.waiting_bytes)
        return len(seen_bytes) > 2 and seen_bytes[-1] == seen_bytes[-2]

    await eventually_async(stands_still)
