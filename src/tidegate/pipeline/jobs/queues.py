"""Jobs about queues: `capacity`, `stability`, `lifecycle` and `phases`.

Job `capacity` finds the number of clients with which a replica has its highest throughput, and the
best mix of producers and consumers.

    samples → steady_windows → by_mix → (driver) laws.capacity.capacity

The job divides the time into windows of ten seconds, and uses those in which no client joined or
left. Windows with as many producers and as many consumers belong to the same mix. The rates of a
mix come from its stable windows, in which the queue neither grew nor shrank much. A mix without a
stable window gets the rates of all its windows, and the law prefers the other mixes.

Clients are not always busy: at night many clients move few messages. The throughput of a mix is
therefore the 90th percentile of its windows.

The job treats all replicas of a queue as alike: a window of any replica is one measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.laws.capacity import Capacity, LoadPoint, capacity
from tidegate.laws.estimation import ConfidenceInterval, mean_interval
from tidegate.laws.scaling import (
    DEFAULT_BAND,
    Stability,
    StabilityBand,
    growth_per_s,
    is_draining,
    is_flooded,
)
from tidegate.pipeline.jobs import WIDTHS_S, Job, JobInputs, JobResult, Transform, window_start
from tidegate.pipeline.lake import frame_of, rows_by_name
from tidegate.telemetry.models import StoredModel

WINDOW_S = 10.0
# The recorded part of a window below which the window is not used.
RECORDED_MIN = 0.8
BUSIEST = 0.9

CAPACITY_SCHEMA = StructType(
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


def run_capacity(inputs: JobInputs) -> JobResult:
    """Return the capacity of every queue that had both producers and consumers."""
    samples = inputs.frames["queue_samples"]
    mixes = samples.transform(steady_windows).transform(by_mix).toArrow()
    rows: list[dict[str, Any]] = []
    models: list[StoredModel] = []
    for queue, mixes_of_queue in rows_by_name(mixes, "queue"):
        seen = mixes_of_queue.to_pylist()
        operations = [_operation(mix) for mix in seen]
        found = capacity(operations)
        rows += [
            _row(queue, mix, operation, found)
            for mix, operation in zip(seen, operations, strict=True)
        ]
        models.append(_model(queue, seen, found))
    columns = {name: [row[name] for row in rows] for name in CAPACITY_SCHEMA.names}
    return JobResult({"capacity": frame_of(samples.sparkSession, CAPACITY_SCHEMA, columns)}, models)


def _operation(mix: dict[str, Any]) -> LoadPoint:
    prefix = "stable_" if mix["stable_windows"] else ""
    return LoadPoint(
        producers=mix["producers"],
        consumers=mix["consumers"],
        produced_per_s=mix[f"{prefix}produced_per_s"],
        consumed_per_s=mix[f"{prefix}consumed_per_s"],
        seconds=mix[f"{prefix}seconds"],
    )


def _row(queue: str, mix: dict[str, Any], operation: LoadPoint, found: Capacity) -> dict[str, Any]:
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


def _model(queue: str, mixes: Sequence[dict[str, Any]], found: Capacity) -> StoredModel:
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
    return StoredModel(
        subject=queue,
        accepted=found.accepted,
        reason=found.reason,
        parameters=parameters,
        quality=quality,
        rows=sum(mix["rows"] for mix in mixes),
        from_s=min(mix["first_us"] for mix in mixes) / 1e6,
        to_s=max(mix["last_us"] for mix in mixes) / 1e6,
    )


CAPACITY_JOB = Job(
    name="capacity",
    says="Throughput against clients, and how many a queue takes",
    reads=("queue_samples",),
    writes={"capacity": CAPACITY_SCHEMA},
    run=run_capacity,
)


# Job `stability`: whether each queue was stable, flooded or draining in each window.
#
#     samples.transform(stability_by_window(60))
#
# The growth is `Δl = p − c`, the production minus the consumption rate. The band within which a
# queue counts as stable is that of the law. The law's functions (`laws.scaling.stability`) compute
# with numbers as well as with Spark's columns, so this job calls them too. The rates of a logical
# queue are the sums of the rates of its replicas.


STABILITY_SCHEMA = StructType(
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
    """Return a transform that counts the messages that entered and left each replica by window."""

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
    """Add the rates of production and consumption, without replicas that have no recorded time."""
    return rates.filter(F.col("seconds") > 0).withColumns(
        {
            "produced_per_s": F.col("put") / F.col("seconds"),
            "consumed_per_s": F.col("taken") / F.col("seconds"),
        }
    )


def with_stability(band: StabilityBand = DEFAULT_BAND) -> Transform:
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


def stability_by_window(width_s: float, band: StabilityBand = DEFAULT_BAND) -> Transform:
    """Return a transform from samples to the table `stability`."""

    def transform(samples: DataFrame) -> DataFrame:
        return (
            samples.transform(replica_rates(width_s))
            .transform(with_rates)
            .transform(with_stability(band))
            .transform(whole_queues)
            .transform(with_stability(band))
            .select(*STABILITY_SCHEMA.names)
        )

    return transform


def run_stability(inputs: JobInputs) -> JobResult:
    samples = inputs.frames["queue_samples"]
    return JobResult({"stability": samples.transform(stability_by_window(inputs.window_s))})


STABILITY_JOB = Job(
    "stability",
    "Stable, flooded or draining, per queue and window",
    reads=("queue_samples",),
    writes={"stability": STABILITY_SCHEMA},
    run=run_stability,
)


# Job `lifecycle`: waiting, service and response times per queue and window.
#
#     lifecycles.transform(durations_by_window(900))
#
# For each duration one pass over the samples sums their weights by queue, window and bucket. The
# result is small. A percentile is the mean of the bucket in which it lies. Each bucket is wider
# than the one before by the fourth root of two, so a percentile is off by some percent at most. It
# is exact if all durations are equal. A sampled message counts with its weight, the number of
# messages it represents.


DURATIONS = ("wait", "service", "response")
FRACTIONS = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
BUCKETS_PER_DOUBLING = 4
# The most points that a chart over time needs.
WINDOWS_MAX = 48
# Below this, the slowest hundredth of a window is less than ten messages, and many buckets hold a
# single message.
SAMPLED_MIN = 1_000


def _duration_columns(kind: DataType) -> list[StructField]:
    names = ("mean", *FRACTIONS, "max")
    return [StructField(f"{what}_s_{name}", kind) for what in DURATIONS for name in names]


LIFECYCLE_SCHEMA = StructType(
    [
        StructField("queue", StringType()),
        StructField("window", TimestampType()),
        StructField("window_s", DoubleType()),
        # The messages that ended within the window, and how many of them were sampled.
        StructField("messages", LongType()),
        StructField("sampled", LongType()),
        *_duration_columns(DoubleType()),
    ]
)


@dataclass(frozen=True)
class LifecycleExtent:
    """The size of the input: time span, rows and queues."""

    span_s: float
    rows: int
    queues: int


def extent(lifecycles: DataFrame) -> LifecycleExtent:
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
    return LifecycleExtent(row["span_s"], row["rows"], row["queues"])


def width_s(seen: LifecycleExtent) -> float:
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
    """Return a transform from lifecycles to the table `lifecycle`."""

    def transform(lifecycles: DataFrame) -> DataFrame:
        return (
            # Rows of weight 0 would lead to divisions by zero.
            lifecycles.filter(F.col("weight") > 0)
            .transform(by_bucket(width_s))
            .transform(with_weights_so_far)
            .transform(with_percentiles)
            .withColumn("window_s", F.lit(float(width_s)))
            .select(*LIFECYCLE_SCHEMA.names)
        )

    return transform


def run_lifecycle(inputs: JobInputs) -> JobResult:
    lifecycles = inputs.frames["lifecycles"]
    width = width_s(extent(lifecycles))
    return JobResult({"lifecycle": lifecycles.transform(durations_by_window(width))})


LIFECYCLE_JOB = Job(
    "lifecycle",
    "Waiting, service and response times, per queue and window",
    reads=("lifecycles",),
    writes={"lifecycle": LIFECYCLE_SCHEMA},
    run=run_lifecycle,
)


# Job `phases`: which phases the time of requests goes into, per verb and over all verbs.
#
#     share of a phase = Σ wx / Σ wt     x its time, t the request's, w the requests it represents
#     mean ± t(0.975, m − 1) · s / √m    m = (Σw)² / Σw², the effective number of samples
#
# This is table 5.3 of the Telesto paper. The interval of a share is that of a ratio of two means:
# the spread of `x − share·t` about zero, divided by the mean of `t`. The second table shows how
# much of the time each node's process was idle.


PHASES = ("wait_client", "parse", "store", "wait_message", "respond")
ALL_VERBS = "all"

PHASES_SCHEMA = StructType(
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


def _interval(count: float, mean: float, variance: float) -> ConfidenceInterval:
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
    """Return the row of one node for the table of idle shares."""
    variance = math.nan if sums["variance"] is None else sums["variance"]
    idle = mean_interval(sums["n"], sums["mean"], variance)
    return {
        "node": sums["node"],
        "seconds": sums["seconds"],
        "idle": idle.mean,
        "idle_low": idle.low,
        "idle_high": idle.high,
    }


def run_phases(inputs: JobInputs) -> JobResult:
    requests, nodes = inputs.frames["requests"], inputs.frames["node_samples"]
    phases = requests.transform(by_phase).transform(sums_of_phases).toArrow().to_pylist()
    idle = nodes.transform(idleness).toArrow().to_pylist()
    return JobResult(
        {
            "phases": _table(requests, PHASES_SCHEMA, [phase_row(row) for row in phases]),
            "idleness": _table(nodes, IDLE_SCHEMA, [idle_row(row) for row in idle]),
        }
    )


def _table(source: DataFrame, schema: StructType, rows: list[dict[str, Any]]) -> DataFrame:
    columns = {name: [row[name] for row in rows] for name in schema.names}
    return frame_of(source.sparkSession, schema, columns)


PHASES_JOB = Job(
    "phases",
    "Where the time of requests goes",
    reads=("requests", "node_samples"),
    writes={"phases": PHASES_SCHEMA, "idleness": IDLE_SCHEMA},
    run=run_phases,
)
