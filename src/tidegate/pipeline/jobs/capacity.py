"""Job `capacity`: how many clients a replica of each queue serves best, and the best mix of them.

    samples → steady_windows → by_mix → (driver) laws.capacity.capacity

The job uses windows of ten seconds in which no client joined or left. For each mix of producers and
consumers it uses the stable windows. A mix without a stable window is listed too; the law prefers
mixes that were stable.

Clients are not always busy: at night many clients move few messages. The throughput of a mix is
therefore the 90th percentile of its windows.

All replicas of a queue are alike, so each window of a replica is one measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from tidegate.laws.capacity import Capacity, Operation, capacity
from tidegate.laws.stability import is_draining, is_flooded
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.local_table import by_name, frame_of
from tidegate.pipeline.windows import window_start
from tidegate.telemetry.knowledge import Model

WINDOW_S = 10.0
# The recorded part of a window below which the window is not used.
RECORDED_MIN = 0.8
BUSIEST = 0.9

SCHEMA = StructType(
    [
        StructField("queue", StringType(), False),
        StructField("producers", IntegerType(), False),
        StructField("consumers", IntegerType(), False),
        StructField("clients", IntegerType(), False),
        StructField("throughput_per_s", DoubleType(), False),
        StructField("produced_per_s", DoubleType(), False),
        StructField("consumed_per_s", DoubleType(), False),
        StructField("seconds", DoubleType(), False),
        StructField("windows", LongType(), False),
        # Whether any window of the mix was stable. If so, the rates are those of stable windows.
        StructField("stable", BooleanType(), False),
        # The throughput of the fitted curve at this number of clients; null without a fit.
        StructField("fitted_per_s", DoubleType()),
        StructField("best", BooleanType(), False),
    ]
)


def steady_windows(samples: DataFrame) -> DataFrame:
    """Return the windows of replicas in which no producer and no consumer joined or left.

    Both numbers are above 0, and at least 80 % of the window was recorded.
    """
    taken = F.col("acked") + F.col("dead_lettered") + F.col("dropped") + F.col("expired")
    windows = samples.groupBy("queue", "replica", window_start(WINDOW_S).alias("window")).agg(
        F.sum("interval_s").alias("seconds"),
        (F.sum("put") / F.sum("interval_s")).alias("produced_per_s"),
        (F.sum(taken) / F.sum("interval_s")).alias("consumed_per_s"),
        *(F.min(role).alias(role) for role in ("producers", "consumers")),
        *(F.max(role).alias(f"{role}_most") for role in ("producers", "consumers")),
        F.count("*").alias("rows"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
    )
    unchanged = (F.col("producers") == F.col("producers_most")) & (
        F.col("consumers") == F.col("consumers_most")
    )
    at_work = (F.col("producers") > 0) & (F.col("consumers") > 0)
    recorded = F.col("seconds") >= F.lit(RECORDED_MIN * WINDOW_S)
    return windows.where(unchanged & at_work & recorded)


def by_mix(windows: DataFrame) -> DataFrame:
    """Sum up the windows of each mix, over the stable windows and over all windows."""
    produced, consumed = F.col("produced_per_s"), F.col("consumed_per_s")
    stable = ~is_flooded(produced, consumed) & ~is_draining(produced, consumed)
    return windows.groupBy("queue", "producers", "consumers").agg(
        F.count("*").alias("windows"),
        F.sum("seconds").alias("seconds"),
        F.percentile(produced, BUSIEST).alias("produced_per_s"),
        F.percentile(consumed, BUSIEST).alias("consumed_per_s"),
        F.count(F.when(stable, 1)).alias("stable_windows"),
        F.sum(F.when(stable, F.col("seconds"))).alias("stable_seconds"),
        F.percentile(F.when(stable, produced), BUSIEST).alias("stable_produced_per_s"),
        F.percentile(F.when(stable, consumed), BUSIEST).alias("stable_consumed_per_s"),
        F.sum("rows").alias("rows"),
        F.unix_micros(F.min("first_at")).alias("first_us"),
        F.unix_micros(F.max("last_at")).alias("last_us"),
    )


def run(inputs: Inputs) -> Outcome:
    """Return the capacity of every queue that had both producers and consumers."""
    samples = inputs.frames["queue_samples"]
    mixes = samples.transform(steady_windows).transform(by_mix).toArrow()
    rows: list[dict[str, Any]] = []
    models: list[Model] = []
    for queue, mixes_of_queue in by_name(mixes, "queue"):
        seen = mixes_of_queue.to_pylist()
        operations = [_operation(mix) for mix in seen]
        found = capacity(operations)
        rows += [
            _row(queue, mix, operation, found)
            for mix, operation in zip(seen, operations, strict=True)
        ]
        models.append(_model(queue, seen, found))
    columns = {name: [row[name] for row in rows] for name in SCHEMA.names}
    return Outcome({"capacity": frame_of(samples.sparkSession, SCHEMA, columns)}, models)


def _operation(mix: dict[str, Any]) -> Operation:
    prefix = "stable_" if mix["stable_windows"] else ""
    return Operation(
        producers=mix["producers"],
        consumers=mix["consumers"],
        produced_per_s=mix[f"{prefix}produced_per_s"],
        consumed_per_s=mix[f"{prefix}consumed_per_s"],
        seconds=mix[f"{prefix}seconds"],
    )


def _row(queue: str, mix: dict[str, Any], operation: Operation, found: Capacity) -> dict[str, Any]:
    curve = found.curve
    best = (found.best_producers, found.best_consumers)
    return {
        "queue": queue,
        "producers": operation.producers,
        "consumers": operation.consumers,
        "clients": operation.clients,
        "throughput_per_s": operation.throughput_per_s,
        "produced_per_s": operation.produced_per_s,
        "consumed_per_s": operation.consumed_per_s,
        "seconds": operation.seconds,
        "windows": mix["stable_windows"] or mix["windows"],
        "stable": mix["stable_windows"] > 0,
        "fitted_per_s": curve.throughput_per_s(operation.clients) if curve else None,
        "best": best == (operation.producers, operation.consumers),
    }


def _model(queue: str, mixes: Sequence[dict[str, Any]], found: Capacity) -> Model:
    parameters: dict[str, float] = {}
    quality: dict[str, float] = {"mixes": found.operations, "seconds": found.seconds}
    if found.clients:
        parameters = {
            "clients": found.clients,
            "throughput_per_s": found.throughput_per_s,
            "best_producers": found.best_producers,
            "best_consumers": found.best_consumers,
        }
    if found.curve is not None:
        parameters |= {
            "rate_per_s": found.curve.rate_per_s,
            "contention": found.curve.contention,
            "coherency": found.curve.coherency,
        }
        quality["r2"] = found.curve.r2
    return Model(
        subject=queue,
        accepted=found.accepted,
        reason=found.reason,
        parameters=parameters,
        quality=quality,
        rows=sum(mix["rows"] for mix in mixes),
        from_s=min(mix["first_us"] for mix in mixes) / 1e6,
        to_s=max(mix["last_us"] for mix in mixes) / 1e6,
    )


JOB = Job(
    name="capacity",
    says="Throughput against clients, and how many a queue takes",
    reads=("queue_samples",),
    writes={"capacity": SCHEMA},
    run=run,
)
