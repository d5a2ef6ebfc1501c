"""A worker's prefetch sets itself on each engine, in the right direction.

Which rate comes of it, and how soon, is shown in virtual time
(`tests/unit/testing/test_prefetch_in_virtual_time.py`) and measured in `benchmarks/`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from engine_under_test import Engine
from rabbitmq import VirtualHost
from waiting import eventually_async

import tidegate
from tidegate.client.prefetch import PrefetchStep
from tidegate.laws.prefetch.controller import ControllerMode
from tidegate_lab.faults.proxy import TcpProxy

# One RabbitMQ serves all tests of the engines.
pytestmark = pytest.mark.xdist_group("engines")

# A handler of 100 ms makes a unit of prefetch worth 10 messages a second, as a network would.
HANDLER_S = 0.1
HIGH = 20
GOAL = tidegate.PrefetchGoal(
    rate_per_s=20.0,
    settle_s=4.0,
    sample_s=0.2,
    model=tidegate.PrefetchModel(a=0.0, b=10.0, sample_s=0.2),
    low=1,
    high=HIGH,
    fallback=5,
)
# At half of what it began with, more than the target comes on a machine ten times as slow, too.
LOWERED = HIGH // 2


class Watched:
    """The steps of a loop."""

    def __init__(self, app: tidegate.App) -> None:
        self.steps: list[PrefetchStep] = []
        app.on_prefetch_step(self.steps.append)

    async def until(self, is_so: Callable[[PrefetchStep], bool]) -> PrefetchStep:
        """Wait for such a step, from the last one on."""
        begin = max(len(self.steps) - 1, 0)
        return await eventually_async(
            lambda: next((step for step in self.steps[begin:] if is_so(step)), None)
        )


def worked(app: tidegate.App) -> Watched:
    @app.worker("orders", concurrency=HIGH, prefetch=GOAL)
    async def ship(order: bytes) -> None:
        await asyncio.sleep(HANDLER_S)  # the handler's work

    return Watched(app)


def is_lowered(step: PrefetchStep) -> bool:
    return step.prefetch <= LOWERED and step.sample is not None


async def test_a_prefetch_that_gives_more_than_the_goal_is_lowered(engine: Engine, mq: Any) -> None:
    app = engine.app()
    watched = worked(app)
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"order"] * 600)

    async with app.running():
        await watched.until(is_lowered)

    assert all(GOAL.low <= step.step.level <= HIGH for step in watched.steps)


async def test_an_empty_queue_starves_the_loop_and_does_not_drive_it(
    engine: Engine, mq: Any
) -> None:
    app = engine.app()
    watched = worked(app)
    await mq.create_queue("orders")

    async with app.running():
        await eventually_async(
            lambda: any(step.sample and step.sample.starved for step in watched.steps[3:])
        )

    starved = [step for step in watched.steps if step.sample and step.sample.starved]
    assert starved[-1].step.level == pytest.approx(starved[0].step.level)
    assert "starved" in map(str, starved[-1].step.notes)


async def test_while_rabbitmq_is_away_the_loop_holds_and_then_goes_on(
    rabbitmq: VirtualHost,
) -> None:
    async with tidegate.connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url) as cable:
        app = tidegate.App(cable.url)
        watched = worked(app)
        await mq.create_queue("orders")
        await mq.put_many("orders", [b"order"] * 2_000)
        async with app.running():
            await watched.until(is_lowered)

            cable.set_mode("frozen")
            cable.cut()
            lost = await watched.until(lambda step: step.sample is None)
            before = watched.steps[watched.steps.index(lost) - 1].step.level
            cable.set_mode("passes")
            await watched.until(lambda step: step.step.mode is ControllerMode.AUTOMATIC)

    assert lost.step.mode is ControllerMode.HELD
    assert lost.step.level == pytest.approx(before)
    assert all(GOAL.low <= step.step.level <= HIGH for step in watched.steps)
