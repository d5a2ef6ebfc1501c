"""Instances and the fleet: slots are found, and found again, whoever of them is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from backing import PostgresBacking
from hosted_modules import body_of
from led_fleet import kill
from led_hosting import LedHosting
from places import SUPPORT
from waiting import eventually_async

import tidegate
from tidegate.core.machines import MachineState
from tidegate.core.runtime import CRASH_VARIABLE
from tidegate.core.services import InstanceState
from tidegate.fleet.process import process_identity


@pytest.fixture
def backing(embedded_url: str) -> PostgresBacking:
    return PostgresBacking("embedded", embedded_url)


@pytest.fixture
async def hosting(backing: PostgresBacking, folder: Path) -> AsyncIterator[LedHosting]:
    made = LedHosting(backing.url, folder)
    yield made
    await made.stop()


async def test_instances_get_slots_and_get_others_when_their_machine_is_killed(
    hosting: LedHosting,
) -> None:
    await hosting.start()
    await hosting.deploy()
    one, two = await hosting.order(), await hosting.order()
    before = await hosting.until_ready(one, two)
    (machine_id,) = {instance.machine_id for instance in before}
    assert machine_id is not None
    async with tidegate.connect(hosting.node.address) as mq:
        fleet = await mq.fleet()
    assert sorted(fleet.held_by(machine_id)) == [f"shop/i{one}", f"shop/i{two}"]
    pids = [int((await body_of(each.address or "")).split()[2]) for each in before]

    (supervisor,) = hosting.pids(machine_id, "machine")
    kill(supervisor)

    # The leader gives it up, and its instances are ordered anew.
    after = await hosting.until_instances(
        lambda now: all(
            now[number].state is InstanceState.READY and now[number].machine_id != machine_id
            for number in (one, two)
        )
    )
    row = await hosting.row(machine_id)
    assert row is None or row.state is MachineState.FAILED
    for number in (one, two):
        assert (await body_of(after[number].address or "")).endswith(f"instance {number}")
    await eventually_async(
        lambda: all(process_identity(pid) is None for pid in pids), "they end with it"
    )


@pytest.mark.parametrize("dies_at", ["after-boot-row", "after-instance-placed"])
async def test_a_leader_that_is_killed_in_the_middle_of_an_order_is_followed_by_one_that_goes_on(
    backing: PostgresBacking, hosting: LedHosting, dies_at: str
) -> None:
    first = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SUPPORT / "led_hosting.py"),
        backing.url,
        str(hosting.folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            CRASH_VARIABLE: dies_at,
            "PYTHONPATH": os.pathsep.join([str(SUPPORT.parent), *sys.path]),
        },
    )
    assert first.stdin is not None
    assert first.stdout is not None
    dead = int(await first.stdout.readline())
    # The next to lead is there before any machine is: those have nodes, too.
    await hosting.node.start()
    first.stdin.write(b"go\n")
    assert await first.wait() == -signal.SIGKILL
    await backing.declare_dead(dead)
    epoch = await hosting.store.lead(hosting.node.member_id)
    assert epoch is not None
    hosting.epoch = epoch

    (number,) = (one.instance_id for one in await hosting.store.instances())
    (ready,) = await hosting.until_ready(number)

    assert (await body_of(ready.address or "")).endswith(f"instance {number}")
    rows = [row for row in await hosting.store.machines() if row.state is not MachineState.FAILED]
    assert [row.machine_id for row in rows] == [ready.machine_id], "no need is booted for twice"
