"""A reader that waits for a sender is served, though the queue outgrew memory meanwhile."""

from __future__ import annotations

import asyncio

from waiting import LIMIT_S, eventually_async

import tidegate
from tidegate.node.limits import Limits
from tidegate.node.server import Node
from tidegate.storage.memory import MemoryStore

MIB = 1024 * 1024


async def test_who_began_to_wait_before_memory_was_full_is_served() -> None:
    node = Node(MemoryStore(), limits=Limits(memory_bytes=MIB))
    await node.start()
    try:
        async with (
            tidegate.connect(node.address) as many,
            tidegate.connect(node.address) as wanted,
            tidegate.connect(node.address) as reader,
        ):
            queue = await many.create_queue("full")
            read = asyncio.create_task(reader.get("full", sender=wanted.client_id, wait=LIMIT_S))
            await eventually_async(lambda: node.replicas[queue.queue_id].dispatch.readers.count > 0)
            await many.put_many("full", [bytes(10_000)] * 600)

            await wanted.put("full", b"for the waiting reader")

            assert (await asyncio.wait_for(read, LIMIT_S)).payload == b"for the waiting reader"
    finally:
        await node.stop()
