"""An afternoon of an HTTP service, learned from: what it did, what an instance can do, warnings."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.agreements.document import parse_agreement
from tidegate.pipeline.jobs import Job, JobInputs, JobResult, agreements, services
from tidegate.pipeline.lake import checked
from tidegate.telemetry.meters import bucket_of, upper_bound_s
from tidegate.telemetry.schemas import EVENTS, HTTP_REQUESTS, HTTP_SAMPLES, QUEUE_SAMPLES

SHOP = """
name = "shop agreement"
http = "shop"
window = "10s"
warning = "learned"
[metrics.response_p99]
breach = "6s"
[metrics.free_memory]
breach = "64MiB"
"""
SECONDS = 120


def some_second(second: int) -> list[dict[str, Any]]:
    """Two doors; instance 1 is full from half a minute on, then 2 comes; 3 is spare throughout."""
    at = {"at": NOON + timedelta(seconds=second, milliseconds=1), "service": "shop"}
    slow = 30 <= second < 70
    rows: list[dict[str, Any]] = []
    for door in ("d1", "d2"):
        # A response of 1 s grows by 100 ms a second while it is slow.
        response_s = 1.0 + 0.1 * (second // 10 * 10 - 20) if slow else 1.0
        response = [{"bucket": bucket_of(response_s), "count": 20}]
        rows.append(
            {**at, "door": door, "answered": 20, "refused": int(slow), "response": response}
        )
        full = {"outstanding": 5 if slow else 1, "concurrency": 10, "weight": 1.0, "ejected": ""}
        rows.append({**at, **full, "door": door, "instance": 1, "served": 21 if slow else 20})
        if second >= 60:
            rows.append({**at, **full, "door": door, "instance": 2, "outstanding": 0})
        spare = {"instance": 3, "weight": 0.0, "ejected": "", "free_memory_bytes": 1e9}
        rows.append({**at, **spare, "door": door})
    return rows


def events() -> list[dict[str, Any]]:
    at = NOON + timedelta(seconds=35)
    detail = [("metric", "response_p99"), ("turn", "breached"), ("evidence", "6.5 s")]
    return [
        {"at": at, "event": "violation", "subject": "shop agreement", "value": 6.5}
        | {"detail": detail},
        {"at": at, "event": "reconfigured", "subject": "shop", "duration_s": 4.0},
        # The next leader told of it again.
        {"at": at, "event": "reconfigured", "subject": "shop", "duration_s": 4.0, "node": "next"},
        {"at": at, "event": "reconfigured", "subject": "shop", "duration_s": 6.0},
        {"at": at, "event": "reconfigured", "subject": "mall", "duration_s": 99.0},
        {"at": at, "event": "join", "subject": "member 1"},
    ]


@pytest.fixture(scope="module")
def inputs(spark: SparkSession) -> JobInputs:
    samples = [row for second in range(SECONDS) for row in some_second(second)]
    request = {"service": "shop", "instance": 1, "weight": 3.0, "wait_door_us": 10.0}
    requests = [
        request | {"server_us": 30.0, "total_us": 40.0},
        request | {"weight": 1.0, "server_us": 10.0, "total_us": 20.0},
        # Turned away: it says nothing of instances.
        request | {"instance": None, "total_us": 10.0},
    ]
    frames = {
        "http_requests": frame_of(spark, HTTP_REQUESTS, requests),
        "http_samples": frame_of(spark, HTTP_SAMPLES, samples).cache(),
        "queue_samples": frame_of(spark, QUEUE_SAMPLES, []),
        "events": frame_of(spark, EVENTS, events()),
    }
    until = NOON + timedelta(seconds=SECONDS)
    return JobInputs(frames, [parse_agreement(SHOP, "test")], NOON, until)


def rows_of(job: Job, outcome: JobResult, table: str) -> list[dict[str, Any]]:
    frame = checked(outcome.tables[table], job.writes[table], table)
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def test_services_job_summarizes_windows(inputs: JobInputs) -> None:
    outcome = services.SERVICES_JOB.run(inputs)

    windows = sorted(
        rows_of(services.SERVICES_JOB, outcome, "http_windows"), key=lambda row: str(row["window"])
    )
    assert len(windows) == SECONDS / inputs.window_s == 60
    calm, slow, eased = windows[0], windows[20], windows[-1]
    # Two doors of 20 requests a second each.
    assert calm["answered_per_s"] == pytest.approx(40.0, rel=0.01)
    assert calm["response_s_p99"] == pytest.approx(1.0, rel=0.1)
    assert slow["response_s_p50"] == pytest.approx(3.0, rel=0.1)
    assert (calm["missed"], slow["missed"], calm["responses"]) == (0, 4, 80)
    assert (calm["came"], slow["came"]) == (80, 84)
    # Whom both doors see is one instance.
    assert (calm["serving"], calm["spare"]) == (1.0, 1.0)
    assert (eased["serving"], eased["spare"], eased["free_memory_bytes"]) == (2.0, 1.0, 1e9)
    [phases] = rows_of(services.SERVICES_JOB, outcome, "http_phases")
    assert (phases["sampled"], phases["requests"]) == (2, 4.0)
    assert (phases["wait_door_us"], phases["server_us"], phases["total_us"]) == (10.0, 25.0, 35.0)
    [violation] = rows_of(services.SERVICES_JOB, outcome, "violations")
    assert (violation["agreement"], violation["turn"]) == ("shop agreement", "breached")
    assert (violation["metric"], violation["worst"]) == ("response_p99", 6.5)


def test_http_capacity_comes_from_saturated_windows(inputs: JobInputs) -> None:
    outcome = services.HTTP_CAPACITY_JOB.run(inputs)

    rows = {
        row["instance"]: row
        for row in rows_of(services.HTTP_CAPACITY_JOB, outcome, "http_capacity")
    }
    assert (rows[1]["saturated_windows"], rows[2]["saturated_windows"]) == (8, 0)
    [model] = outcome.models
    assert (model.subject, model.accepted) == ("shop", True)
    # Two doors of 21 each.
    assert model.parameters == {"throughput_per_s": 42.0, "concurrency": 10.0}
    assert "one instance" in model.reason


def test_a_learned_warning_lies_as_far_before_the_breach_as_help_takes(inputs: JobInputs) -> None:
    outcome = agreements.WARNINGS_JOB.run(inputs)

    [model] = outcome.models
    assert (model.subject, model.accepted) == ("shop agreement", True)
    # A second more in ten, as far as buckets can tell, and help takes 5 s on average.
    assert model.parameters["reconfiguration_s"] == 5.0
    slope = model.parameters["slope_response_p99"]
    ends_s = [upper_bound_s(bucket_of(response_s)) for response_s in (1.0, 2.0, 3.0, 4.0, 5.0)]
    assert slope == pytest.approx(max(b - a for a, b in pairwise(ends_s)) / 10.0)
    assert model.parameters["warning_response_p99"] == pytest.approx(6 - 1.25 * 5 * slope)
    rows = rows_of(agreements.WARNINGS_JOB, outcome, "learned_warnings")
    learned = {row["metric"]: row for row in rows}
    assert learned["response_p99"]["learned"] == model.parameters["warning_response_p99"]
    assert learned["free_memory"]["slope_per_s"] == 0.0
