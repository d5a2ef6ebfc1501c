"""`tidegate watch` as people start and end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from lake_of import NOON, LakeOf
from pyspark.sql import SparkSession
from typer.testing import CliRunner
from waiting import eventually

from tidegate.cli.app import app
from tidegate.pipeline.watch import query_progress
from tidegate.telemetry.learned import read_table
from tidegate.telemetry.schemas import QUEUE_SAMPLES

Until = Callable[[Callable[[], bool]], None]

LIMIT_S = 240.0

pytestmark = pytest.mark.timeout(600)


def record(lake_of: LakeOf, first: int, last: int, put: int) -> None:
    """Minutes of one queue."""
    rows = [
        {"at": NOON + timedelta(seconds=second), "queue": "orders", "put": put, "acked": put}
        for second in range(60 * first, 60 * last)
    ]
    lake_of.write(QUEUE_SAMPLES, rows)


@pytest.fixture
def ctrl_c_harms_no_test() -> Iterator[None]:
    """A command that does not take Ctrl-C fails its test, and does not end the test run."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def ctrl_c_after(story: Callable[[Until], None]) -> Iterator[None]:
    """Tell the story beside the block, and then send Ctrl-C to this process."""
    ended = threading.Event()

    def until(is_so: Callable[[], bool]) -> None:
        eventually(lambda: ended.is_set() or is_so(), limit_s=LIMIT_S)
        assert not ended.is_set(), "the command ended by itself"

    def tell() -> None:
        try:
            story(until)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor() as beside:
        told = beside.submit(tell)
        try:
            yield
        finally:
            ended.set()
    told.result()


def test_watch_continues_after_ctrl_c(
    lake_of: LakeOf, tmp_path: Path, spark: SparkSession, ctrl_c_harms_no_test: None
) -> None:
    words = [
        *("watch", "--since", "36500d", "--every", "200ms"),
        *("--lake", str(lake_of.folder), "--knowledge", str(tmp_path / "knowledge")),
    ]
    folder = tmp_path / "knowledge" / "watch"

    def jump(until: Until) -> None:
        until(lambda: query_progress(folder, "rates").files == 1)
        record(lake_of, 10, 14, put=300)
        until(lambda: read_table(folder, "anomalies") is not None)

    # Given a watcher that sees a rate jump, and is told to end.
    record(lake_of, 0, 10, put=100)
    with ctrl_c_after(jump):
        watched = CliRunner().invoke(app, words)

    # Then it has told of the jump, and ends without complaint.
    assert watched.exit_code == 0, watched.output
    told, *_ = watched.stdout.splitlines()
    assert "queue orders: rate in 300/s instead of 100/s (since 12:40)" in told
    assert "anomalies only" in watched.stderr
    assert "Traceback" not in watched.output

    # And the next one goes on: the end of the anomaly, and not its beginning again.
    record(lake_of, 14, 20, put=100)
    done = CliRunner().invoke(app, [*words, "--once", "--json"])
    assert done.exit_code == 0, done.output
    *found, last = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(row["what"], row["change"]) for row in found] == [
        ("rate in", "ended"),
        ("rate out", "ended"),
    ]
    assert last["reading"]["rates"]["files"] == 3
