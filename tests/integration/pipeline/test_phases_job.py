"""The phases job on requests whose shares are known."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.laws.estimation import mean_interval_of
from tidegate.pipeline.jobs import JobInputs
from tidegate.pipeline.jobs.queues import PHASES_JOB
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import NODE_SAMPLES, REQUESTS


def request(
    verb: str, parse_us: float, store_us: float, respond_us: float, **more: float
) -> dict[str, Any]:
    return {
        "at": NOON,
        "verb": verb,
        "weight": 10.0,
        "parse_us": float(parse_us),
        "store_us": float(store_us),
        "respond_us": float(respond_us),
        "total_us": float(parse_us + store_us + respond_us),
    } | more


Rows = list[dict[str, Any]]


def tables(spark: SparkSession, requests: Rows, samples: Rows) -> dict[str, Rows]:
    frames = {
        "requests": frame_of(spark, REQUESTS, requests),
        "node_samples": frame_of(spark, NODE_SAMPLES, samples),
    }
    outcome = PHASES_JOB.run(JobInputs(frames, [], NOON, NOON + timedelta(hours=1)))
    return {
        name: [row.asDict() for row in checked(frame, PHASES_JOB.writes[name], name).collect()]
        for name, frame in outcome.tables.items()
    }


def test_shares_add_up_and_have_intervals(spark: SparkSession) -> None:
    puts = [request("put", 10, 80 + spread, 10) for spread in (-10, 0, 10, -5, 5, 0)]
    gets = [request("get", 20, 0, 20) for _ in range(6)]

    found = tables(spark, puts + gets, [])

    phases = {(row["verb"], row["phase"]): row for row in found["phases"]}
    for verb in ("put", "get", "all"):
        assert sum(row["share"] for row in found["phases"] if row["verb"] == verb) == pytest.approx(
            1.0
        )
    store = phases["put", "store"]
    assert store["mean_us"] == 80.0
    assert store["requests"] == 60.0
    assert store["sampled"] == 6
    by_hand = mean_interval_of([70.0, 80.0, 90.0, 75.0, 85.0, 80.0])
    assert (store["low_us"], store["high_us"]) == pytest.approx((by_hand.low, by_hand.high))
    assert store["share_low"] < 0.8 < store["share_high"]
    # All of them alike: nothing is left open.
    assert phases["get", "parse"]["share_low"] == pytest.approx(0.5)
    assert phases["get", "parse"]["share_high"] == pytest.approx(0.5)
    assert phases["all", "store"]["share"] == pytest.approx(480 / (600 + 240))


def test_a_request_that_stands_for_many_weighs_as_many(spark: SparkSession) -> None:
    found = tables(
        spark,
        [request("put", 0, 100, 0, weight=9.0), request("put", 100, 0, 0, weight=1.0)],
        [],
    )

    shares = {row["phase"]: row["share"] for row in found["phases"] if row["verb"] == "put"}
    assert shares["store"] == pytest.approx(0.9)
    assert shares["parse"] == pytest.approx(0.1)


def test_single_request_has_shares_and_no_interval(spark: SparkSession) -> None:
    found = tables(spark, [request("put", 10, 80, 10)], [])

    store = next(row for row in found["phases"] if row["phase"] == "store")
    assert store["share"] == pytest.approx(0.8)
    assert store["share_low"] is None
    assert store["low_us"] is None


def test_a_process_is_idle_while_it_uses_no_processor(spark: SparkSession) -> None:
    samples = [
        {"at": NOON, "node": "a", "interval_s": 1.0, "cpu_s": cpu_s} for cpu_s in (0.2, 0.4, 0.3)
    ]

    found = tables(spark, [], samples)

    assert found["phases"] == []
    (idle,) = found["idleness"]
    by_hand = mean_interval_of([0.8, 0.6, 0.7])
    assert (idle["idle"], idle["idle_low"]) == pytest.approx((by_hand.mean, by_hand.low))
