"""A watcher is killed again and again; what it finds is what one that was left alone finds."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest
import watch_lives
from lake_of import NOON, LakeOf
from pyspark.sql import SparkSession
from watch_lives import watch_once

from tidegate.core.runtime import CRASH_VARIABLE
from tidegate.pipeline.watch import query_progress
from tidegate.telemetry.learned import read_table
from tidegate.telemetry.schemas import QUEUE_SAMPLES

MINUTES = 12
AGREEMENT = """
name = "orders"
queue = "orders"
window = "1m"
objective = 0.5
period = "1h"
[metrics.throughput]
breach = 50
warning = 60
"""
# In turn: before a batch is in its place, when it is and Spark has not heard, and, by the test
# itself, whatever Spark does after the first line: it commits, or is in the next batch.
WAYS = ("after-watch-batch:1", "before-watch-batch:1", "")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kills", "minutes_per_file"),
    [
        pytest.param(1, 3, id="1 kill"),
        pytest.param(len(WAYS), 1, id="3 kills", marks=pytest.mark.only_with_all),
        pytest.param(10, 1, id="10 kills", marks=pytest.mark.only_with_all),
    ],
)
def test_kills_in_mid_batch_change_nothing(
    lake_of: LakeOf, spark: SparkSession, tmp_path: Path, kills: int, minutes_per_file: int
) -> None:
    # Given files of a few minutes, two minutes of them breaches, and a rate that jumps.
    for first in range(0, MINUTES, minutes_per_file):
        rows = [
            {
                "at": NOON + timedelta(minutes=minute, seconds=second),
                "interval_s": 5.0,
                "queue": queue,
                "put": 500 if minute < 8 else 2500,
                "acked": 100 if minute in (3, 4) else 500,
            }
            for minute in range(first, first + minutes_per_file)
            for second in range(5, 60, 5)
            for queue in ("orders", "mails")
        ]
        lake_of.write(QUEUE_SAMPLES, rows)
    agreement = tmp_path / "orders.toml"
    agreement.write_text(AGREEMENT)
    lake = str(lake_of.folder)

    # When a watcher takes a file a batch, and is killed again and again; the last one is left
    # alone, and takes the rest at once. Another one takes everything in one pass.
    for way in islice(cycle(WAYS), kills):
        assert live(lake, agreement, way, tmp_path / "killed") == -signal.SIGKILL
    for folder in ("killed", "once"):
        watch_once(spark, lake, agreement, tmp_path / folder, MINUTES)

    # Then it has found what one pass finds, each window once, and has read as much.
    once, again = (found_in(tmp_path / folder) for folder in ("once", "killed"))
    assert again == once
    verdicts = [row["verdict"] for row in once["compliance"]]
    assert verdicts == ["met"] * 3 + ["breached"] * 2 + ["met"] * 5
    assert [(row["subject"], row["what"], row["change"]) for row in once["anomalies"]] == [
        ("queue mails", "rate in", "began"),
        ("queue orders", "rate in", "began"),
    ]
    for query in ("compliance-1m", "rates"):
        assert query_progress(tmp_path / "killed", query) == query_progress(
            tmp_path / "once", query
        )


def found_in(folder: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name, order in (("compliance", ["window"]), ("anomalies", ["at", "subject", "what"])):
        table = read_table(folder, name)
        assert table is not None
        found[name] = table.sort_by([(column, "ascending") for column in order]).to_pylist()
    return found


def live(lake: str, agreement: Path, way: str, folder: Path) -> int:
    """One life of a watcher in a process of its own, and how it ended."""
    environment = {name: value for name, value in os.environ.items() if name != CRASH_VARIABLE}
    # What the killed leave behind goes with the test.
    environment["TMPDIR"] = str(agreement.parent)
    if ":" in way:
        environment[CRASH_VARIABLE] = way
    process = subprocess.Popen(
        [sys.executable, watch_lives.__file__, lake, agreement, folder],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if not way and line.startswith("found"):
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()
    finally:
        # The Java of a killed watcher ends by itself, soon; the next must not meet it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
