"""The stability job on rows whose answer is known."""

from __future__ import annotations

from datetime import timedelta

from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.pipeline.jobs.queues import STABILITY_SCHEMA, stability_by_window
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import QUEUE_SAMPLES


def test_a_queue_floods_drains_and_is_stable(spark: SparkSession) -> None:
    # A dozen seconds of three queues; the replicas of `mixed` cancel out.
    rows = [
        {"at": NOON + timedelta(seconds=s), "queue": queue, "replica": replica, "put": put, **taken}
        for s in range(2)
        for queue, replica, put, taken in (
            ("fills", 0, 100, {"acked": 90, "waiting": 10}),
            ("empties", 0, 50, {"acked": 40, "expired": 15, "dead_lettered": 5, "dropped": 10}),
            ("even", 0, 100, {"acked": 98}),
            ("idle", 0, 0, {}),
            ("mixed", 0, 100, {"acked": 0}),
            ("mixed", 1, 0, {"acked": 100}),
        )
    ]
    samples = frame_of(spark, QUEUE_SAMPLES, rows)

    table = checked(samples.transform(stability_by_window(60)), STABILITY_SCHEMA, "stability")

    found = {row["queue"]: row.asDict() for row in table.collect()}
    assert {queue: row["stability"] for queue, row in found.items()} == {
        "fills": "flooded",
        "empties": "draining",
        "even": "stable",
        "idle": "stable",
        "mixed": "stable",
    }
    assert found["fills"]["growth_per_s"] == 10.0
    assert found["empties"]["growth_per_s"] == -20.0
    assert found["fills"]["seconds"] == 2.0
    assert found["mixed"]["replicas"] == 2
    assert not found["mixed"]["every_replica_stable"]
    assert found["even"]["every_replica_stable"]


def test_windows_are_apart(spark: SparkSession) -> None:
    rows = [
        {"at": NOON + timedelta(seconds=59.9), "put": 10},
        {"at": NOON + timedelta(seconds=60), "acked": 10},
    ]

    table = frame_of(spark, QUEUE_SAMPLES, rows).transform(stability_by_window(60))

    found = [row["stability"] for row in table.orderBy("window").collect()]
    assert found == ["flooded", "draining"]
