"""Controller design from a settling time, an overshoot and a tolerated lateness of measurements.

The search starts with the poles that the formulas of pole placement give. If the simulated step
keeps the requirement, these gains are used. Otherwise the search tries, in this order:
1. A smaller weight of the target, because the closed loop's zero overshoots (a > r²).
2. Poles further inside. r = e^(−4/k_s) is only the envelope, and a pair of real poles needs some
   more to be within 2 % after k_s samples.
3. One pole at the plant's own pole, where the zero cancels it (Kp = a·(1−p)/b, Ki = (1−p)·(1−a)/b).
   This design is slow, has no overshoot, and suffers least from lateness.

For PID the third pole has the sign that makes Kd positive: negative, as in the paper, if a > 0.

A step of the target is not the only event. A disturbance (a burst, a slower handler) shifts the
rate; the controller must not amplify it and must remove it within the same time. For a plant much
faster than r the formulas give a Kp so negative that it would amplify the disturbance by half.
Measurements may also come late. So a design counts only if its loop is stable with measurements
that are late by 0, 1, … up to `late_samples` samples.

If no design keeps a requirement, it is refused with the shortest settling time that a design would
keep. The module uses the standard library only and takes some milliseconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import mul
from typing import NamedTuple

from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.core.reasons import Explanation, Reason
from tidegate.laws.prefetch.fit import LinearModel

SETPOINT_WEIGHTS = (1.0, 0.75, 0.5, 0.25, 0.0)
# Fractions of the required settling time for which the poles are placed.
HASTE = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
# Fractions of the angle that the overshoot allows; 0 means two real poles.
ANGLES = (1.0, 0.5, 0.0)
# The paper's third pole is at −0.36 beside a pair of 0.56. Nearer to −1 it only amplifies noise.
THIRD_POLE_MAX = 0.36
THIRD_POLE_FRACTIONS = (0.64, 0.32, 0.16)
# How many times slower a loop may become by late measurements; it must still settle.
LATE_SLOWDOWN = 25.0
# Settling times to simulate. Later deviations show in the poles, which are checked too.
HORIZON = 4
# Fraction of a disturbance that may remain after the settling time.
CALMED_BAND = 0.05
LATE_SAMPLES_MAX = 20
OVERSHOOT_MAX = 0.5
SETTLING_MAX = 10_000
# Number of longer settling times, each a fifth more, that a refusal tries.
LONGER_TRIED = 12
DESIGN_ROUNDING = 1e-9


class DesignRefused(ValueError):
    """No controller keeps the requirement, or the given gains are refused."""

    def __init__(self, reason: str, gains: Gains | None = None) -> None:
        super().__init__(reason)
        # The gains that the formulas gave, for inspection.
        self.gains = gains


@dataclass(frozen=True, slots=True)
class Requirement:
    """The required behaviour of a closed loop after a step of its target."""

    # Samples until the rate stays within 2 % of its final value.
    settling_samples: int
    # Overshoot as a fraction of the step.
    overshoot: float = 0.05
    # Lateness of measurements, in samples, with which the loop must stay stable.
    late_samples: int = 2
    # Whether to try the design first that suffers least from lateness and from another plant.
    # Running loops set it; a comparison with the paper uses the formulas' own design first.
    is_calm: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.settling_samples <= SETTLING_MAX:
            raise DesignRefused(
                f"a settling time of {self.settling_samples} samples cannot be had: ask for "
                f"1 to {SETTLING_MAX}, or change the sampling interval"
            )
        if not 0.0 <= self.overshoot <= OVERSHOOT_MAX:
            raise DesignRefused(
                f"an overshoot of {self.overshoot:g} of the step: ask for 0 to {OVERSHOOT_MAX:g}, "
                "as more is badly damped and swings for long"
            )
        if not 0 <= self.late_samples <= LATE_SAMPLES_MAX:
            raise DesignRefused(
                f"measurements that are late by {self.late_samples} samples: the sampling interval "
                f"must be long enough for 0 to {LATE_SAMPLES_MAX}"
            )


@dataclass(frozen=True, slots=True)
class PlacedGains:
    """Gains that keep the requirement, and the response that the model predicts for them."""

    gains: Gains
    predicted: StepResponse


def place_poles(model: LinearModel, kind: ControllerType, requirement: Requirement) -> PlacedGains:
    """Return the first design that keeps the requirement.

    Raises `DesignRefused` if there is none, with the shortest settling time that would do.
    """
    placed = find_design(model, kind, requirement)
    if placed is not None:
        return placed
    a, b = float(model.a), float(model.b)
    nominal = next(_candidates(a, b, kind, requirement), None)
    raise DesignRefused(
        f"no {kind} controller settles within {requirement.settling_samples} samples with at most "
        f"{requirement.overshoot:.0%} overshoot and bears measurements that are late by "
        f"{requirement.late_samples}: {_shortest(a, b, kind, requirement)}",
        nominal,
    )


def find_design(
    model: LinearModel, kind: ControllerType, requirement: Requirement
) -> PlacedGains | None:
    """Return the first design that keeps the requirement, or `None`.

    Raises `DesignRefused` if the model is no plant that a prefetch can control.
    """
    a, b = float(model.a), float(model.b)
    if not (abs(a) < 1.0 and b > 0.0 and math.isfinite(b)):
        raise DesignRefused(
            f"a = {a:.4g}, b = {b:.4g} is no plant that can be steered by its prefetch: "
            "|a| < 1 and b > 0 are needed; identify it again"
        )
    return _search(a, b, kind, requirement)


def _search(
    a: float, b: float, kind: ControllerType, requirement: Requirement
) -> PlacedGains | None:
    for gains in _candidates(a, b, kind, requirement):
        if not (tolerates_lateness(a, b, gains, requirement) and _calms(a, b, gains, requirement)):
            continue
        weights = SETPOINT_WEIGHTS[:1] if kind is ControllerType.P else SETPOINT_WEIGHTS
        for weight in weights:
            tried = with_setpoint_weight(gains, weight)
            predicted = _predict(a, b, tried, requirement)
            if (
                predicted.settling_samples <= requirement.settling_samples
                and predicted.overshoot <= requirement.overshoot + DESIGN_ROUNDING
            ):
                return PlacedGains(tried, predicted)
    return None


def tolerates_lateness(a: float, b: float, gains: Gains, requirement: Requirement) -> bool:
    """Return whether the loop settles, however slowly, with late measurements."""
    slowest = math.exp(-4.0 / (LATE_SLOWDOWN * requirement.settling_samples))
    return all(
        roots_within(closed_loop(a, b, gains, late).denominator, slowest)
        for late in range(requirement.late_samples + 1)
    )


def _calms(a: float, b: float, gains: Gains, requirement: Requirement) -> bool:
    """Return whether the loop removes a disturbance of the rate in time without amplifying it."""
    if gains.kind is ControllerType.P:
        return True
    within = requirement.settling_samples
    deviations = step_response(disturbed_loop(a, b, gains), HORIZON * within + 2)
    return max(deviations) <= 1.0 + requirement.overshoot + DESIGN_ROUNDING and all(
        abs(deviation) <= CALMED_BAND for deviation in deviations[within:]
    )


def _predict(a: float, b: float, gains: Gains, requirement: Requirement) -> StepResponse:
    loop = closed_loop(a, b, gains)
    final = sum(loop.numerator) / sum(loop.denominator)
    return analyse_step(step_response(loop, HORIZON * requirement.settling_samples + 2), final)


def _candidates(
    a: float, b: float, kind: ControllerType, requirement: Requirement
) -> Iterator[Gains]:
    """Generate the designs in order of preference."""
    if kind is ControllerType.P:
        yield from _p_candidates(a, b, requirement)
        return
    if requirement.is_calm:
        yield from _cancelling(a, b, kind, requirement)
    for haste in HASTE:
        radius, full_angle = dominant_poles(
            haste * requirement.settling_samples, requirement.overshoot
        )
        for part in ANGLES:
            c1 = -2.0 * radius * math.cos(part * full_angle)
            yield from _with_third_pole(a, b, kind, c1, radius * radius)
    if not requirement.is_calm:
        yield from _cancelling(a, b, kind, requirement)


def _cancelling(
    a: float, b: float, kind: ControllerType, requirement: Requirement
) -> Iterator[Gains]:
    """Generate designs that keep the plant's own pole and cancel it by the controller's zero."""
    slowest = _slowest_pole(requirement)
    if abs(a) <= slowest:
        for haste in HASTE:
            pole = slowest ** (1.0 / haste)
            yield from _with_third_pole(a, b, kind, -pole - a, pole * a)


def _with_third_pole(
    a: float, b: float, kind: ControllerType, c1: float, c0: float
) -> Iterator[Gains]:
    """Generate gains for z² + c1·z + c0; for PID, times a third pole."""
    if kind is ControllerType.PI:
        yield pi_gains(a, b, (c1, c0))
        return
    for fraction in THIRD_POLE_FRACTIONS:
        third = -math.copysign(min(fraction * math.sqrt(abs(c0)), THIRD_POLE_MAX), c0)
        yield pid_gains(a, b, (c1 - third, c0 - c1 * third, -c0 * third))


def _p_candidates(a: float, b: float, requirement: Requirement) -> Iterator[Gains]:
    """Generate P designs from the largest gain down; it leaves the smallest steady-state error.

    A pole p < 0 overshoots by −p.
    """
    slowest = _slowest_pole(requirement)
    fastest = -min(slowest, requirement.overshoot)
    steps = 20
    for step in range(steps + 1):
        pole = fastest + (slowest - fastest) * step / steps
        # Kp ≤ 0 would act in the wrong direction.
        if pole < a:
            yield p_gains(a, b, pole)


def _slowest_pole(requirement: Requirement) -> float:
    """Return the pole p whose p^k_s is within the settling band."""
    return math.pow(SETTLED_BAND * (1.0 - DESIGN_ROUNDING), 1.0 / requirement.settling_samples)


def _shortest(a: float, b: float, kind: ControllerType, requirement: Requirement) -> str:
    """Describe the shortest settling time that some design keeps."""
    samples = requirement.settling_samples
    for _ in range(LONGER_TRIED):
        samples = min(max(samples + 1, int(samples * 1.2)), SETTLING_MAX)
        longer = replace(requirement, settling_samples=samples)
        if _search(a, b, kind, longer) is not None:
            return f"{samples} samples could be had, or measure faster"
    return "nor would a longer settling time do; allow more overshoot or less lateness"


# -- pole_placement --
# Pole placement: gains of P, PI and PID controllers from the wanted poles of the closed loop.
#
#     plant   y(k+1) = a·y(k) + b·u(k)          y arrival rate (msg/s), u prefetch, e = target − y
#     P       u(k) = Kp·e(k)                    pole a − b·Kp, so stable iff (a−1)/b < Kp < (1+a)/b
#             y∞ = target·Kp·b / (1 − a + Kp·b): it keeps a steady-state error
#     PI      u(k) = u(k−1) + (Kp+Ki)·e(k) − Kp·e(k−1)
#             z² + [b(Kp+Ki) − (1+a)]·z + a − b·Kp
#     PID     u(k) = Kp·e(k) + Ki·Σe(i) + Kd·[e(k) − e(k−1)]
#             z³ + [b(Kp+Ki+Kd) − (1+a)]·z² + [a − b(Kp+2Kd)]·z + b·Kd
#
# The gains follow by comparing coefficients with the wanted polynomial. The paper has three
# misprints: Ki = (a+Kp·b)/b for PI, −0.063 in Kp, and one Kd·e(k) too many for PID. Its numbers
# follow from the formulas above.
#
#     settling within k_s samples, overshoot Mp:  r = e^(−4/k_s),  θ = π·ln r / ln Mp
#     wanted z² − 2r·cosθ·z + r²
#
# A controller may weigh the target less than the measurement in its P and D parts (setpoint weight
# w: Kp·(w·target − y)). That moves the zero of the closed loop, which causes overshoot, and moves
# no pole. The module uses the standard library only: a node that redesigns its controllers needs no
# numpy.


class ControllerType(StrEnum):
    """The type of a controller."""

    P = "P"
    PI = "PI"
    PID = "PID"


@dataclass(frozen=True, slots=True)
class Gains:
    """The gains of one controller. They hold for one sampling interval."""

    kind: ControllerType
    # Kp, Ki, Kd: prefetch per msg/s of error.
    proportional: float
    integral: float = 0.0
    derivative: float = 0.0
    # Weight of the target in the P and D parts.
    setpoint_weight: float = 1.0

    def __str__(self) -> str:
        parts = [f"Kp = {self.proportional:.5g}"]
        if self.kind is not ControllerType.P:
            parts.append(f"Ki = {self.integral:.5g}")
        if self.kind is ControllerType.PID:
            parts.append(f"Kd = {self.derivative:.5g}")
        if self.setpoint_weight != 1.0:
            parts.append(f"setpoint weight {self.setpoint_weight:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Polynomials:
    """A closed loop from target to rate: numerator and denominator, highest power first."""

    numerator: tuple[float, ...]
    denominator: tuple[float, ...]


def p_gains(a: float, b: float, pole: float) -> Gains:
    """Return the P controller whose closed loop has this pole."""
    return Gains(ControllerType.P, (a - pole) / b)


def pi_gains(a: float, b: float, wanted: Sequence[float]) -> Gains:
    """Return the PI controller for the wanted z² + c1·z + c0, given as (c1, c0)."""
    c1, c0 = wanted
    proportional = (a - c0) / b
    return Gains(ControllerType.PI, proportional, (c1 + 1.0 + a - b * proportional) / b)


def pid_gains(a: float, b: float, wanted: Sequence[float]) -> Gains:
    """Return the PID controller for the wanted z³ + c2·z² + c1·z + c0, given as (c2, c1, c0)."""
    c2, c1, c0 = wanted
    derivative = c0 / b
    proportional = (a - c1 - 2.0 * b * derivative) / b
    integral = (c2 + 1.0 + a - b * proportional - b * derivative) / b
    return Gains(ControllerType.PID, proportional, integral, derivative)


def proportional_bounds(a: float, b: float) -> tuple[float, float]:
    """Return the limits of Kp between which a P controller is stable."""
    return (a - 1.0) / b, (1.0 + a) / b


def steady_rate_per_s(model: LinearModel, gains: Gains, target_per_s: float) -> float:
    """Return the steady-state rate: the target with an integral, and off it without."""
    if gains.kind is not ControllerType.P:
        return target_per_s
    loop = model.b * gains.proportional
    return float((loop * target_per_s + model.offset_per_s) / (1.0 - model.a + loop))


def dominant_poles(settling_samples: float, overshoot: float) -> tuple[float, float]:
    """Return radius r and angle θ of the pole pair for this settling time and overshoot."""
    radius = math.exp(-4.0 / settling_samples)
    # ln 0 is −∞: without overshoot the angle is 0.
    angle = math.pi * math.log(radius) / math.log(overshoot) if overshoot > 0.0 else 0.0
    return radius, min(angle, math.pi)


def closed_loop(a: float, b: float, gains: Gains, late_samples: int = 0) -> Polynomials:
    """Return the loop from target to rate with measurements that are late by so many samples."""
    kp, ki, kd = gains.proportional, gains.integral, gains.derivative
    w = gains.setpoint_weight
    feedback: tuple[float, ...]
    forward: tuple[float, ...]
    open_loop: tuple[float, ...]
    match gains.kind:
        case ControllerType.P:
            feedback, forward = (kp,), (w * kp,)
            open_loop = (1.0, -a)
        case ControllerType.PI:
            feedback, forward = (kp + ki, -kp), (w * kp + ki, -w * kp)
            open_loop = (1.0, -1.0 - a, a)
        case ControllerType.PID:
            feedback = (kp + ki + kd, -kp - 2.0 * kd, kd)
            forward = (w * (kp + kd) + ki, -w * (kp + 2.0 * kd), w * kd)
            open_loop = (1.0, -1.0 - a, a, 0.0)
    delayed = open_loop + (0.0,) * late_samples
    fed_back = (0.0,) * (len(delayed) - len(feedback)) + tuple(b * c for c in feedback)
    return Polynomials(
        numerator=tuple(b * c for c in forward) + (0.0,) * late_samples,
        denominator=tuple(x + y for x, y in zip(delayed, fed_back, strict=True)),
    )


def roots_within(polynomial: Sequence[float], radius: float = 1.0) -> bool:
    """Return whether all roots lie inside the circle, by the Schur–Cohn test."""
    degree = len(polynomial) - 1
    c = [x * radius ** (degree - i) for i, x in enumerate(polynomial)]
    while len(c) > 1:
        first, last = c[0], c[-1]
        if not abs(last) < abs(first):
            return False
        # Divide by the first coefficient, so that no coefficient overflows.
        c = [c[i] - last / first * c[-1 - i] for i in range(len(c) - 1)]
    return True


def disturbed_loop(a: float, b: float, gains: Gains) -> Polynomials:
    """Return the loop from an additive disturbance of the rate to the rate: 1 / (1 + open loop)."""
    undisturbed = Gains(gains.kind, 0.0)
    return Polynomials(
        numerator=closed_loop(a, b, undisturbed).denominator,
        denominator=closed_loop(a, b, gains).denominator,
    )


def step_response(loop: Polynomials, samples: int) -> list[float]:
    """Return the response to a unit step of the input, computed by the difference equation."""
    order = len(loop.denominator) - 1
    lag = order + 1 - len(loop.numerator)
    past = [c / loop.denominator[0] for c in loop.denominator[1:]]
    # The input is 0 before sample 0, so each sample adds one coefficient.
    driven = [
        sum(loop.numerator[: max(k - lag + 1, 0)]) / loop.denominator[0] for k in range(order + 1)
    ]
    recent = deque([0.0] * order, maxlen=order)
    response: list[float] = []
    for k in range(samples):
        out = driven[min(k, order)] - sum(map(mul, past, recent))
        recent.appendleft(out)
        response.append(out)
    return response


def with_setpoint_weight(gains: Gains, setpoint_weight: float) -> Gains:
    """Return the same gains with another setpoint weight: the same poles and another zero."""
    return replace(gains, setpoint_weight=setpoint_weight)


# -- prefetch_design --
# Design of a running prefetch loop: from a goal and a model to gains.
#
#     design = design_for(goal, resample_model(model, goal.sample_s))
#
# The design first tries to keep the requested settling time with the largest possible reserve. If
# no design does, it allows a longer settling time and reports it. If that fails too, the gains are
# 0, which holds the prefetch. The module uses the standard library only.


# Fraction of the settling time that a design may need on its model. On a plant with half the
# response, such as behind a round trip twice as long, the same gains take nearly twice as long.
IN_RESERVE = 0.55
# Factor of each extension of an unattainable settling time, and its limit: a multiple of the
# requested samples plus a constant, so that a goal of a few samples can be extended enough.
LONGER, LONGEST, LONGEST_AT_LEAST = 1.25, 2.0, 40


class PrefetchDesign(NamedTuple):
    """Gains, and the requirement that they keep."""

    gains: Gains
    requirement: Requirement
    # The part of the goal that is not kept. `None` means that all of it is.
    given_up: Explanation | None


def design_for(goal: PrefetchGoal, model: LinearModel) -> PrefetchDesign:
    """Return the gains for a goal: in the requested time with reserve, else in a longer time."""
    kind = ControllerType(goal.controller.value)
    samples = int(goal.settle_s / goal.sample_s)
    tried = asked = design_requirement(goal)
    while tried.settling_samples <= LONGEST * samples + LONGEST_AT_LEAST:
        placed = find_design(model, kind, tried)
        if placed is None:
            longer = math.ceil(LONGER * tried.settling_samples)
            tried = replace(tried, settling_samples=longer)
            continue
        settle_s = tried.settling_samples * goal.sample_s
        later = Reason.SETTLES_LATER(asked_s=goal.settle_s, settle_s=settle_s)
        in_time = tried.settling_samples <= samples
        return PrefetchDesign(placed.gains, tried, None if in_time else later)
    return PrefetchDesign(Gains(kind, 0.0), asked, Reason.GOAL_NOT_KEPT(a=model.a, b=model.b))


def predicted_offset(
    goal: PrefetchGoal, model: LinearModel, gains: Gains, target_per_s: float
) -> Explanation | None:
    """Return the steady-state error that the model predicts for P.

    Returns `None` if the error is within the settling band, and for PI and PID.
    """
    if gains.kind is not ControllerType.P or not target_per_s > 0.0:
        return None
    error_per_s = target_per_s - steady_rate_per_s(model, gains, target_per_s)
    prefetch = min(max(gains.proportional * error_per_s, float(goal.low)), float(goal.high))
    rests_per_s = (model.b * prefetch + model.offset_per_s) / (1.0 - model.a)
    if abs(target_per_s - rests_per_s) <= SETTLED_BAND * target_per_s:
        return None
    return Reason.OFFSET_OF_P(rests_per_s=rests_per_s, prefetch=prefetch, target_per_s=target_per_s)


def design_requirement(goal: PrefetchGoal) -> Requirement:
    """Return the requirement for a running loop: with reserve, and preferring the calm design."""
    samples = goal.settle_s / goal.sample_s
    return Requirement(
        max(math.ceil(IN_RESERVE * samples), 1), overshoot=goal.overshoot, is_calm=True
    )


def resample_model(model: PrefetchModel, sample_s: float) -> LinearModel:
    """Return the model for samples of another length, equally fast in seconds and equal at rest."""
    known = LinearModel(model.a, model.b, model.offset_per_s)
    return stretch_model(known, sample_s / model.sample_s)


def stretch_model(model: LinearModel, times: float) -> LinearModel:
    """Return the model for samples that are `times` as long."""
    if times == 1.0:
        return model
    # An a below 0 alternates from sample to sample, which no other interval can show.
    a = model.a**times if model.a > 0.0 else 0.0
    scale = (1.0 - a) / (1.0 - model.a)
    return LinearModel(a, model.b * scale, model.offset_per_s * scale)


# -- step_figures --
# Settling time and overshoot of a step response.
#
# settled    the first sample from which on |y(k) − y∞| ≤ 2 % of the step
# overshoot  max(y) / y∞ − 1, at least 0


SETTLED_BAND = 0.02


class StepResponse(NamedTuple):
    """Settling time and overshoot of a unit step response."""

    # Number of samples until settled; the length of the response if it never settled.
    settling_samples: int
    overshoot: float
    final: float


def analyse_step(rates: Sequence[float], final: float) -> StepResponse:
    """Return settling time and overshoot of a response whose final value is `final`."""
    if final == 0.0:
        # The gain is so small that nothing follows: the response has no step to settle on.
        return StepResponse(len(rates), math.inf, final)
    band = SETTLED_BAND * abs(final)
    settled = len(rates)
    while settled > 0 and abs(rates[settled - 1] - final) <= band:
        settled -= 1
    peak = max(rates, default=final) if final > 0.0 else -min(rates, default=final)
    return StepResponse(settled, max(peak / abs(final) - 1.0, 0.0), final)
