"""What is left for a service: no slot that another has, or is entitled to."""

from __future__ import annotations

from tidegate.control.provisioning import available_slots, slot_claims
from tidegate.core.machines import MachineInfo, MachineState
from tidegate.core.services import Instance, InstanceState, Service, ServiceOverride, ServiceSpec
from tidegate.core.topology import Range, ReplicaInfo, ReplicaState, Scaling, Topology

SHOP = ServiceSpec(name="shop", target="shop:app", agreement="", slots_per_machine=4)


def machine(number: int, state: MachineState = MachineState.UP) -> MachineInfo:
    return MachineInfo(machine_id=number, provider="process", slots=4, state=state)


def service(
    name: str,
    replicas: str,
    spares: int = 0,
    more: str = "",
    by_hand: ServiceOverride | None = None,
) -> Service:
    text = (
        f'name = "{name}"\nhttp = "{name}"\nreplicas = {replicas}\n{more}\n'
        '[metrics.response_p95]\nbreach = "1s"\n'
    )
    if more:
        text += "[metrics.throughput]\nbreach = 100\n"
    spec = ServiceSpec(name=name, target="a:app", agreement=text, spares=spares)
    return Service(spec=spec, version=1, by_hand=by_hand or ServiceOverride())


def instance(
    number: int, of: str, machine_id: int | None, state: InstanceState = InstanceState.READY
) -> Instance:
    return Instance(instance_id=number, service=of, version=1, state=state, machine_id=machine_id)


def queue(name: str, least: int, slots_per_machine: int = 1, placed: int = 0) -> Topology:
    scaling = Scaling(replicas=Range(least, 9), slots_per_machine=slots_per_machine)
    places = [
        ReplicaInfo(
            number=number,
            queue_id=10 + number,
            state=ReplicaState.SERVING,
            share=1.0,
            machine_id=1,
        )
        for number in range(placed)
    ]
    return Topology(1, name, 1, scaling, places)


def test_machines_that_run_and_those_that_may_be_booted_count_and_failed_ones_do_not() -> None:
    machines = [machine(1), machine(2, MachineState.BOOTING), machine(3, MachineState.FAILED)]

    assert available_slots(SHOP, machines, machines_most=3).slots == 12
    assert available_slots(SHOP, machines, machines_most=0).slots == 8


def test_the_least_and_the_spares_of_another_are_not_promised_twice() -> None:
    everybody = slot_claims([service("blog", "{ min = 3, max = 8 }", spares=1)], [], [])

    found = available_slots(SHOP, [machine(1)], 1, everybody)

    assert found.slots == 0
    assert found.words == "0 slot(s) are there for it beside 4 of blog"


def test_slot_claims_count_throughput_and_prefer_overrides() -> None:
    # 120/s without a warning, at 36/s each, no busier than 85 %.
    blog = service("blog", "{ min = 1, max = 8 }", more="capacity = 36")
    held = service(
        "blog", "{ min = 1, max = 8 }", more="capacity = 36", by_hand=ServiceOverride(instances=2)
    )

    assert [one.entitled for one in slot_claims([blog, held], [], [])] == [4, 2]


def test_slots_that_others_are_in_are_taken_and_our_own_are_ours() -> None:
    instances = [
        *(instance(number, "blog", 1) for number in (1, 2, 3)),
        instance(4, "blog", 1, InstanceState.DRAINING),
        instance(5, "shop", 2),
    ]
    everybody = slot_claims(
        [service("blog", "{ min = 1, max = 8 }"), Service(spec=SHOP, version=1)],
        instances,
        [queue("orders", least=1, placed=1)],
    )

    # Three of blog and one of the queue; who drains is leaving.
    assert available_slots(SHOP, [machine(1), machine(2)], 2, everybody).slots == 4


def test_slot_claims_of_a_queue_take_whole_machines() -> None:
    everybody = slot_claims([], [], [queue("orders", least=3)])

    # A machine each of three, which leaves one of four.
    assert available_slots(SHOP, [], 4, everybody).slots == 4
    # In free slots first.
    assert available_slots(SHOP, [machine(1)], 4, everybody).slots == 13


def test_without_a_machine_and_nobody_who_boots_one_it_says_so() -> None:
    found = available_slots(SHOP, [], 0)

    assert found.slots == 0
    assert "nobody boots any" in found.words
