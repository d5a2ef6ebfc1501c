"""Learned warning points: the margin is the worsening during one reconfiguration.

    margin = 1.25 · slope · reconfiguration time        at least 5 % of the breaching point

The slope is the fastest worsening that was measured. The reconfiguration time comes from recorded
reconfigurations. The factor of 1.25 leaves room for a faster worsening than was measured.

If the margin would reach the breaching point (for a fraction: 1 − breach), no warning can be in
time. The default warning point then stays, and the lesson says so. Otherwise the warning of a
metric that is worse when smaller would lie far above the breach and would never end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from tidegate.agreement.document import Agreement
from tidegate.agreement.metrics import Metric, Unit, Worse
from tidegate.agreement.quantity_words import worded
from tidegate.core.term import Term

SAFETY = 1.25
MARGIN_MIN = 0.05


@dataclass(frozen=True)
class Lesson:
    """The learned warning point of one metric, with the reason."""

    metric: str
    warning: float
    because: str


def worsening_per_s(worse: Worse, before: Term, value: Term, seconds: Term) -> Term:
    """Return how fast a metric got worse between two values; negative if it got better."""
    grown = value - before if worse is Worse.LARGER else before - value
    return grown / seconds


def slope_seen(metric: Metric, readings: Iterable[tuple[float, float]]) -> float | None:
    """Return the fastest worsening in (at, value) readings in time order; None without pairs."""
    slopes = [
        worsening_per_s(metric.worse, before, value, at_s - before_s)
        for (before_s, before), (at_s, value) in pairwise(readings)
        if at_s > before_s and math.isfinite(value) and math.isfinite(before)
    ]
    return max(0.0, *slopes) if slopes else None


def with_learned_warnings(
    agreement: Agreement, slopes_per_s: Mapping[str, float], reconfiguration_s: float
) -> tuple[Agreement, list[Lesson]]:
    """Return the agreement with its learned warning points, and a lesson for each of them."""
    lessons = [
        _lesson(metric, slopes_per_s[metric.name], reconfiguration_s)
        for metric in agreement.metrics
        if metric.learned and metric.name in slopes_per_s
    ]
    points = {lesson.metric: lesson.warning for lesson in lessons}
    metrics = tuple(
        replace(metric, warning=points.get(metric.name, metric.warning))
        for metric in agreement.metrics
    )
    return replace(agreement, metrics=metrics), lessons


def _lesson(metric: Metric, slope_per_s: float, reconfiguration_s: float) -> Lesson:
    margin = max(SAFETY * slope_per_s * reconfiguration_s, MARGIN_MIN * metric.room)
    took = (
        f"in the {worded(Unit.SECONDS, reconfiguration_s)} that a reconfiguration takes it got "
        f"worse by {worded(metric.unit, slope_per_s * reconfiguration_s)}"
    )
    if not math.isfinite(margin) or margin >= metric.room:
        because = f"{took}: no warning is in time, the one by default stays"
        return Lesson(metric.name, metric.warning, because)
    point = metric.breach - margin if metric.worse is Worse.LARGER else metric.breach + margin
    return Lesson(metric.name, point, f"{took}: warned of at {worded(metric.unit, point)}")
