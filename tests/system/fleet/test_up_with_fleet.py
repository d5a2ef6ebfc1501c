"""`tidegate up` with a fleet: boots what queues need, replaces what dies, leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from places import SUPPORT
from waiting import eventually

import tidegate
from tidegate.core.machines import FleetInfo, MachineState
from tidegate.fleet.process import process_identity
from tidegate_lab.faults.deployment import Deployment, deployed


@pytest.fixture
def deployment(folder: Path) -> Iterator[Deployment]:
    environment = {
        "TIDEGATE_FLEET__PROVIDER": "process",
        "TIDEGATE_FLEET__WARM": "1",
        # Of who leads, too: nobody is taken for dead because the computer is busy.
        "TIDEGATE_NODE__LEASE": "10s",
        "TIDEGATE_TELEMETRY__ENABLED": "false",
        "TIDEGATE_QUEUES__ORDERS__WORKER": "jobs:app",
        "JOBS_FOLDER": str(folder),
        "PYTHONPATH": f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}",
    }
    with deployed(environment=environment) as running_up:
        yield running_up


def processes_of(deployment: Deployment) -> list[psutil.Process]:
    """Supervisors of this deployment's machines."""
    found = []
    for process in psutil.process_iter():
        try:
            if "machine" in process.cmdline() and str(deployment.folder) in process.environ().get(
                "TIDEGATE_STORE__DATA", ""
            ):
                found.append(process)
        except psutil.Error:
            continue
    return found


def running(fleet: FleetInfo) -> list[int]:
    states = (MachineState.UP, MachineState.WARM)
    return [one.machine_id for one in fleet.machines if one.state in states and one.alive]


def test_up_boots_what_its_queues_need_replaces_a_killed_machine_and_leaves_none_behind(
    deployment: Deployment, folder: Path
) -> None:
    with tidegate.connect(deployment.url) as mq:
        eventually(
            lambda: (
                len((now := mq.fleet()).slots) == 1 and len(running(now)) == 2 and now.warm == 1
            ),
            "one works, one is warm",
        )
        before = mq.fleet()
        assert (before.leader, before.unplaced) == (1, 0)
        (slot,) = before.slots
        mq.put("orders", b"first")
        eventually((folder / "done-first").exists, "it is worked on")

        # When the machine that works is killed
        (victim,) = (
            process
            for process in processes_of(deployment)
            if process.cmdline()[process.cmdline().index("--id") + 1] == str(slot.machine_id)
        )
        victim.kill()
        mq.put("orders", b"second")

        # Then its replica moves to the warm one, and the pool is filled up again. Its worker, which
        # ends what it has begun, may still have been the one that worked on the message.
        eventually((folder / "done-second").exists, "it is worked on")

        def replaced() -> FleetInfo | None:
            now = mq.fleet()
            has_moved = [one.machine_id for one in now.slots] not in ([], [slot.machine_id])
            return now if has_moved and len(running(now)) == 2 else None

        after = eventually(replaced, "its replica is elsewhere, and the warm pool is refilled")
        (failed,) = (one for one in after.machines if one.state is MachineState.FAILED)
        assert (failed.machine_id, failed.alive) == (slot.machine_id, False)
        assert failed.detail.startswith("it died")

    def is_all_shown() -> bool:
        shown = subprocess.run(
            [sys.executable, "-m", "tidegate", "fleet", "--url", deployment.url, "--json"],
            capture_output=True,
            check=True,
        )
        states = {one["state"] for one in json.loads(shown.stdout)["machines"]}
        return states == {"up", "warm", "failed"}

    # The pool is filled again in the background.
    eventually(is_all_shown, "one is up, one warm, and the one that died is told of")

    end_up(deployment, signal.SIGTERM)


def test_a_killed_up_leaves_no_machine_behind(deployment: Deployment) -> None:
    with tidegate.connect(deployment.url) as mq:
        eventually(lambda: len(running(mq.fleet())) == 2, "machines run")
    end_up(deployment, signal.SIGKILL)


def end_up(deployment: Deployment, number: int) -> None:
    """Send the signal to `up`, and see two machines end with it."""
    machines = processes_of(deployment)
    assert len(machines) == 2
    below = [child for machine in machines for child in machine.children(recursive=True)]
    assert below
    living = [process_identity(one.pid) for one in (*machines, *below)]

    os.kill(deployment.up_pid, number)

    eventually(
        lambda: not any(one is not None and one.is_alive for one in living), "everything has ended"
    )
