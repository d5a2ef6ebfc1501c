"""Job `provisioning`: how many machines to keep warm.

    NPP = ceil(sla_delta · boot_s / machine_capacity)               laws.provisioning

- `sla_delta`: the growth of the load. The steepest slope of a line through one minute of the
  production of all queues, in steps of five seconds. The law smooths the steps and ignores slopes
  that noise explains.
- `boot_s`: the time to boot, mean or 95th percentile of the events `boot`.
- `machine_capacity`: the acknowledgement rate of a loaded node. A window of ten seconds counts as
  loaded if at all times at least one second's worth of messages waited. A node's capacity is the
  90th percentile of its loaded windows; the capacity of a machine is the median over nodes.

An input that was not recorded is not guessed: the model is refused and names the missing inputs.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import astuple, dataclass

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from tidegate.laws.provisioning import boot_time_s, sla_delta, warm_machines
from tidegate.pipeline.job import Inputs, Job, Outcome
from tidegate.pipeline.local_table import Numbers, frame_of, numbers, seconds
from tidegate.pipeline.windows import window_start
from tidegate.telemetry.knowledge import Model

# All queues share the machines, so there is one model for the fleet.
SUBJECT = "fleet"
STEP_S = 5.0
WINDOW_S = 10.0
BUSIEST = 0.9
# A node's capacity counts from one minute under load on.
LOADED_WINDOWS_MIN = 6
BACKLOG_S = 1.0

SCHEMA = StructType(
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
        samples.groupBy("node", "queue", "replica", window_start(WINDOW_S).alias("window"))
        .agg(F.min("waiting").alias("waiting"))
        .groupBy("node", "window")
        .agg(F.sum("waiting").alias("waiting_least"))
    )


def work(samples: DataFrame) -> DataFrame:
    """Return the acknowledgement rate of each node in each window."""
    return (
        samples.where(F.col("role") == "node")
        .groupBy("node", window_start(WINDOW_S).alias("window"))
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
            F.percentile("acked_per_s", BUSIEST).alias("capacity_per_s"),
            F.count("*").alias("windows"),
        )
        .where(F.col("windows") >= LOADED_WINDOWS_MIN)
    )


def boots(events: DataFrame) -> DataFrame:
    """Return how long each boot of a machine took."""
    took_s = F.col("duration_s")
    return events.where((F.col("event") == "boot") & (took_s >= 0)).select("duration_s")


@dataclass(frozen=True)
class Ingredient:
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


def run(inputs: Inputs) -> Outcome:
    """Return the model, and its inputs as a table."""
    frames = inputs.frames
    steps = frames["queue_samples"].transform(production).toArrow()
    begins_s = seconds(steps, "step")
    boots_s = numbers(frames["events"].transform(boots).toArrow(), "duration_s").tolist()
    capacities = node_capacities(
        frames["node_samples"].transform(work), frames["queue_samples"].transform(backlog)
    ).toArrow()
    ingredients = [
        growth(begins_s, numbers(steps, "produced_per_s")),
        boot_time(boots_s),
        machine_capacity(numbers(capacities, "capacity_per_s").tolist()),
    ]
    model = provisioning_model(
        ingredients,
        boots_s,
        rows=int(numbers(steps, "rows").sum()),
        from_s=float(begins_s.min()) if len(begins_s) else inputs.since.timestamp(),
        to_s=float(begins_s.max()) + STEP_S if len(begins_s) else inputs.until.timestamp(),
    )
    session = frames["queue_samples"].sparkSession
    rows = [astuple(one) for one in ingredients]
    columns = dict(zip(SCHEMA.names, map(list, zip(*rows, strict=True)), strict=True))
    return Outcome({"provisioning": frame_of(session, SCHEMA, columns)}, [model])


def growth(begins_s: Numbers, produced_per_s: Numbers) -> Ingredient:
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
    return Ingredient(name, found, unit, len(begins_s), says)


def boot_time(boots_s: list[float]) -> Ingredient:
    """Return the time that a boot takes."""
    if not boots_s:
        return Ingredient("boot_s", math.nan, "s", 0, "no boot of a machine was recorded")
    found = boot_time_s(boots_s)
    says = f"{found.kind} of {found.n} {'boot' if found.n == 1 else 'boots'}"
    return Ingredient("boot_s", found.boot_s, "s", found.n, says)


def machine_capacity(capacities_per_s: list[float]) -> Ingredient:
    """Return the capacity of a machine, the median over loaded nodes."""
    name, unit = "machine_capacity_per_s", "msg/s"
    if not capacities_per_s:
        says = (
            "no node was seen with messages waiting for a minute, so what one can do is not known"
        )
        return Ingredient(name, math.nan, unit, 0, says)
    found = statistics.median(capacities_per_s)
    nodes = len(capacities_per_s)
    says = "one node under load" if nodes == 1 else f"median of {nodes} nodes under load"
    return Ingredient(name, found, unit, len(capacities_per_s), says)


def provisioning_model(
    ingredients: list[Ingredient], boots_s: list[float], rows: int, from_s: float, to_s: float
) -> Model:
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
    return Model(
        subject=SUBJECT,
        accepted=not missing,
        reason=reason,
        parameters=parameters,
        quality={f"{one.name}_seen": one.seen for one in ingredients},
        rows=rows,
        from_s=from_s,
        to_s=to_s,
    )


JOB = Job(
    name="provisioning",
    says="How many machines to keep warm",
    reads=("queue_samples", "node_samples", "events"),
    writes={"provisioning": SCHEMA},
    run=run,
)
