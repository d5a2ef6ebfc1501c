"""The prefetch loop on a real queue whose measurements come late: slower perhaps, but stable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from statistics import fmean
from typing import Any

import pytest
from engine_under_test import numbered

import tidegate
from tidegate.client.engine import EngineSubscription
from tidegate.client.steered_prefetch import PrefetchStep, SteeredPrefetch
from tidegate.core.prefetch import ConsumerSample

# A handler of 40 ms makes a unit of prefetch worth 25 messages a second.
HANDLER_S = 0.04
TARGET_PER_S = 100.0
GOAL = tidegate.PrefetchGoal(
    rate_per_s=TARGET_PER_S,
    settle_s=6.0,
    sample_s=0.25,
    model=tidegate.PrefetchModel(a=0.0, b=25.0, sample_s=0.25),
    high=40,
    adaptive=False,
)
SETTLED = 16
PATIENCE_S = 40.0

pytestmark = pytest.mark.paced


class LateSamples(SteeredPrefetch):
    """Each sample is seen so many steps after it was taken."""

    def __init__(self, late: int, **settings: Any) -> None:
        super().__init__("orders", GOAL, start=1, **settings)
        self._under_way: deque[ConsumerSample | None] = deque([None] * late)

    async def sense(self, subscription: EngineSubscription) -> ConsumerSample | None:
        self._under_way.append(await super().sense(subscription))
        return self._under_way.popleft()


@contextlib.asynccontextmanager
async def handled(subscription: Any) -> AsyncIterator[None]:
    """Have every message handled as it comes."""
    at_work: set[asyncio.Task[None]] = set()

    async def handle(message: Any) -> None:
        await asyncio.sleep(HANDLER_S)
        message.ack()

    async def take() -> None:
        async for message in subscription:
            task = asyncio.create_task(handle(message))
            at_work.add(task)
            task.add_done_callback(at_work.discard)

    taking = asyncio.create_task(take())
    yield
    taking.cancel()
    await asyncio.wait({taking, *at_work})


class Watched:
    """What a loop does, and whether it has come to rest."""

    def __init__(self) -> None:
        self.steps: list[PrefetchStep] = []
        self._heard = asyncio.Event()

    def hear(self, step: PrefetchStep) -> None:
        self.steps.append(step)
        self._heard.set()

    async def until_settled(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not self._is_settled():
                self._heard.clear()
                await self._heard.wait()

    def _is_settled(self) -> bool:
        last = self.steps[-SETTLED:]
        rates = [step.sample.arrived_per_s for step in last if step.sample]
        levels = [step.step.level for step in last]
        return (
            len(rates) == SETTLED
            and abs(fmean(rates) - TARGET_PER_S) < 0.05 * TARGET_PER_S
            # At rest it swings by some per cent; with five times the gain, by more than half.
            and max(levels) - min(levels) < 0.25 * fmean(levels)
        )


async def settled(mq: Any, late: int) -> None:
    """Settle a loop on a queue of its own."""
    watched = Watched()
    queue = f"orders-{late}"
    await mq.create_queue(queue)
    await mq.put_many(queue, numbered(3_000))
    async with mq.subscribe(queue, prefetch=1) as subscription, handled(subscription):
        loop = asyncio.create_task(LateSamples(late, on_step=watched.hear).run(subscription))
        await watched.until_settled()
        loop.cancel()
        await asyncio.wait({loop})
    assert all(GOAL.low <= step.prefetch <= GOAL.high for step in watched.steps)


async def test_loops_whose_measurements_come_late_by_one_and_by_two_settle_all_the_same(
    mq: Any,
) -> None:
    await asyncio.gather(settled(mq, late=1), settled(mq, late=2))
