"""Job `services`: rates, response times and instances of HTTP services over time, and violations.

    samples → by_window + percentiles + instances_by_window → http_windows
    requests → phases_of_requests → http_phases
    events → promise_transitions → violations

`violations` has a row for each transition of a promise as the leader recorded it
(`agreements.evaluation`). The leader acted on these. The verdicts that `learn` reaches afterwards
are in the table `compliance`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
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

from tidegate.agreements.evaluation import bad_requests, good_requests
from tidegate.agreements.ledger import Transition
from tidegate.laws.estimation import boot_time_s, sla_delta
from tidegate.laws.http.sizing import (
    BUSIEST,
    InstanceWork,
    SaturatedCapacity,
    is_saturated,
    saturated_capacity,
)
from tidegate.laws.placement import warm_machines
from tidegate.pipeline.jobs import Job, JobInputs, JobResult, Transform, percentiles, window_start
from tidegate.pipeline.lake import Numbers, column_numbers, column_seconds, frame_of, rows_by_name
from tidegate.telemetry.models import StoredModel

# Job `http_capacity`: the capacity of an instance of each HTTP service, while it was saturated.
#
#     samples → steady → by_instance → (driver) laws.http.sizing.saturated_capacity
#
# The windows are five seconds long. An instance is saturated in a window if it had nearly its
# permitted number of concurrent requests at every sample. The numbers of several doors that use the
# same instance are added.


HTTP_WINDOW_S = 5.0

HTTP_CAPACITY_SCHEMA = StructType(
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
        .groupBy("service", "instance", "door", window_start(HTTP_WINDOW_S).alias("window"))
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


def run_http_capacity(inputs: JobInputs) -> JobResult:
    """Return the capacity of an instance of every recorded service."""
    samples = inputs.frames["http_samples"]
    if samples.isEmpty():
        return JobResult(
            {"http_capacity": samples.sparkSession.createDataFrame([], HTTP_CAPACITY_SCHEMA)}
        )
    found = samples.transform(steady).transform(by_instance).toArrow()
    models = [_model(service, rows.to_pylist()) for service, rows in rows_by_name(found, "service")]
    columns = {name: found.column(name).to_pylist() for name in HTTP_CAPACITY_SCHEMA.names}
    return JobResult(
        {"http_capacity": frame_of(samples.sparkSession, HTTP_CAPACITY_SCHEMA, columns)}, models
    )


def _model(service: str, rows: list[dict[str, Any]]) -> StoredModel:
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
    return StoredModel(
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


HTTP_CAPACITY_JOB = Job(
    name="http_capacity",
    says="What one instance of an HTTP service can do",
    reads=("http_samples",),
    writes={"http_capacity": HTTP_CAPACITY_SCHEMA},
    run=run_http_capacity,
)

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
            F.sum(good_requests(answered, errors) + bad_requests(refused, errors)).alias("came"),
            F.sum(bad_requests(refused, errors)).alias("missed"),
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


def promise_transitions(events: DataFrame) -> DataFrame:
    """Return the transitions of promises among the events."""
    turn = F.col("detail")["turn"]
    return events.where(turn.isin(*(one.value for one in Transition))).select(
        F.col("subject").alias("agreement"),
        "at",
        F.col("detail")["metric"].alias("metric"),
        turn.alias("turn"),
        F.col("value").alias("worst"),
        F.col("detail")["evidence"].alias("evidence"),
    )


def run_services(inputs: JobInputs) -> JobResult:
    samples = inputs.frames["http_samples"]
    # Most lakes have no such rows, and Spark would need a second to plan the query.
    windows = (
        samples.sparkSession.createDataFrame([], WINDOWS)
        if samples.isEmpty()
        else samples.transform(http_windows(inputs.window_s))
    )
    return JobResult(
        {
            "http_windows": windows,
            "http_phases": inputs.frames["http_requests"].transform(phases_of_requests),
            "violations": inputs.frames["events"].transform(promise_transitions),
        }
    )


SERVICES_JOB = Job(
    "services",
    "Rates, response times and instances of HTTP services; violations as they were noticed",
    reads=("http_samples", "http_requests", "events"),
    writes={"http_windows": WINDOWS, "http_phases": PHASES, "violations": VIOLATIONS},
    run=run_services,
)


# Job `provisioning`: how many machines to keep warm.
#
#     NPP = ceil(sla_delta · boot_s / machine_capacity)               laws.placement.warm_machines
#
# - `sla_delta`: the growth of the load. The steepest slope of a line through one minute of the
#   production of all queues, in steps of five seconds. The law smooths the steps and ignores slopes
#   that noise explains.
# - `boot_s`: the time to boot, mean or 95th percentile of the events `boot`.
# - `machine_capacity`: the acknowledgement rate of a loaded node. A window of ten seconds counts as
#   loaded if at all times at least one second's worth of messages waited. A node's capacity is the
#   90th percentile of its loaded windows; the capacity of a machine is the median over nodes.
#
# An input that was not recorded is not guessed: the model is refused and names the missing inputs.


# All queues share the machines, so there is one model for the fleet.
SUBJECT = "fleet"
STEP_S = 5.0
PROVISIONING_WINDOW_S = 10.0
PROVISIONING_BUSIEST = 0.9
# A node's capacity counts from one minute under load on.
LOADED_WINDOWS_MIN = 6
BACKLOG_S = 1.0

PROVISIONING_SCHEMA = StructType(
    [
        StructField("ingredient", StringType(), False),
        StructField("value", DoubleType()),
        StructField("unit", StringType(), False),
        StructField("seen", LongType(), False),
        StructField("says", StringType(), False),
    ]
)


def production(samples: DataFrame) -> DataFrame:
    """Return the production rate of all queues together, per step."""
    step = window_start(STEP_S).alias("step")
    # Group by replica first: a replica recorded for part of a step counts with its full rate.
    return (
        samples.groupBy("queue", "replica", step)
        .agg(
            (F.sum("put") / F.sum("interval_s")).alias("produced_per_s"), F.count("*").alias("rows")
        )
        .groupBy("step")
        .agg(F.sum("produced_per_s").alias("produced_per_s"), F.sum("rows").alias("rows"))
    )


def backlog(samples: DataFrame) -> DataFrame:
    """Return the least number of waiting messages of each node in each window."""
    return (
        samples.groupBy(
            "node", "queue", "replica", window_start(PROVISIONING_WINDOW_S).alias("window")
        )
        .agg(F.min("waiting").alias("waiting"))
        .groupBy("node", "window")
        .agg(F.sum("waiting").alias("waiting_least"))
    )


def work(samples: DataFrame) -> DataFrame:
    """Return the acknowledgement rate of each node in each window."""
    return (
        samples.where(F.col("role") == "node")
        .groupBy("node", window_start(PROVISIONING_WINDOW_S).alias("window"))
        .agg((F.sum("acked") / F.sum("interval_s")).alias("acked_per_s"))
    )


def node_capacities(work_of_nodes: DataFrame, backlogs: DataFrame) -> DataFrame:
    """Return the capacity of each node with at least six loaded windows."""
    loaded = (F.col("acked_per_s") > 0) & (
        F.col("waiting_least") >= F.col("acked_per_s") * F.lit(BACKLOG_S)
    )
    return (
        work_of_nodes.join(backlogs, ["node", "window"])
        .where(loaded)
        .groupBy("node")
        .agg(
            F.percentile("acked_per_s", PROVISIONING_BUSIEST).alias("capacity_per_s"),
            F.count("*").alias("windows"),
        )
        .where(F.col("windows") >= LOADED_WINDOWS_MIN)
    )


def boots(events: DataFrame) -> DataFrame:
    """Return how long each boot of a machine took."""
    took_s = F.col("duration_s")
    return events.where((F.col("event") == "boot") & (took_s >= 0)).select("duration_s")


@dataclass(frozen=True)
class FormulaInput:
    """An input of the formula, with a sentence about it; the value NaN means missing."""

    name: str
    value: float
    unit: str
    # The number of steps, boots or nodes from which it was computed.
    seen: int
    says: str

    @property
    def is_missing(self) -> bool:
        return math.isnan(self.value)


def run_provisioning(inputs: JobInputs) -> JobResult:
    """Return the model, and its inputs as a table."""
    frames = inputs.frames
    steps = frames["queue_samples"].transform(production).toArrow()
    begins_s = column_seconds(steps, "step")
    boots_s = column_numbers(frames["events"].transform(boots).toArrow(), "duration_s").tolist()
    capacities = node_capacities(
        frames["node_samples"].transform(work), frames["queue_samples"].transform(backlog)
    ).toArrow()
    ingredients = [
        growth(begins_s, column_numbers(steps, "produced_per_s")),
        boot_time(boots_s),
        machine_capacity(column_numbers(capacities, "capacity_per_s").tolist()),
    ]
    model = provisioning_model(
        ingredients,
        boots_s,
        rows=int(column_numbers(steps, "rows").sum()),
        from_s=float(begins_s.min()) if len(begins_s) else inputs.since.timestamp(),
        to_s=float(begins_s.max()) + STEP_S if len(begins_s) else inputs.until.timestamp(),
    )
    session = frames["queue_samples"].sparkSession
    rows = [astuple(one) for one in ingredients]
    columns = dict(zip(PROVISIONING_SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    return JobResult({"provisioning": frame_of(session, PROVISIONING_SCHEMA, columns)}, [model])


def growth(begins_s: Numbers, produced_per_s: Numbers) -> FormulaInput:
    """Return the steepest growth that lasted a minute; the steps may come in any order."""
    name, unit = "sla_delta", "msg/s²"
    found = math.nan
    if len(begins_s):
        at = np.rint((begins_s - begins_s.min()) / STEP_S).astype(np.int64)
        rates = np.full(at.max() + 1, np.nan)
        rates[at] = produced_per_s
        found = sla_delta(rates, STEP_S)
    if math.isnan(found):
        says = "no minute of production was recorded without a gap"
    elif found <= 0:
        says = "production never grew for a whole minute"
    else:
        says = f"production never grew faster than {found:.4g} msg/s² over a minute"
    return FormulaInput(name, found, unit, len(begins_s), says)


def boot_time(boots_s: list[float]) -> FormulaInput:
    """Return the time that a boot takes."""
    if not boots_s:
        return FormulaInput("boot_s", math.nan, "s", 0, "no boot of a machine was recorded")
    found = boot_time_s(boots_s)
    says = f"{found.kind} of {found.n} {'boot' if found.n == 1 else 'boots'}"
    return FormulaInput("boot_s", found.boot_s, "s", found.n, says)


def machine_capacity(capacities_per_s: list[float]) -> FormulaInput:
    """Return the capacity of a machine, the median over loaded nodes."""
    name, unit = "machine_capacity_per_s", "msg/s"
    if not capacities_per_s:
        says = (
            "no node was seen with messages waiting for a minute, so what one can do is not known"
        )
        return FormulaInput(name, math.nan, unit, 0, says)
    found = statistics.median(capacities_per_s)
    nodes = len(capacities_per_s)
    says = "one node under load" if nodes == 1 else f"median of {nodes} nodes under load"
    return FormulaInput(name, found, unit, len(capacities_per_s), says)


def provisioning_model(
    ingredients: list[FormulaInput], boots_s: list[float], rows: int, from_s: float, to_s: float
) -> StoredModel:
    """Return the number of warm machines, or a refused model that names the missing inputs."""
    parameters = {one.name: one.value for one in ingredients if not one.is_missing}
    if boots_s:
        parameters["boot_s_mean"] = statistics.fmean(boots_s)
        parameters["boot_s_p95"] = float(np.percentile(boots_s, 95.0))
    missing = [one.says for one in ingredients if one.is_missing]
    reason = "; ".join(missing)
    if not missing:
        delta, boot_s, capacity_per_s = (one.value for one in ingredients)
        warm = warm_machines(delta, boot_s, capacity_per_s)
        parameters["warm_machines"] = warm
        reason = (
            f"while a machine boots ({boot_s:.4g} s) the load grows by {delta * boot_s:.4g} msg/s, "
            f"and a machine does {capacity_per_s:.4g}: {warm} warm"
        )
    return StoredModel(
        subject=SUBJECT,
        accepted=not missing,
        reason=reason,
        parameters=parameters,
        quality={f"{one.name}_seen": one.seen for one in ingredients},
        rows=rows,
        from_s=from_s,
        to_s=to_s,
    )


PROVISIONING_JOB = Job(
    name="provisioning",
    says="How many machines to keep warm",
    reads=("queue_samples", "node_samples", "events"),
    writes={"provisioning": PROVISIONING_SCHEMA},
    run=run_provisioning,
)
