"""Workers whose prefetch sets itself, on a real node in virtual time.

The handler sleeps, so a unit of prefetch is worth one over that time, up to the concurrency.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

import tidegate
from tidegate.client.prefetch import PrefetchStep
from tidegate.core.errors import InvalidValue
from tidegate.laws.prefetch.controller import ControllerMode, Saturation
from tidegate.testing.broker import Broker

HANDLER_S = 0.1
# 10 msg/s per unit of prefetch.
MODEL = tidegate.PrefetchModel(a=0.0, b=10.0)
GOAL = tidegate.PrefetchGoal(rate_per_s=125.0, settle_s=20.0, model=MODEL, high=100)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker


class Shop:
    """An app with one worker, and what its loop has done."""

    def __init__(
        self, prefetch: tidegate.PrefetchGoal | tidegate.PrefetchModel, concurrency: int = 60
    ) -> None:
        self.app = tidegate.App()
        self.steps: list[PrefetchStep] = []
        self.handler_s = HANDLER_S
        self.app.worker("orders", concurrency=concurrency, prefetch=prefetch)(self.ship)
        self.app.on_prefetch_step(self.steps.append)

    async def ship(self, order: bytes) -> None:
        await asyncio.sleep(self.handler_s)  # the work, in virtual time

    def rate(self, samples: int) -> float:
        """The mean of the last so many samples."""
        last = [one.sample.arrived_per_s for one in self.steps[-samples:] if one.sample is not None]
        return math.fsum(last) / len(last)


async def fill(broker: Broker, messages: int) -> None:
    mq = await broker.connect()
    await mq.put_many("orders", [b"order"] * messages)


async def test_a_worker_gets_the_rate_that_it_asked_for(broker: Broker) -> None:
    shop = Shop(GOAL)
    async with broker.running(shop.app):
        await fill(broker, 8_000)
        await broker.advance(20)
        settled_by = len(shop.steps)
        await broker.advance(20)

    # 12.5, which no whole number is.
    assert settled_by == pytest.approx(20, abs=2)
    assert shop.rate(18) == pytest.approx(125.0, rel=0.02)
    last = shop.steps[-1]
    assert last.prefetch in (12, 13)
    assert last.step.mode is ControllerMode.AUTOMATIC
    assert last.sample is not None
    assert last.sample.busy == pytest.approx(12.5 / 60, rel=0.1)
    assert last.sample.prefetch == pytest.approx(12.5, abs=0.5)
    assert last.explained().outputs["output"] == last.prefetch


async def test_without_a_model_it_guesses_first_and_gets_there_too(broker: Broker) -> None:
    shop = Shop(tidegate.PrefetchGoal(rate_per_s=125.0, settle_s=20.0, high=100))
    async with broker.running(shop.app):
        await fill(broker, 20_000)
        await broker.advance(60)

    assert shop.rate(15) == pytest.approx(125.0, rel=0.05)


async def test_keeping_up_hoards_nothing(broker: Broker) -> None:
    # Five slots are busy with a prefetch of five.
    shop = Shop(MODEL, concurrency=5)
    async with broker.running(shop.app):
        await fill(broker, 8_000)
        await broker.advance(60)

    assert shop.rate(20) == pytest.approx(50.0, rel=0.03)
    last = shop.steps[-1]
    assert last.sample is not None
    assert last.sample.busy == pytest.approx(1.0, abs=0.02)
    assert last.sample.held is not None
    # Half of what is in flight, and one more before another number is set.
    assert last.sample.held <= 3.5


async def test_an_empty_queue_is_no_reason_to_ask_for_more(broker: Broker) -> None:
    shop = Shop(GOAL)
    async with broker.running(shop.app):
        await fill(broker, 3_000)
        await broker.advance(20)
        before = shop.steps[-1].step.level
        await broker.advance(40)
        assert shop.steps[-1].sample is not None
        assert shop.steps[-1].sample.starved
        assert shop.steps[-1].step.mode is ControllerMode.HELD
        assert shop.steps[-1].step.level == pytest.approx(before, rel=0.05)


async def test_the_loop_holds_while_the_broker_is_away_and_goes_on_without_a_bump(
    broker: Broker,
) -> None:
    shop = Shop(GOAL)
    async with broker.running(shop.app):
        await fill(broker, 8_000)
        await broker.advance(20)
        before = shop.steps[-1].step.level
        node = broker._started()
        await node.stop()
        await broker.advance(5)
        away = [one for one in shop.steps if one.sample is None]
        assert away
        assert {one.step.mode for one in away} == {ControllerMode.HELD}
        assert away[-1].step.level == before
        await broker._start_node(port=broker._address[1])
        await broker.advance(25)

    assert shop.rate(5) == pytest.approx(125.0, rel=0.05)
    after = [one.step.level for one in shop.steps if one.step.at > away[-1].step.at]
    assert max(after) < 1.5 * before


async def test_a_target_above_what_the_handler_can_do_names_the_ceiling(broker: Broker) -> None:
    goal = tidegate.PrefetchGoal(rate_per_s=500.0, settle_s=10.0, model=MODEL, high=30)
    shop = Shop(goal, concurrency=10)
    async with broker.running(shop.app):
        await fill(broker, 6_000)
        await broker.advance(30)

    last = shop.steps[-1]
    assert "the ceiling is about 100/s" in last.explained().reason
    # Ten at work and some at hand, and not all that it may have.
    assert shop.rate(10) == pytest.approx(100.0, rel=0.03)
    assert 10 < last.step.level < 25
    assert last.step.saturated is Saturation.NONE


async def test_failing_prefetch_listener_does_not_stop_control(broker: Broker) -> None:
    shop = Shop(GOAL)

    @shop.app.on_prefetch_step
    def listen(step: PrefetchStep) -> None:
        raise RuntimeError("not today")

    async with broker.running(shop.app):
        await fill(broker, 1_000)
        await broker.advance(5)

    assert len(shop.steps) >= 4


async def test_a_number_given_for_a_run_goes_before_the_goal(broker: Broker) -> None:
    shop = Shop(GOAL)
    async with shop.app.running(url=broker.url, prefetch=70):
        await fill(broker, 500)
        await broker.advance(3)

    assert not shop.steps


def test_a_goal_that_makes_no_sense_is_refused_where_it_is_declared() -> None:
    app = tidegate.App()
    with pytest.raises(InvalidValue, match="above 0"):
        app.worker("orders", prefetch=tidegate.PrefetchGoal(rate_per_s=0.0))(lambda order: None)
