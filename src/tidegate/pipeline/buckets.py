"""Comparison of durations with the recorder's histograms.

A histogram is a list of (bucket, count) over the buckets of `telemetry.histogram`. Like in all
stats of a node, a duration counts as the upper bound of its bucket. "Shorter than T" therefore
means "in a bucket that ends before T".
"""

from __future__ import annotations

from tidegate.telemetry.histogram import BUCKETS, upper_bound_s


def first_bucket_from(duration_s: float) -> int:
    """Return the first bucket whose upper bound is at least `duration_s`."""
    # Tolerate rounding: a bucket whose bound differs from T only by rounding ends at T.
    return next((b for b in range(BUCKETS) if upper_bound_s(b) * (1 + 1e-9) >= duration_s), BUCKETS)
