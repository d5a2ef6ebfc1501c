"""A computer that has no room for another process just now: whoever watches tries again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

from tidegate.cli.settings import Settings
from tidegate.cli.wiring import LocalCluster
from tidegate.core.errors import Unavailable
from tidegate.fleet import processes
from tidegate.fleet.processes import (
    StartPatience,
    SupervisedProcess,
    console_spec,
    door_spec,
    node_spec,
)

WORD = "import os; os.write(int(os.environ['TIDEGATE_READY_FD']), b'{} \\n')"
STORE = "postgresql:///nobody"


class Starts:
    """Children that say their word and die at once; some cannot be started at all."""

    def __init__(self, address: str, start: Callable[..., Any]) -> None:
        self._command = [sys.executable, "-S", "-c", WORD.format(address)]
        self._start = start
        self.is_full = False
        self.refused = 0
        self.begun = 0
        # The commands that it was to begin with.
        self.asked: list[list[str]] = []

    def __call__(self, command: list[str], *, env: Mapping[str, str], **options: Any) -> Any:
        if self.is_full:
            self.refused += 1
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.begun += 1
        self.asked.append(command)
        return self._start(self._command, env=env, **options)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Starts]:
    def have(address: str) -> Starts:
        made = Starts(address, subprocess.Popen)
        monkeypatch.setattr(subprocess, "Popen", made)
        return made

    return have


def test_a_start_that_fails_is_told_in_words_and_leaves_nothing_open(
    starts: Callable[[str], Starts],
) -> None:
    starts("tidegate://127.0.0.1:1").is_full = True
    child = SupervisedProcess(node_spec([STORE], 0))
    before = sorted(Path("/proc/self/fd").iterdir())

    with pytest.raises(Unavailable, match="a node cannot be started: Resource temporarily"):
        child.start()

    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert child.ready_message is None


def test_a_node_is_waited_for_while_it_works_and_ended_when_it_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a busy computer a start takes twenty times as long: ended, it would begin from nothing."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waits = f"import os; open({str(gate)!r}).read(); "
    word = WORD.format("tidegate://127.0.0.1:1")
    monkeypatch.setattr(StartPatience, "IDLE_S", 0.05)
    monkeypatch.setattr(processes, "_LOOK_S", 0.02)
    looks = 0

    def works(pid: int) -> float:
        nonlocal looks
        looks += 1
        if looks == 10:
            gate.write_text("speak")
        return float(looks)

    command = [sys.executable, "-S", "-c", waits + word]
    child = SupervisedProcess(replace(node_spec([STORE], 0), command=command, ports={}))
    monkeypatch.setattr(processes, "processor_s", works)
    child.start()
    child.wait_until_ready()
    assert child.addresses == ["tidegate://127.0.0.1:1"]
    child.wait()

    monkeypatch.setattr(processes, "processor_s", lambda pid: 1.0)
    child.start()
    with pytest.raises(Unavailable, match="a node did not get anywhere as it started"):
        child.wait_until_ready()
    assert child.has_died


def test_a_node_that_cannot_be_started_is_started_later_and_the_others_run_on(
    starts: Callable[[str], Starts], tmp_path: Path
) -> None:
    computer = starts("tidegate://127.0.0.1:1")
    house = LocalCluster(Settings(), tmp_path)
    node = SupervisedProcess(node_spec([STORE], 0))
    house._nodes = [node]
    node.start()
    node.wait_until_ready()
    eventually(lambda: node.has_died, "it dies at once")

    computer.is_full = True
    _watch(house.watch, lambda: computer.refused == 1)
    house.watch()
    assert computer.refused == 1, "not more than once a second"
    computer.is_full = False

    _watch(house.watch, lambda: computer.begun == 2)
    node.wait()


def test_a_node_takes_any_port_the_first_time_only_if_nobody_asked_for_one(
    starts: Callable[[str], Starts],
) -> None:
    computer = starts("tidegate://127.0.0.1:2")
    node = SupervisedProcess(node_spec([STORE], 1, is_derived=True))
    node.start()
    node.wait_until_ready()
    assert computer.asked[-1][-3:] == ["--port", "1", "--or-free"]

    eventually(lambda: node.has_died, "it dies at once")
    # Whoever knows it must find it where it was.
    node.start()
    node.wait_until_ready()
    assert computer.asked[-1][-3:] == ["--port", "2", "--no-declare"]
    node.wait()


def test_a_door_that_cannot_be_started_is_started_later(
    starts: Callable[[str], Starts],
) -> None:
    computer = starts("http://127.0.0.1:1")
    door = SupervisedProcess(door_spec([STORE], "shop", host="127.0.0.1", port=0))
    door.start()
    door.wait_until_ready()
    eventually(lambda: door.has_died, "it dies at once")

    computer.is_full = True
    assert not door.watch()
    assert computer.refused == 1
    assert not door.watch()
    assert computer.refused == 1, "later"
    computer.is_full = False

    _watch(door.watch, lambda: computer.begun == 2)
    door.wait()


def test_a_console_that_cannot_be_started_is_no_reason_not_to_serve(
    starts: Callable[[str], Starts],
) -> None:
    computer = starts("http://127.0.0.1:1")
    computer.is_full = True
    console = SupervisedProcess(
        console_spec(["tidegate://127.0.0.1:1"], [STORE], host="127.0.0.1", port=0)
    )

    # The very first start, and one after a death
    console.watch()
    assert not console.watch()
    assert computer.refused == 1, "later"
    computer.is_full = False
    _watch(console.watch, lambda: bool(console.address))
    computer.is_full = True
    _watch(console.watch, lambda: computer.refused == 2)
    computer.is_full = False

    _watch(console.watch, lambda: computer.begun == 2)
    console.wait()


def _watch(look: Callable[[], object], is_so: Callable[[], bool]) -> None:
    """Have it looked after until it is so."""

    def looked() -> bool:
        if not is_so():
            look()
        return is_so()

    eventually(looked)
