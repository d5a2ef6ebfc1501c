"""What is said of workers that get nowhere: killed, hanging, saying what cannot be kept."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable

import pytest
from led_fleet import kill
from places import SUPPORT
from waiting import eventually_async

from tidegate.fleet import processes
from tidegate.fleet.processes import ReplicaWorkers

NODE = "tidegate://127.0.0.1:1"
Started = Callable[[str], ReplicaWorkers]


@pytest.fixture
async def started(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Started]:
    there: list[ReplicaWorkers] = []

    def start(target: str) -> ReplicaWorkers:
        there.append(ReplicaWorkers("orders#1", target, 1, 0.1))
        return there[-1]

    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}")
    yield start
    for workers in there:
        await workers.stop()


async def trouble_of(workers: ReplicaWorkers) -> str:
    return await eventually_async(lambda: adjusted(workers), "trouble is reported")


async def adjusted(workers: ReplicaWorkers) -> str:
    if not workers.trouble:
        await workers.adjust(1, NODE, {})
    return workers.trouble


async def test_a_module_that_hangs_in_its_import_is_reported(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_IMPORT_S", 0.5)
    workers = started("hanging_jobs:app")

    trouble = await trouble_of(workers)

    assert trouble == (
        f"orders#1: worker hanging_jobs:app (pid {workers.pids[0]}) still imports its module "
        "after 500ms: it may hang there"
    )


async def test_a_module_that_was_imported_is_not_late(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_IMPORT_S", 0.0)
    workers = started("jobs:app")
    assert "still imports" in await trouble_of(workers)

    monkeypatch.setattr(processes, "_GOT_SOMEWHERE_S", 0.0)

    async def is_well() -> bool:
        await workers.adjust(1, NODE, {})
        return not workers.trouble

    await eventually_async(is_well, "nothing is reported any more")


async def test_a_killed_worker_is_said_to_be_killed_and_not_what_it_logged_before(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    workers = started("hanging_jobs:app")
    await workers.adjust(1, NODE, {})
    heard = ""

    def is_imported() -> bool:
        nonlocal heard
        heard += capfd.readouterr().err
        return "all is well" in heard

    await eventually_async(is_imported, "the module says that all is well")

    kill(workers.pids[0])

    assert await trouble_of(workers) == (
        "orders#1: worker hanging_jobs:app was ended by signal 9 (SIGKILL)"
    )


async def test_worker_output_is_made_safe_for_display(started: Started) -> None:
    assert await trouble_of(started("loud_jobs:app")) == (
        "orders#1: worker loud_jobs:app ended with code 4: oh no \\x00 \ufffd"
    )
