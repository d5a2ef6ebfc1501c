"""Job `forecast`: how much will arrive in each queue in the next hour, with error bounds.

    samples → by_minute → as_series → (driver) laws.forecasting.forecast

Spark makes one row per queue with its arrival rate per minute. The law forecasts all queues
together, and evaluates itself on held-out hours of each queue's history. It accepts a forecast only
if it beats the seasonal-naive baseline. For the other queues the table contains the baseline with
the baseline's error bounds, and `accepted` is false.

The driver holds a matrix of queues × minutes. To bound it, the job forecasts the 1,000 busiest
queues, from at most five weeks of history.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.laws.forecasting import Forecast, forecast
from tidegate.pipeline.jobs import Job, JobInputs, JobResult
from tidegate.pipeline.lake import Numbers, column_numbers, frame_of
from tidegate.telemetry.models import StoredModel

STEP_S = 60
STEPS_AHEAD = 60
# A day and a week, in steps.
SEASONS = (1_440, 10_080)
SERIES_MAX = 1_000
# Four weeks to build a profile, and one week to choose and to evaluate the method.
HISTORY_MAX = timedelta(weeks=5)
# How much the history table keeps, for charts.
HISTORY_SERIES_MAX = 100
HISTORY_STEPS = 1_440
CONFIDENCE = 0.9

FORECAST = StructType(
    [
        StructField("queue", StringType(), False),
        # The start of the minute.
        StructField("at", TimestampType(), False),
        StructField("expected_per_s", DoubleType(), False),
        StructField("low_per_s", DoubleType()),
        StructField("high_per_s", DoubleType()),
        StructField("baseline_per_s", DoubleType(), False),
        # True if the expected rate is the law's, false if it is the baseline.
        StructField("accepted", BooleanType(), False),
    ]
)
HISTORY = StructType(
    [
        StructField("queue", StringType(), False),
        StructField("at", TimestampType(), False),
        StructField("arrived_per_s", DoubleType(), False),
    ]
)


def by_minute(samples: DataFrame) -> DataFrame:
    """Return the arrival rate of each queue, over all replicas, in each minute since 1970."""
    minute = F.floor(F.unix_seconds("at") / F.lit(STEP_S)).cast("int").alias("minute")
    return (
        samples.groupBy("queue", "replica", minute)
        .agg(
            (F.sum("put") / F.sum("interval_s")).alias("arrived_per_s"), F.count("*").alias("rows")
        )
        .groupBy("queue", "minute")
        .agg(F.sum("arrived_per_s").alias("arrived_per_s"), F.sum("rows").alias("rows"))
    )


def as_series(minutes: DataFrame) -> DataFrame:
    """Return a row per queue, the busiest first, for at most 1,000 queues."""
    return (
        minutes.groupBy("queue")
        .agg(
            F.collect_list("minute").alias("minutes"),
            F.collect_list("arrived_per_s").alias("arrived_per_s"),
            F.sum("arrived_per_s").alias("volume"),
            F.sum("rows").alias("rows"),
        )
        .orderBy(F.desc("volume"), "queue")
        .limit(SERIES_MAX)
        .drop("volume")
    )


@dataclass(frozen=True)
class ArrivalHistory:
    """The arrival rates: queues as rows, minutes as columns, NaN where nothing was recorded."""

    queues: list[str]
    rows: list[int]
    first_minute: int
    arrived_per_s: Numbers

    @property
    def next_minute(self) -> int:
        return self.first_minute + int(self.arrived_per_s.shape[1])

    @staticmethod
    def of(series: pa.Table) -> ArrivalHistory:
        """Build the history from the table of `as_series`, without queues that no longer exist."""
        minutes = _flat(series, "minutes").astype(np.int64)
        if not len(minutes):
            return ArrivalHistory([], [], 0, np.empty((0, 0)))
        lengths = [len(one) for one in series.column("minutes")]
        first = int(minutes.min())
        arrived = np.full((series.num_rows, int(minutes.max()) - first + 1), np.nan)
        rows = np.repeat(np.arange(series.num_rows), lengths)
        arrived[rows, minutes - first] = _flat(series, "arrived_per_s")
        return ArrivalHistory(
            series.column("queue").to_pylist(), series.column("rows").to_pylist(), first, arrived
        ).still_there()

    def still_there(self) -> ArrivalHistory:
        """Return the history without queues that were not recorded in the last hour."""
        recent = np.isfinite(self.arrived_per_s[:, -STEPS_AHEAD:])
        kept = [number for number, seen in enumerate(recent.max(axis=1).tolist()) if seen]
        return ArrivalHistory(
            [self.queues[number] for number in kept],
            [self.rows[number] for number in kept],
            self.first_minute,
            self.arrived_per_s[kept],
        )


def run(inputs: JobInputs) -> JobResult:
    """Return the forecast of every queue, its history for charts, and a model with its quality."""
    samples = inputs.frames["queue_samples"].where(F.col("at") >= inputs.until - HISTORY_MAX)
    history = ArrivalHistory.of(samples.transform(by_minute).transform(as_series).toArrow())
    session = samples.sparkSession
    if not history.queues:
        nothing: dict[str, list[float]] = {name: [] for name in FORECAST.names + HISTORY.names}
        return JobResult(
            {
                "forecast": frame_of(session, FORECAST, nothing),
                "forecast_history": frame_of(session, HISTORY, nothing),
            }
        )
    found = forecast(history.arrived_per_s, STEPS_AHEAD, SEASONS, CONFIDENCE, STEP_S)
    return JobResult(
        tables={
            "forecast": frame_of(session, FORECAST, _forecast_columns(history, found)),
            "forecast_history": frame_of(session, HISTORY, _history_columns(history)),
        },
        models=[_model(history, found, number) for number in range(len(history.queues))],
    )


def offered(found: Forecast) -> tuple[Numbers, Numbers, Numbers]:
    """Return the expected rate with its bounds: the law's if accepted, else the baseline's."""
    ours = found.accepted[:, None]
    return (
        np.where(ours, found.expected_per_s, found.baseline_per_s),
        np.where(ours, found.low_per_s, found.baseline_low_per_s),
        np.where(ours, found.high_per_s, found.baseline_high_per_s),
    )


def _forecast_columns(history: ArrivalHistory, found: Forecast) -> dict[str, NDArray[np.generic]]:
    queues = len(history.queues)
    minutes = history.next_minute + np.arange(STEPS_AHEAD)
    expected, low, high = offered(found)
    return {
        "queue": np.repeat(np.array(history.queues, dtype=object), STEPS_AHEAD),
        "at": _times(np.tile(minutes, queues)),
        "expected_per_s": expected.ravel(),
        "low_per_s": low.ravel(),
        "high_per_s": high.ravel(),
        "baseline_per_s": found.baseline_per_s.ravel(),
        "accepted": np.repeat(found.accepted, STEPS_AHEAD),
    }


def _history_columns(history: ArrivalHistory) -> dict[str, NDArray[np.generic]]:
    recent = history.arrived_per_s[:HISTORY_SERIES_MAX, -HISTORY_STEPS:]
    queue, minute = np.nonzero(np.isfinite(recent))
    first = history.next_minute - recent.shape[1]
    return {
        "queue": np.array(history.queues, dtype=object)[queue],
        "at": _times(first + minute),
        "arrived_per_s": recent[queue, minute],
    }


def _model(history: ArrivalHistory, found: Forecast, number: int) -> StoredModel:
    """Return the model of one queue: peak and trough of the next hour, and its quality."""
    expected, low, high = (part[number] for part in offered(found))
    recorded = np.flatnonzero(np.isfinite(history.arrived_per_s[number]))
    return StoredModel(
        subject=history.queues[number],
        accepted=bool(found.accepted[number]),
        reason=str(found.reason[number]),
        parameters={
            "expected_per_s": float(expected.mean()),
            "peak_per_s": float(expected.max()),
            "peak_high_per_s": float(high.max()),
            "trough_low_per_s": float(low.min()),
            "season_s": float(found.season[number]) * STEP_S,
            "horizon_s": float(STEPS_AHEAD * STEP_S),
        },
        quality={
            "error_per_s": float(found.error_per_s[number]),
            "baseline_error_per_s": float(found.baseline_error_per_s[number]),
            "skill": float(found.skill[number]),
            "coverage": float(found.coverage[number]),
        },
        rows=history.rows[number],
        from_s=float(history.first_minute + recorded[0]) * STEP_S,
        to_s=float(history.first_minute + recorded[-1] + 1) * STEP_S,
    )


def _flat(series: pa.Table, name: str) -> Numbers:
    return column_numbers(pa.table({name: series.column(name).combine_chunks().flatten()}), name)


def _times(minutes: NDArray[np.int64]) -> NDArray[np.datetime64]:
    return (minutes * STEP_S * 1_000_000).astype("datetime64[us]")


JOB = Job(
    name="forecast",
    says="What will arrive in the next hour",
    reads=("queue_samples",),
    writes={"forecast": FORECAST, "forecast_history": HISTORY},
    run=run,
)
