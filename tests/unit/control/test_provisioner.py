"""The provisioner: slots before machines, no need booted for twice, and a warm pool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.control.provisioning import Provisioner, SlotRequest
from tidegate.core.decisions import Boot, Halt, MachineSample, Place
from tidegate.core.machines import MachineState, SlotKind
from tidegate.core.topology import Provisioning, Scaling

UP, WARM, BOOTING, FAILED = (
    MachineState.UP,
    MachineState.WARM,
    MachineState.BOOTING,
    MachineState.FAILED,
)


def machine(number: int, state: MachineState = UP, used: int = 0, slots: int = 2) -> MachineSample:
    return MachineSample(
        machine_id=number, state=state, slots=slots, used=used, added_at=float(number)
    )


def want(pending: int = 0, queue: str = "orders", **rest: object) -> SlotRequest:
    return SlotRequest(queue=queue, pending=pending, **{"slots_per_machine": 2, **rest})  # type: ignore[arg-type]


def decide(machines: list[MachineSample], *wants: SlotRequest) -> list[object]:
    return list(Provisioner().decide(machines, wants, at=5.0).actions)


def test_free_slots_are_filled_before_a_machine_is_booted() -> None:
    assert decide([machine(1, used=1)], want(3)) == [
        Place(queue="orders", machine_id=1),
        Boot(slots=2),
    ]


def test_a_decision_says_what_would_have_changed_it() -> None:
    placed = Provisioner().decide([machine(1, used=1)], [want(1)])
    assert "Without a free slot" in placed.otherwise
    waiting = Provisioner().decide([machine(1, BOOTING)], [want(1)])
    assert "With a free slot" in waiting.otherwise
    assert "A smaller `warm`" in Provisioner().decide([], [want(0, warm=1)]).otherwise
    assert "A replica without a place" in Provisioner().decide([], [want(0)]).otherwise


def test_booting_machine_satisfies_the_need() -> None:
    fleet = [machine(1, used=2), machine(2, BOOTING)]
    assert decide(fleet, want(2)) == []
    assert decide(fleet, want(3)) == [Boot(slots=2)]
    # Round after round the same need finds its boot.
    assert decide([*fleet, machine(3, BOOTING)], want(3)) == []


def test_a_failed_machine_is_no_capacity_and_neither_is_one_that_boots() -> None:
    decision = Provisioner().decide([machine(1, FAILED), machine(2, BOOTING)], [want(1)])
    assert decision.actions == []
    assert decision.rule == "waiting for a boot"
    assert decision.inputs["slots"] == 0.0
    assert decide([machine(1, FAILED)], want(1)) == [Boot(slots=2)]


def test_a_warm_machine_is_used_first_and_replaced_in_the_background() -> None:
    fleet = [machine(1, used=2), machine(2, WARM)]
    assert decide(fleet, want(1, warm=1)) == [
        Place(queue="orders", machine_id=2),
        Boot(slots=2, warm=True),
    ]
    # The next period: it boots.
    after = [machine(1, used=2), machine(2, used=1), machine(3, BOOTING)]
    assert decide(after, want(0, warm=1)) == []


def test_an_emptied_machine_becomes_the_warm_one_and_a_surplus_goes() -> None:
    fleet = [machine(1, used=2), machine(2), machine(3, WARM)]
    assert decide(fleet, want(0, warm=1)) == [Halt(3)]
    assert decide(fleet, want(0, warm=2)) == []
    assert decide(fleet, want(0)) == [Halt(3), Halt(2)]


def test_the_papers_numbers_ask_for_two_warm_machines() -> None:
    asked = want(boot_s=96.9, sla_delta=4.0, machine_capacity_per_s=200.0)
    assert asked.warm_wanted == 2
    assert decide([machine(1, used=2)], asked) == [Boot(slots=2, warm=True)] * 2
    scaling = Scaling(slots_per_machine=2, boot_s=96.9, sla_delta=4.0)
    assert SlotRequest.of("orders", scaling, 0, capacity_per_s=100.0).warm_wanted == 2
    assert SlotRequest.of("orders", scaling, 0).warm_wanted == 0


def test_performance_boots_a_machine_for_each_replica() -> None:
    fast = want(2, provisioning=Provisioning.PERFORMANCE)
    assert decide([machine(1, used=1)], fast) == [Boot(slots=2), Boot(slots=2)]
    assert decide([machine(1, used=1), machine(2, BOOTING)], fast) == [Boot(slots=2)]


def test_queues_take_turns_at_free_slots() -> None:
    actions = decide([machine(1)], want(5), want(1, "mails"))
    assert actions[:2] == [
        Place(queue="orders", machine_id=1),
        Place(queue="mails", machine_id=1),
    ]


def test_no_more_machines_than_allowed_and_it_says_so() -> None:
    decision = Provisioner(machines_max=2).decide([machine(1, used=2)], [want(4)])
    assert decision.actions == [Boot(slots=2)]
    assert "more machine(s) would be needed" in decision.reason


def test_a_decision_says_why() -> None:
    decision = Provisioner().decide([machine(1, used=2)], [want(1)], at=7.0)
    assert (decision.at, decision.loop, decision.rule) == (7.0, "fleet", "no free slot")
    assert "1 replica(s) of orders have no free slot" in decision.reason
    assert decision.otherwise


fleets = st.lists(
    st.builds(
        MachineSample,
        machine_id=st.integers(1, 40),
        state=st.sampled_from(MachineState),
        slots=st.integers(1, 4),
        used=st.integers(0, 4),
        host=st.sampled_from([None, "a", "b"]),
        added_at=st.floats(0.0, 100.0),
    ),
    max_size=12,
    unique_by=lambda one: one.machine_id,
)
wishes = st.lists(
    st.builds(
        SlotRequest,
        queue=st.sampled_from(["a", "b", "c"]),
        pending=st.integers(0, 5),
        slots_per_machine=st.integers(1, 4),
        provisioning=st.sampled_from(Provisioning),
        warm=st.one_of(st.none(), st.integers(0, 3)),
    ),
    max_size=3,
    unique_by=lambda one: one.queue,
)


@given(fleets, wishes)
def test_whatever_the_fleet_no_slot_is_given_twice_and_nothing_in_use_is_halted(
    machines: list[MachineSample], wants: list[SlotRequest]
) -> None:
    decision = Provisioner().decide(machines, wants)
    here = {one.machine_id: one for one in machines}
    used = {one.machine_id: one.used for one in machines}
    for action in decision.actions:
        if isinstance(action, Place):
            assert here[action.machine_id].state in (UP, WARM)
            used[action.machine_id] += 1
            assert used[action.machine_id] <= here[action.machine_id].slots
    for action in decision.actions:
        if isinstance(action, Halt):
            assert here[action.machine_id].state in (UP, WARM)
            assert used[action.machine_id] == 0
    boots = [action for action in decision.actions if isinstance(action, Boot)]
    # Carried out, with the boots on their way, the same need asks for no further boot.
    coming = [
        MachineSample(machine_id=100 + index, state=BOOTING, slots=boot.slots, host=boot.host)
        for index, boot in enumerate(boots)
    ]
    halted = {action.machine_id for action in decision.actions if isinstance(action, Halt)}
    placed = [action.queue for action in decision.actions if isinstance(action, Place)]
    after = [
        MachineSample(
            machine_id=one.machine_id,
            state=UP if used[one.machine_id] > one.used else one.state,
            slots=one.slots,
            used=used[one.machine_id],
            host=one.host,
            added_at=one.added_at,
        )
        for one in machines
        if one.machine_id not in halted
    ]
    left = [
        SlotRequest(
            queue=one.queue,
            pending=one.pending - placed.count(one.queue),
            slots_per_machine=one.slots_per_machine,
            provisioning=one.provisioning,
            warm=one.warm,
        )
        for one in wants
    ]
    if len(boots) < 16:
        assert Provisioner().decide(after + coming, left).actions == []


def test_instances_and_replicas_share_slots_and_the_urgent_come_first() -> None:
    instances = want(3, "orders", kind=SlotKind.INSTANCE, urgent=1)
    placed = decide([machine(1, slots=3)], want(2), instances)
    # Whoever is to answer, then one of each in turn; a service may be called as a queue is.
    assert placed == [
        Place("orders", 1, SlotKind.INSTANCE),
        Place("orders", 1),
        Place("orders", 1, SlotKind.INSTANCE),
        Boot(slots=2),
    ]
    decision = Provisioner().decide([machine(1, used=2)], [instances])
    assert "3 instance(s) of orders have no free slot" in decision.reason
