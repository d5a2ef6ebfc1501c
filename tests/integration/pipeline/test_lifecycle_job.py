"""Waiting, service and response times of messages whose times are known."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from lake_of import NOON, frame_of
from pyspark.sql import SparkSession

from tidegate.pipeline.jobs.queues import (
    LIFECYCLE_SCHEMA,
    LifecycleExtent,
    durations_by_window,
    extent,
    width_s,
)
from tidegate.pipeline.lake import checked
from tidegate.telemetry.schemas import LIFECYCLES


def message(at_s: float, queue: str, **times: object) -> dict[str, object]:
    return {"at": NOON + timedelta(seconds=at_s), "queue": queue, "weight": 1.0, **times}


def test_a_dozen_messages(spark: SparkSession) -> None:
    rows = [
        # Ten alike and one that is slow.
        *(
            message(s, "even", wait_us=1e4, service_us=2e4, response_us=3e4, weight=10.0)
            for s in range(10)
        ),
        message(10, "even", wait_us=5e6, service_us=2e4, response_us=5.02e6),
        # Ended without a delivery: no wait, no service, and a response time.
        message(70, "even", response_us=6e7),
        message(0, "instant", wait_us=0.0, service_us=0.4, response_us=0.5),
    ]

    table = frame_of(spark, LIFECYCLES, rows).transform(durations_by_window(60))

    found = {
        (r.queue, r.window.minute): r for r in checked(table, LIFECYCLE_SCHEMA, "it").collect()
    }
    first = found["even", 30]
    assert (first.messages, first.sampled, first.window_s) == (101, 11, 60.0)
    assert first.wait_s_mean == pytest.approx((100 * 0.01 + 5.0) / 101)
    assert first.wait_s_p50 == pytest.approx(0.01)
    assert first.wait_s_p99 == pytest.approx(0.01)
    assert first.wait_s_max == pytest.approx(5.0)
    assert first.service_s_p99 == pytest.approx(0.02)
    assert first.response_s_max == pytest.approx(5.02)
    second = found["even", 31]
    assert (second.wait_s_p50, second.service_s_mean, second.wait_s_max) == (None, None, None)
    assert second.response_s_p50 == pytest.approx(60.0)
    assert found["instant", 30].wait_s_p99 == 0.0


def test_percentiles_are_close_to_the_exact_ones(spark: SparkSession) -> None:
    random = np.random.default_rng(7)
    waits_us = random.lognormal(9.0, 1.0, 2000)
    weights = random.choice([1.0, 5.0, 20.0], waits_us.size)
    rows = [
        message(1, "busy", wait_us=float(wait), response_us=float(wait), weight=float(weight))
        for wait, weight in zip(waits_us, weights, strict=True)
    ]

    (row,) = frame_of(spark, LIFECYCLES, rows).transform(durations_by_window(60)).collect()

    exact = np.repeat(waits_us, weights.astype(int))
    for name, fraction in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        expected_s = np.quantile(exact, fraction, method="inverted_cdf") / 1e6
        assert row[f"wait_s_{name}"] == pytest.approx(expected_s, rel=0.1)
    assert row.wait_s_mean == pytest.approx(exact.mean() / 1e6)
    assert row.messages == exact.size


def test_windows_are_as_short_as_is_sensible() -> None:
    plenty = 10_000_000
    assert width_s(LifecycleExtent(span_s=40 * 60, rows=plenty, queues=3)) == 60
    assert width_s(LifecycleExtent(span_s=86_400, rows=plenty, queues=3)) == 3600
    assert width_s(LifecycleExtent(span_s=7 * 86_400, rows=plenty, queues=3)) == 4 * 3600
    assert width_s(LifecycleExtent(span_s=400 * 86_400, rows=plenty, queues=3)) == 86_400
    # An hour of fifty messages a second for twenty queues: of each 750 in five minutes.
    assert width_s(LifecycleExtent(span_s=3600, rows=180_000, queues=20)) == 900
    # Too little for anything but one window.
    assert width_s(LifecycleExtent(span_s=3600, rows=30, queues=20)) == 3600
    assert width_s(LifecycleExtent(span_s=0, rows=1, queues=1)) == 2


def test_extent_measures_span_rows_and_queues(spark: SparkSession) -> None:
    rows = [message(at_s, f"queue {at_s % 3}") for at_s in range(12)]

    assert extent(frame_of(spark, LIFECYCLES, rows)) == LifecycleExtent(11.0, 12, 3)
    assert extent(frame_of(spark, LIFECYCLES, [])) == LifecycleExtent(0.0, 0, 0)
