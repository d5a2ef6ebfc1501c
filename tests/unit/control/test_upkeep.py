"""Replicas begin to serve when somebody is there; homes move only when nothing is in them."""

from __future__ import annotations

from collections import Counter

import numbers_of as given

from tidegate.control.queues.loop import (
    SAMPLES_MIN,
    SAMPLES_PATIENT,
    ReportedAssignments,
    TopologyReconciler,
    missing_workers,
    return_to_alias,
)
from tidegate.core.decisions import Exchange, QueueSample, ReplicaSample
from tidegate.core.topology import ALIAS, ASSIGNMENT_SLOTS, ReplicaState

STARTING = ReplicaState.STARTING
NOTHING = ReportedAssignments([], [])


def _sample(*replicas: ReplicaSample) -> QueueSample:
    return QueueSample(queue="orders", at=0.0, replicas=list(replicas))


def test_a_replica_serves_when_its_owner_answers() -> None:
    topology = given.topology(given.place(1, state=STARTING), given.place(2, state=STARTING))
    here = ReplicaSample(number=1, state=STARTING)
    away = ReplicaSample(number=2, state=STARTING, reachable=False)
    assert TopologyReconciler().serving(topology, _sample(here, away)) == [1]


def test_a_replica_on_a_machine_waits_for_its_workers() -> None:
    topology = given.topology(given.place(1, state=STARTING, machine_id=4), worker="shop:app")
    alone = ReplicaSample(number=1, state=STARTING, machine_id=4)
    staffed = ReplicaSample(number=1, state=STARTING, machine_id=4, consumers=1)
    assert TopologyReconciler().serving(topology, _sample(alone)) == []
    assert [one.number for one in missing_workers(topology, _sample(alone))] == [1]
    assert TopologyReconciler().serving(topology, _sample(staffed)) == [1]
    assert missing_workers(topology, _sample(staffed)) == []


def test_homes_are_spread_over_those_that_serve() -> None:
    topology = given.topology(given.place(1), given.place(2), given.place(3, state=STARTING))
    homes = TopologyReconciler().assignments(topology, lambda number: NOTHING)
    assert homes is not None
    assert Counter(homes) == {-1: ASSIGNMENT_SLOTS // 2, -2: ASSIGNMENT_SLOTS // 2}, (
        "closed at first"
    )


def test_assignments_stay_when_no_replica_serves() -> None:
    topology = given.topology(given.place(1, state=STARTING), homes=[7] * ASSIGNMENT_SLOTS)
    assert TopologyReconciler().assignments(topology, lambda number: NOTHING) is None


def test_when_the_last_replica_goes_the_alias_is_home_and_keeps_what_is_left() -> None:
    last = given.place(1, state=ReplicaState.DRAINING, share=0.0)
    topology = given.topology(last, homes=[1] * ASSIGNMENT_SLOTS)
    upkeep = TopologyReconciler()
    assert all(
        upkeep.assignments(topology, lambda number: ReportedAssignments([3], [])) is None
        for _ in range(9)
    )
    found = [upkeep.assignments(topology, lambda number: NOTHING) for _ in range(SAMPLES_MIN)]
    assert found == [None] * (SAMPLES_MIN - 1) + [[]]

    going = ReplicaSample(number=1, state=ReplicaState.DRAINING, waiting=7)
    assert return_to_alias(_sample(going)) == [Exchange(source=1, target=ALIAS, count=7)]
    other = ReplicaSample(number=2)
    assert return_to_alias(_sample(going, other)) == []


def test_a_home_leaves_a_draining_replica_when_it_has_been_empty_for_some_looks() -> None:
    draining = given.place(1, state=ReplicaState.DRAINING)
    topology = given.topology(draining, given.place(2), homes=[1] * ASSIGNMENT_SLOTS)
    upkeep, held = TopologyReconciler(), {1: ReportedAssignments([5], []), 2: NOTHING}
    for _ in range(SAMPLES_MIN - 1):
        assert upkeep.assignments(topology, held.__getitem__) is None
    homes = upkeep.assignments(topology, held.__getitem__)
    assert homes is not None
    assert homes[5] == 1
    assert Counter(homes) == {-2: ASSIGNMENT_SLOTS - 1, 1: 1}


def test_a_busy_home_leaves_a_draining_replica_in_the_end() -> None:
    draining = given.place(1, state=ReplicaState.DRAINING)
    topology = given.topology(draining, given.place(2), homes=[1] * ASSIGNMENT_SLOTS)
    upkeep, busy = (
        TopologyReconciler(),
        {1: ReportedAssignments(range(ASSIGNMENT_SLOTS), range(ASSIGNMENT_SLOTS)), 2: NOTHING},
    )
    found = [upkeep.assignments(topology, busy.__getitem__) for _ in range(SAMPLES_PATIENT)]
    assert found == [None] * (SAMPLES_PATIENT - 1) + [[-2] * ASSIGNMENT_SLOTS]


