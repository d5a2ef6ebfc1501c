"""`tidegate watch` as people start and end it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from lake_of import NOON, LakeOf
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from tidegate.cli.app import app
from tidegate.pipeline import session
from tidegate.telemetry.schemas import QUEUE_SAMPLES

pytestmark = pytest.mark.timeout(300)


def record(lake_of: LakeOf, first: int, last: int, put: int) -> None:
    """Minutes of one queue."""
    rows = [
        {"at": NOON + timedelta(seconds=second), "queue": "orders", "put": put, "acked": put}
        for second in range(60 * first, 60 * last)
    ]
    lake_of.write(QUEUE_SAMPLES, rows)


def test_it_tells_what_happens_until_ctrl_c_and_goes_on_later(
    lake_of: LakeOf, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *("watch", "--since", "36500d", "--every", "200ms"),
        *("--lake", str(lake_of.folder), "--knowledge", str(tmp_path / "knowledge")),
    ]
    # So short a life is over before Java's better code would pay for its making.
    environment = os.environ | {
        "TMPDIR": str(tmp_path),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    }

    # Given a watcher that has seen a rate jump.
    record(lake_of, 0, 10, put=100)
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        record(lake_of, 10, 14, put=300)
        line = process.stdout.readline()
        told = "queue orders: rate in 300/s instead of 100/s (since 12:40)" in line
        assert told, line or process.communicate()[1]

        # When it is told to end, it does, and leaves nothing but what it found.
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate()
        assert process.returncode == 0, complaints
        assert "Traceback" not in rest + complaints
        assert "anomalies only" in complaints
        assert not list(tmp_path.glob("tidegate-spark-*"))
    finally:
        process.kill()

    # Then the next one, in a Spark that runs already, goes on: the end of the anomaly, and not its
    # beginning again.
    monkeypatch.setattr(session, "spark_session", lambda _: contextlib.nullcontext(spark))
    record(lake_of, 14, 20, put=100)
    done = CliRunner().invoke(app, [*words, "--once", "--json"])
    assert done.exit_code == 0, done.output
    *found, last = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(row["what"], row["change"]) for row in found] == [
        ("rate in", "ended"),
        ("rate out", "ended"),
    ]
    assert last["reading"]["rates"]["files"] == 3
