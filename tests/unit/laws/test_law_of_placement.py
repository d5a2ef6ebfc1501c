"""Placement: the papers' energy policy and its opposite, by hand."""

from __future__ import annotations

from tidegate.core.decisions import MachineSample, ReplicaSample
from tidegate.core.machines import MachineState
from tidegate.core.topology import Provisioning, ReplicaState
from tidegate.laws.placement import host_for, place_replica, place_replica_apart, removal_order

ENERGY, PERFORMANCE = Provisioning.ENERGY, Provisioning.PERFORMANCE
UP, WARM = MachineState.UP, MachineState.WARM


def machine(number: int, used: int = 0, slots: int = 2, **rest: object) -> MachineSample:
    usual = {"state": UP if used else WARM, "added_at": float(number)}
    return MachineSample(machine_id=number, slots=slots, used=used, **{**usual, **rest})  # type: ignore[arg-type]


def test_energy_fills_the_newest_working_machine_before_a_warm_one() -> None:
    assert place_replica([machine(1, 1), machine(2, 1), machine(3)], ENERGY) == 2
    assert place_replica([machine(1, 2), machine(2, 2), machine(3)], ENERGY) == 3
    assert place_replica([machine(1, 2), machine(2, 2)], ENERGY) is None


def test_energy_takes_the_warm_machine_of_the_fullest_host() -> None:
    fleet = [
        machine(1, 2, host="a"),
        machine(2, 2, host="a"),
        machine(3, 1, 1, host="b"),
        machine(4, host="b"),
        machine(5, host="a"),
    ]
    assert place_replica(fleet, ENERGY) == 5


def test_performance_gives_each_replica_a_machine_on_the_least_loaded_host() -> None:
    fleet = [machine(1, 1, host="a"), machine(2, host="a"), machine(3, host="b")]
    assert place_replica(fleet, PERFORMANCE) == 3
    # A free slot beside another replica is none.
    assert place_replica([machine(1, 1)], PERFORMANCE) is None


def test_those_that_answer_for_each_other_are_apart_where_there_is_more_than_one_machine() -> None:
    full, used, empty = machine(1, used=2), machine(2, used=1), machine(3)
    assert place_replica_apart([full, used, empty], {2: 1}) == 3
    assert place_replica_apart([full, used, empty], {2: 1, 3: 2}) == 2
    # With nobody of them anywhere, as for energy; and where there is one slot, there.
    assert place_replica_apart([full, used, empty], {}) == 2
    assert place_replica_apart([full, used], {2: 1}) == 2
    assert place_replica_apart([full], {}) is None
    # Machines of one host die together.
    near, far = machine(4, host="a"), machine(5, host="b")
    assert place_replica_apart([machine(6, used=2, host="a"), near, far], {6: 1}) == 5


def test_replica_is_not_placed_on_a_machine_that_is_not_up() -> None:
    for state in (MachineState.BOOTING, MachineState.FAILED, MachineState.HALTING):
        for policy in (ENERGY, PERFORMANCE):
            assert place_replica([machine(1, state=state)], policy) is None


def test_a_new_machine_boots_with_the_others_or_apart() -> None:
    fleet = [machine(1, 1, host="a"), machine(2, 1, host="a"), machine(3, 0, host="b")]
    assert host_for(fleet, ENERGY) == "a"
    assert host_for(fleet, PERFORMANCE) == "b"
    assert host_for([machine(1, 1)], ENERGY) is None


def test_the_last_added_goes_first_and_what_starts_before_what_serves() -> None:
    def replica(number: int, machine_id: int, **rest: object) -> ReplicaSample:
        return ReplicaSample(number=number, machine_id=machine_id, **rest)  # type: ignore[arg-type]

    three = [replica(1, 1), replica(2, 1), replica(3, 2)]
    assert removal_order(three, ENERGY, 3) == [3, 2, 1]
    starting = [*three, replica(4, 1, state=ReplicaState.STARTING)]
    assert removal_order(starting, ENERGY) == [4]
    # The third is the last added, but the machine of the first would be empty.
    uneven = [replica(1, 1), replica(2, 2), replica(3, 2)]
    assert removal_order(uneven, ENERGY) == [1]
    assert removal_order(uneven, PERFORMANCE) == [3]
    assert removal_order([replica(1, 1, reachable=False)], ENERGY) == []


def test_a_slow_one_goes_before_the_last_added_and_after_what_does_not_serve() -> None:
    three = [ReplicaSample(number=number, machine_id=1) for number in (1, 2, 3)]
    assert removal_order(three, ENERGY, 3, slow={1}) == [1, 3, 2]
    starting = ReplicaSample(number=4, state=ReplicaState.STARTING)
    assert removal_order([*three, starting], PERFORMANCE, 2, slow={2}) == [4, 2]
