"""From totals of a door to what one interval brought."""

from __future__ import annotations

from tidegate.agreements.evaluation import agreement_sample
from tidegate.core.services import DoorSample, InstanceSample, sample_delta


def door(**given: object) -> DoorSample:
    return DoorSample(service="shop", address="here:80", **{"door": "d1", "at": 10.0, **given})  # type: ignore[arg-type]


def test_counts_are_those_since_the_sample_before() -> None:
    before = door(
        accepted=10,
        answered=8,
        refused=1,
        response=[(0.1, 8)],
        instances=[InstanceSample(instance_id=1, sent=9, answered=8, response=[(0.1, 8)])],
    )
    after = door(
        at=11.0,
        accepted=15,
        answered=12,
        refused=3,
        waiting=2,
        response=[(0.1, 8), (0.2, 4)],
        instances=[
            InstanceSample(instance_id=1, sent=11, answered=10, response=[(0.1, 8), (0.2, 2)]),
            InstanceSample(instance_id=2, sent=3, answered=2, server_errors=1),
        ],
    )

    found = sample_delta(before, after)

    assert (found.at, found.accepted, found.answered, found.refused) == (11.0, 5, 4, 2)
    assert (found.waiting, found.response) == (2, [(0.2, 4)])
    one, two = found.instances
    assert (one.sent, one.answered, one.response) == (2, 2, [(0.2, 2)])
    # One that is new has done all that it says since.
    assert (two.sent, two.answered, two.server_errors) == (3, 2, 1)


def test_a_door_that_began_anew_counts_from_zero() -> None:
    before, again = door(accepted=10, answered=9), door(door="d2", accepted=3, answered=3)

    assert sample_delta(None, before) == before
    assert sample_delta(before, again) == again
    # One that forgot its counts and kept its name, as a program behind it may that was restarted.
    assert sample_delta(before, door(accepted=2, answered=9)).accepted == 2


def test_sample_delta_ignores_counts_before_the_first_instance() -> None:
    waiting = door(accepted=7, refused=7, by_class={"5xx": 7}, has_begun=False)
    begun = door(at=11.0, accepted=9, answered=1, refused=8, by_class={"2xx": 1, "5xx": 8})

    assert (sample_delta(None, waiting).refused, sample_delta(None, waiting).accepted) == (0, 0)
    found = sample_delta(waiting, begun)
    assert (found.accepted, found.answered, found.refused) == (2, 1, 1)
    assert found.by_class == {"2xx": 1, "5xx": 1}


def test_an_agreement_counts_server_errors_as_missed() -> None:
    between = door(
        accepted=20,
        answered=10,
        refused=3,
        response=[(0.5, 10)],
        instances=[
            InstanceSample(instance_id=1, answered=6, server_errors=2, response=[(0.2, 6)]),
            InstanceSample(instance_id=2, answered=4, response=[(0.3, 4)]),
        ],
    )

    sample = agreement_sample(between, 1.0, [None, 64.0, 32.0])

    assert (sample.accepted, sample.served, sample.refused) == (8, 8, 5)
    # Seven are still in hand.
    assert sample.came == 20
    assert sample.free_memory_bytes == 32.0
    assert sample.times == {"response": [(0.5, 10)], "service": [(0.2, 6), (0.3, 4)]}
