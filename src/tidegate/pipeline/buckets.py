"""Counting in the recorder's histograms, without taking them apart row by row.

A histogram is a list of (bucket, count), the buckets those of `telemetry.histogram`. As in all that
a node shows, a duration counts as the upper end of its bucket, so "shorter than T" is "in a bucket
that ends before T".
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidegate.telemetry.histogram import BUCKETS, upper_bound_s


def first_bucket_from(duration_s: float) -> int:
    """The first bucket whose durations count as so long or longer."""
    # A bucket that ends at T but for rounding ends at T.
    return next((b for b in range(BUCKETS) if upper_bound_s(b) * (1 + 1e-9) >= duration_s), BUCKETS)


def count_below(histogram: str, bucket: Column) -> Column:
    """How many durations lie in buckets before one; none if that is null."""
    return F.aggregate(
        histogram,
        F.lit(0).cast("bigint"),
        lambda seen, each: seen + F.when(each["bucket"] < bucket, each["count"]).otherwise(0),
    )


def count_all(histogram: str) -> Column:
    """How many durations there are."""
    return F.aggregate(histogram, F.lit(0).cast("bigint"), lambda seen, each: seen + each["count"])
