"""Which queues a subscription to an elastic queue consumes from.

All that serve or drain, and the queue itself, replica 0; a worker that came with a replica from
that one only. Not those that are starting, for their queue may not be there yet, nor those that
are leaving: whoever is at one of them lets go.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegate.adapters.rabbitmq.elastic.topology import ElasticTopology, holders_name
from tidegate.core.replication import ReplicaState, replica_name


class Source(NamedTuple):
    """A queue to consume from."""

    name: str
    # Where whoever may hold a message of it stands; None: it never goes.
    holders: str | None = None


def sources_of(topology: ElasticTopology | None, queue: str, bound: int | None) -> list[Source]:
    """`bound`: the only replica to consume from."""
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
