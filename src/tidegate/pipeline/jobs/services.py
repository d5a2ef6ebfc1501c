"""Job `services`: rates, response times and instances of HTTP services over time, and violations.

    samples → by_window + percentiles + instances_by_window → http_windows
    requests → phases_of_requests → http_phases
    events → promise_transitions → violations

`violations` has a row for each transition of a promise as the leader recorded it
(`agreement.violations`). The leader acted on these. The verdicts that `learn` reaches afterwards
are in the table `compliance`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.agreement.http_sample import kept, missed
from tidegate.agreement.violations import Turn
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.percentiles import percentiles
from tidegate.pipeline.transform import Transform
from tidegate.pipeline.windows import window_start

FRACTIONS = {"response_s_p50": 0.50, "response_s_p95": 0.95, "response_s_p99": 0.99}
_KEYS = ("service", "window")

WINDOWS = StructType(
    [
        StructField("service", StringType()),
        StructField("window", TimestampType()),
        StructField("window_s", DoubleType()),
        StructField("answered_per_s", DoubleType()),
        # Requests that were answered or refused. `missed` are those that were refused or answered
        # with a status of 500 or above.
        StructField("came", LongType()),
        StructField("missed", LongType()),
        # Requests whose response time is known, and its percentiles.
        StructField("responses", LongType()),
        *(StructField(name, DoubleType()) for name in FRACTIONS),
        # The highest number at the end of any interval.
        StructField("waiting", LongType()),
        # The average number of instances that received requests, and that were kept in reserve.
        StructField("serving", DoubleType()),
        StructField("spare", DoubleType()),
        # The least free memory of any instance.
        StructField("free_memory_bytes", DoubleType()),
    ]
)
_PHASES_US = ("wait_door_us", "connect_us", "server_us", "total_us")
PHASES = StructType(
    [
        StructField("service", StringType()),
        # Requests that instances answered, and how many of them were sampled.
        StructField("requests", DoubleType()),
        StructField("sampled", LongType()),
        # Averages.
        *(StructField(name, DoubleType()) for name in _PHASES_US),
    ]
)
VIOLATIONS = StructType(
    [
        StructField("agreement", StringType()),
        StructField("at", TimestampType()),
        StructField("metric", StringType()),
        StructField("turn", StringType()),
        StructField("worst", DoubleType()),
        StructField("evidence", StringType()),
    ]
)


def by_window(width_s: float) -> Transform:
    """Return a transform that sums the doors of each service in each window."""

    def transform(samples: DataFrame) -> DataFrame:
        answered, refused = F.col("answered"), F.col("refused")
        errors, at_us = F.col("server_errors"), F.unix_micros("at")
        seconds = (F.max(at_us) - F.min(at_us - F.col("interval_s") * 1e6)) / 1e6
        return samples.groupBy("service", window_start(width_s).alias("window")).agg(
            (F.sum("answered") / seconds).alias("answered_per_s"),
            # Rows belong to doors or to instances, and are 0 in the columns of the other.
            F.sum(kept(answered, errors) + missed(refused, errors)).alias("came"),
            F.sum(missed(refused, errors)).alias("missed"),
            F.max("waiting").alias("waiting"),
            F.min("free_memory_bytes").alias("free_memory_bytes"),
        )

    return transform


def instances_by_window(width_s: float) -> Transform:
    """Return a transform to the average number of serving and spare instances in each window."""

    def transform(samples: DataFrame) -> DataFrame:
        is_spare = F.coalesce(F.col("weight") == 0, F.lit(False))
        is_serving = ~is_spare & (F.col("ejected") == "")
        # Count an instance that two doors use once per second.
        second = F.date_trunc("second", "at").alias("second")
        return (
            samples.where(F.col("instance").isNotNull())
            .groupBy("service", second, "instance")
            .agg(F.max(is_serving).alias("is_serving"), F.max(is_spare).alias("is_spare"))
            .groupBy("service", "second")
            .agg(
                F.count_if("is_serving").alias("serving"),
                F.count_if(F.col("is_spare") & ~F.col("is_serving")).alias("spare"),
            )
            .groupBy("service", window_start(width_s, "second").alias("window"))
            .agg(F.mean("serving").alias("serving"), F.mean("spare").alias("spare"))
        )

    return transform


def http_windows(width_s: float) -> Transform:
    """Return a transform from samples of doors to the table."""

    def transform(samples: DataFrame) -> DataFrame:
        in_windows = samples.withColumn("window", window_start(width_s))
        responses = in_windows.transform(percentiles("response", _KEYS, FRACTIONS))
        return (
            samples.transform(by_window(width_s))
            .join(responses, [*_KEYS], "left")
            .join(samples.transform(instances_by_window(width_s)), [*_KEYS], "left")
            .withColumn("window_s", F.lit(float(width_s)))
            .withColumn("responses", F.coalesce("response_count", F.lit(0)).cast("bigint"))
            .withColumn("serving", F.coalesce("serving", F.lit(0.0)))
            .withColumn("spare", F.coalesce("spare", F.lit(0.0)))
            .select(*WINDOWS.names)
        )

    return transform


def phases_of_requests(requests: DataFrame) -> DataFrame:
    """Return the average time of each phase of the requests that an instance answered."""
    weight = F.col("weight")
    return (
        requests.where(F.col("instance").isNotNull() & (weight > 0))
        .groupBy("service")
        .agg(
            F.sum(weight).alias("requests"),
            F.count("*").alias("sampled"),
            *((F.sum(F.col(us) * weight) / F.sum(weight)).alias(us) for us in _PHASES_US),
        )
    )


def turns(events: DataFrame) -> DataFrame:
    """Return the transitions of promises among the events."""
    turn = F.col("detail")["turn"]
    return events.where(turn.isin(*(one.value for one in Turn))).select(
        F.col("subject").alias("agreement"),
        "at",
        F.col("detail")["metric"].alias("metric"),
        turn.alias("turn"),
        F.col("value").alias("worst"),
        F.col("detail")["evidence"].alias("evidence"),
    )


def run(inputs: Inputs) -> Outcome:
    samples = inputs.frames["http_samples"]
    # Most lakes have no such rows, and Spark would need a second to plan the query.
    windows = (
        samples.sparkSession.createDataFrame([], WINDOWS)
        if samples.isEmpty()
        else samples.transform(http_windows(inputs.window_s))
    )
    return Outcome(
        {
            "http_windows": windows,
            "http_phases": inputs.frames["http_requests"].transform(phases_of_requests),
            "violations": inputs.frames["events"].transform(turns),
        }
    )


JOB = Job(
    "services",
    "Rates, response times and instances of HTTP services; violations as they were noticed",
    reads=("http_samples", "http_requests", "events"),
    writes={"http_windows": WINDOWS, "http_phases": PHASES, "violations": VIOLATIONS},
    run=run,
)
