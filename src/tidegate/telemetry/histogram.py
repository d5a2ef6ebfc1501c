"""A histogram of durations with bounded relative error and bounded size.

The buckets grow by the eighth root of two. A percentile is therefore off by at most about 4.5 %,
and 248 counters cover one microsecond to half an hour. Adding a thousand equal durations costs as
much as adding one, which suits segments of messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tidegate.core.term import Term

_STEPS_PER_DOUBLING = 8
_SMALLEST_S = 1e-6
LARGEST_S = 1800.0
BUCKETS = math.ceil(math.log2(LARGEST_S / _SMALLEST_S) * _STEPS_PER_DOUBLING) + 2


def bucket_of(duration_s: float) -> int:
    """Return the bucket of a duration; durations out of range go to the first or last bucket."""
    if duration_s <= _SMALLEST_S:
        return 0
    if duration_s > LARGEST_S:
        return BUCKETS - 1
    return int(math.log2(duration_s / _SMALLEST_S) * _STEPS_PER_DOUBLING) + 1


def upper_bound_s(bucket: int) -> float:
    """Return the longest duration in a bucket, in seconds."""
    return float(ends_at_s(bucket))


def ends_at_s(bucket: Term) -> Term:
    """Return the upper bound of buckets given as a number, an array or a Spark Column."""
    return _SMALLEST_S * 2.0 ** (bucket / _STEPS_PER_DOUBLING)


def bucket_up_to(bound_s: float) -> int:
    """Return the first bucket that reaches a bound; for the bound of a bucket, that bucket."""
    if bound_s <= _SMALLEST_S:
        return 0
    if not math.isfinite(bound_s):
        return BUCKETS - 1
    # The tolerance assigns a rounded bucket bound to the bucket it ends, not to the next one.
    steps = math.log2(bound_s / _SMALLEST_S) * _STEPS_PER_DOUBLING - 1e-6
    return min(math.ceil(steps), BUCKETS - 1)


class Histogram:
    """Counts per bucket, with the sum for the mean and the maximum."""

    __slots__ = ("count", "counts", "max_s", "sum_s", "touched")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0
        # Buckets changed since the owner last cleared the set; None disables the tracking.
        self.touched: set[int] | None = None

    def add(self, duration_s: float, times: int = 1) -> None:
        bucket = bucket_of(duration_s)
        self.counts[bucket] += times
        if self.touched is not None:
            self.touched.add(bucket)
        self.count += times
        self.sum_s += duration_s * times
        if duration_s > self.max_s:
            self.max_s = duration_s

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    def percentile_s(self, fraction: float) -> float:
        """Return the duration below which this fraction lies; 0 if the histogram is empty."""
        return self.percentiles_s(fraction)[0]

    def percentiles_s(self, *fractions: float) -> list[float]:
        """Return the percentiles of several fractions, given in ascending order, in one pass."""
        if not self.count:
            return [0.0] * len(fractions)
        found: list[float] = []
        seen = 0
        for bucket, count in enumerate(self.counts):
            if not count:
                continue
            seen += count
            while len(found) < len(fractions) and seen >= fractions[len(found)] * self.count:
                found.append(min(upper_bound_s(bucket), self.max_s))
        return found + [self.max_s] * (len(fractions) - len(found))

    def sparse(self) -> list[tuple[float, int]]:
        """Return the upper bound in seconds and the count of every non-empty bucket."""
        return [(upper_bound_s(i), count) for i, count in enumerate(self.counts) if count]


def merged(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.merge(histogram)
    return total
