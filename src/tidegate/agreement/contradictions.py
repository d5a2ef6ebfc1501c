"""Promises that cannot all be meant, or that leave no time to keep them.

    margin > slope · time to reconfigure        else the breach comes before what a warning sets off

TAPAS: a response time of 6 s, warned of at 4.8 s, and 1 s to reconfigure. What is given 1 s can
get worse by 1 s, since nothing waits longer than time passes: a time's slope is 1 unless a smaller
one is said. Of other metrics the slope has to be said before it can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.agreement.complaints import Complaints
from tidegate.agreement.metrics import Metric, Unit
from tidegate.agreement.quantity_words import worded
from tidegate.agreement.resources import Resources

# Seconds by which a waiting or response time can grow in a second.
TIME_SLOPE = 1.0
# What a whole is made of: it is never shorter than its part.
_PARTS = {"response": ("wait", "service")}


def refuse_contradictions(
    metrics: Sequence[Metric], resources: Resources, complaints: Complaints
) -> None:
    """Complain of all that contradicts itself."""
    for metric in metrics:
        for other in metrics:
            _refuse_crossing(metric, other, complaints)
        _refuse_haste(metric, resources.reconfiguration_s, complaints)


def slope_per_s(metric: Metric) -> float | None:
    """How fast a metric gets worse at most; None if nobody knows."""
    if metric.slope_per_s is not None:
        return metric.slope_per_s
    return TIME_SLOPE if metric.unit is Unit.SECONDS else None


def margin_needed(metric: Metric, reconfiguration_s: float | None) -> float | None:
    """What the margin must exceed, so that a warning is in time; None if nobody knows."""
    slope = slope_per_s(metric)
    return None if slope is None or reconfiguration_s is None else slope * reconfiguration_s


def _refuse_crossing(metric: Metric, other: Metric, complaints: Complaints) -> None:
    """A lower percentile is never longer than a higher one, nor a part than its whole."""
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
    # A margin that is to be learned may become as wide as there is room for it.
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
