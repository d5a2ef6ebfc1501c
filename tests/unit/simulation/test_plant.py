"""The plant: nothing is lost in it, and it does what nodes and machines do."""

import random

from hypothesis import example, given, settings
from hypothesis import strategies as some
from thoroughness import examples

from tidegate.core.decisions import (
    AddReplica,
    Boot,
    CancelDrain,
    CancelPending,
    Drain,
    Exchange,
    Halt,
    Migrate,
    Place,
    Retire,
    SetShares,
)
from tidegate.core.machines import MachineState
from tidegate.core.topology import MemberRole, ReplicaState
from tidegate.laws.scaling.clients import ReplicaLoad, elect
from tidegate.simulation.plant import PlantSettings, SimulatedPlant


def _plant(
    machines: int = 1, slots: int = 4, replicas: int = 1, **settings: float
) -> SimulatedPlant:
    plant = SimulatedPlant(
        "orders",
        PlantSettings(machines_at_start=machines, poisson=False, boot_s=10.0, **settings),  # type: ignore[arg-type]
        slots,
        seed=1,
    )
    plant.pending = replicas
    for machine_id in list(plant.machines.by_id):
        for _ in range(slots):
            plant.place(machine_id, at_once=True)
    plant.tick(1.0, 0.0, 100.0)
    plant.execute(SetShares(dict.fromkeys(plant.replicas, 1 / replicas)))
    return plant


def _conserved(plant: SimulatedPlant) -> bool:
    return plant.arrived == plant.consumed + plant.waiting + plant.in_service


@given(seed=some.integers(0, 2**32), steps=some.integers(1, 120))
@example(seed=3758724, steps=75)
@settings(max_examples=examples(150), deadline=None)
def test_whatever_happens_every_message_is_somewhere(seed: int, steps: int) -> None:
    chance = random.Random(seed)
    plant = _plant(machines=2, replicas=3)
    if chance.random() < 0.3:
        plant.change_clients(MemberRole.CONSUMER, 4)
        plant.change_clients(MemberRole.PRODUCER, 2)
    for _ in range(steps):
        number, other = chance.randint(0, 6), chance.randint(1, 6)
        machine_id = chance.randint(1, 5)
        action = chance.choice(
            [
                AddReplica(1),
                Drain(number),
                CancelDrain(number),
                Retire(number),
                CancelPending(1),
                SetShares({one: chance.random() for one in plant.replicas}),
                Exchange(number, other, chance.randint(0, 500)),
                Migrate(MemberRole.CONSUMER, number, other),
                Boot(2),
                Halt(machine_id),
                Place("orders", machine_id),
            ]
        )
        plant.execute(action)
        if chance.random() < 0.05:
            plant.kill_machine()
        if chance.random() < 0.05:
            plant.kill_replica()
        if chance.random() < 0.1:
            plant.change_clients(chance.choice(list(MemberRole)), chance.choice([-1, 1]))
        plant.tick(chance.choice([0.1, 1.0]), chance.uniform(0, 900), chance.uniform(0.2, 200.0))
        assert _conserved(plant)
        for replica in plant.replicas.values():
            assert replica.waiting == sum(count for _, count in replica.cohorts) >= 0
            times = [came_at for came_at, _ in replica.cohorts]
            assert times == sorted(times)
            assert 0.0 <= replica.oldest_age_s(plant.now) <= plant.now


def test_a_replica_that_is_too_slow_gathers_what_it_cannot_do() -> None:
    plant = _plant()
    for _ in range(10):
        plant.tick(1.0, 150.0, 100.0)
    assert plant.consumed == 1000
    assert plant.waiting + plant.in_service == 500
    # The last of 1 000 done came in the seventh second.
    assert 3.0 <= plant.replicas[1].oldest_age_s(plant.now) <= 4.0


def test_a_message_that_takes_longer_than_a_tick_stays_in_hand() -> None:
    plant = _plant()
    plant.tick(1.0, 2.0, 0.25)
    plant.tick(1.0, 0.0, 0.25)
    assert (plant.in_service, plant.consumed) == (1, 0)
    for _ in range(8):
        plant.tick(1.0, 0.0, 0.25)
    assert plant.consumed == 2


def test_shares_are_kept_to_a_message() -> None:
    plant = _plant(replicas=3)
    plant.execute(SetShares({1: 0.5, 2: 0.3, 3: 0.2}))
    for turn in range(1, 50):
        plant.tick(1.0, 7.0, 0.0)
        for number, share in ((1, 0.5), (2, 0.3), (3, 0.2)):
            assert abs(plant.replicas[number].arrived - share * 7 * turn) < 1.5


