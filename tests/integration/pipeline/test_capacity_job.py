"""The capacity job on a curve whose knee is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.pipeline.jobs import JobInputs, queues
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import QUEUE_SAMPLES

SINCE, UNTIL = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)


def seconds_of(
    first: int, count: int, producers: int, consumers: int, put: int, acked: int
) -> list[dict[str, Any]]:
    return [
        {
            "at": NOON + timedelta(seconds=first + second),
            "queue": "orders",
            "put": put,
            "acked": acked,
            "producers": producers,
            "consumers": consumers,
        }
        for second in range(count)
    ]


def test_only_windows_in_which_nobody_joined_or_left_count(spark: SparkSession) -> None:
    rows = [
        *seconds_of(0, 10, 1, 2, 100, 100),
        # A consumer joins in mid-window.
        *seconds_of(10, 5, 1, 2, 100, 100),
        *seconds_of(15, 5, 1, 3, 100, 100),
        # Recorded for three seconds only.
        *seconds_of(20, 3, 1, 3, 100, 100),
        # Nobody produces.
        *seconds_of(30, 10, 0, 3, 0, 100),
    ]

    windows = frame_of(spark, QUEUE_SAMPLES, rows).transform(queues.steady_windows).collect()

    assert [(row["producers"], row["consumers"]) for row in windows] == [(1, 2)]
    assert windows[0]["seconds"] == 10.0
    assert windows[0]["produced_per_s"] == 100.0


def test_a_mix_is_what_it_did_in_stable_windows(spark: SparkSession) -> None:
    rows = [
        *seconds_of(0, 10, 1, 2, 100, 100),
        *seconds_of(10, 10, 1, 2, 500, 100),
        *seconds_of(20, 10, 2, 1, 200, 100),
    ]

    found = {
        (row["producers"], row["consumers"]): row
        for row in frame_of(spark, QUEUE_SAMPLES, rows)
        .transform(queues.steady_windows)
        .transform(queues.by_mix)
        .collect()
    }

    assert found[1, 2]["windows"] == 2
    assert found[1, 2]["stable_windows"] == 1
    assert found[1, 2]["stable_produced_per_s"] == 100.0
    assert found[2, 1]["stable_windows"] == 0
    assert found[2, 1]["produced_per_s"] == 200.0
    assert found[2, 1]["rows"] == 10


def test_the_knee_and_the_best_mix_of_a_curve_are_found(spark: SparkSession) -> None:
    # Given a queue that moves 100 msg/s per client up to nine clients, and no more than 900.
    rows = [
        row
        for number, (producers, consumers) in enumerate(
            [(1, 2), (2, 4), (3, 6), (4, 8), (5, 10), (6, 12)]
        )
        for row in seconds_of(
            10 * number,
            10,
            producers,
            consumers,
            min(100 * (producers + consumers), 900),
            min(100 * (producers + consumers), 900),
        )
    ]
    # Too many producers for one consumer: it floods.
    rows += seconds_of(60, 10, 8, 1, 2_000, 500)

    outcome = queues.run_capacity(
        JobInputs({"queue_samples": frame_of(spark, QUEUE_SAMPLES, rows)}, [], SINCE, UNTIL)
    )

    (model,) = outcome.models
    assert model.accepted, model.reason
    assert model.subject == "orders"
    assert model.parameters["clients"] == pytest.approx(9, abs=1)
    assert model.parameters["throughput_per_s"] == pytest.approx(900.0, rel=0.02)
    assert (model.parameters["best_producers"], model.parameters["best_consumers"]) == (3, 6)
    assert model.rows == 70
    table = checked(outcome.tables["capacity"], queues.CAPACITY_SCHEMA, "capacity").collect()
    points = {(row["producers"], row["consumers"]): row for row in table}
    assert [mix for mix, row in points.items() if row["best"]] == [(3, 6)]
    assert not points[8, 1]["stable"]
    assert points[8, 1]["throughput_per_s"] == 500.0
    assert points[2, 4]["fitted_per_s"] == pytest.approx(600.0, rel=0.25)


def test_three_numbers_of_clients_are_too_few(spark: SparkSession) -> None:
    rows = [row for n in (1, 2, 3) for row in seconds_of(10 * n, 10, n, n, 100 * n, 100 * n)]

    (model,) = queues.run_capacity(
        JobInputs({"queue_samples": frame_of(spark, QUEUE_SAMPLES, rows)}, [], SINCE, UNTIL)
    ).models

    assert not model.accepted
    assert "a curve needs" in model.reason
    assert not model.parameters
