"""Counting in the recorder's histograms.

A histogram is a list of (bucket, count), the buckets those of `telemetry.histogram`. As in all that
a node shows, a duration counts as the upper end of its bucket, so "shorter than T" is "in a bucket
that ends before T".
"""

from __future__ import annotations

from tidegate.telemetry.histogram import BUCKETS, upper_bound_s


def first_bucket_from(duration_s: float) -> int:
    """The first bucket whose durations count as so long or longer."""
    # A bucket that ends at T but for rounding ends at T.
    return next((b for b in range(BUCKETS) if upper_bound_s(b) * (1 + 1e-9) >= duration_s), BUCKETS)
