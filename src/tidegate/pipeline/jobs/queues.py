"""Job `lifecycle`: waiting, service and response times per queue and window.

    lifecycles.transform(durations_by_window(900))

For each duration one pass over the samples sums their weights by queue, window and bucket. The
result is small. A percentile is the mean of the bucket in which it lies. Each bucket is wider than
the one before by the fourth root of two, so a percentile is off by some percent at most. It is
exact if all durations are equal. A sampled message counts with its weight, the number of messages
it represents.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

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
from tidegate.pipeline.transform import Transform
from tidegate.pipeline.windows import WIDTHS_S, window_start

DURATIONS = ("wait", "service", "response")
FRACTIONS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
BUCKETS_PER_DOUBLING = 4
# The most points that a chart over time needs.
WINDOWS_MAX = 48
# Below this, the slowest hundredth of a window is less than ten messages, and many buckets hold a
# single message.
SAMPLED_MIN = 1_000


def _figures(kind: DataType) -> list[StructField]:
    names = ("mean", *FRACTIONS, "max")
    return [StructField(f"{what}_s_{name}", kind) for what in DURATIONS for name in names]


SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("window", TimestampType()),
        StructField("window_s", DoubleType()),
        # The messages that ended within the window, and how many of them were sampled.
        StructField("messages", LongType()),
        StructField("sampled", LongType()),
        *_figures(DoubleType()),
    ]
)


@dataclass(frozen=True)
class Extent:
    """The size of the input: time span, rows and queues."""

    span_s: float
    rows: int
    queues: int


def extent(lifecycles: DataFrame) -> Extent:
    """Measure the input, from two columns; the width of the windows depends on it."""
    # Group by queue first: an approximate distinct count would cost more.
    by_queue = lifecycles.groupBy("queue").agg(
        F.min("at").alias("first"), F.max("at").alias("last"), F.count("*").alias("rows")
    )
    row = by_queue.agg(
        F.coalesce(
            (F.unix_micros(F.max("last")) - F.unix_micros(F.min("first"))) / 1e6, F.lit(0.0)
        ).alias("span_s"),
        F.coalesce(F.sum("rows"), F.lit(0)).alias("rows"),
        F.count("*").alias("queues"),
    ).collect()[0]
    return Extent(row["span_s"], row["rows"], row["queues"])


def width_s(seen: Extent) -> float:
    """Return the narrowest width of windows that keeps at most 48 windows with 1,000 samples each.

    If no width does, the whole span becomes one window.
    """

    def fits(width: float) -> bool:
        windows = max(seen.span_s / width, 1.0)
        return windows <= WINDOWS_MAX and seen.rows >= SAMPLED_MIN * windows * seen.queues

    # Little data becomes a single window.
    wide_enough = (width for width in WIDTHS_S if fits(width) or width >= seen.span_s)
    return next(wide_enough, WIDTHS_S[-1])


def bucket(duration_us: Column) -> Column:
    """Return the bucket of a duration, a whole number that grows with its logarithm."""
    # Durations below 1 µs share a bucket; the logarithm of zero does not exist.
    scaled = F.log2(F.greatest(duration_us, F.lit(1.0))) * BUCKETS_PER_DOUBLING
    return F.floor(scaled).cast("smallint")


def by_bucket(width_s: float) -> Transform:
    """Return a transform that sums weights and durations by queue, window, duration and bucket."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        # One pass per duration, each over its own column: three small tables of groups were
        # measured to be a third faster than one large table that each row enters three times.
        return reduce(
            DataFrame.unionAll, (lifecycles.transform(_buckets_of(d, width_s)) for d in DURATIONS)
        )

    return transform


def _buckets_of(duration: str, width_s: float) -> Transform:
    def transform(lifecycles: DataFrame) -> DataFrame:
        took_us = F.col(f"{duration}_us")
        return (
            # Messages that ended without a delivery have no waiting time.
            lifecycles.filter(took_us.isNotNull())
            .groupBy(
                "queue", window_start(width_s).alias("window"), bucket(took_us).alias("bucket")
            )
            .agg(
                F.count("*").alias("sampled"),
                F.sum("weight").alias("weight"),
                F.sum(took_us * F.col("weight")).alias("sum_us"),
                F.max(took_us).alias("max_us"),
            )
            .withColumn("duration", F.lit(duration))
        )

    return transform


def with_weights_so_far(buckets: DataFrame) -> DataFrame:
    """Add to each bucket the weight up to and including it, and the weight of all buckets."""
    together = Window.partitionBy("queue", "window", "duration")
    until_here = together.orderBy("bucket").rowsBetween(Window.unboundedPreceding, 0)
    # Bring all buckets of a queue's window into one partition: the next step then needs no shuffle.
    return buckets.repartition("queue", "window").withColumns(
        {
            "weight_so_far": F.sum("weight").over(until_here),
            "weight_in_all": F.sum("weight").over(together),
        }
    )


def with_percentiles(buckets: DataFrame) -> DataFrame:
    """Return mean, percentiles and maximum of each duration, in seconds."""
    weight, mean_us = F.col("weight"), F.col("sum_us") / F.col("weight")
    figures = []
    for what in DURATIONS:
        this = F.col("duration") == what

        def of_this(value: Column, this: Column = this) -> Column:
            return F.when(this, value)

        figures.append((F.sum(of_this(F.col("sum_us"))) / F.sum(of_this(weight)), what, "mean"))
        for name, fraction in FRACTIONS.items():
            reached = F.col("weight_so_far") >= F.col("weight_in_all") * fraction
            # Means grow with the buckets, so the smallest mean that qualifies is the first one.
            figures.append((F.min(F.when(this & reached, mean_us)), what, name))
        figures.append((F.max(of_this(F.col("max_us"))), what, "max"))
    # Every message has a response time, so responses count the messages.
    ended = F.col("duration") == "response"
    return buckets.groupBy("queue", "window").agg(
        F.round(F.sum(F.when(ended, weight))).cast("bigint").alias("messages"),
        F.sum(F.when(ended, F.col("sampled"))).alias("sampled"),
        *((value / 1e6).alias(f"{what}_s_{name}") for value, what, name in figures),
    )


def durations_by_window(width_s: float) -> Transform:
    """Return a transform from lifecycles to the table."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        return (
            # Rows of weight 0 would lead to divisions by zero.
            lifecycles.filter(F.col("weight") > 0)
            .transform(by_bucket(width_s))
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
