"""What a job of `learn` is: the row kinds it reads, and the tables and models it produces.

    STABILITY_JOB = Job("stability", "Stable, flooded or draining", reads=("queue_samples",), …)

A job is a function from frames to tables and models. Its input has been cleaned and checked by
`pipeline.lake`. Its output is checked against `writes` before it is stored. A job only describes
its tables; Spark computes them when `learn` writes them. Jobs know neither folders nor sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import is_late
from tidegate.telemetry.meters import BUCKETS, ends_at_s, upper_bound_s
from tidegate.telemetry.models import StoredModel


@dataclass(frozen=True)
class JobInputs:
    """The input of a job."""

    # By kind; a kind without rows is an empty frame with its schema.
    frames: Mapping[str, DataFrame]
    agreements: Sequence[Agreement]
    # The times of the first and the last row of the lake, over all kinds.
    since: datetime
    until: datetime

    @property
    def window_s(self) -> float:
        """The width of windows in seconds, where neither an agreement nor a law gives one."""
        return width_for((self.until - self.since).total_seconds())


@dataclass(frozen=True)
class JobResult:
    """The output of a job: tables by name, and models, accepted or refused."""

    tables: Mapping[str, DataFrame] = field(default_factory=dict)
    models: Sequence[StoredModel] = ()


@dataclass(frozen=True)
class Job:
    """One step of `learn`.

    `says` describes the job in the generated documentation.
    """

    name: str
    says: str
    reads: tuple[str, ...]
    writes: Mapping[str, StructType]
    run: Callable[[JobInputs], JobResult]
    # The kind under which its models are stored; empty means the name of the job.
    models: str = ""


# Windows of time: their width, and the window that a row belongs to.


# Widths in seconds that people use: 2 s to one day.
WIDTHS_S = (2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
_WINDOWS_MAX = 180


def width_for(span_s: float) -> float:
    """Return the smallest width that divides a time span into at most 180 windows.

    Spans longer than 180 days get windows of one day.
    """
    fitting = (width_s for width_s in WIDTHS_S if span_s <= _WINDOWS_MAX * width_s)
    return next(fitting, WIDTHS_S[-1])


def window_start(width_s: float, at: str = "at") -> Column:
    """Return the start of the window that holds the row's time; windows are aligned to 1970."""
    # Arithmetic on microseconds: Spark's own window() would build a struct for every row.
    width_us = round(width_s * 1e6)
    at_us = F.unix_micros(at)
    return F.timestamp_micros(at_us - F.pmod(at_us, F.lit(width_us)))


Transform: TypeAlias = Callable[[DataFrame], DataFrame]


# Comparison of durations with the recorder's histograms.
#
# A histogram is a list of (bucket, count) over the buckets of `telemetry.meters`. Like in all
# stats of a node, a duration counts as the upper bound of its bucket. "Shorter than T" therefore
# means "in a bucket that ends before T".


def first_bucket_from(duration_s: float) -> int:
    """Return the first bucket whose upper bound is at least `duration_s`."""
    # Tolerate rounding: a bucket whose bound differs from T only by rounding ends at T.
    return next((b for b in range(BUCKETS) if upper_bound_s(b) * (1 + 1e-9) >= duration_s), BUCKETS)


# Percentiles of the recorder's histograms, for any grouping of rows.
#
#     rows.transform(percentiles("response", ("service", "window"), {"p99": 0.99}))
#
# Counts add up, so the histograms of a group are exploded and summed by bucket. A percentile is the
# upper bound of the first bucket at which the cumulative count suffices, as in
# `agreements.evaluation`.


def percentiles(histogram: str, keys: Sequence[str], fractions: Mapping[str, float]) -> Transform:
    """Return a transform that computes percentiles of a histogram column, grouped by `keys`.

    The result has the keys, `<histogram>_count`, and one column in seconds for each entry of
    `fractions` (name → fraction, such as 0.99).
    """

    def transform(rows: DataFrame) -> DataFrame:
        group = Window.partitionBy(*keys)
        until_here = group.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
        return (
            rows.select(*keys, F.inline(histogram))
            .groupBy(*keys, "bucket")
            .agg(F.sum("count").alias("count"))
            .withColumns(
                {"so_far": F.sum("count").over(until_here), "in_all": F.sum("count").over(group)}
            )
            .groupBy(*keys)
            .agg(
                F.sum("count").alias(f"{histogram}_count"),
                *(_percentile(fraction).alias(name) for name, fraction in fractions.items()),
            )
        )

    return transform


def _percentile(fraction: float) -> Column:
    enough = ~is_late(F.col("so_far"), F.col("in_all"), fraction)
    found: Column = ends_at_s(F.min(F.when(enough, F.col("bucket"))))
    return found
