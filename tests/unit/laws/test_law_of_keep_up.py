"""A handler is kept busy, and next to nothing waits in its buffer."""

from __future__ import annotations

import math

import pytest

from tidegate.laws.prefetch.controller import Clamp, ControlSample, make_controller
from tidegate.laws.prefetch.design import ControllerType, Requirement, place_poles
from tidegate.laws.prefetch.fit import LinearModel
from tidegate.laws.prefetch.loop import HandlerRateTarget

# A round trip of 12 ms: 83 msg/s per unit of prefetch until the handler is busy.
ROUND_TRIP_S = 0.012


def steered(start: float, capacity: float, samples: int) -> tuple[list[float], list[float]]:
    """Rates and held messages of a consumer whose handler can do so much."""
    a, b = 0.1, 0.9 / ROUND_TRIP_S
    model = LinearModel(a, b, 0.0)
    goal = HandlerRateTarget(model, held=2.0)
    steering = Clamp(
        make_controller(place_poles(model, ControllerType.PI, Requirement(20)).gains, start),
        1,
        1000,
    )
    prefetch, rate = start, min(start / ROUND_TRIP_S, capacity)
    rates, held = [], []
    for k in range(samples):
        waiting = max(prefetch - capacity * ROUND_TRIP_S, 0.0)
        busy = min(rate / capacity, 1.0)
        target = goal.target_per_s(rate, busy, waiting)
        prefetch = steering.step(ControlSample(float(k), rate, target)).output
        rate = min(a * rate + b * prefetch, capacity)
        rates.append(rate)
        held.append(waiting)
    return rates, held


@pytest.mark.parametrize("start", [1.0, 10.0, 250.0])
@pytest.mark.parametrize("capacity", [100.0, 770.0])
def test_the_handler_is_busy_and_two_messages_wait(start: float, capacity: float) -> None:
    rates, held = steered(start, capacity, 60)

    # Within twice the settling time of 20 samples, from whatever it was before.
    assert rates[-20:] == pytest.approx([capacity] * 20, rel=0.01)
    assert held[-20:] == pytest.approx([2.0] * 20, abs=0.25)


def test_handler_rate_target_counts_idle_time() -> None:
    goal = HandlerRateTarget(LinearModel(0.26, 60.0, 0.0))

    # 300 a second in 40 % of the time; then held messages as wanted: the target is 750.
    assert goal.target_per_s(300.0, 0.4, held=1.0) == pytest.approx(750.0)
    # One message more than wanted is worth b/(1−a) = 81.
    assert goal.target_per_s(300.0, 0.4, held=2.0) == pytest.approx(750.0 - 60.0 / 0.74)


def test_wanted_reserve_grows_with_messages_in_flight_unless_set() -> None:
    goal = HandlerRateTarget(LinearModel(0.0, 80.0, 0.0))

    assert [goal.held_wanted(in_flight) for in_flight in (0.0, 1.0, 10.0)] == [1.0, 1.0, 10.0]
    # Three of ten: seven more are worth 560.
    assert goal.target_per_s(800.0, 1.0, held=3.0, in_flight=10.0) == pytest.approx(1360.0)
    assert HandlerRateTarget(LinearModel(0.0, 80.0, 0.0), held=3.0).held_wanted(10.0) == 3.0


def test_a_stock_grows_while_the_handler_runs_dry_and_shrinks_to_what_is_needed() -> None:
    goal = HandlerRateTarget(LinearModel(0.0, 80.0, 0.0))

    def after(samples: int, busy: float, held: float) -> float:
        for _ in range(samples):
            goal.target_per_s(800.0 * busy, busy, held=held, in_flight=10.0)
        return goal.held_wanted(10.0)

    # It is on its way: that the handler is idle until then is no reason for more.
    assert after(50, 0.5, held=2.0) == 10.0
    assert after(3, 0.9, held=10.0) == pytest.approx(10.0 + 3 * 2 * 0.925)
    assert after(100, 0.9, held=20.0) == 20.0
    assert after(200, 1.0, held=20.0) == 5.0


def test_a_handler_that_runs_dry_seldom_and_long_has_as_much_as_one_that_does_often() -> None:
    goal = HandlerRateTarget(LinearModel(0.0, 80.0, 0.0))

    for _ in range(100):
        for busy in (0.925, *[1.0] * 9):
            goal.target_per_s(800.0 * busy, busy, held=10.0, in_flight=10.0)

    # ¾ % of the time, which it may.
    assert goal.held_wanted(10.0) == pytest.approx(10.0, abs=1.0)


def test_without_a_look_into_the_buffer_the_goal_lies_a_little_below() -> None:
    assert HandlerRateTarget(LinearModel(0.26, 60.0, 0.0)).target_per_s(
        300.0, 0.4
    ) == pytest.approx(0.95 * 750.0)


def test_an_idle_handler_says_nothing() -> None:
    goal = HandlerRateTarget(LinearModel(0.26, 60.0, 0.0))

    assert math.isnan(goal.target_per_s(0.0, 0.0, held=0.0))
    known = goal.target_per_s(300.0, 0.4, held=1.0)
    assert goal.target_per_s(0.0, 0.0, held=1.0) == known


def test_a_handler_twice_as_slow_is_noticed_within_a_few_samples() -> None:
    goal = HandlerRateTarget(LinearModel(0.26, 60.0, 0.0), memory_samples=5.0)
    goal.target_per_s(800.0, 1.0, held=1.0)

    for _ in range(15):
        target = goal.target_per_s(400.0, 1.0, held=1.0)

    assert target == pytest.approx(400.0, rel=0.05)
