"""Properties of designed loops over random plants: |a| < 1, b > 0."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from plant import PAPER_A, PAPER_B
from steered_plant import SteeredPlant, settled_after
from thoroughness import examples

from tidegate.laws.prefetch.controller import (
    Clamp,
    ControllerSettings,
    PrefetchController,
    Saturation,
    make_controller,
)
from tidegate.laws.prefetch.design import (
    ControllerType,
    DesignRefused,
    PlacedGains,
    Requirement,
    place_poles,
    steady_rate_per_s,
)
from tidegate.laws.prefetch.fit import LinearModel
from tidegate.tuning.result import design_controller

# Many plants, each run for many steps.

WITH_INTEGRAL = st.sampled_from([ControllerType.PI, ControllerType.PID])
# Where a prefetch of 1000 is in the middle, no step of a tenth meets a limit.
MIDDLE, WIDE = 1000.0, 1_000_000

any_a = st.floats(-0.99, 0.99)
# A PI controller can be had for all of these.
usual_a = st.floats(-0.5, 0.95)
any_b = st.floats(0.01, 10_000.0)
any_settling = st.integers(3, 80)
usual_settling = st.integers(16, 60)
any_overshoot = st.sampled_from([0.0, 0.02, 0.05, 0.2])


def placed_or_skipped(
    a: float, b: float, kind: ControllerType, requirement: Requirement
) -> PlacedGains:
    try:
        return place_poles(LinearModel(a, b, 0.0), kind, requirement)
    except DesignRefused:
        assume(False)
        raise


@settings(max_examples=examples(25), deadline=None)
@example(5e-324, 2.0, ControllerType.P, 3, 0.0)
@given(any_a, any_b, st.sampled_from(ControllerType), any_settling, any_overshoot)
def test_whatever_is_placed_passes_the_vetting_by_its_poles(
    a: float, b: float, kind: ControllerType, settling: int, overshoot: float
) -> None:
    requirement = Requirement(settling, overshoot)
    placed_or_skipped(a, b, kind, requirement)

    found = design_controller(LinearModel(a, b, 0.0), kind, requirement)

    assert max(found.late_radii) < 1.0
    assert found.predicted.settling_samples <= settling
    assert found.predicted.overshoot <= overshoot + 1e-6


@settings(max_examples=examples(37), deadline=None)
@given(usual_a, any_b, usual_settling, any_overshoot)
def test_a_pi_controller_can_be_had_for_every_usual_plant(
    a: float, b: float, settling: int, overshoot: float
) -> None:
    assert (
        place_poles(
            LinearModel(a, b, 0.0), ControllerType.PI, Requirement(settling, overshoot)
        ).gains.integral
        > 0.0
    )


@settings(max_examples=examples(50), deadline=None)
@given(any_a, any_b, WITH_INTEGRAL, any_settling, any_overshoot, st.sampled_from([-0.1, 0.1]))
def test_a_running_controller_settles_in_the_time_asked_for(
    a: float, b: float, kind: ControllerType, settling: int, overshoot: float, change: float
) -> None:
    placed = placed_or_skipped(a, b, kind, Requirement(settling, overshoot))
    plant = SteeredPlant(a, b, MIDDLE)
    steering = Clamp(make_controller(placed.gains, MIDDLE), 1, WIDE)
    rest, step = plant.rate, plant.rate * change
    plant.run(steering, rest, 3)

    rates = plant.run(steering, rest + step, 4 * settling)

    assume(all(one.saturated is Saturation.NONE for one in plant.steps))
    band = 0.02 * abs(step) * (1.0 + 1e-6)
    assert settled_after(rates, rest + step, band) <= settling
    beyond = max((rate - rest) / step - 1.0 for rate in rates)
    assert beyond <= overshoot + 1e-6


@settings(max_examples=examples(25), deadline=None)
@given(any_a, any_b, st.sampled_from(ControllerType), any_settling, st.floats(0.0, 3.0))
def test_p_rests_where_theory_says_and_the_others_on_target(
    a: float, b: float, kind: ControllerType, settling: int, relative: float
) -> None:
    placed = placed_or_skipped(a, b, kind, Requirement(settling))
    plant = SteeredPlant(a, b, MIDDLE)
    target = relative * plant.rate
    steering = Clamp(make_controller(placed.gains, MIDDLE), 1, WIDE)

    rates = plant.run(steering, target, 12 * settling)

    assume(plant.steps[-1].saturated is Saturation.NONE)
    expected = steady_rate_per_s(LinearModel(a, b, 0.0), placed.gains, target)
    assert rates[-1] == pytest.approx(expected, rel=1e-3, abs=1e-3 * b)


@settings(max_examples=examples(37), deadline=None)
@given(
    any_a, any_b, st.sampled_from(ControllerType), any_settling,
    st.integers(0, 2**32), st.integers(2, 60),
    st.booleans(),
)  # fmt: skip
def test_the_limits_are_never_left_whatever_is_measured(
    a: float, b: float, kind: ControllerType, settling: int, seed: int, high: int, whole: bool
) -> None:
    placed = placed_or_skipped(a, b, kind, Requirement(settling))
    dice = random.Random(seed)
    practice = ControllerSettings(high=high, fallback=500, patience_s=3.0, whole=whole)
    steering = PrefetchController(placed.gains, dice.uniform(-10.0, 100.0), practice)
    worth = b / (1.0 - a)
    plant = SteeredPlant(
        a, b, 5.0,
        noise=lambda _: dice.choice([0.0, 0.0, worth, -worth * 50.0, 1e12, float("nan")]),
        is_lost=lambda _: dice.random() < 0.3,
    )  # fmt: skip

    for _ in range(5):
        plant.run(steering, dice.uniform(-worth, worth * 100.0), 20)
        if dice.random() < 0.3:
            steering.manual.set_manual(dice.uniform(-5.0, 1000.0))
        else:
            steering.manual.release()

    assert all(1.0 <= step.output <= high for step in plant.steps)
    if whole:
        assert all(step.output == int(step.output) for step in plant.steps)


@settings(max_examples=examples(20), deadline=None)
@given(usual_a, any_b, WITH_INTEGRAL, usual_settling, st.integers(60, 300))
def test_a_limit_is_left_within_the_settling_time_when_the_target_comes_into_reach(
    a: float, b: float, kind: ControllerType, settling: int, saturated_samples: int
) -> None:
    placed = placed_or_skipped(a, b, kind, Requirement(settling))
    worth = b / (1.0 - a)
    plant = SteeredPlant(a, b, 50.0)
    steering = Clamp(make_controller(placed.gains, 50.0), 1, 100)
    plant.run(steering, worth * 300.0, saturated_samples)
    assert plant.steps[-1].saturated is Saturation.HIGH

    plant.run(steering, worth * 60.0, settling)

    # Not at once where Kp < 0: the change of target first pushes the other way.
    assert any(one.saturated is not Saturation.HIGH for one in plant.steps[-settling:])


@settings(max_examples=examples(20), deadline=None)
@given(usual_a, any_b, WITH_INTEGRAL, usual_settling, st.integers(60, 300))
def test_controller_does_not_wind_up_under_a_disturbance(
    a: float, b: float, kind: ControllerType, settling: int, saturated_samples: int
) -> None:
    placed = placed_or_skipped(a, b, kind, Requirement(settling))
    worth = b / (1.0 - a)
    plant = SteeredPlant(a, b, 60.0)
    steering = Clamp(make_controller(placed.gains, 60.0), 1, 100)
    target = worth * 60.0
    # As if 80 of the prefetch went nowhere: 140 would be needed, and there are 100.
    plant.offset_per_s = -80.0 * b
    plant.run(steering, target, saturated_samples)
    assert plant.steps[-1].saturated is Saturation.HIGH

    plant.offset_per_s = 0.0
    rates = plant.run(steering, target, 4 * settling)

    recovered = plant.steps[saturated_samples:]
    left_after = next(k for k, one in enumerate(recovered) if one.saturated is Saturation.NONE)
    assert left_after <= settling
    assert settled_after(rates, target, 0.05 * 80.0 * worth) <= left_after + settling


@settings(max_examples=examples(37), deadline=None)
@given(any_a, any_b, st.sampled_from(ControllerType), any_settling, st.sampled_from([1, 2]))
def test_measurements_that_come_late_leave_it_stable(
    a: float, b: float, kind: ControllerType, settling: int, late: int
) -> None:
    placed = placed_or_skipped(a, b, kind, Requirement(settling, late_samples=2))
    plant = SteeredPlant(a, b, MIDDLE, late_samples=late)
    steering = make_controller(placed.gains, MIDDLE)
    target = plant.rate * 1.1
    goal = steady_rate_per_s(LinearModel(a, b, 0.0), placed.gains, target)

    # Slowed down 25 times at most (LATE_SLOWDOWN).
    rates = plant.run(steering, target, 60 * settling)

    assert abs(rates[-1] - goal) < 0.05 * abs(rates[0] - goal) + 1e-9 * abs(goal)


@settings(max_examples=examples(25), deadline=None)
@given(usual_a, any_b, usual_settling, st.integers(0, 2**32))
def test_controller_settles_when_a_fifth_of_samples_is_lost(
    a: float, b: float, settling: int, seed: int
) -> None:
    placed = place_poles(LinearModel(a, b, 0.0), ControllerType.PI, Requirement(settling))
    dice = random.Random(seed)
    plant = SteeredPlant(a, b, MIDDLE, is_lost=lambda _: dice.random() < 0.2)
    steering = Clamp(make_controller(placed.gains, MIDDLE), 1, WIDE)
    rest = plant.rate
    plant.run(steering, rest, 3)

    rates = plant.run(steering, 1.1 * rest, 6 * settling)

    assert settled_after(rates, 1.1 * rest, 0.02 * 0.1 * rest) <= 3 * settling


@settings(max_examples=examples(15), deadline=None)
@given(usual_a, any_b, usual_settling, st.integers(0, 2**32))
def test_noise_is_not_amplified_and_does_not_shift_the_mean(
    a: float, b: float, settling: int, seed: int
) -> None:
    placed = place_poles(LinearModel(a, b, 0.0), ControllerType.PI, Requirement(settling))
    dice = random.Random(seed)
    sigma = 0.05 * b / (1.0 - a) * MIDDLE
    plant = SteeredPlant(a, b, MIDDLE, noise=lambda _: dice.gauss(0.0, sigma))
    steering = Clamp(make_controller(placed.gains, MIDDLE), 1, WIDE)
    target = plant.rate

    rates = plant.run(steering, target, 2000)[200:]

    mean = sum(rates) / len(rates)
    deviation = (sum((rate - mean) ** 2 for rate in rates) / len(rates)) ** 0.5
    assert mean == pytest.approx(target, abs=0.3 * sigma)
    assert deviation < 1.5 * sigma


def test_a_disturbance_has_gone_within_the_time_asked_for() -> None:
    # The paper's plant at 400 msg/s, suddenly with 100 msg/s less of its own.
    placed = place_poles(LinearModel(PAPER_A, PAPER_B, 0.0), ControllerType.PI, Requirement(30))
    plant = SteeredPlant(PAPER_A, PAPER_B, 5.0)
    steering = Clamp(make_controller(placed.gains, 5.0), 1, 22)
    plant.run(steering, 400.0, 60)
    assert plant.rate == pytest.approx(400.0, rel=0.01)

    plant.offset_per_s = -100.0
    rates = plant.run(steering, 400.0, 60)

    assert min(rates) > 400.0 - 1.1 * 100.0 / (1.0 - PAPER_A)
    assert settled_after(rates, 400.0, 0.05 * 400.0) <= 30


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ({"settling_samples": 0}, "settling time"),
        ({"settling_samples": 10**6}, "settling time"),
        ({"settling_samples": 8, "overshoot": 0.9}, "overshoot"),
        ({"settling_samples": 8, "overshoot": -0.1}, "overshoot"),
        ({"settling_samples": 8, "late_samples": -1}, "late"),
    ],
)
def test_invalid_requirement_is_refused(requirement: dict[str, float], says: str) -> None:
    with pytest.raises(DesignRefused, match=says):
        Requirement(**requirement)  # type: ignore[arg-type]


@pytest.mark.parametrize(("a", "b"), [(1.0, 5.0), (0.5, 0.0), (0.5, -3.0), (float("nan"), 1.0)])
def test_design_refuses_an_invalid_plant(a: float, b: float) -> None:
    with pytest.raises(DesignRefused, match="no plant"):
        place_poles(LinearModel(a, b, 0.0), ControllerType.PI, Requirement(20))
