"""Instances in a slot of a real machine: started, kept alive, let go."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hosted_modules import body_of, write_shop
from led_fleet import FleetUnderTest, kill
from waiting import eventually_async

from tidegate.core.services import Instance, InstanceState, ServiceSpec
from tidegate.fleet.process import process_identity

SHOP = ServiceSpec(name="shop", target="shop:app", agreement="")


class Hosting:
    """Orders of a leader, and signs to wait for."""

    def __init__(self, fleet: FleetUnderTest) -> None:
        self.fleet = fleet
        self.store = fleet.store

    async def order(self, machine_id: int, service: str = "shop") -> int:
        made = await self.store.add_instance(service, 1.0, self.fleet.epoch)
        assert await self.store.assign_instance(made.instance_id, machine_id, self.fleet.epoch)
        return made.instance_id

    async def until(self, instance_id: int, is_so: Callable[[Instance], bool]) -> Instance:
        async def found() -> Instance | None:
            there = {one.instance_id: one for one in await self.store.instances()}
            known = there.get(instance_id)
            return known if known is not None and is_so(known) else None

        return await eventually_async(found, pause_s=0.02)

    async def until_ready(self, instance_id: int) -> Instance:
        return await self.until(instance_id, lambda one: one.state is InstanceState.READY)


@pytest.fixture
def hosting(fleet: FleetUnderTest) -> Hosting:
    return Hosting(fleet)


async def test_an_instance_lives_in_a_slot_is_kept_alive_and_ends_when_nobody_wants_it(
    fleet: FleetUnderTest, hosting: Hosting
) -> None:
    code = write_shop(fleet.folder / "code")
    await fleet.store.deploy(msgspec.structs.replace(SHOP, folder=str(code)))
    machine = await fleet.booted(slots=1)
    number = await hosting.order(machine.machine_id)
    ready = await hosting.until_ready(number)
    assert ready.address is not None
    assert ready.free_memory_bytes is not None
    assert ready.free_memory_bytes > 0
    words = (await body_of(ready.address)).split()
    assert (words[0], words[-1]) == ("welcome", str(number))

    kill(int(words[2]))
    failed = await hosting.until(number, lambda one: one.state is InstanceState.FAILED)
    assert failed.detail == "shop:app was ended by signal 9 (SIGKILL)"
    assert failed.address is None
    again = await hosting.until_ready(number)
    assert again.address is not None
    assert again.detail == ""

    # A second one finds no slot: the first one stays, and people are told.
    second = await hosting.order(machine.machine_id)
    await fleet.until_detail(machine.machine_id, "2 instances are assigned to 1 slots")
    pid = int((await body_of(again.address)).split()[2])
    assert await fleet.store.remove_instance(number, fleet.epoch)
    await eventually_async(lambda: process_identity(pid) is None)
    await hosting.until_ready(second)
