"""What a door records of itself and of the instances behind it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from lakes import AT_S

from tidegate.core.services import DoorSample, Instance, InstanceSample, InstanceState
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.meters import BUCKETS, AdaptiveSampler, Histogram, bucket_of
from tidegate.telemetry.recorder import (
    HttpRequestSamples,
    HttpSampler,
    Recorder,
    RecorderOptions,
    lake_buckets,
)


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder(RecorderOptions(lake=str(tmp_path / "lake"), flush_s=600.0, rows_max=12))
    recorder.start("door-1")
    yield recorder
    recorder.stop()


def sample(second: int, answered: int, *, refused: int = 0) -> DoorSample:
    durations = Histogram()
    durations.add(0.05, answered)
    return DoorSample(
        service="shop",
        door="d1",
        at=AT_S + second,
        address="127.0.0.1:8080",
        accepted=answered + refused,
        answered=answered,
        refused=refused,
        waiting=3,
        in_flight=7,
        response=durations.sparse(),
        instances=[
            InstanceSample(
                instance_id=4,
                sent=answered,
                answered=answered,
                server_errors=answered // 10,
                outstanding=2,
                response=durations.sparse(),
                ejected="it answered 500" if second > 1 else None,
            )
        ],
    )


def rows_in(lake: str, kind: str) -> list[dict[str, object]]:
    found = Lake(lake)
    return [row for file in found.files(kind) for row in found.read(file).to_pylist()]


def test_a_door_and_its_instances_are_rows_of_intervals_that_add_up(recorder: Recorder) -> None:
    # Given a door whose clock of intervals is ours
    clock = iter((100.0, 101.0, 103.0))
    sampler = HttpSampler(recorder, lambda: next(clock))
    shop = Instance(
        instance_id=4,
        service="shop",
        version=2,
        state=InstanceState.READY,
        weight=0.5,
        free_memory_bytes=1e9,
    )
    # When it is sampled twice
    sampler.record(sample(1, 20), [shop], 30)
    sampler.record(sample(3, 50, refused=5), [shop], 30)
    assert recorder.flush()

    # Then sums over all rows are its totals
    rows = rows_in(recorder.lake, "http_samples")
    sums = {c: sum(r[c] for r in rows) for c in ("answered", "served", "refused", "server_errors")}  # type: ignore[misc]
    assert sums == {"answered": 50, "served": 50, "refused": 5, "server_errors": 5}
    assert [(r["instance"], r["interval_s"], r["waiting"], r["outstanding"]) for r in rows] == [
        (None, 1.0, 3, 0),
        (4, 1.0, 0, 2),
        (None, 2.0, 3, 0),
        (4, 2.0, 0, 2),
    ]
    assert rows[2]["response"] == rows[3]["service_time"]
    assert rows[2]["response"] == [{"bucket": bucket_of(0.05), "count": 30}]
    stored = [rows[3][name] for name in ("version", "weight", "concurrency", "free_memory_bytes")]
    assert stored == [2, 0.5, 30, 1e9]
    assert (rows[1]["ejected"], rows[3]["ejected"]) == ("", "it answered 500")


def test_rows_that_found_no_room_are_told_by_the_next_that_did(recorder: Recorder) -> None:
    sampler = HttpSampler(recorder)
    # Twelve rows have room, two come at a time.
    for second in range(8):
        sampler.record(sample(second, second))
    assert recorder.flush()
    sampler.record(sample(8, 8))
    recorder.flush()

    rows = rows_in(recorder.lake, "http_samples")
    told = {row["at"]: row["rows_dropped"] for row in rows if row["instance"] is None}
    assert [told[at] for at in sorted(told)] == [0] * 6 + [4]  # type: ignore[type-var]


def test_bounds_of_others_go_to_the_bucket_that_holds_them() -> None:
    histogram = Histogram()
    for duration_s in (1e-7, 0.003, 0.05, 1.0, 1799.0, 9999.0):
        histogram.add(duration_s)
    # Ours come back as they were.
    ours = [(bucket, count) for bucket, count in enumerate(histogram.counts) if count]
    assert lake_buckets(histogram.sparse()) == ours
    assert lake_buckets([(0.25, 1), (0.2501, 2), (float("inf"), 3)]) == [
        (bucket_of(0.25), 3),
        (BUCKETS - 1, 3),
    ]


def test_of_many_requests_some_are_kept_and_stand_for_all() -> None:
    samples = HttpRequestSamples(AdaptiveSampler(50.0, randomness=random.Random(1)))
    total, rows = 5000, []
    for number in range(total):
        samples.skip -= 1
        if samples.skip <= 0:
            began = number / 100.0
            cuts = (began, began + 0.001, began + 0.003, began + 0.010)
            samples.take("GET" if number % 2 else "INVENTED /secret", 200, 7, cuts)
        if number % 100 == 99:
            rows += samples.tick("door-1", "shop", "d1", number / 100.0, AT_S * 1_000_000)

    assert 100 < len(rows) < 4000
    assert sum(row[7] for row in rows) == pytest.approx(total, rel=0.2)
    # Nothing that a client made up is kept.
    assert {row[5] for row in rows} == {"GET", "other"}
    assert rows[0][8:] == pytest.approx((1e3, 2e3, 7e3, 10e3), rel=1e-3)


def test_probes_and_turns_of_promises_are_rows_too(recorder: Recorder) -> None:
    recorder.http_probe("shop", "127.0.0.1:80", at_s=AT_S, duration_s=0.25, status=200)
    recorder.http_probe(
        "shop", "127.0.0.1:80", at_s=AT_S + 1, duration_s=5.0, status=None, failure="no answer"
    )
    recorder.agreement_turn(
        "shop", "response_p99", "breached", at_s=AT_S, evidence="1.2 s", worst=1.2, before_s=5.0
    )
    recorder.agreement_turn("shop", "response_p99", "kept", at_s=AT_S + 9, evidence="0.2 s")
    recorder.reconfigured("shop", at_s=AT_S + 8, took_s=3.5, detail={"instance": "4"})
    assert recorder.flush()

    fine, silent = rows_in(recorder.lake, "http_probes")
    assert (fine["ok"], fine["status"], fine["failure"]) == (True, 200, "")
    assert (silent["ok"], silent["status"], silent["duration_s"]) == (False, None, 5.0)
    events = {row["event"]: row for row in rows_in(recorder.lake, "events")}
    assert set(events) == {"violation", "kept", "reconfigured"}
    assert dict(events["violation"]["detail"])["metric"] == "response_p99"  # type: ignore[call-overload]
    assert (events["violation"]["value"], events["reconfigured"]["duration_s"]) == (1.2, 3.5)
