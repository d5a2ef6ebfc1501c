"""Job `compliance`: whether agreements were kept, per window and over the newest period of each.

    samples.transform(measure_queues(agreements)).transform(judge_windows(agreements))

The table `compliance` has a row per agreement and window, `promises` a row per agreement, window
and metric. `service_levels` has a row per agreement with its error budget. A budget belongs to a
period. It counts the windows that ended less than a period before the last one, even if `learn`
looks further back. The verdicts come from `pipeline.promises`, which `watch` uses too; the budget
is computed by `agreement.evaluation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict, budget_left, burn_rate
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.promises import judged, measured, measured_http
from tidegate.pipeline.transform import Transform

COMPLIANCE = StructType(
    [
        StructField("agreement", StringType()),
        StructField("window", TimestampType()),
        StructField("window_s", DoubleType()),
        StructField("verdict", StringType()),
    ]
)
PROMISES = StructType(
    [
        StructField("agreement", StringType()),
        StructField("window", TimestampType()),
        StructField("metric", StringType()),
        # A percentile has `within`, the fraction below the breaching point; other metrics have
        # `value`.
        StructField("value", DoubleType()),
        StructField("within", DoubleType()),
        StructField("verdict", StringType()),
    ]
)
SERVICE_LEVELS = StructType(
    [
        StructField("agreement", StringType()),
        StructField("from", TimestampType()),
        StructField("to", TimestampType()),
        StructField("window_s", DoubleType()),
        StructField("objective", DoubleType()),
        StructField("met", LongType()),
        StructField("warned", LongType()),
        StructField("breached", LongType()),
        StructField("no_data", LongType()),
        StructField("budget_left", DoubleType()),
        StructField("burn_rate", DoubleType()),
    ]
)


def each_promise(windows: DataFrame) -> DataFrame:
    """Return a row for every promise in every window."""
    return windows.select("agreement", "window", F.inline("promises"))


def service_levels(agreements: Sequence[Agreement]) -> Transform:
    """Return a transform to one row per agreement, also for agreements without any data."""

    def transform(windows: DataFrame) -> DataFrame:
        declared = windows.sparkSession.createDataFrame(
            [
                (one.name, one.window_s, one.objective, one.period_s, one.windows_in_period)
                for one in agreements
            ],
            "agreement string, window_s double, objective double, period_s double, "
            "windows_in_period double",
        )
        counts = (
            windows.transform(_newest_period(declared))
            .groupBy("agreement")
            .agg(
                F.min("window").alias("from"),
                F.max("window").alias("last"),
                F.count("*").alias("windows"),
                *(F.count_if(F.col("verdict") == v.value).alias(v.value) for v in Verdict),
            )
        )
        # Windows without any sample are absent between the first and the last; count them as no
        # data.
        missing = F.round(
            (F.unix_micros("last") - F.unix_micros("from")) / 1e6 / F.col("window_s")
            + 1
            - F.col("windows")
        )
        breached = F.coalesce("breached", F.lit(0))
        seen = F.col("met") + F.col("warned") + F.col("breached")
        return declared.join(counts, "agreement", "left").select(
            "agreement",
            "from",
            F.timestamp_micros(
                F.unix_micros("last") + (F.col("window_s") * 1e6).cast("bigint")
            ).alias("to"),
            "window_s",
            "objective",
            *(F.coalesce(v, F.lit(0)).alias(v) for v in ("met", "warned", "breached")),
            F.coalesce(F.col("no_data") + missing, F.lit(0)).cast("bigint").alias("no_data"),
            budget_left(breached, F.col("windows_in_period"), F.col("objective")).alias(
                "budget_left"
            ),
            F.when(seen > 0, burn_rate(F.col("breached"), seen, F.col("objective"))).alias(
                "burn_rate"
            ),
        )

    return transform


def _newest_period(declared: DataFrame) -> Transform:
    """Return a transform that keeps the windows of each agreement's newest period.

    These are the windows that end less than a period before the agreement's last window ends.
    """

    def transform(windows: DataFrame) -> DataFrame:
        newest = windows.groupBy("agreement").agg(F.max("window").alias("newest"))
        periods = declared.select("agreement", "period_s").join(newest, "agreement")
        age_s = (F.unix_micros("newest") - F.unix_micros("window")) / 1e6
        return windows.join(F.broadcast(periods), "agreement").where(age_s < F.col("period_s"))

    return transform


def run(inputs: Inputs) -> Outcome:
    frames = inputs.frames
    spark = frames["queue_samples"].sparkSession
    if not inputs.agreements:
        return _nothing(spark)
    parts = []
    if queues := [one for one in inputs.agreements if one.queue is not None]:
        sums = frames["queue_samples"].transform(measured(queues, frames["lifecycles"]))
        parts.append(sums.transform(judged(queues)))
    if services := [one for one in inputs.agreements if one.http is not None]:
        sums = frames["http_samples"].transform(measured_http(services))
        parts.append(sums.transform(judged(services)))
    # Compute the windows once: three tables use them.
    windows = reduce(DataFrame.unionByName, parts).localCheckpoint()
    return Outcome(
        {
            "compliance": windows.select(*COMPLIANCE.names),
            "promises": windows.transform(each_promise),
            "service_levels": windows.transform(service_levels(inputs.agreements)),
        }
    )


def _nothing(spark: SparkSession) -> Outcome:
    return Outcome({name: spark.createDataFrame([], schema) for name, schema in _WRITES.items()})


_WRITES = {"compliance": COMPLIANCE, "promises": PROMISES, "service_levels": SERVICE_LEVELS}

JOB = Job(
    "compliance",
    "Met, warned or breached, per agreement and window; error budgets",
    reads=("queue_samples", "lifecycles", "http_samples"),
    writes=_WRITES,
    run=run,
)
