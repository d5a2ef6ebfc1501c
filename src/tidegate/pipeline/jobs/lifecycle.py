"""How long messages waited, were worked on, and took in all, per queue and window.

    lifecycles.transform(durations_by_window(900))

Percentiles come from buckets: one walk adds up weights by queue, window and bucket, of all three
durations at once; what remains is small, and a percentile is the mean of the bucket in which it
lies. Buckets grow by the fourth root of two, so it is off by some percent at most, and not at all
where all durations are equal. A sampled message counts as many times as it stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.windows import WIDTHS_S, window_start

DURATIONS = ("wait", "service", "response")
FRACTIONS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
BUCKETS_PER_DOUBLING = 4
# A queue's line over time needs no more points.
WINDOWS_MAX = 48
# With fewer in a window its slowest hundredth is two messages, and most buckets hold one or none.
SAMPLED_MIN = 200

Transform = Callable[[DataFrame], DataFrame]


def _figures(kind: DataType) -> list[StructField]:
    names = ("mean", *FRACTIONS, "max")
    return [StructField(f"{what}_s_{name}", kind) for what in DURATIONS for name in names]


SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("window", TimestampType()),
        StructField("window_s", DoubleType()),
        # That ended within the window, and how many of them were looked at.
        StructField("messages", LongType()),
        StructField("sampled", LongType()),
        *_figures(DoubleType()),
    ]
)


@dataclass(frozen=True)
class Extent:
    """How much there is to look at."""

    span_s: float
    rows: int
    queues: int


def extent(lifecycles: DataFrame) -> Extent:
    """What windows are chosen by; reads two columns."""
    row = lifecycles.agg(
        F.coalesce(
            (F.unix_micros(F.max("at")) - F.unix_micros(F.min("at"))) / 1e6, F.lit(0.0)
        ).alias("span_s"),
        F.count("*").alias("rows"),
        F.approx_count_distinct("queue").alias("queues"),
    ).collect()[0]
    return Extent(row["span_s"], row["rows"], row["queues"])


def width_s(seen: Extent) -> float:
    """Windows as short as may be, but with enough in each."""

    def fits(width: float) -> bool:
        windows = max(seen.span_s / width, 1.0)
        return windows <= WINDOWS_MAX and seen.rows >= SAMPLED_MIN * windows * seen.queues

    # A single window is as good as it gets where there is little.
    wide_enough = (width for width in WIDTHS_S if fits(width) or width >= seen.span_s)
    return next(wide_enough, WIDTHS_S[-1])


def bucket(duration_us: Column) -> Column:
    """The bucket of a duration: whole numbers that grow with its logarithm."""
    # Below a microsecond all are alike; a logarithm of zero is none.
    scaled = F.log2(F.greatest(duration_us, F.lit(1.0))) * BUCKETS_PER_DOUBLING
    return F.floor(scaled).cast("smallint")


def by_bucket(width_s: float) -> Transform:
    """Weights and sums by queue, window, and the bucket of one duration after the other."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        rows = lifecycles.select(
            "queue",
            window_start(width_s).alias("window"),
            "weight",
            *(F.col(f"{what}_us").alias(f"{what}_us") for what in DURATIONS),
            *(bucket(F.col(f"{what}_us")).alias(what) for what in DURATIONS),
        )
        sets = [["queue", "window", what] for what in DURATIONS]
        return rows.groupingSets(sets, "queue", "window", *DURATIONS).agg(
            F.grouping_id().alias("grouped_by"),
            F.count("*").alias("sampled"),
            F.sum("weight").alias("weight"),
            *(
                F.sum(F.col(f"{what}_us") * F.col("weight")).alias(f"{what}_us")
                for what in DURATIONS
            ),
            *(F.max(f"{what}_us").alias(f"{what}_us_max") for what in DURATIONS),
        )

    return transform


def one_duration_each(buckets: DataFrame) -> DataFrame:
    """Of each row the duration that it is grouped by: which, its bucket and its sums."""
    chosen = {
        # The bits of the columns that a row is not grouped by are set.
        what: F.col("grouped_by") == (0b111 ^ (0b100 >> number))
        for number, what in enumerate(DURATIONS)
    }

    def of_it(column: Callable[[str], Column]) -> Column:
        return F.coalesce(*(F.when(is_it, column(what)) for what, is_it in chosen.items()))

    return buckets.select(
        "queue",
        "window",
        of_it(F.lit).alias("duration"),
        of_it(F.col).alias("bucket"),
        "sampled",
        "weight",
        of_it(lambda what: F.col(f"{what}_us")).alias("sum_us"),
        of_it(lambda what: F.col(f"{what}_us_max")).alias("max_us"),
        # Messages that ended without a delivery have no wait.
    ).filter(F.col("bucket").isNotNull())


def with_weights_so_far(buckets: DataFrame) -> DataFrame:
    """The weight of each bucket and all shorter ones, and of all there are."""
    together = Window.partitionBy("queue", "window", "duration")
    until_here = together.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
    # Everything of a queue's window in one place: what follows needs no other shuffle.
    return buckets.repartition("queue", "window").withColumns(
        {
            "weight_so_far": F.sum("weight").over(until_here),
            "weight_in_all": F.sum("weight").over(together),
        }
    )


def with_percentiles(buckets: DataFrame) -> DataFrame:
    """Means, percentiles and the longest of each duration, in seconds."""
    weight, mean_us = F.col("weight"), F.col("sum_us") / F.col("weight")
    figures = []
    for what in DURATIONS:
        this = F.col("duration") == what

        def of_this(value: Column, this: Column = this) -> Column:
            return F.when(this, value)

        figures.append((F.sum(of_this(F.col("sum_us"))) / F.sum(of_this(weight)), what, "mean"))
        for name, fraction in FRACTIONS.items():
            reached = F.col("weight_so_far") >= F.col("weight_in_all") * fraction
            # Longer buckets have longer means, so the first one is the least.
            figures.append((F.min(F.when(this & reached, mean_us)), what, name))
        figures.append((F.max(of_this(F.col("max_us"))), what, "max"))
    # Every message ends, so every message has a response time.
    ended = F.col("duration") == "response"
    return buckets.groupBy("queue", "window").agg(
        F.round(F.sum(F.when(ended, weight))).cast("bigint").alias("messages"),
        F.sum(F.when(ended, F.col("sampled"))).alias("sampled"),
        *((value / 1e6).alias(f"{what}_s_{name}") for value, what, name in figures),
    )


def durations_by_window(width_s: float) -> Transform:
    """From lifecycles to the table."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        return (
            # What stands for nothing would divide by it.
            lifecycles.filter(F.col("weight") > 0)
            .transform(by_bucket(width_s))
            .transform(one_duration_each)
            .transform(with_weights_so_far)
            .transform(with_percentiles)
            .withColumn("window_s", F.lit(float(width_s)))
            .select(*SCHEMA.names)
        )

    return transform


def run(inputs: Inputs) -> Outcome:
    lifecycles = inputs.frames["lifecycles"]
    width = width_s(extent(lifecycles))
    return Outcome({"lifecycle": lifecycles.transform(durations_by_window(width))})


JOB = Job(
    "lifecycle",
    "Waiting, service and response times, per queue and window",
    reads=("lifecycles",),
    writes={"lifecycle": SCHEMA},
    run=run,
)
