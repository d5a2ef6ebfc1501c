"""An experiment that is stopped ends with all its processes and says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def test_ctrl_c_ends_a_contest_and_all_its_processes_without_a_word(tmp_path: Path) -> None:
    contest = subprocess.Popen(
        [
            *(sys.executable, "-m", "tidegate", "lab", "run", "elastic-queues", "--simulate"),
            *("--only", "traces", "--traces", "100", "--results", str(tmp_path)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert contest.stderr is not None
    # Runs are under way once the first setting has been judged.
    for line in contest.stderr:
        if "reversals" in line:
            break

    os.killpg(contest.pid, signal.SIGINT)
    _, words = contest.communicate()

    assert contest.returncode == 130
    assert "Traceback" not in words
    with pytest.raises(ProcessLookupError):
        os.killpg(contest.pid, 0)
