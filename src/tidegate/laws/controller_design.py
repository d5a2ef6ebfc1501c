"""Gains from what people understand: a settling time, an overshoot, how late a measurement may be.

The poles that the formulas want (pole_placement) are where the search starts, and if the simulated
step keeps what was asked, they are taken. Else, in this order:
1. the target is weighed less, as the closed loop's zero overshoots (a > r²);
2. the poles are moved inwards: r = e^(−4/k_s) is the envelope, and a pair of real poles needs some
   more to be within 2 % after k_s samples;
3. one pole stays where the plant has it and is cancelled by the zero (Kp = a·(1−p)/b,
   Ki = (1−p)·(1−a)/b): slow, without overshoot, and of all designs the one least hurt by lateness.
For PID the third pole has the sign that makes Kd positive: negative, as in the paper, if a > 0.

A step of the target is not all that happens. A disturbance (a burst, a slower handler) that shifts
the rate must not be made larger by the controller, and must have gone within the same time: for a
plant much faster than r the formulas' Kp is so negative that it would be made half as large again.
And a measurement may come late. So a design counts only if its loop is stable too with every
measurement late by one sample, by two, up to what was asked for. What no design keeps is refused,
with the shortest settling time that one would keep. Standard library only, some milliseconds.
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
# Of the settling time asked for, by which the poles are placed.
HASTE = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
# Of the angle that the overshoot allows: 0 are two real poles.
ANGLES = (1.0, 0.5, 0.0)
# The paper's third pole is at −0.36 beside a pair of 0.56. Nearer to −1 it only amplifies noise.
THIRD_POLE_MAX = 0.36
THIRD_POLE_FRACTIONS = (0.64, 0.32, 0.16)
# How many times slower a loop may become by late measurements; it must not stop settling.
LATE_SLOWDOWN = 25.0
# Simulated for so many settling times: what comes back later is in the poles, which are checked.
HORIZON = 4
# Of a disturbance, what may be left after the settling time.
CALMED_BAND = 0.05
LATE_SAMPLES_MAX = 20
OVERSHOOT_MAX = 0.5
SETTLING_MAX = 10_000
# Longer settling times, each by a fifth, before a refusal says that none would do.
LONGER_TRIED = 12
ROUNDING = 1e-9


class DesignRefused(ValueError):
    """No controller keeps what was asked for, or the given one is no good."""

    def __init__(self, reason: str, gains: Gains | None = None) -> None:
        super().__init__(reason)
        # What the formulas gave, to be looked at.
        self.gains = gains


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a closed loop is to do after a step of its target."""

    # Until it is within 2 % of where it goes.
    settling_samples: int
    # Of the step.
    overshoot: float = 0.05
    # By how many samples measurements may be late without making the loop unstable.
    late_samples: int = 2
    # Whether the design that lateness and another plant hurt least is tried first: for loops that
    # run on whatever comes, where the formulas' own is for comparing with the paper.
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
    """Gains that keep what was asked, and what the simulation of the model predicts for them."""

    gains: Gains
    predicted: StepFigures


def place(model: Model, kind: Kind, requirement: Requirement) -> Placed:
    """The first design that keeps the requirement, beginning with the formulas' own."""
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
    """The same, and None where nothing keeps it: nobody looks for what would."""
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
    """Whether the loop settles, however slowly, with measurements that late and less."""
    slowest = math.exp(-4.0 / (LATE_SLOWDOWN * requirement.settling_samples))
    return all(
        roots_within(closed_loop(a, b, gains, late).denominator, slowest)
        for late in range(requirement.late_samples + 1)
    )


def _calms(a: float, b: float, gains: Gains, requirement: Requirement) -> bool:
    """Whether a shift of the rate by 1 is not made larger, and is undone in time."""
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
    """Designs in the order in which they are wanted."""
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
    """The plant's own pole stays, and the controller's zero cancels it."""
    slowest = _slowest_pole(requirement)
    if abs(a) <= slowest:
        for haste in HASTE:
            pole = slowest ** (1.0 / haste)
            yield from _with_third_pole(a, b, kind, -pole - a, pole * a)


def _with_third_pole(a: float, b: float, kind: Kind, c1: float, c0: float) -> Iterator[Gains]:
    """Gains for z² + c1·z + c0, which PID multiplies by a third pole."""
    if kind is Kind.PI:
        yield pi_gains(a, b, (c1, c0))
        return
    for fraction in THIRD_POLE_FRACTIONS:
        third = -math.copysign(min(fraction * math.sqrt(abs(c0)), THIRD_POLE_MAX), c0)
        yield pid_gains(a, b, (c1 - third, c0 - c1 * third, -c0 * third))


def _p_candidates(a: float, b: float, requirement: Requirement) -> Iterator[Gains]:
    """The largest gain first, as it leaves the smallest offset: a pole p < 0 overshoots by −p."""
    slowest = _slowest_pole(requirement)
    fastest = -min(slowest, requirement.overshoot)
    steps = 20
    for step in range(steps + 1):
        pole = fastest + (slowest - fastest) * step / steps
        # Kp ≤ 0 would steer the wrong way.
        if pole < a:
            yield p_gains(a, b, pole)


def _slowest_pole(requirement: Requirement) -> float:
    """p with p^k_s within the band."""
    return math.pow(SETTLED_BAND * (1.0 - ROUNDING), 1.0 / requirement.settling_samples)


def _shortest(a: float, b: float, kind: Kind, requirement: Requirement) -> str:
    """In words: the settling time that could be had."""
    samples = requirement.settling_samples
    for _ in range(LONGER_TRIED):
        samples = min(max(samples + 1, int(samples * 1.2)), SETTLING_MAX)
        longer = replace(requirement, settling_samples=samples)
        if _search(a, b, kind, longer) is not None:
            return f"{samples} samples could be had, or measure faster"
    return "nor would a longer settling time do; allow more overshoot or less lateness"
