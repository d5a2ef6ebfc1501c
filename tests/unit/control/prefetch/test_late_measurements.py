"""The prefetch loop of a worker whose measurements come late: slower perhaps, but stable."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from statistics import fmean
from typing import Any

import pytest

import tidegate
from tidegate.client.client import Client
from tidegate.client.engine import EngineSubscription
from tidegate.client.prefetch import AutomaticPrefetch, PrefetchStep
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


class LateSamples(AutomaticPrefetch):
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
        await asyncio.sleep(HANDLER_S)  # the handler's work
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


@pytest.mark.parametrize("late", [0, 1, 2])
async def test_a_loop_whose_measurements_come_late_settles_all_the_same(
    mq: Client, late: int
) -> None:
    steps: list[PrefetchStep] = []
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"order"] * 3_000)
    async with mq.subscribe("orders", prefetch=1) as subscription, handled(subscription):
        loop = asyncio.create_task(LateSamples(late, on_step=steps.append).run(subscription))
        await asyncio.sleep(2 * GOAL.settle_s)  # in virtual time: nothing waits
        loop.cancel()
        await asyncio.wait({loop})

    assert all(GOAL.low <= step.prefetch <= GOAL.high for step in steps)
    last = steps[-SETTLED:]
    rates = [step.sample.arrived_per_s for step in last if step.sample]
    levels = [step.step.level for step in last]
    assert len(rates) == SETTLED
    assert fmean(rates) == pytest.approx(TARGET_PER_S, rel=0.02)
    # At rest it swings by some per cent; with five times the gain, by more than half.
    assert max(levels) - min(levels) < 0.1 * fmean(levels)
