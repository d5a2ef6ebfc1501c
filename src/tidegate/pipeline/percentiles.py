"""Percentiles of the recorder's histograms, of any group of rows at once.

    rows.transform(percentiles("response", ("service", "window"), {"p99": 0.99}))

Counts add up, so the histograms of a group are taken apart and added by bucket; a percentile is the
end of the first bucket that so many of all do not exceed, as `agreement.windows` says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidegate.agreement.evaluation import is_late
from tidegate.pipeline.transform import Transform
from tidegate.telemetry.histogram import ends_at_s


def percentiles(histogram: str, keys: Sequence[str], fractions: Mapping[str, float]) -> Transform:
    """Of each group `<histogram>_count` and percentiles by name, in seconds."""

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
