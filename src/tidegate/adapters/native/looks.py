"""The parts of a node's stats that the control loops need.

Decoding all stats of a thousand replicas, with their histograms, takes longer than the decisions.
The decoder skips all fields that these types do not name.
"""

from __future__ import annotations

import msgspec


class ConsumerLook(msgspec.Struct):
    """Stats of one consumer."""

    prefetch: int
    unacknowledged: int


class QueueLook(msgspec.Struct):
    """Stats of one queue: a replica, or the alias of a logical queue."""

    queue_id: int
    epoch: int
    waiting: int
    unacknowledged: int
    oldest_age_s: float
    put: int
    acked: int
    readers_waiting: int
    consumers: list[ConsumerLook]
    producers: int = 0
    # Alias only: number of a replica → (producers, consumers) that were sent there.
    members: dict[int, tuple[int, int]] = {}
    homes_held: list[int] = []
    homes_ahead: list[int] = []
    refused: int = 0
    # Encoded histograms (`Durations`), decoded only for queues with an agreement.
    wait: msgspec.Raw = msgspec.Raw(b"")
    service: msgspec.Raw = msgspec.Raw(b"")


class CommitLook(msgspec.Struct):
    """Total duration of the node's commits."""

    sum_s: float = 0.0


class NodeLook(msgspec.Struct):
    """Stats of one node."""

    member_id: int
    # The node's own clock; all its counters refer to it.
    uptime_s: float
    memory_bound_bytes: int
    memory_resident_bytes: int
    process_cpu_s: float
    commit: CommitLook
    queues: list[QueueLook]
    writers: int = 1


class ClusterLook(msgspec.Struct):
    """Stats of all nodes that answered."""

    nodes: list[NodeLook]
