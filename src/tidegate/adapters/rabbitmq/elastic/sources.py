"""The RabbitMQ queues that a subscription to an elastic queue consumes from.

These are the queue itself (replica 0) and all serving or draining replicas. A bound subscription
consumes from its one replica only. Starting replicas are left out because their queue may not exist
yet. Leaving replicas are left out so that their consumers stop.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.adapters.rabbitmq.elastic.topology import ElasticTopology, holders_name
from tidegate.core.replication import ReplicaState, replica_name


class Source(NamedTuple):
    """A RabbitMQ queue to consume from."""

    name: str
    # Its holders queue; None for a queue that is never deleted.
    holders: str | None = None


def sources_of(topology: ElasticTopology | None, queue: str, bound: int | None) -> list[Source]:
    """Return the queues to consume from; `bound` is the only replica to use, None means all."""
    replicas = [] if topology is None else topology.replicas
    open_ = [
        one.number
        for one in replicas
        if one.state is not ReplicaState.STARTING and not one.is_leaving
    ]
    found = [Source(replica_name(queue, one), holders_name(queue, one)) for one in open_]
    if bound is None:
        return [Source(queue), *found]
    return [one for one in found if one.name == replica_name(queue, bound)]
