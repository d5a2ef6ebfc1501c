"""The paper's numbers come out again, and formulas agree with what they are formulas of."""

from __future__ import annotations

import math

import control
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plant import PAPER_A, PAPER_B
from thoroughness import examples

from tidegate.laws.prefetch.design import (
    ControllerType,
    DesignRefused,
    Gains,
    Requirement,
    closed_loop,
    disturbed_loop,
    dominant_poles,
    p_gains,
    pi_gains,
    pid_gains,
    proportional_bounds,
    roots_within,
    steady_rate_per_s,
    step_response,
)
from tidegate.laws.prefetch.fit import LinearModel
from tidegate.tuning.result import (
    analyse_loop,
    check_gains,
    damping_of,
    design_controller,
    format_poles,
)

PAPER = LinearModel(PAPER_A, PAPER_B, 0.0)
# What the paper's PI and PID gains place.
PAPER_PI = (-1.0, 0.36)
PAPER_PID = (-0.7, -0.063, 0.11)

coefficients = st.floats(-3.0, 3.0, allow_subnormal=False)


def test_the_paper_bounds_of_kp() -> None:
    low, high = proportional_bounds(PAPER_A, PAPER_B)

    assert f"{low:.5f}" == "-0.01234"
    assert f"{high:.5f}" == "0.02115"


def test_the_paper_pi_gains() -> None:
    gains = pi_gains(PAPER_A, PAPER_B, PAPER_PI)

    assert f"{gains.proportional:.4f}" == "-0.0016"
    assert f"{gains.integral:.4f}" == "0.0060"
    assert closed_loop(PAPER_A, PAPER_B, gains).denominator == pytest.approx((1.0, *PAPER_PI))
    assert [abs(p) for p in analyse_loop(PAPER, gains).poles] == pytest.approx([0.6, 0.6])


def test_the_paper_pid_gains_to_two_units_of_the_last_printed_digit() -> None:
    gains = pid_gains(PAPER_A, PAPER_B, PAPER_PID)

    # Printed: 0.0017761, 0.0058096, 0.0018417. Not every digit follows from a and b as rounded.
    assert f"{gains.proportional:.7f}" == "0.0017763"
    assert f"{gains.integral:.7f}" == "0.0058095"
    assert f"{gains.derivative:.7f}" == "0.0018416"


def test_the_paper_pid_gains_agree_with_one_plant_that_rounds_to_the_paper_one() -> None:
    # Solved for, from the printed gains: these digits of a and b stand nowhere in the paper. That
    # there is a solution says something, as two unknowns meet three gains: Ki = 0.347/b and
    # Kd = 0.11/b leave b the same narrow interval, and Kp then says a.
    inferred_a, inferred_b = 0.263084, 59.7286

    gains = pid_gains(inferred_a, inferred_b, PAPER_PID)

    assert (f"{inferred_a:.4f}", f"{inferred_b:.2f}") == ("0.2631", "59.73")
    assert f"{gains.proportional:.7f}" == "0.0017761"
    assert f"{gains.integral:.7f}" == "0.0058096"
    assert f"{gains.derivative:.7f}" == "0.0018417"


def test_rounding_on_the_way_gives_the_paper_pid_gains_only_if_kd_is_rounded_up() -> None:
    """Kd first, Kp with it, Ki with both, each as it would have been written down."""
    a, b, (c2, c1, c0) = PAPER_A, PAPER_B, PAPER_PID

    def gains(kd: float, digits: int | None) -> tuple[str, ...]:
        def written(number: float) -> float:
            return number if digits is None else round(number, digits)

        kp = written((a - c1 - 2.0 * b * kd) / b)
        return tuple(f"{gain:.7f}" for gain in (kp, (c2 + 1.0 + a - b * kp - b * kd) / b, kd))

    printed = ("0.0017761", "0.0058096", "0.0018417")
    # To the nearest, with however many digits: never.
    for digits in range(3, 12):
        assert gains(round(c0 / b, digits), digits) != printed
    # 0.00184162 was never nearer to 0.0018417. With it as printed, Ki has every digit, and Kp,
    # 0.00177616, has them if it is cut off.
    kp, ki, kd = gains(0.0018417, None)
    assert (ki, kd) == printed[1:]
    assert kp == "0.0017762"
    assert math.floor((a - c1 - 2.0 * b * 0.0018417) / b * 1e7) / 1e7 == 0.0017761


