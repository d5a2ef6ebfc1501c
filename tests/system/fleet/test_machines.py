"""Machines that are process trees: booted, killed in every part, found again, halted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from backing import PostgresBacking
from led_fleet import LOOK_S, FleetUnderTest, kill
from waiting import eventually_async

import tidegate
from tidegate.core.errors import StaleEpoch
from tidegate.core.machines import Machine, MachineState
from tidegate.fleet.process import KEEPER_VARIABLE, process_identity
from tidegate.fleet.processes import SupervisedProcess, node_spec


async def test_a_machine_boots_joins_and_halts_with_all_its_processes(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted(slots=2)
    assert (machine.slots, machine.alive, machine.provider) == (2, True, "process")
    assert machine.joined_at is not None
    assert len(fleet.pids(machine.machine_id, "machine")) == 1
    assert len(fleet.pids(machine.machine_id, "node")) == 1

    assert await fleet.fleet.halt(machine.machine_id, fleet.epoch)
    await fleet.until_state(machine.machine_id, None)

    assert fleet.tree(machine.machine_id).members() == []
    assert await fleet.provider.list() == []


async def test_second_boot_of_a_machine_finds_the_first(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    before = fleet.pids(machine.machine_id, "machine")

    # As a leader does that took over while the first one's order was on its way.
    second = fleet.new_provider()
    await asyncio.gather(
        fleet.provider.boot(machine.machine_id, 1, None), second.boot(machine.machine_id, 1, None)
    )

    assert fleet.pids(machine.machine_id, "machine") == before
    (listed,) = await second.list()
    assert (listed.machine_id, listed.state) == (machine.machine_id, "running")
    await second.halt(machine.machine_id)
    assert fleet.tree(machine.machine_id).members() == []


async def test_a_machine_whose_node_is_killed_starts_it_again_and_stays(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    (node,) = fleet.pids(machine.machine_id, "node")

    kill(node)
    # Its lease ends; the machine has its time to bring another node.
    assert machine.member_id is not None
    await fleet.store.renew(machine.member_id, 0.0)

    async def has_joined() -> bool:
        await fleet.fleet.reconcile(fleet.epoch)
        row = await fleet.row(machine.machine_id)
        assert row is not None
        assert row.state is MachineState.WARM, row
        return row.alive and row.member_id != machine.member_id

    await eventually_async(has_joined, "the new node joins", pause_s=LOOK_S)


async def test_a_killed_supervisor_takes_its_children_along_and_the_machine_is_failed(
    fleet: FleetUnderTest,
) -> None:
    machine = await fleet.booted()
    queue = await fleet.elastic("orders", machine.machine_id)

    kill(fleet.pids(machine.machine_id, "machine")[0])
    row = await fleet.until_state(machine.machine_id, MachineState.FAILED)

    assert row is not None
    assert "it died" in row.detail
    await fleet.until_gone(machine.machine_id)
    topology = await fleet.store.topology(queue)
    assert topology is not None
    assert [place.machine_id for place in topology.replicas] == [None], "free to move"


async def test_halting_ends_what_neither_answers_nor_has_a_parent(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted()
    (node,) = fleet.pids(machine.machine_id, "node")
    # It cannot hear the kernel's SIGTERM, nor ours.
    os.kill(node, signal.SIGSTOP)
    kill(fleet.pids(machine.machine_id, "machine")[0])
    impatient = fleet.new_provider(halt_s=0.3)

    await impatient.halt(machine.machine_id)

    assert fleet.tree(machine.machine_id).members() == []
    # The kernel takes its environment from it before its pid.
    await eventually_async(lambda: process_identity(node) is None)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with any machine."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


async def test_a_pid_that_another_process_has_got_is_left_alone(
    fleet: FleetUnderTest, bystander: subprocess.Popen[bytes]
) -> None:
    found = process_identity(bystander.pid)
    assert found is not None
    order = {"machine_id": 9, "slots": 1, "process": [bystander.pid, found.started - 1]}
    (fleet.machines_folder / "9.json").write_bytes(msgspec.json.encode(order))

    (listed,) = await fleet.provider.list()
    await fleet.provider.halt(9)

    assert listed.state == "halted"
    assert bystander.poll() is None


async def test_a_machine_takes_its_time_to_boot_and_can_be_halted_meanwhile(
    embedded_url: str, folder: Path
) -> None:
    slow = FleetUnderTest(PostgresBacking("embedded", embedded_url).url, folder, boot_s=60.0)
    await slow.start()
    try:
        row = await slow.fleet.boot(1, None, slow.epoch)
        await slow.until_pids(row.machine_id, "machine")
        (listed,) = await slow.provider.list()
        assert listed.state == "booting"
        assert slow.pids(row.machine_id, "node") == []

        await slow.fleet.halt(row.machine_id, slow.epoch)
        await slow.until_state(row.machine_id, None)
        assert slow.tree(row.machine_id).members() == []
    finally:
        await slow.stop()


async def test_a_machine_that_nobody_wants_ends_by_itself(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted()

    await fleet.store.remove_machine(machine.machine_id, fleet.epoch)

    async def halted() -> Machine | None:
        (listed,) = await fleet.provider.list()
        return listed if listed.state == "halted" else None

    listed = await eventually_async(halted, "it has ended")
    assert listed.detail == "nobody wants this machine any more"
    assert not fleet.tree(machine.machine_id).members()


async def test_a_machine_ends_with_whoever_keeps_it(
    fleet: FleetUnderTest,
    bystander: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEEPER_VARIABLE, str(process_identity(bystander.pid)))
    machine = await fleet.booted()

    bystander.kill()
    bystander.wait()

    await fleet.until_gone(machine.machine_id)


async def test_a_machine_whose_store_is_not_there_says_so(fleet: FleetUnderTest) -> None:
    fleet.provider = fleet.fleet.provider = fleet.new_provider(
        url="postgresql://nobody:hush@127.0.0.1:1/none"
    )
    row = await fleet.fleet.boot(1, None, fleet.epoch)

    failed = await fleet.until_state(row.machine_id, MachineState.FAILED)

    assert failed is not None
    assert "it ended while it booted: the store does not answer" in failed.detail
    assert "hush" not in failed.detail


async def test_a_deposed_leader_boots_and_halts_nothing(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted()
    deposed = fleet.epoch
    await fleet.depose()

    for order in (
        fleet.fleet.boot(1, None, deposed),
        fleet.fleet.halt(machine.machine_id, deposed),
    ):
        with pytest.raises(StaleEpoch):
            await order

    assert len(await fleet.provider.list()) == 1
    assert len(await fleet.store.machines()) == 1
    assert fleet.pids(machine.machine_id, "machine")


async def test_machines_that_were_stopped_with_up_are_no_failures(fleet: FleetUnderTest) -> None:
    machine = await fleet.booted()

    assert await fleet.provider.stop_all() == 1
    assert fleet.tree(machine.machine_id).members() == []
    # The next `up`: row and order are still there, the machine is not.
    await fleet.until_state(machine.machine_id, None)

    assert await fleet.provider.list() == []


async def test_a_machine_that_boots_does_not_bring_back_a_queue_that_was_deleted(
    fleet: FleetUnderTest,
) -> None:
    settings = {"TIDEGATE_QUEUES__DELETED__MAX_LOAD": "100"}
    fleet.fleet.provider = fleet.new_provider(environment=settings)

    machine = await fleet.booted()

    assert machine.alive
    assert await fleet.store.find_queue(None, "deleted") is None


async def test_a_node_that_is_started_again_does_not_bring_back_a_queue_that_was_deleted(
    fleet: FleetUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_QUEUES__ORDERS__MAX_LOAD", "100")
    monkeypatch.setenv("TIDEGATE_STORE__DATA", str(fleet.folder))
    monkeypatch.setenv("TIDEGATE_TELEMETRY__ENABLED", "false")
    node = SupervisedProcess(node_spec([fleet.url], 0, metrics_port=0))
    node.start()
    node.wait_until_ready()
    try:
        async with tidegate.connect(fleet.node.address) as mq:
            # It was there when the node was ready, else this is refused.
            await mq.delete_queue("orders")
            kill(node.pid)
            await eventually_async(lambda: node.has_died)
            node.start()
            node.wait_until_ready()

            assert await fleet.store.find_queue(None, "orders") is None
    finally:
        node.terminate()
        node.wait()


async def test_a_pipe_gets_all_that_is_said_about_a_machine(fleet: FleetUnderTest) -> None:
    row = await fleet.store.add_machine("process", 1, None, fleet.epoch)
    said = "it is a long story " * 50
    assert await fleet.store.report_machine(row.machine_id, said)

    shown = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tidegate", "fleet", "--url", fleet.node.address],
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown.stdout.splitlines()[-1].endswith(f"\t{said}")
