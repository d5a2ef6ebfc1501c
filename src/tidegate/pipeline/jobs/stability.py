"""Job `stability`: whether each queue was stable, flooded or draining in each window.

    samples.transform(stability_by_window(60))

The growth is `Δl = p − c`, the production minus the consumption rate. The band within which a queue
counts as stable is that of the law (`laws.stability`), whose functions take numbers and Columns.
The rates of a replicated queue are the sums of its replicas' rates.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.laws.stability import (
    DEFAULT_BAND,
    Band,
    Stability,
    growth_per_s,
    is_draining,
    is_flooded,
)
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.transform import Transform
from tidegate.pipeline.windows import window_start

SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("window", TimestampType()),
        StructField("seconds", DoubleType()),
        StructField("produced_per_s", DoubleType()),
        StructField("consumed_per_s", DoubleType()),
        StructField("growth_per_s", DoubleType()),
        StructField("waiting", DoubleType()),
        StructField("replicas", LongType()),
        StructField("stability", StringType()),
        StructField("every_replica_stable", BooleanType()),
    ]
)


def replica_rates(width_s: float) -> Transform:
    """Return a transform to what entered and left each replica in each window."""

    def transform(samples: DataFrame) -> DataFrame:
        return samples.groupBy("queue", "replica", window_start(width_s).alias("window")).agg(
            F.sum("interval_s").alias("seconds"),
            F.sum("put").alias("put"),
            # Messages that left the queue, for whichever reason.
            F.sum(
                F.col("acked") + F.col("dead_lettered") + F.col("dropped") + F.col("expired")
            ).alias("taken"),
            F.avg(F.col("waiting") + F.col("unacknowledged")).alias("waiting"),
        )

    return transform


def with_rates(rates: DataFrame) -> DataFrame:
    """Add production and consumption rates; drop replicas that were recorded for no time."""
    return rates.filter(F.col("seconds") > 0).withColumns(
        {
            "produced_per_s": F.col("put") / F.col("seconds"),
            "consumed_per_s": F.col("taken") / F.col("seconds"),
        }
    )


def with_stability(band: Band = DEFAULT_BAND) -> Transform:
    """Return a transform that adds the growth and the stability (stable, flooded or draining)."""

    def transform(rates: DataFrame) -> DataFrame:
        produced, consumed = F.col("produced_per_s"), F.col("consumed_per_s")
        return rates.withColumns(
            {
                "growth_per_s": growth_per_s(produced, consumed),
                "stability": F.when(is_flooded(produced, consumed, band), Stability.FLOODED.value)
                .when(is_draining(produced, consumed, band), Stability.DRAINING.value)
                .otherwise(Stability.STABLE.value),
            }
        )

    return transform


def whole_queues(replicas: DataFrame) -> DataFrame:
    """Sum up replicas with their stability to queues."""
    return replicas.groupBy("queue", "window").agg(
        F.max("seconds").alias("seconds"),
        F.sum("produced_per_s").alias("produced_per_s"),
        F.sum("consumed_per_s").alias("consumed_per_s"),
        F.sum("waiting").alias("waiting"),
        F.count("*").alias("replicas"),
        F.bool_and(F.col("stability") == Stability.STABLE.value).alias("every_replica_stable"),
    )


def stability_by_window(width_s: float, band: Band = DEFAULT_BAND) -> Transform:
    """Return a transform from samples to the table."""

    def transform(samples: DataFrame) -> DataFrame:
        return (
            samples.transform(replica_rates(width_s))
            .transform(with_rates)
            .transform(with_stability(band))
            .transform(whole_queues)
            .transform(with_stability(band))
            .select(*SCHEMA.names)
        )

    return transform


def run(inputs: Inputs) -> Outcome:
    samples = inputs.frames["queue_samples"]
    return Outcome({"stability": samples.transform(stability_by_window(inputs.window_s))})


JOB = Job(
    "stability",
    "Stable, flooded or draining, per queue and window",
    reads=("queue_samples",),
    writes={"stability": SCHEMA},
    run=run,
)
