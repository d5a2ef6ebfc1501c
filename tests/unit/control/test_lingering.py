"""What `tidegate explain` says of a replica that does not get to go."""

from __future__ import annotations

from typing import Any

from tidegate.control.queues.loop import PATIENCE_S, Lingering
from tidegate.core.decisions import QueueSample, ReplicaSample
from tidegate.core.topology import ASSIGNMENT_SLOTS, ReplicaState, Scaling, Topology

TOPOLOGY = Topology(1, "orders", 1, Scaling(worker="shop:app"), [], [1] * ASSIGNMENT_SLOTS)


def sample(at: float, **going: Any) -> QueueSample:
    there = ReplicaSample(number=1, state=ReplicaState.SERVING)
    goes = ReplicaSample(number=2, **{"state": ReplicaState.DRAINING, **going})
    return QueueSample(queue="orders", at=at, replicas=[there, goes])


def test_a_drain_that_takes_long_says_what_keeps_it() -> None:
    lingering = Lingering()
    assert lingering.words(TOPOLOGY, sample(0.0, producers=1, waiting=3, share=0.1)) == []
    assert lingering.words(TOPOLOGY, sample(PATIENCE_S - 1.0, producers=1)) == []

    late = PATIENCE_S + 1.0
    assert lingering.words(TOPOLOGY, sample(late, producers=1, waiting=3, share=0.1)) == [
        "replica 2 is still to go: it still gets new messages, messages wait in it, "
        "producers have put to it in the last seconds"
    ]
    assert lingering.words(TOPOLOGY, sample(late, reachable=False)) == [
        "replica 2 is still to go: it cannot be reached"
    ]
    # Its own worker ends with it, and the next period lets it go.
    assert lingering.words(TOPOLOGY, sample(late, consumers=1)) == []


def test_lingering_starts_again_after_a_replica_served() -> None:
    lingering = Lingering()
    lingering.words(TOPOLOGY, sample(0.0, waiting=1))
    lingering.words(TOPOLOGY, sample(5.0, state=ReplicaState.SERVING))

    assert lingering.words(TOPOLOGY, sample(PATIENCE_S, waiting=1)) == []
    assert lingering.words(TOPOLOGY, sample(2.0 * PATIENCE_S, waiting=1)) == [
        "replica 2 is still to go: messages wait in it"
    ]
