"""Over random plants, and over everything that may happen to one."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from steered_consumer import TICKS, SteeredConsumer, back_after
from steered_plant import settled_after
from thoroughness import examples

from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.laws.prefetch.controller import Saturation
from tidegate.laws.prefetch.design import closed_loop, design_requirement, roots_within
from tidegate.laws.prefetch.loop import PrefetchRegulator

MODEL = PrefetchModel(a=0.1, b=72.0)
GOAL = PrefetchGoal(rate_per_s=400.0)
SETTLE_SAMPLES = 30
KINDS = [ControllerKind.PI, ControllerKind.PID]

plants = st.tuples(
    st.floats(-0.99, 0.99), st.floats(math.log(0.01), math.log(1000.0)).map(math.exp)
)


def run(
    steering: PrefetchRegulator, a: float, b: float, rate: float, samples: int
) -> tuple[list[float], bool]:
    """Rates of y(k+1) = a·y(k) + b·u(k), whole prefetches at each tick; whether a limit held."""
    rates, saturated = [rate], False
    for k in range(samples):
        prefetch = math.fsum(steering.tick() for _ in range(TICKS)) / TICKS
        rates.append(max(a * rates[-1] + b * prefetch, 0.0))
        step = steering.step(
            ConsumerSample(at=float(k), interval_s=1.0, arrived_per_s=rates[-1], prefetch=prefetch)
        )
        saturated = saturated or step.saturated is not Saturation.NONE
    return rates[1:], saturated


@settings(deadline=None)
@given(plants, st.floats(5.0, 300.0), st.integers(5, 300), st.sampled_from(KINDS))
def test_on_every_plant_the_loop_is_stable_and_settles_in_the_time_asked_for(
    plant: tuple[float, float], level: float, start: int, kind: ControllerKind
) -> None:
    a, b = plant
    worth = b / (1.0 - a)
    goal = PrefetchGoal(rate_per_s=worth * level, controller=kind, high=1000, adaptive=False)
    steering = PrefetchRegulator(goal, PrefetchModel(a=a, b=b), start)

    # What could not be had in that time says so.
    assume(not steering.given_up)
    # Stable, and with every measurement late by one and by two.
    for late in range(3):
        assert roots_within(closed_loop(a, b, steering.gains, late).denominator)
    rates, saturated = run(steering, a, b, worth * start, 100)

    # What a limit keeps from its way takes longer.
    assume(not saturated)
    # A plant that rings makes more of a whole number's rest.
    spread = 2.0 / TICKS * b / (1.0 - abs(a))
    band = 0.02 * worth * abs(level - start) + spread
    assert settled_after(rates, worth * level, band) <= SETTLE_SAMPLES


@pytest.mark.parametrize("a", [-0.5, 0.0, 0.2631, 0.6, 0.8])
def test_the_time_asked_for_can_be_had_on_usual_plants(a: float) -> None:
    for kind in KINDS:
        goal = msgspec.structs.replace(GOAL, controller=kind)
        steering = PrefetchRegulator(goal, PrefetchModel(a=a, b=60.0), 5)

        rates, _ = run(steering, a, 60.0, 300.0 / (1.0 - a), 60)

        assert settled_after(rates, 400.0, 0.02 * 400.0) <= SETTLE_SAMPLES


numbers = st.one_of(
    st.floats(0.0, 5000.0), st.sampled_from([0.0, math.nan, math.inf, -1.0, 1e300, 1e9])
)
samples = st.one_of(
    st.none(),
    st.builds(
        ConsumerSample,
        at=st.floats(0.0, 1e6),
        interval_s=st.just(1.0),
        arrived_per_s=numbers,
        processed_per_s=st.none() | numbers,
        busy=st.none() | st.floats(0.0, 1.0),
        held=st.none() | st.floats(0.0, 1000.0),
        prefetch=st.just(math.nan) | st.floats(1.0, 1000.0),
        starved=st.booleans(),
    ),
)
goals = st.builds(
    PrefetchGoal,
    rate_per_s=st.none() | st.floats(0.1, 1e6),
    controller=st.sampled_from(list(ControllerKind)),
    manual=st.none() | st.integers(1, 2000),
    settle_s=st.floats(1.0, 60.0),
    low=st.integers(1, 5),
    high=st.integers(5, 400),
    fallback=st.integers(1, 2000),
    adaptive=st.booleans(),
)


@settings(deadline=None)
@given(
    goals,
    st.none() | plants,
    st.integers(0, 5000),
    st.lists(st.one_of(samples, samples, samples, goals), min_size=1, max_size=60),
)
def test_whatever_is_measured_the_limits_are_kept_and_0_is_never_asked_for(
    goal: PrefetchGoal,
    plant: tuple[float, float] | None,
    start: int,
    happens: list[ConsumerSample | PrefetchGoal | None],
) -> None:
    model = None if plant is None else PrefetchModel(a=plant[0], b=plant[1])
    steering = PrefetchRegulator(goal, model, start)

    for one in happens:
        if isinstance(one, PrefetchGoal):
            goal = one
            steering.change(goal)
        else:
            step = steering.step(one)
            assert goal.low <= step.level <= goal.high
        for _ in range(3):
            prefetch = steering.tick()
            assert 1 <= goal.low <= prefetch <= goal.high


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(10, 400), st.floats(800.0, 5000.0), st.integers(20, 360), st.booleans())
# A knee that a climb of three samples has passed, and a model learned a little beyond the knee.
@example(10, 5000.0, 60, False)
@example(47, 800.0, 40, False)
def test_controller_recovers_after_any_time_of_saturation(
    minutes_s: int, too_much: float, high: int, looks_inside: bool
) -> None:
    consumer = SteeredConsumer(looks_inside=looks_inside)
    goal = msgspec.structs.replace(GOAL, high=high)
    steering = PrefetchRegulator(goal, MODEL, 5)
    consumer.run(steering, 30)

    steering.change(msgspec.structs.replace(goal, rate_per_s=too_much))
    consumer.run(steering, minutes_s)
    steering.change(goal)
    rates = consumer.run(steering, 60)

    assert back_after(rates, 400.0) <= SETTLE_SAMPLES


@settings(deadline=None, max_examples=examples(50))
@given(
    st.floats(0.05, 0.95),
    st.integers(10, 300),
    st.sampled_from(KINDS),
    st.integers(0, 2),
    st.floats(0.0, 0.03),
)
def test_a_handler_that_cannot_do_it_is_kept_busy_with_little_at_hand_and_then_it_is_soon_back(
    part: float, saturated_samples: int, kind: ControllerKind, late: int, noise: float
) -> None:
    consumer = SteeredConsumer(late_samples=late, noise=noise)
    steering = PrefetchRegulator(msgspec.structs.replace(GOAL, controller=kind), MODEL, 5)
    consumer.run(steering, 30)

    consumer.handler_per_s = part * 400.0
    rates = consumer.run(steering, SETTLE_SAMPLES + saturated_samples)[SETTLE_SAMPLES:]
    assert math.fsum(rates) / len(rates) >= 0.97 * part * 400.0
    # Twice what is on its way, at most.
    assert consumer.held <= 2.0 * 400.0 * consumer.round_trip_s + 2.0
    consumer.handler_per_s = 770.0

    assert back_after(consumer.run(steering, 60), 400.0) <= SETTLE_SAMPLES


@settings(deadline=None, max_examples=examples(50))
@given(
    st.floats(0.05, 0.9),
    st.integers(10, 300),
    st.sampled_from(KINDS),
    st.floats(0.0, 0.03),
    st.booleans(),
)
def test_the_same_where_only_the_broker_looks_on(
    part: float, saturated_samples: int, kind: ControllerKind, noise: float, adaptive: bool
) -> None:
    consumer = SteeredConsumer(looks_inside=False, noise=noise)
    goal = msgspec.structs.replace(GOAL, controller=kind, adaptive=adaptive)
    steering = PrefetchRegulator(goal, MODEL, 5)
    consumer.run(steering, 30)

    consumer.handler_per_s = part * 400.0
    rates = consumer.run(steering, SETTLE_SAMPLES + saturated_samples)[SETTLE_SAMPLES:]
    assert math.fsum(rates) / len(rates) >= 0.97 * part * 400.0
    # Of the 360 that it may have; a worker, which sees what it has, holds less.
    assert max(consumer.prefetches) <= 30
    consumer.handler_per_s = 770.0

    assert back_after(consumer.run(steering, 60), 400.0) <= SETTLE_SAMPLES


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_below_the_least_prefetch_winds_nothing_up_either(kind: ControllerKind) -> None:
    consumer = SteeredConsumer()
    goal = msgspec.structs.replace(GOAL, controller=kind)
    steering = PrefetchRegulator(msgspec.structs.replace(goal, rate_per_s=20.0), MODEL, 5)

    consumer.run(steering, 60)
    assert consumer.steps[-1].saturated is Saturation.LOW
    assert set(consumer.prefetches[-100:]) == {1}
    steering.change(goal)

    assert back_after(consumer.run(steering, 60), 400.0) <= SETTLE_SAMPLES


DISTURBANCES = {
    "noise": {"noise": 0.05},
    "one lost measurement in five": {"lost": 0.2},
    "a handler twice as slow": {"handler_per_s": 435.0},
    "a round trip twice as long": {"round_trip_s": 0.025},
    "a round trip half as long": {"round_trip_s": 0.00625},
}


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("disturbance", DISTURBANCES)
def test_after_a_disturbance_the_mean_of_five_is_back_within_the_settling_time(
    disturbance: str, kind: ControllerKind, late: int
) -> None:
    goal = msgspec.structs.replace(GOAL, controller=kind)
    for seed in range(5):
        consumer = SteeredConsumer(noise=0.01, late_samples=late, dice=random.Random(seed))
        steering = PrefetchRegulator(goal, MODEL, 10)
        consumer.run(steering, 60)

        for name, value in DISTURBANCES[disturbance].items():
            setattr(consumer, name, value)
        # Within the time that was asked for, and for as long again.
        rates = consumer.run(steering, 2 * SETTLE_SAMPLES)

        is_twice_late = late == 2 and "half" in disturbance
        # Twice the gain, and twice late: stable, as the designs are to be, and no more.
        allowed = 2 * SETTLE_SAMPLES if is_twice_late else SETTLE_SAMPLES
        band = 0.1 if is_twice_late or (disturbance == "noise" and late) else 0.05
        assert back_after(rates, 400.0, band) <= allowed


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_burst_of_publishers_ends_a_famine_without_a_bump(late: int) -> None:
    consumer = SteeredConsumer(noise=0.01, late_samples=late, supply_per_s=150.0)
    steering = PrefetchRegulator(GOAL, MODEL, 5)
    consumer.run(steering, 60)

    consumer.supply_per_s = math.inf
    rates = consumer.run(steering, 2 * SETTLE_SAMPLES)

    assert back_after(rates, 400.0) <= SETTLE_SAMPLES


def test_a_loop_is_designed_with_reserve_for_a_plant_that_answers_half_as_much() -> None:
    assert design_requirement(GOAL).settling_samples < SETTLE_SAMPLES
