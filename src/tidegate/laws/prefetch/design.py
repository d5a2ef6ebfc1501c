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
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tidegate.laws.least_squares import Model
from tidegate.laws.pole_placement import (
    Gains,
    Kind,
    closed_loop,
    disturbed_loop,
    p_gains,
    pi_gains,
    pid_gains,
    roots_within,
    step_response,
    wanted_pair,
    weighted,
)
from tidegate.laws.step_figures import SETTLED_BAND, StepFigures, step_figures

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
ROUNDING = 1e-9


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
class Placed:
    """Gains that keep the requirement, and the response that the model predicts for them."""

    gains: Gains
    predicted: StepFigures


def place(model: Model, kind: Kind, requirement: Requirement) -> Placed:
    """Return the first design that keeps the requirement.

    Raises `DesignRefused` if there is none, with the shortest settling time that would do.
    """
    placed = find(model, kind, requirement)
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


def find(model: Model, kind: Kind, requirement: Requirement) -> Placed | None:
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


def _search(a: float, b: float, kind: Kind, requirement: Requirement) -> Placed | None:
    for gains in _candidates(a, b, kind, requirement):
        if not (bears_lateness(a, b, gains, requirement) and _calms(a, b, gains, requirement)):
            continue
        weights = SETPOINT_WEIGHTS[:1] if kind is Kind.P else SETPOINT_WEIGHTS
        for weight in weights:
            tried = weighted(gains, weight)
            predicted = _predict(a, b, tried, requirement)
            if (
                predicted.settling_samples <= requirement.settling_samples
                and predicted.overshoot <= requirement.overshoot + ROUNDING
            ):
                return Placed(tried, predicted)
    return None


def bears_lateness(a: float, b: float, gains: Gains, requirement: Requirement) -> bool:
    """Return whether the loop settles, however slowly, with late measurements."""
    slowest = math.exp(-4.0 / (LATE_SLOWDOWN * requirement.settling_samples))
    return all(
        roots_within(closed_loop(a, b, gains, late).denominator, slowest)
        for late in range(requirement.late_samples + 1)
    )


def _calms(a: float, b: float, gains: Gains, requirement: Requirement) -> bool:
    """Return whether the loop removes a disturbance of the rate in time without amplifying it."""
    if gains.kind is Kind.P:
        return True
    within = requirement.settling_samples
    deviations = step_response(disturbed_loop(a, b, gains), HORIZON * within + 2)
    return max(deviations) <= 1.0 + requirement.overshoot + ROUNDING and all(
        abs(deviation) <= CALMED_BAND for deviation in deviations[within:]
    )


def _predict(a: float, b: float, gains: Gains, requirement: Requirement) -> StepFigures:
    loop = closed_loop(a, b, gains)
    final = sum(loop.numerator) / sum(loop.denominator)
    return step_figures(step_response(loop, HORIZON * requirement.settling_samples + 2), final)


def _candidates(a: float, b: float, kind: Kind, requirement: Requirement) -> Iterator[Gains]:
    """Generate the designs in order of preference."""
    if kind is Kind.P:
        yield from _p_candidates(a, b, requirement)
        return
    if requirement.is_calm:
        yield from _cancelling(a, b, kind, requirement)
    for haste in HASTE:
        radius, full_angle = wanted_pair(
            haste * requirement.settling_samples, requirement.overshoot
        )
        for part in ANGLES:
            c1 = -2.0 * radius * math.cos(part * full_angle)
            yield from _with_third_pole(a, b, kind, c1, radius * radius)
    if not requirement.is_calm:
        yield from _cancelling(a, b, kind, requirement)


def _cancelling(a: float, b: float, kind: Kind, requirement: Requirement) -> Iterator[Gains]:
    """Generate designs that keep the plant's own pole and cancel it by the controller's zero."""
    slowest = _slowest_pole(requirement)
    if abs(a) <= slowest:
        for haste in HASTE:
            pole = slowest ** (1.0 / haste)
            yield from _with_third_pole(a, b, kind, -pole - a, pole * a)


def _with_third_pole(a: float, b: float, kind: Kind, c1: float, c0: float) -> Iterator[Gains]:
    """Generate gains for z² + c1·z + c0; for PID, times a third pole."""
    if kind is Kind.PI:
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
    return math.pow(SETTLED_BAND * (1.0 - ROUNDING), 1.0 / requirement.settling_samples)


def _shortest(a: float, b: float, kind: Kind, requirement: Requirement) -> str:
    """Describe the shortest settling time that some design keeps."""
    samples = requirement.settling_samples
    for _ in range(LONGER_TRIED):
        samples = min(max(samples + 1, int(samples * 1.2)), SETTLING_MAX)
        longer = replace(requirement, settling_samples=samples)
        if _search(a, b, kind, longer) is not None:
            return f"{samples} samples could be had, or measure faster"
    return "nor would a longer settling time do; allow more overshoot or less lateness"
