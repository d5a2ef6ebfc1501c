"""What an agreement promises of responses, as mean responses that a law can reckon with.

    target = warning / tail        limit = 0.95 · breach / tail        of the promise that is first

Laws know means (Little); agreements promise percentiles. How far apart the two are is learned.
"""

from __future__ import annotations

from tidegate.agreement.document import Agreement
from tidegate.agreement.metrics import Metric
from tidegate.control.performance import Performance
from tidegate.laws.http_sizing import NO_POINTS, Points, in_hand_max

# Of the breaching point: what will be in hand, and what is let in, must be answered before it.
NEARLY = 0.95


def points_of(agreement: Agreement, performance: Performance) -> Points:
    """The mean responses at which the first promised percentile warns, and nearly breaches."""
    tails = [(metric, performance.tail(percentile)) for metric, percentile in _promised(agreement)]
    if not tails:
        return NO_POINTS
    return Points(
        target_s=min(metric.warning / tail for metric, tail in tails),
        limit_s=min(NEARLY * metric.breach / tail for metric, tail in tails),
    )


def admissible(agreement: Agreement, performance: Performance, capacity_per_s: float) -> int | None:
    """As many requests as so much capacity answers before the breaching point; None: no promise."""
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
