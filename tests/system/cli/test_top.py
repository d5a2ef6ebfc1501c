"""`tidegate top` on a node that runs, is killed, and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from command_line import Up, clean_environment, node_mark, processes_with
from waiting import LIMIT_S


def test_a_lost_connection_is_said_and_comes_back(up: Up) -> None:
    watching = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "top", "--json", "--url", up.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
        cwd=up.folder,
    )

    def until(is_so: Callable[[dict[str, Any]], bool]) -> None:
        assert watching.stdout is not None
        for line in watching.stdout:
            if is_so(json.loads(line)):
                return
        raise AssertionError(watching.communicate())

    try:
        until(lambda look: look["lost"] is None)
        (node,) = processes_with(node_mark(up))
        pid = int(node.partition(":")[0])
        os.kill(pid, signal.SIGSTOP)
        until(lambda look: look["lost"] is not None)
        os.kill(pid, signal.SIGKILL)
        until(lambda look: look["lost"] is None)
    finally:
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=LIMIT_S)
    assert watching.returncode == 130
