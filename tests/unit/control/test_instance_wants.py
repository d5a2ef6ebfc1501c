"""Which instances need a slot: those without a machine or on one that is gone, spares last."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from tidegate.agreements.document import parse_agreement
from tidegate.control.journal import Journal
from tidegate.control.learned import AcceptedModels
from tidegate.control.machines import FleetLoop
from tidegate.control.planning import PlanningRequest, plan_capacity, planning_inputs
from tidegate.control.provisioning import Provisioner, slot_request, unplaced_instances
from tidegate.core.decisions import Boot, MachineSample, Place
from tidegate.core.machines import Machine, MachineState, SlotKind
from tidegate.core.services import Instance, InstanceState, Service, ServiceSpec
from tidegate.core.store import Clock
from tidegate.engines.native.actuator import NativeActuator
from tidegate.fleet.fleet import Fleet
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.models import ModelRegistry, StoredModel

SHOP = Service(
    spec=ServiceSpec(name="shop", target="shop:app", agreement="", slots_per_machine=3), version=1
)
MACHINES = [
    MachineSample(machine_id=1, state=MachineState.UP, slots=4),
    MachineSample(machine_id=2, state=MachineState.FAILED, slots=4),
    MachineSample(machine_id=3, state=MachineState.HALTING, slots=4),
    MachineSample(machine_id=4, state=MachineState.BOOTING, slots=4),
]


def instance(
    number: int,
    machine_id: int | None,
    state: InstanceState = InstanceState.ORDERED,
    weight: float = 1.0,
    service: str = "shop",
) -> Instance:
    return Instance(
        instance_id=number,
        service=service,
        version=1,
        state=state,
        machine_id=machine_id,
        weight=weight,
    )


def test_those_that_are_to_answer_come_before_spares_and_those_that_end_need_none() -> None:
    waiting = unplaced_instances(
        SHOP,
        [
            instance(1, None, weight=0.0),
            instance(2, 1, InstanceState.READY),
            instance(3, 2, InstanceState.READY),
            instance(4, 3, InstanceState.STARTING),
            instance(5, 4),
            instance(6, 99),
            instance(7, None),
            instance(8, 2, InstanceState.DRAINING),
            instance(9, None, InstanceState.FAILED),
            instance(10, None, service="other"),
        ],
        MACHINES,
    )
    assert [one.instance_id for one in waiting] == [3, 4, 6, 7, 1]
    want = slot_request(SHOP, waiting)
    assert (want.kind, want.pending, want.urgent) == (SlotKind.INSTANCE, 5, 4)
    assert want.slots_per_machine == 3


def knowing(folder: Path, **fleet: float) -> ModelRegistry:
    """What was learned of the fleet, and of an instance of the shop."""
    knowledge = ModelRegistry(folder, pytest.fail)
    now = datetime.now(UTC)
    for kind, subject, parameters in (
        ("provisioning", "fleet", fleet),
        ("http_capacity", "shop", {"throughput_per_s": 50.0}),
    ):
        model = StoredModel(subject, True, "", parameters, {}, 1, 0.0, 1.0)
        knowledge.add_models(kind, "run", now, [model])
    return knowledge


def shop_that_grows(sla_delta: float) -> Service:
    text = (
        f'name = "shop"\nhttp = "shop"\nsla_delta = {sla_delta}\n'
        '[metrics.response_p95]\nbreach = "1s"\n'
    )
    return msgspec.structs.replace(SHOP, spec=msgspec.structs.replace(SHOP.spec, agreement=text))


def test_the_fleet_keeps_as_many_machines_warm_for_a_service_as_its_plan_says(
    tmp_path: Path,
) -> None:
    # Given three slots to a machine at 50/s each, and machines that boot for 96.9 s
    learned = AcceptedModels(knowing(tmp_path, boot_s=96.9))
    learned.refresh(0.0)
    shop = shop_that_grows(sla_delta=3)
    agreement = parse_agreement(shop.spec.agreement, "shop.toml")
    asked = PlanningRequest(slots_per_machine=3)

    planned = plan_capacity(agreement, planning_inputs(agreement, asked, learned), asked)
    decision = Provisioner().decide(
        [MachineSample(machine_id=1, state=MachineState.UP, slots=3, used=1)],
        [slot_request(shop, [], [instance(1, 1, InstanceState.READY)], learned)],
    )

    # ceil(3 · 96.9 / 150)
    assert planned.machines_warm == 2
    assert decision.actions == [Boot(slots=3, warm=True)] * 2


class Cloud:
    """A provider whose machines never come to be: what was ordered stands in the store."""

    name = "cloud"

    async def boot(self, machine_id: int, slots: int, host: str | None) -> Machine:
        return Machine(machine_id=machine_id, state="booting")

    async def halt(self, machine_id: int) -> None: ...

    async def list(self) -> list[Machine]:
        return [Machine(machine_id=number, state="booting") for number in range(1, 9)]

    async def close(self) -> None: ...


async def test_the_loop_of_the_fleet_boots_them_beside_what_is_needed_now(tmp_path: Path) -> None:
    store = MemoryStore()
    epoch = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert epoch is not None
    learned = AcceptedModels(knowing(tmp_path, boot_s=96.9))
    learned.refresh(0.0)
    fleet = Fleet(store, Cloud())
    actuator = NativeActuator(store, pytest.fail)
    journal = Journal(store, None, Clock().wall)
    loop = FleetLoop(store, fleet, Provisioner(), actuator, journal, learned)
    await store.deploy(shop_that_grows(sla_delta=3).spec)
    await store.add_instance("shop", 1.0, epoch)

    await loop.run_once({}, 0.0, epoch)

    assert loop.keeps_warm
    assert [one.slots for one in await store.machines()] == [3, 3, 3], "one at work, two warm"
    await fleet.close()


def test_no_machine_is_kept_warm_while_nobody_knows_how_many(tmp_path: Path) -> None:
    learned = AcceptedModels(knowing(tmp_path))
    learned.refresh(0.0)

    assert slot_request(shop_that_grows(sla_delta=3), [], [], learned).warm_wanted == 0
    assert slot_request(SHOP, []).warm_wanted == 0, (
        "an agreement that cannot be read asks for nothing"
    )


def test_instances_of_a_service_are_spread_over_the_machines_that_have_slots() -> None:
    machines = [
        MachineSample(machine_id=1, state=MachineState.UP, slots=4, used=1),
        MachineSample(machine_id=2, state=MachineState.WARM, slots=4),
    ]
    there = [instance(1, 1, InstanceState.READY), instance(2, 2, InstanceState.DRAINING)]
    waiting = [instance(number, None) for number in (3, 4, 5)]
    decision = Provisioner().decide(machines, [slot_request(SHOP, waiting, [*there, *waiting])])
    placed = [one.machine_id for one in decision.actions if isinstance(one, Place)]
    assert sorted(placed) == [1, 2, 2]
    assert placed[0] == 2

    # One machine has slots: all go there, and none waits for another machine.
    decision = Provisioner().decide(machines[:1], [slot_request(SHOP, waiting, [*there, *waiting])])
    assert [one for one in decision.actions if isinstance(one, Place)] == [
        Place("shop", 1, SlotKind.INSTANCE)
    ] * 3
