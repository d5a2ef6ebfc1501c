"""How long messages waited, were worked on, and took in all, per queue and window.

    lifecycles.transform(durations_by_window(900))

Percentiles come from buckets: a walk for each duration adds up weights by queue, window and bucket;
what remains is small, and a percentile is the mean of the bucket in which it lies. Buckets
grow by the fourth root of two, so it is off by some percent at most, and not at all where all
durations are equal. A sampled message counts as many times as it stands for.
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
# A queue's line over time needs no more points.
WINDOWS_MAX = 48
# With fewer in a window its slowest hundredth is less than ten messages, and many buckets hold one.
SAMPLED_MIN = 1_000


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
    # By queue first, exactly: sketching how many there are costs more.
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
    """Weights and sums by queue, window, duration and its bucket."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        # A walk for each duration, over its own column: three small tables of groups were measured
        # to be a third faster than one large one that each row enters three times.
        return reduce(
            DataFrame.unionAll, (lifecycles.transform(_buckets_of(d, width_s)) for d in DURATIONS)
        )

    return transform


def _buckets_of(duration: str, width_s: float) -> Transform:
    def transform(lifecycles: DataFrame) -> DataFrame:
        took_us = F.col(f"{duration}_us")
        return (
            # Messages that ended without a delivery have no wait.
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
