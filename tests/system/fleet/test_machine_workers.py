"""The workers of a machine: as many as its replicas want, restarted, reported, let go gently."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from led_fleet import PATIENCE_S, FleetUnderTest, kill, until

import tidegate
from tidegate.core.replication import ReplicaState


def files(folder: Path, prefix: str) -> set[str]:
    return {path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*")}


async def test_a_replica_gets_its_workers_and_a_killed_one_is_replaced(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    await fleet.elastic("orders", machine.machine_id, worker="jobs:app", workers_per_replica=2)
    await until(lambda: len(fleet.pids(machine.machine_id, "worker", "jobs:app")) == 2)
    before = fleet.pids(machine.machine_id, "worker", "jobs:app")

    kill(before[0])

    await until(
        lambda: len(set(fleet.pids(machine.machine_id, "worker", "jobs:app")) - {before[0]}) == 2
    )
    assert before[1] in fleet.pids(machine.machine_id, "worker", "jobs:app")


async def test_workers_serve_their_replica(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted()
    await fleet.elastic("orders", machine.machine_id, worker="jobs:app")

    async with tidegate.connect(fleet.node.address) as mq:
        await mq.put("orders#1", b"a")
        await until(lambda: files(fleet.folder, "done-") == {"a"})

    assert (fleet.folder / "done-a").read_text() == "orders#1"


async def test_a_module_that_does_not_import_is_reported_and_the_others_work_on(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted(slots=2)
    await fleet.elastic("broken", machine.machine_id, worker="broken_jobs:app")
    await fleet.elastic("orders", machine.machine_id, worker="jobs:app")

    deadline = time.monotonic() + PATIENCE_S
    while not (row := await fleet.row(machine.machine_id)) or not row.detail:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

    assert row.alive
    assert "broken#1: worker broken_jobs:app ended with code 2" in row.detail
    assert "RuntimeError: the price list is missing" in row.detail
    await until(lambda: fleet.pids(machine.machine_id, "worker", "jobs:app"))


async def test_a_worker_that_says_what_no_database_keeps_is_reported_by_a_machine_that_lives(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    await fleet.elastic("orders", machine.machine_id, worker="loud_jobs:app")

    deadline = time.monotonic() + PATIENCE_S
    while not (row := await fleet.row(machine.machine_id)) or not row.detail:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

    assert row.detail == "orders#1: worker loud_jobs:app ended with code 4: oh no \\x00 \ufffd"
    # And the next one is told of, too: nobody died of the first.
    await until(lambda: fleet.pids(machine.machine_id, "worker", "loud_jobs:app"))


async def test_there_are_never_more_replicas_than_slots(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted(slots=1)
    queue = await fleet.elastic("orders", machine.machine_id, worker="jobs:app")
    await until(lambda: fleet.pids(machine.machine_id, "worker", "jobs:app"))
    first = fleet.pids(machine.machine_id, "worker", "jobs:app")

    await fleet.store.add_replica(queue, fleet.epoch, machine_id=machine.machine_id)
    deadline = time.monotonic() + PATIENCE_S
    while not (row := await fleet.row(machine.machine_id)) or not row.detail:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)

    assert row.detail == "2 replicas are assigned to 1 slots"
    assert fleet.pids(machine.machine_id, "worker", "jobs:app") == first


async def test_a_draining_replica_lets_the_idlest_go_first_and_finishes_what_runs(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    queue = await fleet.elastic(
        "orders", machine.machine_id, worker="jobs:app", workers_per_replica=2
    )
    await until(lambda: len(fleet.pids(machine.machine_id, "worker", "jobs:app")) == 2)
    async with tidegate.connect(fleet.node.address) as mq:
        await mq.put("orders#1", b"long")
        await until(lambda: files(fleet.folder, "begun-") == {"long"})
        busy = int((fleet.folder / "begun-long").read_text())

        await fleet.store.set_replica_state(queue, 1, ReplicaState.DRAINING, fleet.epoch)
        await until(lambda: len(fleet.pids(machine.machine_id, "worker", "jobs:app")) == 1)
        assert fleet.pids(machine.machine_id, "worker", "jobs:app") == [busy]

        (fleet.folder / "go").touch()
        await until(lambda: not fleet.pids(machine.machine_id, "worker", "jobs:app"))

    assert files(fleet.folder, "done-") == {"long"}
    assert len(fleet.pids(machine.machine_id, "node")) == 1