def test_the_alias_keeps_what_comes_while_no_replica_can_be_reached() -> None:
    plant = _plant(detection_s=2.0)
    plant.kill_machine()
    for _ in range(5):
        plant.tick(1.0, 50.0, 100.0)
    assert plant.alias.waiting == 250
    plant.execute(Boot(2))
    for _ in range(11):
        plant.tick(1.0, 0.0, 100.0)
    plant.execute(Place("orders", 2))
    for _ in range(10):
        plant.tick(1.0, 1.0, 100.0)
    assert plant.alias.waiting == 0
    assert plant.consumed == plant.arrived == 260


def test_a_replica_that_is_not_empty_is_not_removed() -> None:
    plant = _plant(replicas=2)
    plant.tick(1.0, 400.0, 100.0)
    plant.execute(Drain(2))
    plant.execute(Retire(2))
    assert plant.replicas[2].state is ReplicaState.DRAINING
    plant.execute(SetShares({1: 1.0}))
    plant.execute(Exchange(2, 1, 1_000))
    plant.tick(1.0, 0.0, 100.0)
    plant.execute(Retire(2))
    assert list(plant.replicas) == [1]
    assert _conserved(plant)


def test_where_replicas_compete_one_that_goes_is_gone_when_its_hands_are_empty() -> None:
    plant = _plant(replicas=2, competing=True)
    plant.tick(1.0, 400.0, 100.0)
    assert plant.replicas[2].in_service == 1
    plant.execute(Drain(2))
    # What waited at it is the other's; what is in hand is done first.
    assert plant.replicas[2].waiting == 0
    assert plant.replicas[2].state is ReplicaState.DRAINING
    plant.tick(1.0, 0.0, 100.0)
    assert list(plant.replicas) == [1]
    assert plant.turns == [-1]
    assert _conserved(plant)


def test_where_replicas_compete_an_idle_one_is_gone_at_once() -> None:
    plant = _plant(replicas=2, competing=True)
    plant.execute(Drain(2))
    assert list(plant.replicas) == [1]


def test_a_replica_of_ours_stays_until_the_loop_retires_it() -> None:
    plant = _plant(replicas=2)
    plant.execute(Drain(2))
    plant.tick(1.0, 0.0, 100.0)
    assert plant.replicas[2].state is ReplicaState.DRAINING


@given(joins=some.lists(some.sampled_from(list(MemberRole)), max_size=20))
@settings(max_examples=examples(50), deadline=None)
def test_clients_are_where_the_law_elects_them(joins: list[MemberRole]) -> None:
    plant = _plant(replicas=3)
    plant.execute(Drain(3))
    for role in joins:
        standings = [
            ReplicaLoad(one.number, one.producers, one.consumers)
            for one in plant.replicas.values()
            if one.state is ReplicaState.SERVING
        ]
        elected = elect(role, standings)
        assert elected is not None
        before = plant.replicas[elected].producers + plant.replicas[elected].consumers
        plant.change_clients(role, 1)
        assert plant.replicas[elected].producers + plant.replicas[elected].consumers == before + 1
    assert plant.replicas[3].producers == plant.replicas[3].consumers == 0


def test_booting_is_paid_for_and_a_boot_that_fails_is_not_counted_as_running() -> None:
    plant = _plant(boot_failure=1.0)
    plant.execute(Boot(2))
    for _ in range(12):
        plant.tick(1.0, 0.0, 100.0)
    assert plant.machines.running() == 1
    assert plant.machines.by_id[2].state is MachineState.FAILED
    # One second before, twelve of the first machine, ten or eleven of the one that failed.
    assert plant.machines.paid_s in (23.0, 24.0)


def test_the_oldest_message_is_served_first_wherever_it_came_from() -> None:
    plant = _plant(replicas=2)
    plant.execute(SetShares({1: 1.0}))
    plant.tick(1.0, 500.0, 0.0)
    plant.execute(SetShares({2: 1.0}))
    for _ in range(20):
        plant.tick(1.0, 5.0, 0.0)
    assert plant.replicas[2].oldest_age_s(plant.now) < plant.replicas[1].oldest_age_s(plant.now)
    plant.execute(Exchange(1, 2, 200))
    assert plant.replicas[2].oldest_age_s(plant.now) == plant.replicas[1].oldest_age_s(plant.now)
    assert plant.replicas[2].waiting + plant.replicas[2].in_service == 300
