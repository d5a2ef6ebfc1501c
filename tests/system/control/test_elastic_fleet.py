"""A queue on a fleet: machines boot for its replicas, workers come with them, and all go again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from elastic import Load, Watched, clients, running
from places import SUPPORT
from waiting import eventually_async

from tidegate.core.decisions import Boot, Halt, Place
from tidegate.core.machines import MachineInfo, MachineState
from tidegate.storage.postgres.store import PostgresStore
from tidegate_lab.faults.deployment import Deployment, deployed

# A machine is some processes, which take their time to start beside everything else. In `make test`
# the demo shows the same in one story with more.
pytestmark = [pytest.mark.timeout(240), pytest.mark.only_with_all]
PATIENCE_S = 90.0

SETTINGS = """
[fleet]
provider = "process"
boot_s = 0.2
list_interval = "500ms"

[queues.work]
replicas = { min = 1, max = 2 }
policy = "load"
min_load = 10
max_load = 40
polling_interval = "200ms"
inhibition = "1s"
cooldown_period = "1s"
worker = "elastic_jobs:app"
"""


@pytest.fixture(scope="module")
def notes() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tidegate-jobs-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def deployment(notes: Path) -> Iterator[Deployment]:
    settings = notes / "tidegate.toml"
    settings.write_text(SETTINGS)
    environment = {
        "TIDEGATE_CONFIG": str(settings),
        # Nobody is taken for dead because the computer is busy; see `kill_machine`.
        "TIDEGATE_NODE__LEASE": "10s",
        "TIDEGATE_TELEMETRY__ENABLED": "false",
        "TIDEGATE_METRICS__ENABLED": "false",
        "JOBS_FOLDER": str(notes),
        "PYTHONPATH": f"{SUPPORT}:{os.environ.get('PYTHONPATH', '')}",
    }
    with deployed(nodes=1, environment=environment) as running_up:
        yield running_up
        # Shown when a test has failed.
        print(running_up.log_text[-20_000:])


def handled(notes: Path) -> Counter[int]:
    lines = (line for file in notes.glob("handled-*") for line in file.read_text().splitlines())
    return Counter(int(line) for line in lines)


def test_machines_come_with_the_load_and_go_with_it_and_one_that_is_killed_is_replaced(
    deployment: Deployment, notes: Path
) -> None:
    # Not in the loop of other tests, which gives up after a minute.
    asyncio.run(_come_and_go(deployment, notes))


async def _come_and_go(deployment: Deployment, notes: Path) -> None:
    async with clients(deployment.url, 2) as (looking, putting):
        queue = Watched(looking, "work", PATIENCE_S)
        await queue.has_replicas(1)
        load = Load(putting, "work", per_s=60.0)
        async with running(load):
            topology = await queue.has_replicas(2)
            assert len({place.machine_id for place in topology.replicas} - {None}) == 2
            victim = topology.replicas[-1]
            assert victim.machine_id is not None
            fleet = await looking.fleet()
            (row,) = (one for one in fleet.machines if one.machine_id == victim.machine_id)
            await kill_machine(deployment, row)

            async def moved() -> bool:
                place = (await queue.topology()).replica(victim.number)
                return place is None or place.machine_id not in (None, victim.machine_id)

            await eventually_async(
                moved, "the replica of a killed machine is on another", PATIENCE_S
            )
            load.per_s = 2.0
            await queue.has_replicas(1)
            load.per_s = 0.0

            async def all_done() -> bool:
                return load.confirmed <= handled(notes).keys()

            await eventually_async(all_done, "all that was put is worked on", PATIENCE_S)
        assert load.confirmed == handled(notes).keys()

        async def one_machine() -> bool:
            states = [machine.state for machine in (await looking.fleet()).machines]
            return [state for state in states if state is not MachineState.FAILED] == [
                MachineState.UP
            ]

        await eventually_async(one_machine, "surplus machines are halted", PATIENCE_S)
        decisions = await looking.explain(None, count=200)
        assert {type(action) for one in decisions for action in one.actions} >= {Boot, Place, Halt}
        assert all(one.reason and one.otherwise for one in decisions)


async def kill_machine(deployment: Deployment, machine: MachineInfo) -> None:
    """Every process of it, at once; and its lease is over."""
    for pid in pids_of(deployment, machine.machine_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert machine.member_id is not None
    store = PostgresStore(deployment.store_url)
    try:
        await store.renew(machine.member_id, 0.0)
    finally:
        await store.close()


def pids_of(deployment: Deployment, machine_id: int) -> list[int]:
    """Every process of a machine, as its mark in the environment says."""
    mark = f"{deployment.folder}/data/fleet/{machine_id}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(entry.endswith(b"=" + mark) for entry in environment):
            found.append(int(folder.name))
    assert found
    return found
