"""Promised response times as mean response times, which the laws use.

    target = warning / tail        limit = 0.95 · breach / tail        of the strictest promise

The laws use means (Little's law), and agreements promise percentiles. The ratio of the two, the
tail, is measured.
"""

from __future__ import annotations

from tidegate.agreement.document import Agreement
from tidegate.agreement.metrics import Metric
from tidegate.control.performance import Performance
from tidegate.laws.http_sizing import NO_POINTS, Points, in_hand_max

# Part of the breaching point before which the admitted requests must be answered.
NEARLY = 0.95


def points_of(agreement: Agreement, performance: Performance) -> Points:
    """Return the mean response times at which the strictest promise warns, and nearly breaches."""
    tails = [(metric, performance.tail(percentile)) for metric, percentile in _promised(agreement)]
    if not tails:
        return NO_POINTS
    return Points(
        target_s=min(metric.warning / tail for metric, tail in tails),
        limit_s=min(NEARLY * metric.breach / tail for metric, tail in tails),
    )


def admissible(agreement: Agreement, performance: Performance, capacity_per_s: float) -> int | None:
    """Return how many requests can be answered in time; None without a promise."""
    return min(
        (
            in_hand_max(capacity_per_s, NEARLY * metric.breach, performance.tail(percentile))
            for metric, percentile in _promised(agreement)
        ),
        default=None,
    )


def _promised(agreement: Agreement) -> list[tuple[Metric, float]]:
    return [
        (metric, metric.percentile)
        for metric in agreement.metrics
        if metric.stem == "response" and metric.percentile is not None
    ]