def test_a_home_whose_replica_does_not_say_what_it_holds_stays() -> None:
    draining = given.place(1, state=ReplicaState.DRAINING)
    topology = given.topology(draining, given.place(2), homes=[1] * ASSIGNMENT_SLOTS)
    upkeep = TopologyReconciler()
    assert all(upkeep.assignments(topology, lambda number: None) is None for _ in range(9))


def test_a_new_replica_gets_its_part_of_the_homes_and_then_nothing_moves() -> None:
    places = given.place(1), given.place(2)
    topology = given.topology(*places, homes=[1] * ASSIGNMENT_SLOTS)
    upkeep = TopologyReconciler()
    found = [upkeep.assignments(topology, lambda number: NOTHING) for _ in range(SAMPLES_MIN)][-1]
    assert found is not None
    assert Counter(found) == {1: ASSIGNMENT_SLOTS // 2, -2: ASSIGNMENT_SLOTS // 2}
    opened = upkeep.assignments(given.topology(*places, homes=found), lambda number: NOTHING)
    assert opened is not None
    assert Counter(opened) == {1: ASSIGNMENT_SLOTS // 2, 2: ASSIGNMENT_SLOTS // 2}
    settled = given.topology(*places, homes=opened)
    assert all(upkeep.assignments(settled, lambda number: NOTHING) is None for _ in range(9))


def test_a_home_is_opened_when_nobody_else_has_anything_of_it_or_would_take_it() -> None:
    topology = given.topology(given.place(1), given.place(2), homes=[-2] * ASSIGNMENT_SLOTS)
    said: dict[int, ReportedAssignments | None] = {
        ALIAS: ReportedAssignments([], [3]),
        1: ReportedAssignments([], [4]),
        # What came to its new home does not keep it closed.
        2: ReportedAssignments([5], [5]),
    }
    homes = TopologyReconciler().assignments(topology, said.__getitem__)
    assert homes is not None
    assert Counter(homes) == {2: ASSIGNMENT_SLOTS - 2, -2: 2}
    assert (homes[3], homes[4]) == (-2, -2)

    said[1] = None
    assert TopologyReconciler().assignments(topology, said.__getitem__) is None, (
        "who says nothing may have anything"
    )


def test_a_closed_home_whose_replica_drains_stays_until_all_of_it_is_there() -> None:
    draining = given.place(2, state=ReplicaState.DRAINING)
    topology = given.topology(given.place(1), draining, homes=[-2] * ASSIGNMENT_SLOTS)
    # Part of it may be on its way: it would come to the next home from two places.
    said = {ALIAS: ReportedAssignments([], range(ASSIGNMENT_SLOTS)), 1: NOTHING, 2: NOTHING}
    upkeep = TopologyReconciler()
    found = [upkeep.assignments(topology, said.__getitem__) for _ in range(SAMPLES_PATIENT)]
    assert found == [None] * SAMPLES_PATIENT

    said[ALIAS] = NOTHING
    assert upkeep.assignments(topology, said.__getitem__) == [-1] * ASSIGNMENT_SLOTS, (
        "and is not put to before"
    )


def test_a_closed_home_whose_replica_is_gone_goes_elsewhere_and_stays_closed() -> None:
    topology = given.topology(given.place(1), homes=[-2] * ASSIGNMENT_SLOTS)
    said = {ALIAS: ReportedAssignments([], range(ASSIGNMENT_SLOTS)), 1: NOTHING}
    assert TopologyReconciler().assignments(topology, said.__getitem__) == [-1] * ASSIGNMENT_SLOTS


def test_the_alias_is_home_to_all_once_nobody_has_what_is_on_its_way_to_another() -> None:
    going = [given.place(n, state=ReplicaState.DRAINING, share=0.0) for n in (1, 2)]
    topology = given.topology(*going, homes=[-2] * ASSIGNMENT_SLOTS)
    said = {ALIAS: NOTHING, 1: ReportedAssignments([3], [3]), 2: NOTHING}
    upkeep = TopologyReconciler()
    found = [upkeep.assignments(topology, said.__getitem__) for _ in range(SAMPLES_MIN)]
    assert found == [None] * SAMPLES_MIN

    said[1] = NOTHING
    assert upkeep.assignments(topology, said.__getitem__) == []
