"""Controllers and their layers, step by step, with numbers that were computed by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plant import PAPER_A, PAPER_B
from steered_plant import SteeredPlant, settled_after

from tidegate.laws.prefetch.controller import (
    Clamp,
    ControllerMode,
    ControllerSettings,
    ControlSample,
    ControlStep,
    Deadband,
    Dither,
    Fallback,
    Hampel,
    Incremental,
    ManualControl,
    Modulator,
    PrefetchController,
    Proportional,
    Saturation,
    SigmaDelta,
    make_controller,
)
from tidegate.laws.prefetch.design import ControllerType, Gains, Requirement, pi_gains, place_poles
from tidegate.laws.prefetch.fit import LinearModel

PI = Gains(ControllerType.PI, 0.02, 0.01)
PID = Gains(ControllerType.PID, 0.02, 0.01, 0.005)
PAPER = LinearModel(PAPER_A, PAPER_B, 0.0)


def samples(*rates: float | None, target: float = 400.0) -> list[ControlSample]:
    return [ControlSample(float(at), rate, target) for at, rate in enumerate(rates)]


def outputs(steps: list[ControlStep]) -> list[float]:
    return [step.output for step in steps]


def test_p_by_hand() -> None:
    steering = Proportional(Gains(ControllerType.P, 0.02), start=5.0, bias=1.0)

    step = steering.step(ControlSample(0.0, 300.0, 400.0))

    # 1 + 0.02 · 100
    assert step.output == pytest.approx(3.0)
    assert (step.error_per_s, step.proportional, step.integral) == pytest.approx((100.0, 2.0, 1.0))


def test_pi_by_hand() -> None:
    steering = Incremental(PI, start=5.0)

    steps = [steering.step(one) for one in samples(300.0, 350.0, 420.0)]

    # 5 + 0.01·100; then + 0.02·(50 − 100) + 0.01·50; then + 0.02·(−20 − 50) + 0.01·(−20)
    assert outputs(steps) == pytest.approx([6.0, 5.5, 3.9])
    assert steps[1].proportional == pytest.approx(0.02 * 50.0)


def test_pid_by_hand() -> None:
    steering = Incremental(PID, start=5.0)

    steps = [steering.step(one) for one in samples(300.0, 350.0, 420.0)]

    # As PI, and + 0.005·(50 − 2·100 + 100), + 0.005·(−20 − 2·50 + 100) more each.
    assert outputs(steps) == pytest.approx([6.0, 5.25, 3.55])
    assert steps[2].derivative == pytest.approx(0.005 * (-20.0 - 50.0))


@given(st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=30), st.sampled_from([PI, PID]))
def test_the_terms_of_every_step_add_up_to_what_was_wanted(
    rates: list[float], gains: Gains
) -> None:
    steering = Clamp(make_controller(gains, 5.0), 1, 22)

    for one in samples(*rates):
        step = steering.step(one)
        total = step.proportional + step.integral + step.derivative
        assert total == pytest.approx(step.wanted)
        assert step.level == min(max(step.wanted, 1.0), 22.0)
        assert (step.saturated is Saturation.NONE) == (step.level == step.wanted)


def test_other_gains_make_no_bump() -> None:
    steering = Incremental(PI, start=5.0)
    before = steering.step(ControlSample(0.0, 400.0, 400.0))

    steering.retune(Gains(ControllerType.PI, 0.2, 0.1))

    assert steering.step(ControlSample(1.0, 400.0, 400.0)).output == pytest.approx(before.output)


def test_a_limit_says_which_and_the_controller_goes_on_from_it() -> None:
    steering = Clamp(Incremental(PI, start=20.0), 1, 22)

    high = [steering.step(one) for one in samples(*[0.0] * 50)]
    first_down = steering.step(ControlSample(50.0, 500.0, 400.0))

    assert high[-1].saturated is Saturation.HIGH
    assert high[-1].wanted == pytest.approx(26.0)  # one integral step beyond, however long
    # 22 + 0.02·(−100 − 400) + 0.01·(−100)
    assert first_down.output == pytest.approx(11.0)


@pytest.mark.parametrize(("low", "high"), [(0, 10), (-1, 10), (5, 4)])
def test_limits_that_would_mean_unlimited_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="0 means unlimited"):
        Clamp(Incremental(PI, start=5.0), low, high)


def test_a_fraction_is_spread_over_time() -> None:
    modulator = Modulator()

    assert [modulator.next(5.25) for _ in range(8)] == [5, 6, 5, 5, 5, 6, 5, 5]


@given(st.lists(st.floats(1.0, 360.0), min_size=1, max_size=200))
def test_whole_numbers_have_the_mean_of_the_levels_and_are_beside_them(
    levels: list[float],
) -> None:
    modulator = Modulator()

    whole = [modulator.next(level) for level in levels]

    assert abs(sum(whole) - sum(levels)) <= 1.0 + 1e-6
    for number, level in zip(whole, levels, strict=True):
        assert math.floor(level) <= number <= math.ceil(level)


def test_sigma_delta_holds_a_mean_that_rounding_cannot() -> None:
    # 400 msg/s need a prefetch of 4.94: rounding would swing between 4 and 5 or stand at one.
    gains = place_poles(PAPER, ControllerType.PI, Requirement(30)).gains
    plant = SteeredPlant(PAPER_A, PAPER_B, 10.0)
    steering = SigmaDelta(Clamp(make_controller(gains, 10.0), 1, 22))
    plant.run(steering, 400.0, 60)

    rates = plant.run(steering, 400.0, 200)

    assert sum(rates) / len(rates) == pytest.approx(400.0, rel=0.01)
    assert {step.output for step in plant.steps[60:]} <= {4.0, 5.0, 6.0}


def test_dither_moves_both_ways_and_leaves_the_controller_alone() -> None:
    steering = Dither(Incremental(PI, start=5.0), amplitude=0.5)

    steps = [steering.step(one) for one in samples(*[400.0] * 127)]

    assert {step.output for step in steps} == {4.5, 5.5}
    assert sum(step.output - 5.0 for step in steps) == pytest.approx(0.5)
    assert all(step.wanted == pytest.approx(5.0) for step in steps)


@pytest.mark.parametrize("gains", [PI, PID])
def test_from_manual_to_automatic_without_a_bump(gains: Gains) -> None:
    manual = ManualControl(make_controller(gains, 5.0))
    for one in samples(390.0, 410.0):
        manual.step(one)
    manual.set_manual(17.0)
    by_hand = [manual.step(one) for one in samples(390.0, 600.0, 600.0)]
    manual.release()

    back = manual.step(ControlSample(9.0, 600.0, 400.0))

    assert outputs(by_hand) == [17.0] * 3
    assert all(step.mode is ControllerMode.MANUAL for step in by_hand)
    # The integral's one step, and no more; the derivative's kink is over.
    assert back.output == pytest.approx(17.0 + 0.01 * -200.0)
    assert back.mode is ControllerMode.AUTOMATIC


def test_an_outlier_is_left_out() -> None:
    steering = Hampel(Incremental(PI, start=5.0))

    steps = [steering.step(one) for one in samples(400.0, 401.0, 399.0, 5000.0, 400.0)]

    assert [step.notes for step in steps] == [(), (), (), ("outlier",), ()]
    assert (steps[3].measured_per_s, steps[3].used_per_s) == (5000.0, 400.5)


def test_a_true_step_is_believed_two_samples_late() -> None:
    steering = Hampel(Incremental(PI, start=5.0))

    steps = [
        steering.step(one)
        for one in samples(400.0, 401.0, 399.0, 400.0, 402.0, 800.0, 801.0, 799.0, 800.0)
    ]

    assert [step.used_per_s for step in steps[-4:]] == [401.0, 402.0, 799.0, 800.0]


def test_a_step_that_was_to_be_expected_is_believed_at_once() -> None:
    steering = Hampel(Incremental(PI, start=5.0))
    for one in samples(400.0, 401.0, 399.0, 400.0):
        steering.step(one)

    expected = steering.step(ControlSample(4.0, 800.0, 400.0, expected_per_s=780.0))
    unexpected = steering.step(ControlSample(5.0, 5000.0, 400.0, expected_per_s=800.0))

    assert expected.used_per_s == 800.0
    assert unexpected.notes == ("outlier",)


def test_within_the_deadband_nothing_moves() -> None:
    steering = Deadband(Incremental(PI, start=5.0), width_per_s=10.0)

    steps = [steering.step(one) for one in samples(400.0, 405.0, 392.0, 409.0)]

    assert outputs(steps) == pytest.approx([5.0] * 4)
    assert steps[1].notes == ("deadband",)
    assert steps[1].measured_per_s == 405.0
    assert steering.step(ControlSample(9.0, 300.0, 400.0)).output > 5.0


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_when_measurements_stop_it_holds_then_falls_back_and_returns(
    nothing: float | None,
) -> None:
    steering = Fallback(Incremental(PI, start=5.0), output=10.0, patience_s=3.0)
    steering.step(ControlSample(0.0, 400.0, 400.0))

    silent = [steering.step(ControlSample(float(at), nothing, 400.0)) for at in range(1, 6)]
    back = steering.step(ControlSample(6.0, 300.0, 400.0))

    assert outputs(silent) == pytest.approx([5.0, 5.0, 10.0, 10.0, 10.0])
    assert [step.mode for step in silent] == [ControllerMode.HELD] * 2 + [
        ControllerMode.FALLBACK
    ] * 3
    # From the fallback on, by the integral's one step.
    assert back.output == pytest.approx(10.0 + 0.01 * 100.0)
    assert back.mode is ControllerMode.AUTOMATIC


def test_a_sensor_that_repeats_itself_has_stopped() -> None:
    steering = Fallback(Incremental(PI, start=5.0), output=10.0, patience_s=3.0)

    steps = [
        steering.step(ControlSample(float(at), 300.0, 400.0, measured_at=0.0)) for at in range(5)
    ]

    assert [step.mode for step in steps] == [
        ControllerMode.AUTOMATIC,
        *[ControllerMode.HELD] * 2,
        *[ControllerMode.FALLBACK] * 2,
    ]


def test_a_loop_that_never_measured_falls_back_too() -> None:
    steering = Fallback(Incremental(PI, start=5.0), output=10.0, patience_s=2.0)

    steps = [steering.step(ControlSample(float(at), None, 400.0)) for at in range(4)]

    assert outputs(steps) == [5.0, 5.0, 10.0, 10.0]


def test_a_fallback_and_a_person_stay_within_the_limits() -> None:
    steering = PrefetchController(
        PI, 5.0, ControllerSettings(high=22, fallback=500, patience_s=1.0)
    )

    fallen = [steering.step(ControlSample(float(at), None, 400.0)) for at in range(4)]
    steering.manual.set_manual(0.0)
    by_hand = steering.step(ControlSample(5.0, 400.0, 400.0))

    assert fallen[-1].output == 22.0
    assert by_hand.output == 1.0
    assert by_hand.saturated is Saturation.LOW


@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_whole_controller_holds_400_with_noise_loss_outliers_and_lateness(late: int) -> None:
    gains = place_poles(PAPER, ControllerType.PI, Requirement(30)).gains
    dice = random.Random(late)
    plant = SteeredPlant(
        PAPER_A, PAPER_B, 10.0,
        ceiling_per_s=1770.0,
        late_samples=late,
        noise=lambda _: 4000.0 if dice.random() < 0.02 else dice.gauss(0.0, 20.0),
        is_lost=lambda _: dice.random() < 0.2,
    )  # fmt: skip
    steering = PrefetchController(gains, 10.0, ControllerSettings(whole=False))
    plant.run(steering, 400.0, 60)

    rates = plant.run(steering, 400.0, 400)

    assert sum(rates) / len(rates) == pytest.approx(400.0, rel=0.01)
    assert settled_after(rates, 400.0, 80.0) == 0


def test_p_shows_the_offset_that_theory_predicts() -> None:
    # y∞ = 400·0.7/(1 − 0.2631 + 0.7) = 194.9
    plant = SteeredPlant(PAPER_A, PAPER_B, 5.0)
    steering = Clamp(make_controller(Gains(ControllerType.P, 0.7 / PAPER_B), 5.0), 1, 22)

    rates = plant.run(steering, 400.0, 40)

    assert rates[-1] == pytest.approx(400.0 * 0.7 / (1.0 - PAPER_A + 0.7), rel=1e-6)


def test_the_paper_pi_controller_holds_its_target() -> None:
    plant = SteeredPlant(PAPER_A, PAPER_B, 10.0)
    steering = Clamp(make_controller(pi_gains(PAPER_A, PAPER_B, (-1.0, 0.36)), 10.0), 1, 22)
    plant.run(steering, plant.rate, 2)

    rates = plant.run(steering, 400.0, 30)

    assert settled_after(rates, 400.0, 0.02 * abs(rates[0] - 400.0)) <= 9