def test_the_paper_pid_poles_are_within_the_unit_circle() -> None:
    found = check_gains(PAPER, pid_gains(PAPER_A, PAPER_B, PAPER_PID), late_samples=2)

    radii = [abs(p) for p in found.poles]
    assert [f"{radius:.2f}" for radius in radii[:2]] == ["0.56", "0.56"]
    # 0.354 and not the 0.36 of our design notes: the polynomial has two digits only.
    assert radii[2] == pytest.approx(0.36, abs=0.01)
    assert found.poles[2].real < 0.0


def test_the_paper_settles_in_about_eight_samples() -> None:
    found = check_gains(PAPER, pi_gains(PAPER_A, PAPER_B, PAPER_PI))

    assert found.predicted.settling_samples == 8
    assert dominant_poles(8.0, 0.05)[0] == pytest.approx(0.6, abs=0.01)


def test_p_at_its_bounds_is_just_unstable_and_within_them_stable() -> None:
    for bound in proportional_bounds(PAPER_A, PAPER_B):
        inside, outside = bound * 0.999, bound * 1.001
        assert roots_within(
            closed_loop(PAPER_A, PAPER_B, Gains(ControllerType.P, inside)).denominator
        )
        assert not roots_within(
            closed_loop(PAPER_A, PAPER_B, Gains(ControllerType.P, outside)).denominator
        )


def test_p_rests_below_its_target_as_computed_by_hand() -> None:
    # a = 0.5, b = 10, Kp = 0.05: y∞ = 400 · 0.5 / (1 − 0.5 + 0.5) = 200.
    gains = p_gains(0.5, 10.0, pole=0.0)

    assert gains.proportional == pytest.approx(0.05)
    assert steady_rate_per_s(LinearModel(0.5, 10.0, 0.0), gains, 400.0) == pytest.approx(200.0)
    # An offset of the plant of 50 msg/s is divided alike.
    assert steady_rate_per_s(LinearModel(0.5, 10.0, 50.0), gains, 400.0) == pytest.approx(250.0)
    assert analyse_loop(LinearModel(0.5, 10.0, 0.0), gains).offset == pytest.approx(0.5)


def test_the_wanted_pair_by_hand() -> None:
    # k_s = 4: r = 1/e. Mp = e^(−π): θ = π · (−1) / (−π) = 1.
    radius, angle = dominant_poles(4.0, math.exp(-math.pi))

    assert radius == pytest.approx(1.0 / math.e)
    assert angle == pytest.approx(1.0)
    assert dominant_poles(4.0, 0.0)[1] == 0.0


def test_a_deadbeat_loop_is_there_after_one_sample_if_the_target_is_weighed_by_nothing() -> None:
    # Both poles at 0: Kp = a/b, Ki = 1/b.
    gains = pi_gains(0.5, 10.0, (0.0, 0.0))
    by_hand = [0.0, 1.0 + 0.5, 1.0, 1.0]

    assert step_response(closed_loop(0.5, 10.0, gains), 4) == pytest.approx(by_hand)
    unweighted = Gains(ControllerType.PI, gains.proportional, gains.integral, setpoint_weight=0.0)
    assert step_response(closed_loop(0.5, 10.0, unweighted), 4) == pytest.approx([0, 1, 1, 1])


def test_the_zero_of_the_closed_loop_adds_overshoot_and_is_seen() -> None:
    # A slow plant under a fast loop: Kp is large, and its kick overshoots.
    radius, angle = dominant_poles(8.0, 0.05)
    wanted = (-2.0 * radius * math.cos(angle), radius * radius)

    found = analyse_loop(LinearModel(0.95, 10.0, 0.0), pi_gains(0.95, 10.0, wanted))

    assert found.predicted.overshoot > 0.15
    assert found.zeros[0].real == pytest.approx(
        found.gains.proportional / (found.gains.proportional + found.gains.integral)
    )


@given(st.lists(coefficients, min_size=1, max_size=6), st.floats(0.3, 1.2))
def test_schur_and_cohn_agree_with_the_roots(tail: list[float], radius: float) -> None:
    polynomial = (1.0, *tail)
    largest = float(np.max(np.abs(np.roots(polynomial)), initial=0.0))

    # On the circle itself rounding decides.
    if abs(largest - radius) > 1e-3:
        assert roots_within(polynomial, radius) == (largest < radius)


