"""The workers of a machine: as many as its replicas want, restarted, reported, let go gently."""

from __future__ import annotations

from pathlib import Path

from led_fleet import FleetUnderTest, kill
from waiting import eventually_async

import tidegate
from tidegate.core.topology import ReplicaState

WORKER = ("worker", "jobs:app")


def two(pids: list[int]) -> bool:
    return len(pids) == 2


def files(folder: Path, prefix: str) -> set[str]:
    return {path.name.removeprefix(prefix) for path in folder.glob(f"{prefix}*")}


async def test_a_replica_gets_its_workers_which_serve_it_and_a_killed_one_is_replaced(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    await fleet.elastic("orders", machine.machine_id, worker="jobs:app", workers_per_replica=2)
    before = await fleet.until_pids(machine.machine_id, *WORKER, are_so=two)

    await fleet.put_and_see_done("orders#1", "a")
    assert (fleet.folder / "done-a").read_text() == "orders#1"

    kill(before[0])
    after = await fleet.until_pids(
        machine.machine_id, *WORKER, are_so=lambda now: two(now) and before[0] not in now
    )
    assert before[1] in after


async def test_workers_that_do_not_start_are_reported_and_the_others_work_on(
    fleet: FleetUnderTest,
) -> None:
    """One module does not import; another says what no database keeps. Nobody else dies of it."""
    machine = await fleet.booted(slots=3)
    await fleet.elastic("broken", machine.machine_id, worker="broken_jobs:app")
    await fleet.elastic("loud", machine.machine_id, worker="loud_jobs:app")
    await fleet.elastic("orders", machine.machine_id, worker="jobs:app")

    for words in (
        "broken#1: worker broken_jobs:app ended with code 2",
        "RuntimeError: the price list is missing",
        "loud#1: worker loud_jobs:app ended with code 4: oh no \\x00 \ufffd",
    ):
        row = await fleet.until_detail(machine.machine_id, words)
        assert row.alive
    # The next one is started, too: the machine did not die of the first.
    await fleet.until_pids(machine.machine_id, "worker", "loud_jobs:app")
    await fleet.until_pids(machine.machine_id, *WORKER)


async def test_there_are_never_more_replicas_than_slots(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted(slots=1)
    queue = await fleet.elastic("orders", machine.machine_id, worker="jobs:app")
    first = await fleet.until_pids(machine.machine_id, *WORKER)

    await fleet.store.add_replica(queue, fleet.epoch, machine_id=machine.machine_id)
    row = await fleet.until_detail(machine.machine_id)

    assert row.detail == "2 replicas are assigned to 1 slots"
    assert fleet.pids(machine.machine_id, *WORKER) == first


async def test_a_draining_replica_lets_the_idlest_go_first_and_finishes_what_runs(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    queue = await fleet.elastic(
        "orders", machine.machine_id, worker="jobs:app", workers_per_replica=2
    )
    await fleet.until_pids(machine.machine_id, *WORKER, are_so=two)
    async with tidegate.connect(fleet.node.address) as mq:
        await mq.put("orders#1", b"long")
        await eventually_async(lambda: files(fleet.folder, "begun-") == {"long"})
        busy = int((fleet.folder / "begun-long").read_text())

        await fleet.store.set_replica_state(queue, 1, ReplicaState.DRAINING, fleet.epoch)
        left = await fleet.until_pids(machine.machine_id, *WORKER, are_so=lambda now: not two(now))
        assert left == [busy]

        (fleet.folder / "go").touch()
        await fleet.until_pids(machine.machine_id, *WORKER, are_so=lambda now: not now)

    assert files(fleet.folder, "done-") == {"long"}
    assert len(fleet.pids(machine.machine_id, "node")) == 1
