"""Job `phases`: which phases the time of requests goes into, per verb and over all verbs.

    share of a phase = Σ wx / Σ wt     x its time, t the request's, w the requests it represents
    mean ± t(0.975, m − 1) · s / √m    m = (Σw)² / Σw², the effective number of samples

This is table 5.3 of the Telesto paper. The interval of a share is that of a ratio of two means: the
spread of `x − share·t` about zero, divided by the mean of `t`. The second table shows how much of
the time each node's process was idle.
"""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from tidegate.laws.intervals import Interval, mean_interval
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.local_table import frame_of

PHASES = ("wait_client", "parse", "store", "wait_message", "respond")
ALL_VERBS = "all"

SCHEMA = StructType(
    [
        StructField("verb", StringType(), False),
        StructField("phase", StringType(), False),
        StructField("requests", DoubleType(), False),
        StructField("sampled", LongType(), False),
        StructField("mean_us", DoubleType()),
        StructField("low_us", DoubleType()),
        StructField("high_us", DoubleType()),
        StructField("share", DoubleType()),
        StructField("share_low", DoubleType()),
        StructField("share_high", DoubleType()),
    ]
)
IDLE_SCHEMA = StructType(
    [
        StructField("node", StringType(), False),
        StructField("seconds", DoubleType(), False),
        StructField("idle", DoubleType()),
        StructField("idle_low", DoubleType()),
        StructField("idle_high", DoubleType()),
    ]
)


def by_phase(requests: DataFrame) -> DataFrame:
    """Return a row for each phase of each request, once under its verb and once under `all`."""
    return requests.select(
        F.explode(F.array("verb", F.lit(ALL_VERBS))).alias("verb"),
        F.col("weight").alias("w"),
        F.col("total_us").alias("t"),
        F.inline(
            F.array(
                *(F.struct(F.lit(p).alias("phase"), F.col(f"{p}_us").alias("x")) for p in PHASES)
            )
        ),
        # A phase that was not measured is unknown, not zero.
    ).where((F.col("w") > 0) & F.col("x").isNotNull())


def sums_of_phases(phases: DataFrame) -> DataFrame:
    """Return the sums from which means, shares and their intervals are computed."""
    w, x, t = F.col("w"), F.col("x"), F.col("t")
    return phases.groupBy("verb", "phase").agg(
        F.count("*").alias("sampled"),
        F.sum(w).alias("w"),
        F.sum(w * w).alias("ww"),
        F.sum(w * x).alias("wx"),
        F.sum(w * t).alias("wt"),
        F.sum(w * x * x).alias("wxx"),
        F.sum(w * x * t).alias("wxt"),
        F.sum(w * t * t).alias("wtt"),
    )


def phase_row(sums: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the table for one verb and phase."""
    w, wx, wt = sums["w"], sums["wx"], sums["wt"]
    count = w * w / sums["ww"]
    mean = wx / w
    of_time = _interval(count, mean, sums["wxx"] / w - mean * mean)
    share = wx / wt if wt > 0 else math.nan
    spread = (sums["wxx"] - 2 * share * sums["wxt"] + share * share * sums["wtt"]) / w
    of_share = _interval(count, share, spread / (wt / w) ** 2 if wt > 0 else math.nan)
    return {
        "verb": sums["verb"],
        "phase": sums["phase"],
        "requests": w,
        "sampled": sums["sampled"],
        "mean_us": mean,
        # With few samples the interval may reach below zero; no time does.
        "low_us": max(of_time.low, 0.0),
        "high_us": of_time.high,
        "share": share,
        "share_low": max(of_share.low, 0.0),
        "share_high": min(of_share.high, 1.0),
    }


def _interval(count: float, mean: float, variance: float) -> Interval:
    """Return the interval of a mean from the variance of the population.

    The law expects the variance of a sample, hence the factor n / (n − 1).
    """
    n = round(count)
    return mean_interval(n, mean, variance * n / (n - 1) if n > 1 else math.nan)


def idleness(samples: DataFrame) -> DataFrame:
    """Return mean and variance of the idle share of each node's process, over its samples."""
    idle = F.greatest(1 - F.col("cpu_s") / F.col("interval_s"), F.lit(0.0))
    return (
        samples.where(F.col("interval_s") > 0)
        .groupBy("node")
        .agg(
            F.count("*").alias("n"),
            F.sum("interval_s").alias("seconds"),
            F.avg(idle).alias("mean"),
            F.var_samp(idle).alias("variance"),
        )
    )


def idle_row(sums: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the table of nodes."""
    variance = math.nan if sums["variance"] is None else sums["variance"]
    idle = mean_interval(sums["n"], sums["mean"], variance)
    return {
        "node": sums["node"],
        "seconds": sums["seconds"],
        "idle": idle.mean,
        "idle_low": idle.low,
        "idle_high": idle.high,
    }


def run(inputs: Inputs) -> Outcome:
    requests, nodes = inputs.frames["requests"], inputs.frames["node_samples"]
    phases = requests.transform(by_phase).transform(sums_of_phases).toArrow().to_pylist()
    idle = nodes.transform(idleness).toArrow().to_pylist()
    return Outcome(
        {
            "phases": _table(requests, SCHEMA, [phase_row(row) for row in phases]),
            "idleness": _table(nodes, IDLE_SCHEMA, [idle_row(row) for row in idle]),
        }
    )


def _table(source: DataFrame, schema: StructType, rows: list[dict[str, Any]]) -> DataFrame:
    columns = {name: [row[name] for row in rows] for name in schema.names}
    return frame_of(source.sparkSession, schema, columns)


JOB = Job(
    "phases",
    "Where the time of requests goes",
    reads=("requests", "node_samples"),
    writes={"phases": SCHEMA, "idleness": IDLE_SCHEMA},
    run=run,
)
