"""Percentiles of the recorder's histograms, for any grouping of rows.

    rows.transform(percentiles("response", ("service", "window"), {"p99": 0.99}))

Counts add up, so the histograms of a group are exploded and summed by bucket. A percentile is the
upper bound of the first bucket at which the cumulative count suffices, as in `agreement.windows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidegate.agreement.evaluation import is_late
from tidegate.pipeline.transform import Transform
from tidegate.telemetry.histogram import ends_at_s


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
