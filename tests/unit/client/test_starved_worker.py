"""A worker's loop on a queue of which it cannot learn what waits: it may not be allowed to."""

from __future__ import annotations

import asyncio

import pytest
from waiting import LIMIT_S

import tidegate
from tidegate.client.client import Client
from tidegate.client.prefetch import AutomaticPrefetch, PrefetchStep
from tidegate.client.subscription import Subscription
from tidegate.core.errors import Forbidden

pytestmark = pytest.mark.parametrize("backing", ["memory"], indirect=True)

GOAL = tidegate.PrefetchGoal(
    rate_per_s=400.0,
    sample_s=0.05,
    settle_s=1.0,
    model=tidegate.PrefetchModel(a=0.1, b=72.0, sample_s=0.05),
)
SAMPLES = 12


@pytest.mark.parametrize("knows_nothing", [True, False], ids=["not known", "refused"])
async def test_prefetch_is_held_when_no_message_came_and_length_is_unknown(
    mq: Client, monkeypatch: pytest.MonkeyPatch, knows_nothing: bool
) -> None:
    async def waiting(_: Subscription) -> int | None:
        if knows_nothing:
            return None
        raise Forbidden("you may not see the numbers of this queue")

    monkeypatch.setattr(Subscription, "waiting", waiting)
    await mq.create_queue("orders", durable=False)
    steps: list[PrefetchStep] = []
    enough = asyncio.Event()

    def hear(step: PrefetchStep) -> None:
        steps.append(step)
        if len(steps) == SAMPLES:
            enough.set()

    async with mq.subscribe("orders", prefetch=10) as subscription:
        loop = asyncio.create_task(
            AutomaticPrefetch("orders", GOAL, start=10, on_step=hear).run(subscription)
        )
        await asyncio.wait_for(enough.wait(), LIMIT_S)
        loop.cancel()
        await asyncio.wait({loop})
    assert all(step.sample is not None and step.sample.starved for step in steps)
    assert {step.step.level for step in steps} == {10.0}
