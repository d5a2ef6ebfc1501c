"""Promises that contradict each other, or leave no time to keep them.

    margin > slope · reconfiguration time

Otherwise the breach comes before the reconfiguration that the warning starts has any effect.
Example from TAPAS: a response time of 6 s, a warning at 4.8 s, and 1 s to reconfigure. In that
second the response time can grow by 1 s, because a wait grows no faster than time passes. A
duration therefore has a slope of 1 unless the document gives a smaller one. For other metrics the
check needs a slope in the document.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.agreement.complaints import Complaints
from tidegate.agreement.metrics import Metric, Unit
from tidegate.agreement.quantity_words import worded
from tidegate.agreement.resources import Resources

# Seconds by which a waiting or response time can grow in one second.
TIME_SLOPE = 1.0
# A response contains wait and service, so it is never shorter than either.
_PARTS = {"response": ("wait", "service")}


def refuse_contradictions(
    metrics: Sequence[Metric], resources: Resources, complaints: Complaints
) -> None:
    """Report every contradiction between the promises and the resources of a document."""
    for metric in metrics:
        for other in metrics:
            _refuse_crossing(metric, other, complaints)
        _refuse_haste(metric, resources.reconfiguration_s, complaints)


def slope_per_s(metric: Metric) -> float | None:
    """Return the fastest worsening of a metric per second; None if it is unknown."""
    if metric.slope_per_s is not None:
        return metric.slope_per_s
    return TIME_SLOPE if metric.unit is Unit.SECONDS else None


def margin_needed(metric: Metric, reconfiguration_s: float | None) -> float | None:
    """Return the margin that a timely warning must exceed; None if it is unknown."""
    slope = slope_per_s(metric)
    return None if slope is None or reconfiguration_s is None else slope * reconfiguration_s


def _refuse_crossing(metric: Metric, other: Metric, complaints: Complaints) -> None:
    """Report a breaching point above that of a percentile which is never smaller.

    A lower percentile is never longer than a higher one. A part is never longer than its whole.
    """
    lower, higher = metric.percentile, other.percentile
    if lower is None or higher is None or metric.breach <= other.breach:
        return
    is_part = metric.stem in _PARTS.get(other.stem, ())
    if (metric.stem == other.stem and lower < higher) or (is_part and lower <= higher):
        complaints.add(
            ("metrics", metric.name, "breach"),
            f"is longer than that of {other.name}, but {metric.name} is never longer than "
            f"{other.name}: lower it, or leave it out",
        )


def _refuse_haste(metric: Metric, reconfiguration_s: float | None, complaints: Complaints) -> None:
    needed = margin_needed(metric, reconfiguration_s)
    if needed is None or reconfiguration_s is None:
        return
    # A learned margin may grow up to `room`.
    room = metric.room if metric.learned else metric.margin
    if room > needed:
        return
    slope = worded(metric.unit, slope_per_s(metric) or 0.0)
    took = worded(Unit.SECONDS, reconfiguration_s)
    said = " (nobody has said a slope: a time grows by 1 s in a second at most)"
    complaints.add(
        ("metrics", metric.name, "breach" if metric.learned else "warning"),
        f"leaves too little time: in the {took} that a reconfiguration takes it can get worse by "
        f"{worded(metric.unit, needed)}, at {slope} a second"
        f"{said if metric.slope_per_s is None else ''}, and the margin is "
        f"{worded(metric.unit, room)}: widen the margin, lower the slope or reconfigure faster",
    )
