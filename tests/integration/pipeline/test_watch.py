"""Watching a lake: every row counts once, whatever happens to the files that it came in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lake_of import NOON, LakeOf, frame_of
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.datasource import ReadMaxFiles

from tidegate.agreements.document import parse_agreement
from tidegate.pipeline.jobs import JobInputs, window_start
from tidegate.pipeline.jobs import agreements as compliance
from tidegate.pipeline.lake import DUPLICATE, NOT_A_NUMBER, OTHER_VERSION, UNREADABLE
from tidegate.pipeline.stream_source import (
    ALREADY_READ,
    LATE,
    VANISHED,
    FileLog,
    LakeSource,
    StreamOptions,
)
from tidegate.pipeline.watch import (
    COPIES,
    WatchOptions,
    WatchQuery,
    WatchRefused,
    queries_of,
    run_watch,
    start_afresh,
)
from tidegate.telemetry.learned import QueryResults, read_table
from tidegate.telemetry.meters import bucket_of
from tidegate.telemetry.schemas import (
    HTTP_SAMPLES,
    LIFECYCLES,
    QUEUE_SAMPLES,
    REPLACES_KEY,
    VERSION_KEY,
)


def seconds(first: int, last: int, **row: Any) -> list[dict[str, Any]]:
    """A row a second, one message each."""
    return [
        {"at": NOON + timedelta(seconds=s), "queue": "orders", "node": "a", "put": 1, **row}
        for s in range(first, last)
    ]


def _summed(
    frames: Mapping[str, DataFrame], carried: bytes | None
) -> tuple[Mapping[str, pa.Table], bytes]:
    sums = (
        frames["queue_samples"]
        .groupBy(window_start(10).alias("window"))
        .agg(F.sum("put").alias("put"))
    )
    return {"sums": sums.toArrow()}, b"null"


SUMS = WatchQuery("sums", ("queue_samples",), 10.0, _summed)


def sums_of(folder: Path) -> dict[int, int]:
    """Messages by the beginning of the window, in seconds; a window that is there twice fails."""
    table = read_table(folder, "sums")
    rows = [] if table is None else table.to_pylist()
    found = {int((row["window"] - NOON).total_seconds()): row["put"] for row in rows}
    assert len(found) == len(rows)
    return dict(sorted(found.items()))


def tens(first: int, last: int) -> Iterable[int]:
    return range(first, last, 10)


def test_every_row_counts_once(spark: SparkSession, lake_of: LakeOf, tmp_path: Path) -> None:
    options = WatchOptions(str(lake_of.folder), tmp_path / "watch", [], delay_s=60.0)

    def look() -> Any:
        with run_watch(spark, options, queries=[SUMS]) as watch:
            watch.run_once()
            return watch.readings()["sums"]

    # Given two minutes. Windows are complete up to a minute before the newest row.
    first = lake_of.write(QUEUE_SAMPLES, seconds(0, 60), file_id="first")
    lake_of.write(QUEUE_SAMPLES, seconds(60, 120), file_id="second")
    assert look().files == 2
    assert sums_of(options.folder) == dict.fromkeys(tens(0, 50), 10)

    # When files come late, too late, again, compacted after being read (the second beside a part
    # that was never seen), cut, in another version, and with a figure that is none.
    lake_of.write(QUEUE_SAMPLES, seconds(70, 80, node="late"))
    lake_of.write(QUEUE_SAMPLES, seconds(0, 10, node="too late"))
    shutil.copy(first, first.with_name("copy.parquet"))
    both = {REPLACES_KEY: json.dumps(["first", "second"]).encode()}
    lake_of.write(QUEUE_SAMPLES, seconds(0, 120), metadata=both)
    some = {REPLACES_KEY: json.dumps(["second", "unseen"]).encode()}
    unseen = seconds(110, 120, node="unseen")
    lake_of.write(QUEUE_SAMPLES, [*seconds(60, 120), *unseen], metadata=some)
    cut = lake_of.write(QUEUE_SAMPLES, seconds(60, 120))
    cut.write_bytes(cut.read_bytes()[:100])
    lake_of.write(QUEUE_SAMPLES, seconds(60, 120), metadata={VERSION_KEY: b"2"})
    lake_of.write(QUEUE_SAMPLES, seconds(100, 103, node="odd", interval_s=float("nan")))
    lake_of.write(QUEUE_SAMPLES, seconds(120, 240), file_id="third")
    reading = look()

    # Then each row that can count has counted once, and the rest by reason.
    expected = dict.fromkeys(tens(0, 170), 10) | {70: 20, 110: 20}
    assert sums_of(options.folder) == expected
    assert reading.files_left_out == {
        UNREADABLE: 1,
        OTHER_VERSION: 1,
        DUPLICATE: 1,
        ALREADY_READ: 1,
    }
    assert reading.rows_left_out == {LATE: 10, COPIES: 60, NOT_A_NUMBER: 3}
    assert reading.rows == sum(expected.values())

    # And looking again, with nothing new, changes nothing.
    assert look() == reading
    assert sums_of(options.folder) == expected


def test_watch_results_are_equal_for_any_batch_size(
    spark: SparkSession, lake_of: LakeOf, tmp_path: Path
) -> None:
    # Given an hour of one writer compacted, and single minutes of another.
    parts = {REPLACES_KEY: json.dumps(["x"]).encode()}
    lake_of.write(QUEUE_SAMPLES, seconds(0, 600), metadata=parts)
    for minute in range(12):
        rows = seconds(60 * minute, 60 * minute + 60, node="b")
        lake_of.write(QUEUE_SAMPLES, rows)

    found = {}
    for files_max in (100, 4):
        folder = tmp_path / f"{files_max} files"
        options = WatchOptions(str(lake_of.folder), folder, [], files_max=files_max)
        with run_watch(spark, options, queries=[SUMS]) as watch:
            watch.run_once()
            found[files_max] = (sums_of(folder), watch.readings()["sums"])

    assert found[100] == found[4]
    assert found[4][0] == dict.fromkeys(tens(0, 600), 20) | dict.fromkeys(tens(600, 650), 10)
    assert found[4][1].rows_left_out == {}


AGREEMENTS = """
name = "orders"
queue = "ord*"
window = "10s"
objective = 0.5
period = "100s"

