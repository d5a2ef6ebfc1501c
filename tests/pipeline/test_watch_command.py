"""`tidegate watch` as people start and end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from lake_of import NOON, LakeOf

from tidegate.telemetry.schemas import QUEUE_SAMPLES

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def record(lake_of: LakeOf, first: int, last: int, put: int) -> None:
    """Minutes of one queue."""
    rows = [
        {"at": NOON + timedelta(seconds=second), "queue": "orders", "put": put, "acked": put}
        for second in range(60 * first, 60 * last)
    ]
    lake_of.write(QUEUE_SAMPLES, rows)


def test_it_tells_what_happens_until_ctrl_c_and_goes_on_later(
    lake_of: LakeOf, tmp_path: Path
) -> None:
    command = [
        *(sys.executable, "-m", "tidegate", "watch", "--since", "36500d", "--every", "200ms"),
        *("--lake", str(lake_of.folder), "--knowledge", str(tmp_path / "knowledge")),
    ]
    environment = os.environ | {"TMPDIR": str(tmp_path)}

    # Given a watcher that has seen a rate jump.
    record(lake_of, 0, 10, put=100)
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        record(lake_of, 10, 14, put=300)
        line = process.stdout.readline()
        assert "queue orders: rate in 300/s instead of 100/s (since 12:40)" in line

        # When it is told to end, it does, and leaves nothing but what it found.
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate()
        assert process.returncode == 0, complaints
        assert "Traceback" not in rest + complaints
        assert "anomalies only" in complaints
        assert not list(tmp_path.glob("tidegate-spark-*"))
    finally:
        process.kill()

    # Then the next one goes on: the end of the anomaly, and not its beginning again.
    record(lake_of, 14, 20, put=100)
    done = subprocess.run(
        [*command, "--once", "--json"], env=environment, capture_output=True, text=True, check=True
    )
    *found, last = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(row["what"], row["change"]) for row in found] == [
        ("rate in", "ended"),
        ("rate out", "ended"),
    ]
    assert last["reading"]["rates"]["files"] == 3
