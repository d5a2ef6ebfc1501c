"""Children whose pipes are in other hands, or lead nowhere: nobody waits for those hands."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import SUPPORT
from waiting import eventually_async

from tidegate.fleet import processes
from tidegate.fleet.process import process_identity
from tidegate.fleet.processes import ProcessSpec, ReplicaWorkers, SupervisedProcess
from tidegate.fleet.providers import run_command

# What a helper lives is ten times as long: whoever waits for it is found out.
PATIENCE_S = 60.0
NODE = "tidegate://127.0.0.1:1"
LOUD = "import sys\nfor _ in range(1000): sys.stderr.write('x' * 999 + chr(10))"
KEEPER = f"""
import asyncio, sys
from tidegate.fleet.processes import ProcessSpec, SupervisedProcess
async def main():
    command = [sys.executable, "-S", "-c", {LOUD!r}]
    child = SupervisedProcess(
        ProcessSpec(name="x", command=command, environment={{}}, keeps_output=True, stop_s=1.0)
    )
    child.start()
    print("ended" if await child.ends_within(60.0) else "stands still", child.exit_code)
    child.kill()
    await child.ended()
asyncio.run(main())
"""


def test_a_child_is_listened_to_when_what_it_says_can_be_written_nowhere() -> None:
    with Path("/dev/full").open("wb") as full_disk:
        keeper = subprocess.run(
            [sys.executable, "-c", KEEPER],
            stdout=subprocess.PIPE,
            stderr=full_disk,
            check=False,
        )
    assert keeper.stdout == b"ended 0\n"


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[Path]:
    """Where the pid of one will be that lives on."""
    path = tmp_path / "helper"
    yield path
    if path.exists():
        end(path)


def end(helper: Path) -> None:
    pid = int(helper.read_text())
    helper.unlink()
    assert process_identity(pid) is not None, "it lives on"
    os.kill(pid, signal.SIGKILL)


def count_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


# On asyncio's own loop, which has `Process.wait` wait for pipes, too.


def test_a_child_is_not_waited_for_longer_than_it_lives(helper: Path) -> None:
    async def main() -> SupervisedProcess:
        words = ["sh", "-c", f"sleep 600 & echo $! > {helper}; echo goodbye >&2; exit 3"]
        child = SupervisedProcess(
            ProcessSpec(name="x", command=words, environment={}, keeps_output=True, stop_s=1.0)
        )
        child.start()
        before = count_open()
        assert await child.ends_within(PATIENCE_S)
        await child.ended()
        await asyncio.sleep(0)
        assert count_open() < before, "its pipe is not ours for ever"
        return child

    child = asyncio.run(main())

    assert child.exit_text == "ended with code 3: goodbye"


def test_workers_end_without_those_whom_they_have_started(
    helper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        workers = ReplicaWorkers("orders#1", "helped_jobs:app", 1, 0.1)
        await workers.adjust(1, NODE, {})
        await eventually_async(helper.exists)
        await workers.stop()
        assert workers.are_gone

    _have_jobs(monkeypatch, helper.parent)
    asyncio.run(main())
    end(helper)


def test_a_worker_that_not_even_a_kill_ends_is_left_behind(
    helper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf: list[SupervisedProcess] = []

    async def main() -> None:
        workers = ReplicaWorkers("orders#1", "helped_jobs:app", 1, 0.1)
        await workers.adjust(1, NODE, {})
        await eventually_async(helper.exists)
        await workers.stop()
        assert [one.exit_code for one in deaf] == [None]
        for one in deaf:
            kill(one)
            await one.ended()

    _have_jobs(monkeypatch, helper.parent)
    monkeypatch.setenv("JOBS_DEAF", "yes")
    monkeypatch.setattr(processes, "_EXIT_S", 0.1)
    monkeypatch.setattr(processes, "_KILLED_S", 0.1)
    kill = SupervisedProcess.kill
    # As one is whom the kernel has in the middle of something.
    monkeypatch.setattr(SupervisedProcess, "kill", lambda child: deaf.append(child))
    asyncio.run(main())


def test_a_command_is_not_waited_for_longer_than_it_lives(helper: Path) -> None:
    async def main() -> None:
        words = ["sh", "-c", f"sleep 600 & echo $! > {helper}; echo hi"]
        before = count_open()
        assert await run_command("boot", words, PATIENCE_S) == "hi\n"
        end(helper)
        await eventually_async(lambda: count_open() <= before, "its pipes are open")

    asyncio.run(main())


def _have_jobs(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("JOBS_FOLDER", str(folder))
