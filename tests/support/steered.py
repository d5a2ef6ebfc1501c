"""A queue whose consumers are steered by a real node, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from statistics import mean

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.subscription import Subscription
from tidegate.control.journal import PrefetchJournal
from tidegate.control.prefetch import PrefetchLoop
from tidegate.core.runtime import cancel_and_wait
from tidegate.telemetry.stats import ConsumerStats, ControlStats

QUEUE = "orders"
# Looked at together: one sample of a tenth of a second holds some fifteen messages.
WINDOW = 20
_STOCK = 4000


@contextlib.asynccontextmanager
async def steering(node: Node) -> AsyncIterator[PrefetchLoop]:
    """The node's loop, as `tidegate node` wires it."""
    recorder = None if node.recording is None else node.recording.recorder
    journal = PrefetchJournal(node.store, recorder, node.clock.wall)
    steerable = node.ownership.with_prefetch_goal
    loop = PrefetchLoop(steerable, node.name, journal, recorder=recorder, clock=node.clock)
    running = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        await cancel_and_wait([running])


async def fill(mq: Client, count: int = _STOCK) -> None:
    """More than anybody will take."""
    await asyncio.gather(*(mq.put(QUEUE, b"x" * 64) for _ in range(count)))


class Worker:
    """A consumer with so many messages in work at a time, each for so long."""

    def __init__(self, client: Client, prefetch: int, slots: int, handler_s: float) -> None:
        self.subscription: Subscription = client.subscribe(QUEUE, prefetch=prefetch)
        self._slots = slots
        self.handler_s = handler_s
        self.done = 0

    async def __aenter__(self) -> Worker:
        await self.subscription.__aenter__()
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._slots)]
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._tasks)
        await self.subscription.__aexit__(None, None, None)

    async def _work(self) -> None:
        async for message in self.subscription:
            if self.handler_s:
                await asyncio.sleep(self.handler_s)  # the handler's work
            message.ack()
            self.done += 1


class Watch:
    """The control steps of a queue's consumers, as everybody may see them."""

    def __init__(self, mq: Client) -> None:
        self._mq = mq

    async def consumers(self) -> list[ConsumerStats]:
        """Those that are steered, with their steps."""
        found = await self._mq.stats(QUEUE, steps=60)
        return [
            one
            for node in found.nodes
            for queue in node.queues
            for one in queue.consumers
            if one.control
        ]

    async def after(self, seconds: float) -> list[ConsumerStats]:
        """Those that are steered when so much time has passed."""
        await asyncio.sleep(seconds)  # in virtual time: nothing waits
        return await self.consumers()

    async def only(self, after_s: float) -> ConsumerStats:
        """The one that is steered when so much time has passed."""
        [one] = await self.after(after_s)
        return one


def rate_of(steps: list[ControlStats]) -> float:
    """Messages a second, over all of them."""
    seconds = sum(step.interval_s for step in steps)
    return sum((step.rate_per_s or 0.0) * step.interval_s for step in steps) / seconds


def level_of(steps: list[ControlStats]) -> float:
    return mean(step.level for step in steps)
