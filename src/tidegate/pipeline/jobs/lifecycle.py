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

from pyspark.sql import Column, DataFrame
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


def by_window(buckets: DataFrame) -> DataFrame:
    """The buckets of each queue and window, in order, as one list for each duration."""
    lists, sums = [], []
    for number, what in enumerate(DURATIONS):
        # The bits of the columns that a row is not grouped by are set.
        this = F.col("grouped_by") == (0b111 ^ (0b100 >> number))
        there = this & F.col(what).isNotNull()
        entry = F.struct(F.col(what).alias("bucket"), "weight", F.col(f"{what}_us").alias("sum_us"))
        lists.append(F.array_sort(F.collect_list(F.when(there, entry))).alias(what))
        sums += [
            F.sum(F.when(there, F.col("weight"))).alias(f"{what}_weight"),
            F.sum(F.when(there, F.col(f"{what}_us"))).alias(f"{what}_us"),
            F.max(F.when(there, F.col(f"{what}_us_max"))).alias(f"{what}_us_max"),
        ]
    # Every message ends, so every message has a response time.
    every = F.col("grouped_by") == 0b110
    return buckets.groupBy("queue", "window").agg(
        F.sum(F.when(every, F.col("weight"))).alias("messages"),
        F.sum(F.when(every, F.col("sampled"))).alias("sampled"),
        *lists,
        *sums,
    )


def percentile_us(buckets: Column, weight: Column, fraction: float) -> Column:
    """The mean of the bucket in which a fraction of the weight is reached."""
    needed = weight * fraction

    def add(found: Column, each: Column) -> Column:
        seen = found["seen"] + each["weight"]
        here = found["at_us"].isNull() & (seen >= needed)
        return F.struct(
            seen.alias("seen"),
            F.when(here, each["sum_us"] / each["weight"]).otherwise(found["at_us"]).alias("at_us"),
        )

    nothing = F.struct(F.lit(0.0).alias("seen"), F.lit(None).cast("double").alias("at_us"))
    return F.aggregate(buckets, nothing, add, lambda found: found["at_us"])


def with_percentiles(windows: DataFrame) -> DataFrame:
    """Means, percentiles and the longest of each duration, in seconds."""
    figures = []
    for what in DURATIONS:
        weight = F.col(f"{what}_weight")
        values = {
            "mean": F.col(f"{what}_us") / weight,
            **{
                name: percentile_us(F.col(what), weight, fraction)
                for name, fraction in FRACTIONS.items()
            },
            "max": F.col(f"{what}_us_max"),
        }
        figures += [(value / 1e6).alias(f"{what}_s_{name}") for name, value in values.items()]
    return windows.select(
        "queue",
        "window",
        F.round("messages").cast("bigint").alias("messages"),
        "sampled",
        *figures,
    )


def durations_by_window(width_s: float) -> Transform:
    """From lifecycles to the table."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        return (
            # What stands for nothing would divide by it.
            lifecycles.filter(F.col("weight") > 0)
            .transform(by_bucket(width_s))
            .transform(by_window)
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
