"""The forecast job: a day's wave is foreseen, chance is not, and it says which is which."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.pipeline.jobs import JobInputs, JobResult, forecast
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import QUEUE_SAMPLES

SINCE, UNTIL = datetime(2026, 1, 1, tzinfo=UTC), NOON + timedelta(minutes=1)


def each_minute(
    queue: str, minutes: int, put: Callable[[int], int], end: datetime = NOON
) -> list[dict[str, Any]]:
    """A sample of a minute, so that a week is no more than 10 080 rows."""
    return [
        {
            "at": end - timedelta(minutes=minutes - minute),
            "queue": queue,
            "interval_s": 60.0,
            "put": put(minute),
        }
        for minute in range(minutes)
    ]


def learned(spark: SparkSession, rows: list[dict[str, Any]]) -> JobResult:
    frame = frame_of(spark, QUEUE_SAMPLES, rows)
    return forecast.run(JobInputs({"queue_samples": frame}, [], SINCE, UNTIL))


def test_minutes_add_up_replicas_and_average_seconds(spark: SparkSession) -> None:
    rows = [
        {"at": NOON + timedelta(seconds=second), "queue": "orders", "replica": replica, "put": put}
        for second in range(3)
        for replica, put in ((0, 10 * second), (1, 5))
    ]
    rows.append({"at": NOON + timedelta(seconds=60), "queue": "orders", "put": 7})

    found = (
        frame_of(spark, QUEUE_SAMPLES, rows)
        .transform(forecast.by_minute)
        .orderBy("minute")
        .collect()
    )

    assert [row["arrived_per_s"] for row in found] == [15.0, 7.0]
    assert [row["rows"] for row in found] == [6, 1]
    assert found[1]["minute"] - found[0]["minute"] == 1


def test_a_days_wave_is_foreseen_and_beats_the_day_before(spark: SparkSession) -> None:
    # Given four days that resemble each other, each busier than the one before, with noise.
    dice = random.Random(5)

    def put(minute: int) -> int:
        level = 6_000 * (1.0 + 0.3 * (minute // 1_440))
        wave = 1.0 + 0.6 * math.sin(2.0 * math.pi * minute / 1_440)
        return max(round(level * wave + dice.gauss(0.0, 100.0)), 0)

    outcome = learned(spark, each_minute("orders", 4 * 1_440, put))

    (model,) = outcome.models
    assert model.accepted, model.reason
    assert model.quality["skill"] > 0.0
    assert model.quality["error_per_s"] < model.quality["baseline_error_per_s"]
    assert model.quality["coverage"] == pytest.approx(0.9, abs=0.1)
    table = checked(outcome.tables["forecast"], forecast.FORECAST, "forecast")
    hour = table.orderBy("at").collect()
    assert len(hour) == 60
    assert hour[0]["at"].replace(tzinfo=UTC) == NOON
    for minute, row in enumerate(hour):
        real = 6_000 * 1.9 * (1.0 + 0.6 * math.sin(2.0 * math.pi * minute / 1_440)) / 60
        # The fifth day begins: what is expected is nearer to the fourth than to what will be.
        assert row["low_per_s"] <= row["expected_per_s"] <= row["high_per_s"]
        assert row["expected_per_s"] == pytest.approx(real, rel=0.3)
        assert row["accepted"]
    history = checked(outcome.tables["forecast_history"], forecast.HISTORY, "history")
    assert history.count() == 1_440


def test_where_nothing_can_be_learned_the_baseline_is_offered(spark: SparkSession) -> None:
    # Given a walk without a pattern: the last value is the best guess there is.
    dice = random.Random(6)
    steps = [600]
    for _ in range(1_000):
        steps.append(max(steps[-1] + dice.choice((-30, 30)), 0))

    outcome = learned(spark, each_minute("walk", 1_000, lambda minute: steps[minute]))

    (model,) = outcome.models
    rows = outcome.tables["forecast"].collect()
    assert not model.accepted
    assert "baseline" in model.reason
    assert all(row["expected_per_s"] == row["baseline_per_s"] for row in rows)
    # With the baseline's own error bars, which grow with the distance.
    by_time = sorted(rows, key=lambda row: row["at"])
    widths = [row["high_per_s"] - row["low_per_s"] for row in by_time]
    assert widths[-1] > widths[0] > 0


def test_too_short_a_history_says_so(spark: SparkSession) -> None:
    outcome = learned(spark, each_minute("young", 30, lambda _: 60))

    (model,) = outcome.models
    assert not model.accepted
    assert "30m of history is too little" in model.reason
    row = outcome.tables["forecast"].first()
    assert row is not None
    assert row["expected_per_s"] == 1.0
    assert row["low_per_s"] is None


def test_queues_that_are_gone_are_not_forecast(spark: SparkSession) -> None:
    rows = each_minute("old", 30, lambda _: 60, end=NOON - timedelta(hours=3))

    outcome = learned(spark, rows + each_minute("young", 30, lambda _: 60))

    assert [model.subject for model in outcome.models] == ["young"]


def test_an_empty_lake_has_an_empty_forecast(spark: SparkSession) -> None:
    outcome = learned(spark, [])

    assert not outcome.models
    assert outcome.tables["forecast"].count() == 0
