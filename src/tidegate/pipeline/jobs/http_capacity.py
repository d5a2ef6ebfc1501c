"""Job `http_capacity`: the capacity of an instance of each HTTP service, while it was saturated.

    samples → steady → by_instance → (driver) laws.saturated_capacity

The windows are five seconds long. An instance is saturated in a window if it had nearly its
permitted number of concurrent requests at every sample. The numbers of several doors that use the
same instance are added.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from tidegate.laws.saturated_capacity import (
    BUSIEST,
    InstanceWork,
    SaturatedCapacity,
    is_saturated,
    saturated_capacity,
)
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.local_table import by_name, frame_of
from tidegate.pipeline.windows import window_start
from tidegate.telemetry.knowledge import Model

WINDOW_S = 5.0

SCHEMA = StructType(
    [
        StructField("service", StringType(), False),
        StructField("instance", LongType(), False),
        StructField("concurrency", DoubleType()),
        StructField("windows", LongType(), False),
        StructField("saturated_windows", LongType(), False),
        # The 90th percentile of the saturated windows; null without any.
        StructField("saturated_per_s", DoubleType()),
        StructField("most_per_s", DoubleType(), False),
    ]
)


def steady(samples: DataFrame) -> DataFrame:
    """Return rate and least number of outstanding requests of each instance per window."""
    return (
        samples.where(F.col("instance").isNotNull())
        .groupBy("service", "instance", "door", window_start(WINDOW_S).alias("window"))
        .agg(
            (F.sum("served") / F.sum("interval_s")).alias("served_per_s"),
            F.min("outstanding").alias("outstanding"),
            F.max("concurrency").alias("concurrency"),
            F.count("*").alias("rows"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
        .groupBy("service", "instance", "window")
        .agg(
            F.sum("served_per_s").alias("served_per_s"),
            F.sum("outstanding").alias("outstanding"),
            F.max("concurrency").alias("concurrency"),
            F.sum("rows").alias("rows"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
        )
    )


def by_instance(windows: DataFrame) -> DataFrame:
    """Return the rate of each instance while it was saturated, and its highest rate."""
    full = is_saturated(F.col("outstanding"), F.col("concurrency"))
    return windows.groupBy("service", "instance").agg(
        F.max("concurrency").cast("double").alias("concurrency"),
        F.count("*").alias("windows"),
        F.count_if(full).alias("saturated_windows"),
        F.percentile(F.when(full, F.col("served_per_s")), BUSIEST).alias("saturated_per_s"),
        F.max("served_per_s").alias("most_per_s"),
        F.sum("rows").alias("rows"),
        F.unix_micros(F.min("first_at")).alias("first_us"),
        F.unix_micros(F.max("last_at")).alias("last_us"),
    )


def run(inputs: Inputs) -> Outcome:
    """Return the capacity of an instance of every recorded service."""
    samples = inputs.frames["http_samples"]
    if samples.isEmpty():
        return Outcome({"http_capacity": samples.sparkSession.createDataFrame([], SCHEMA)})
    found = samples.transform(steady).transform(by_instance).toArrow()
    models = [_model(service, rows.to_pylist()) for service, rows in by_name(found, "service")]
    columns = {name: found.column(name).to_pylist() for name in SCHEMA.names}
    return Outcome({"http_capacity": frame_of(samples.sparkSession, SCHEMA, columns)}, models)


def _model(service: str, rows: list[dict[str, Any]]) -> Model:
    found: SaturatedCapacity = saturated_capacity(
        service,
        [
            InstanceWork(
                saturated_windows=row["saturated_windows"],
                saturated_per_s=row["saturated_per_s"] or 0.0,
                most_per_s=row["most_per_s"],
            )
            for row in rows
        ],
    )
    limits = [row["concurrency"] for row in rows if row["concurrency"] is not None]
    parameters = {"throughput_per_s": found.per_s} if found.accepted else {}
    return Model(
        subject=service,
        accepted=found.accepted,
        reason=found.reason,
        parameters=parameters | ({"concurrency": max(limits)} if limits else {}),
        quality={
            "instances": found.instances,
            "saturated_windows": sum(row["saturated_windows"] for row in rows),
            "at_least_per_s": found.at_least_per_s,
        },
        rows=sum(row["rows"] for row in rows),
        from_s=min(row["first_us"] for row in rows) / 1e6,
        to_s=max(row["last_us"] for row in rows) / 1e6,
    )


JOB = Job(
    name="http_capacity",
    says="What one instance of an HTTP service can do",
    reads=("http_samples",),
    writes={"http_capacity": SCHEMA},
    run=run,
)
