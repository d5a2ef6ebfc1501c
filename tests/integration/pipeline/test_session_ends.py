"""A Spark that is interrupted leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from lake_of import LakeOf
from waiting import eventually

from tidegate.telemetry.schemas import QUEUE_SAMPLES

LIMIT_S = 240.0

pytestmark = pytest.mark.timeout(600)


def test_ctrl_c_in_the_middle_leaves_no_java_no_half_run_and_no_stack(
    tmp_path: Path, lake_of: LakeOf
) -> None:
    began = datetime.now(UTC) - timedelta(minutes=10)
    seconds = [began + timedelta(seconds=second) for second in range(60)]
    lake_of.write(QUEUE_SAMPLES, [{"at": at, "put": 5, "acked": 5} for at in seconds])
    knowledge, scratch = tmp_path / "knowledge", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tidegate", "learn"]
    command += ["--lake", str(lake_of.folder), "--knowledge", str(knowledge)]
    learning = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As on a terminal, the signal goes to all of them.
        start_new_session=True,
    )
    try:
        eventually(
            lambda: [*knowledge.glob("runs/*/*")] or learning.poll() is not None,
            "a table is begun",
            LIMIT_S,
        )
        assert learning.poll() is None, "it ended before its first table"
        started = psutil.Process(learning.pid).children(recursive=True)
        spark = [one for one in started if one.name() == "java"]
        assert spark
        os.killpg(learning.pid, signal.SIGINT)
        out, errors = learning.communicate(timeout=LIMIT_S)
    finally:
        learning.kill()
        learning.wait()

    assert learning.returncode == 130
    assert (out, errors) == (b"", b"")
    assert psutil.wait_procs(spark, timeout=LIMIT_S)[1] == []
    assert list((knowledge / "runs").iterdir()) == []
    assert not (knowledge / "models").exists()
    assert [one for one in scratch.iterdir() if one.name.startswith("tidegate-spark-")] == []