[metrics.wait_p90]
breach = "1s"

[metrics.response_p50]
breach = "2s"
"""

SHOP = """
name = "shop"
http = "shop"
window = "10s"
objective = 0.5
period = "100s"
[metrics.response_p90]
breach = "1s"
"""


def test_a_window_of_the_stream_is_judged_as_in_history(
    spark: SparkSession, lake_of: LakeOf, tmp_path: Path
) -> None:
    # Given waits that are too long from 20 s on, and responses that are at 40 s; and a shop whose
    # responses are at 30 s.
    agreements = [parse_agreement(AGREEMENTS, "test"), parse_agreement(SHOP, "test")]
    samples, lifecycles, doors = [], [], []
    for second in range(120):
        at = NOON + timedelta(seconds=second)
        wait_s = 3.0 if 20 <= second < 30 else 0.1
        wait = [{"bucket": bucket_of(wait_s), "count": 5}]
        samples.append({"at": at, "queue": "orders", "put": 5, "acked": 5, "wait": wait})
        response_us = 9e6 if 40 <= second < 50 else 1e3
        lifecycles.append(
            {"at": at, "queue": "orders", "message_id": second, "weight": 1.0}
            | {"response_us": response_us}
        )
        door = {"at": at, "service": "shop", "door": "d1", "accepted": 5, "answered": 5}
        response_s = 3.0 if 30 <= second < 40 else 0.1
        response = [{"bucket": bucket_of(response_s), "count": 5}]
        doors += [door | {"response": response}, door | {"instance": 1, "answered": 0}]
    for first in range(0, 120, 30):
        lake_of.write(QUEUE_SAMPLES, samples[first : first + 30])
        lake_of.write(LIFECYCLES, lifecycles[first : first + 30])
        lake_of.write(HTTP_SAMPLES, doors[2 * first : 2 * first + 60])

    # When it is watched, and learned from.
    folder = tmp_path / "watch"
    options = WatchOptions(str(lake_of.folder), folder, agreements, files_max=3)
    watched_queries = [one for one in queries_of(agreements) if one.name.startswith("compliance")]
    with run_watch(spark, options, queries=watched_queries) as watch:
        watch.run_once()
    frames = {
        "queue_samples": frame_of(spark, QUEUE_SAMPLES, samples),
        "lifecycles": frame_of(spark, LIFECYCLES, lifecycles),
        "http_samples": frame_of(spark, HTTP_SAMPLES, doors),
    }
    inputs = JobInputs(frames, agreements, NOON, NOON + timedelta(hours=1))
    learned = compliance.COMPLIANCE_JOB.run(inputs).tables["compliance"].toArrow().to_pylist()

    # Then both say the same of the windows that are complete, and what was given.
    table = read_table(folder, "compliance")
    assert table is not None
    rows = table.to_pylist()
    watched = {(row["agreement"], row["window"]): row["verdict"] for row in rows}
    in_history = {(row["agreement"], row["window"]): row["verdict"] for row in learned}
    assert watched.items() <= in_history.items()
    windows = [NOON + timedelta(seconds=second) for second in range(0, 50, 10)]
    assert [watched["orders", at] for at in windows] == [
        "met",
        "met",
        "breached",
        "met",
        "breached",
    ]
    assert [watched["shop", at] for at in windows] == ["met", "met", "met", "breached", "met"]
    # A hundred seconds of budget at a half allow five.
    left = {row["agreement"]: row["budget_left"] for row in rows}
    assert left == pytest.approx({"orders": 1 - 2 / 5, "shop": 1 - 1 / 5})


def test_an_empty_lake_is_no_error(spark: SparkSession, lake_of: LakeOf, tmp_path: Path) -> None:
    with run_watch(spark, WatchOptions(str(lake_of.folder), tmp_path / "w", [])) as watch:
        watch.run_once()

        assert {one.files for one in watch.readings().values()} == {0}


def test_watch_refuses_a_second_watcher_and_changed_options(
    spark: SparkSession, lake_of: LakeOf, tmp_path: Path
) -> None:
    folder = tmp_path / "watch"
    options = WatchOptions(str(lake_of.folder), folder, [], since_s=1.0)

    with (
        run_watch(spark, options),
        pytest.raises(WatchRefused, match="end it first"),
        run_watch(spark, options),
    ):
        pass
    slower = WatchOptions(str(lake_of.folder), folder, [], delay_s=300.0)
    with (
        pytest.raises(WatchRefused, match=r"with a delay of 60 s.*--afresh"),
        run_watch(spark, slower),
    ):
        pass
    start_afresh(folder)
    with run_watch(spark, slower):
        pass


def test_a_file_that_was_compacted_before_its_batch_ran_is_read_from_what_took_its_place(
    lake_of: LakeOf, tmp_path: Path
) -> None:
    # Given a batch that was planned, and killed.
    part = lake_of.write(QUEUE_SAMPLES, seconds(0, 60), file_id="part")
    gone = lake_of.write(QUEUE_SAMPLES, seconds(60, 90), file_id="gone")
    stream = StreamOptions(str(lake_of.folder), ("queue_samples",), str(tmp_path / "log"))
    source = LakeSource(stream.as_options())
    planned = source.streamReader(source.schema()).latestOffset({"entry": 0}, ReadMaxFiles(9))
    # When one file is compacted, and another is deleted.
    part.unlink()
    gone.unlink()
    replaces = {REPLACES_KEY: json.dumps(["part", "other"]).encode()}
    whole = lake_of.write(QUEUE_SAMPLES, seconds(0, 60), metadata=replaces)

    # Then the batch that is run again finds its rows, and counts what is lost.
    reader = source.streamReader(source.schema())
    (partition,) = reader.partitions({"entry": 0}, planned)
    assert [file.path for file in partition.files] == [str(whole)]
    assert sum(batch.num_rows for batch in reader.read(partition)) == 60
    assert FileLog(tmp_path / "log").counts(1).files_left_out == {VANISHED: 1}


def test_merged_batches_show_each_row_once(tmp_path: Path) -> None:
    batches = QueryResults(tmp_path / "query")
    for number in range(0, 300, 2):
        batches.store(number, {"found": pa.table({"number": [number]})}, str(number).encode())
        table = read_table(tmp_path, "found")
        assert table is not None
        assert table["number"].to_pylist() == list(range(0, number + 1, 2))

    # Whoever only looks disturbs no batch that is being written.
    unfinished = tmp_path / "query" / ".batch=000000300"
    unfinished.mkdir()
    QueryResults(tmp_path / "query")
    assert unfinished.exists()
    batches.clear_unfinished()
    assert len(list((tmp_path / "query").iterdir())) < 64
    assert batches.has(0)
    assert batches.has(298)
    assert not batches.has(299)
    assert not unfinished.exists()
    assert batches.carried_before(298) == b"296"
    assert batches.carried_before(0) is None
