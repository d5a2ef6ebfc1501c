"""A worker's prefetch sets itself on each engine: the loop is the same, and so is what comes of it.

A handler that sleeps 20 ms makes a unit of prefetch worth 50 messages a second, as a network would.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from engine_under_test import Engine
from rabbitmq import VirtualHost

import tidegate
from tidegate.client.steered_prefetch import PrefetchStep
from tidegate.lab.peers.rabbitmq_server import RabbitmqServer
from tidegate.laws.control_step import Mode

HANDLER_S = 0.02
GOAL = tidegate.PrefetchGoal(
    rate_per_s=150.0,
    settle_s=5.0,
    sample_s=0.25,
    model=tidegate.PrefetchModel(a=0.0, b=50.0, sample_s=0.25),
    low=1,
    high=40,
    fallback=5,
)
# A broker boots in some five seconds, on a busy machine in some twenty.
PATIENCE_S = 60.0


class Watched:
    """The steps of a loop, with a signal for each."""

    def __init__(self, app: tidegate.App) -> None:
        self.steps: list[PrefetchStep] = []
        self._news = asyncio.Event()
        app.on_prefetch_step(self._heard)

    def _heard(self, step: PrefetchStep) -> None:
        self.steps.append(step)
        self._news.set()

    def mean(self, samples: int) -> float:
        rates = [step.sample.arrived_per_s for step in self.steps[-samples:] if step.sample]
        return math.fsum(rates) / len(rates) if len(rates) == samples else math.nan

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looked at after each step."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def until_mean(self, target: float, samples: int = 8, within: float = 0.1) -> None:
        """Until the mean of the last few samples is near enough."""
        await self.until(lambda: abs(self.mean(samples) - target) <= within * target)


def worked(app: tidegate.App, goal: tidegate.PrefetchGoal) -> Watched:
    @app.worker("orders", concurrency=40, prefetch=goal)
    async def ship(order: bytes) -> None:
        await asyncio.sleep(HANDLER_S)

    return Watched(app)


@pytest.mark.paced
async def test_the_rate_asked_for_arrives_and_is_held(engine: Engine, mq: Any) -> None:
    app = engine.app()
    watched = worked(app, GOAL)
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"order"] * 4_000)

    async with app.running():
        await watched.until_mean(150.0)
        await watched.until_mean(150.0, samples=16)

    assert all(1 <= step.prefetch <= 40 for step in watched.steps)
    # Far from where it began: twice the concurrency, and more than allowed.
    assert watched.steps[-1].step.level < 10.0


async def test_an_empty_queue_starves_the_loop_and_does_not_drive_it(
    engine: Engine, mq: Any
) -> None:
    app = engine.app()
    watched = worked(app, GOAL)
    await mq.create_queue("orders")

    async with app.running():
        await watched.until(
            lambda: any(step.sample and step.sample.starved for step in watched.steps[3:])
        )

    starved = [step for step in watched.steps if step.sample and step.sample.starved]
    assert starved[-1].step.level == pytest.approx(starved[0].step.level)
    assert "starved" in starved[-1].step.notes


@pytest.mark.timeout(240)
def test_a_killed_broker_is_waited_for_and_the_loop_goes_on_where_it_was(
    mortal_broker: RabbitmqServer,
) -> None:
    # On a loop of its own: those of async tests give up before a busy machine has booted a broker.
    uvloop.run(_killed_while_steered(mortal_broker))


async def _killed_while_steered(server: RabbitmqServer) -> None:
    app = tidegate.App(VirtualHost(server).url)
    watched = worked(app, GOAL)
    async with app.running(), tidegate.connect(app.url) as mq:
        await mq.put_many("orders", [b"order"] * 5_000)
        await watched.until_mean(150.0)
        before = watched.steps[-1].step.level

        await asyncio.to_thread(server.kill)
        await watched.until(lambda: watched.steps[-1].sample is None)
        held = watched.steps[-1].step
        await asyncio.to_thread(server.start_again)
        await watched.until(lambda: watched.steps[-1].sample is not None)
        await watched.until_mean(150.0)

    assert held.mode is Mode.HELD
    assert held.level == pytest.approx(before, rel=0.3)
    assert all(1 <= step.prefetch <= 40 for step in watched.steps)
