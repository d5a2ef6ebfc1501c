"""The provisioning job: the paper's numbers, and what is said when one of them is missing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.pipeline.jobs import JobInputs, JobResult, services
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import EVENTS, NODE_SAMPLES, QUEUE_SAMPLES

SINCE, UNTIL = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
# The fast ramp of the paper: 100 msg/s more each 25 s.
RAMP = [{"put": 100 * (second // 25)} for second in range(200)]


def learned(
    spark: SparkSession,
    queue: list[dict[str, Any]] = RAMP,
    boots_s: tuple[float, ...] = (95.9, 97.9),
    acked: int = 200,
    waiting: int = 5_000,
) -> JobResult:
    def each_second(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"at": NOON + timedelta(seconds=n), "node": "n1", **r} for n, r in enumerate(rows)]

    nodes = [{"role": "node", "acked": acked} for _ in queue]
    events = [{"event": "boot", "duration_s": took_s} for took_s in boots_s]
    frames = {
        "queue_samples": frame_of(
            spark, QUEUE_SAMPLES, each_second([{"waiting": waiting, **row} for row in queue])
        ),
        "node_samples": frame_of(spark, NODE_SAMPLES, each_second(nodes)),
        "events": frame_of(spark, EVENTS, [*events, {"event": "join"}]),
    }
    return services.run_provisioning(JobInputs(frames, [], SINCE, UNTIL))


def test_the_papers_numbers_give_two_warm_machines(spark: SparkSession) -> None:
    outcome = learned(spark)

    (model,) = outcome.models
    assert model.accepted, model.reason
    assert model.parameters["sla_delta"] == pytest.approx(4.0, rel=0.1)
    assert model.parameters["boot_s"] == pytest.approx(96.9)
    assert model.parameters["machine_capacity_per_s"] == 200.0
    assert model.parameters["warm_machines"] == 2
    assert model.rows == 200
    table = checked(
        outcome.tables["provisioning"], services.PROVISIONING_SCHEMA, "provisioning"
    ).collect()
    assert {row["ingredient"]: row["seen"] for row in table} == {
        "sla_delta": 40,
        "boot_s": 2,
        "machine_capacity_per_s": 1,
    }


def test_production_is_that_of_all_replicas(spark: SparkSession) -> None:
    rows = [
        {"at": NOON + timedelta(seconds=second), "queue": queue, "replica": replica, "put": put}
        for second in range(5)
        for queue, replica, put in (("a", 0, 10), ("a", 1, 20), ("b", 0, 30))
    ]
    # A replica that was there for the step's last second counts with its rate.
    rows.append({"at": NOON + timedelta(seconds=4), "queue": "c", "put": 40})

    (step,) = frame_of(spark, QUEUE_SAMPLES, rows).transform(services.production).collect()

    assert step["produced_per_s"] == 100.0
    assert step["rows"] == 16


def test_a_node_without_backlog_does_not_say_what_it_can_do(spark: SparkSession) -> None:
    (model,) = learned(spark, waiting=3).models

    assert not model.accepted
    assert "messages waiting" in model.reason
    assert "machine_capacity_per_s" not in model.parameters
    # What is known is kept.
    assert model.parameters["sla_delta"] > 0


def test_everything_missing_is_said_at_once(spark: SparkSession) -> None:
    (model,) = learned(spark, queue=RAMP[:10], boots_s=()).models

    assert not model.accepted
    assert "no minute of production" in model.reason
    assert "no boot" in model.reason
    assert "no node" in model.reason


def test_an_empty_lake_is_a_refused_model_and_not_an_error(spark: SparkSession) -> None:
    (model,) = learned(spark, queue=[], boots_s=()).models

    assert not model.accepted
    assert model.rows == 0
