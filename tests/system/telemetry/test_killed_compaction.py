"""A round of compaction that is killed at any step is finished by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from lakes import EVERYTHING, events_of, lake_with_everything, plan, visible

from tidegate.core.runtime import CRASH_VARIABLE, LAKE_POINTS
from tidegate.telemetry.compaction import run_round
from tidegate.telemetry.recorder import CompactionRound, start_round


@pytest.mark.parametrize(
    "point", [*LAKE_POINTS, "before-replaced-deleted:2", "before-replaced-deleted:3"]
)
def test_a_round_killed_anywhere_is_finished_by_the_next(tmp_path: Path, point: str) -> None:
    lake = lake_with_everything(tmp_path)
    # Given rounds, each a process, the first of which to come to this point is killed there
    environment = os.environ | {CRASH_VARIABLE: point}
    command = [sys.executable, "-m", "tidegate.telemetry.compaction"]
    codes = []
    for _ in range(2):
        outcome = subprocess.run(
            command,
            input=msgspec.json.encode(plan(tmp_path)),
            env=environment,
            capture_output=True,
            check=False,
        )
        codes.append(outcome.returncode)
        # Then whoever reads counts every row once
        assert events_of(lake) == EVERYTHING
    assert -signal.SIGKILL in codes

    # And rounds that live come to the same end
    with start_round(plan(tmp_path, run="later")) as process:
        outcome_text, _ = process.communicate()
    assert msgspec.json.decode(outcome_text, type=CompactionRound).failure == ""
    assert run_round(plan(tmp_path, run="later still")).failure == ""
    assert len(visible(tmp_path)) == 1
    assert lake.files("events", hidden=True) == []
    assert events_of(lake) == EVERYTHING