@settings(max_examples=examples(40))
@given(
    a=st.floats(-0.9, 0.9),
    kind=st.sampled_from(ControllerType),
    kp=st.floats(-0.1, 0.1),
    ki=st.floats(0.001, 0.1),
    kd=st.floats(0.0, 0.05),
    weight=st.floats(0.0, 1.0),
    late=st.integers(0, 2),
)
def test_closed_loops_are_those_that_python_control_builds_from_the_laws(
    a: float, kind: ControllerType, kp: float, ki: float, kd: float, weight: float, late: int
) -> None:
    b = 5.0
    z = control.TransferFunction([1, 0], [1], dt=True)
    ki, kd = (0.0 if kind is ControllerType.P else ki), (kd if kind is ControllerType.PID else 0.0)
    gains = Gains(kind, kp, ki, kd, weight)
    of_rate = kp + 0 * z
    of_target = weight * kp + 0 * z
    if kind is not ControllerType.P:
        of_rate += ki * z / (z - 1)
        of_target += ki * z / (z - 1)
    if kind is ControllerType.PID:
        of_rate += kd * (z - 1) / z
        of_target += weight * kd * (z - 1) / z
    plant = b / (z - a)
    theirs = of_target * plant / (1 + of_rate * plant * z**-late)
    disturbed = 1 / (1 + of_rate * plant)

    ours = closed_loop(a, b, gains, late)
    for point in (0.9 + 0.3j, -1.2 + 0.1j, 1.5 + 0j):
        at = np.polyval(ours.numerator, point) / np.polyval(ours.denominator, point)
        assert at == pytest.approx(theirs(point), rel=1e-6)
        shifted = disturbed_loop(a, b, gains)
        at = np.polyval(shifted.numerator, point) / np.polyval(shifted.denominator, point)
        assert at == pytest.approx(disturbed(point), rel=1e-6)


@settings(max_examples=examples(30), deadline=None)
@given(
    a=st.floats(0.0, 0.95),
    settling=st.integers(16, 60),
    kind=st.sampled_from([*ControllerType][1:]),
)
def test_two_simulations_predict_the_same(a: float, settling: int, kind: ControllerType) -> None:
    found = design_controller(LinearModel(a, 20.0, 0.0), kind, Requirement(settling))

    ours = step_response(closed_loop(a, 20.0, found.gains), 100)
    assert found.response_per_s(300.0, 100) == pytest.approx([300.0 * y for y in ours], abs=1e-6)
    assert found.predicted.settling_samples <= settling
    assert found.predicted.overshoot <= 0.05 + 1e-6


def test_an_unstable_design_is_refused_with_its_poles() -> None:
    with pytest.raises(DesignRefused, match=r"unstable.*poles -1\.05 must lie within"):
        check_gains(PAPER, Gains(ControllerType.P, 0.022))


def test_a_badly_damped_design_is_refused_with_its_poles() -> None:
    # r = 0.95 at an angle of 1: swings for a hundred samples.
    swinging = pi_gains(PAPER_A, PAPER_B, (-2.0 * 0.95 * math.cos(1.0), 0.95**2))

    with pytest.raises(DesignRefused, match=r"badly damped.*0\.513±0\.799i \(\|z\| = 0\.95\)"):
        check_gains(PAPER, swinging)


def test_a_design_that_no_late_measurement_may_meet_is_refused() -> None:
    deadbeat = pi_gains(PAPER_A, PAPER_B, (0.0, 0.0))

    assert check_gains(PAPER, deadbeat).predicted.settling_samples == 2
    with pytest.raises(DesignRefused, match="bear no late measurement"):
        check_gains(PAPER, deadbeat, late_samples=1)


def test_design_refuses_a_too_short_settling_time_with_the_shortest() -> None:
    with pytest.raises(DesignRefused, match=r"5 samples could be had.*poles at .*±") as refused:
        design_controller(PAPER, ControllerType.PI, Requirement(4, late_samples=2))

    assert refused.value.gains is not None
    assert design_controller(PAPER, ControllerType.PI, Requirement(5)).is_stable


def test_poles_read_well() -> None:
    assert format_poles((0.5 + 0.25j, 0.5 - 0.25j, -0.36 + 0j)) == "0.5±0.25i (|z| = 0.559), -0.36"
    assert damping_of(0.5 + 0j) == pytest.approx(1.0)
    assert damping_of(1j) == pytest.approx(0.0)
    assert damping_of(-0.36 + 0j) == pytest.approx(0.309, abs=0.001)
