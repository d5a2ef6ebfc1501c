"""`tidegate top` on a node that runs, is killed, and comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from command_line import CommandLine, Up, clean_environment, node_mark, processes_with

import tidegate as library


def test_one_look_says_what_is_there(up: Up, command_line: CommandLine, queue: str) -> None:
    with library.connect(up.url, mode="admin") as mq:
        mq.create_queue(queue)
        mq.put(queue, b"hello")

    looked = command_line("top", "--once", "--json", "--url", up.url)
    plain = command_line("top", "--once", "--url", up.url)

    assert (looked.returncode, looked.stderr) == (0, b"")
    found = {one["name"]: one for one in json.loads(looked.stdout)["services"]}
    assert found[queue]["waiting"] == 1
    assert found[queue]["light"] == "none"
    assert plain.returncode == 0
    assert any(line.split("\t")[0] == queue for line in plain.stdout.decode().splitlines())
    assert "agreements are not shown" in plain.stdout.decode()


def test_agreements_are_read_from_the_store(up: Up, command_line: CommandLine) -> None:
    looked = command_line(
        *("top", "--once", "--json", "--url", up.url, "--data", str(up.folder / "data"))
    )
    assert (looked.returncode, looked.stderr) == (0, b"")
    assert json.loads(looked.stdout)["complaints"] == []


def test_nobody_there_is_an_error_in_a_sentence(command_line: CommandLine) -> None:
    looked = command_line("top", "--url", "tidegate://127.0.0.1:1")
    assert looked.returncode == 1
    assert looked.stderr.startswith(b"tidegate: ")


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
        watching.communicate(timeout=20)
    assert watching.returncode == 130
