"""Of what nodes say about themselves, as much as the loops need.

Decoding the numbers of a thousand replicas with all their histograms takes longer than deciding
about them; what is not named here is passed over.
"""

from __future__ import annotations

import msgspec


class ConsumerLook(msgspec.Struct):
    """One subscription."""

    prefetch: int
    unacknowledged: int


class QueueLook(msgspec.Struct):
    """One queue: a replica, or an alias."""

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
    # Of an alias: number of a replica → producers and consumers that were sent there.
    members: dict[int, tuple[int, int]] = {}
    homes_held: list[int] = []
    homes_ahead: list[int] = []
    refused: int = 0
    # Histograms (telemetry.numbers.Durations), read only of queues that have an agreement.
    wait: msgspec.Raw = msgspec.Raw(b"")
    service: msgspec.Raw = msgspec.Raw(b"")


class CommitLook(msgspec.Struct):
    """How long commits took, all together."""

    sum_s: float = 0.0


class NodeLook(msgspec.Struct):
    """One node."""

    member_id: int
    # Its own clock, by which all that it counts was counted.
    uptime_s: float
    memory_bound_bytes: int
    memory_resident_bytes: int
    process_cpu_s: float
    commit: CommitLook
    queues: list[QueueLook]
    writers: int = 1


class ClusterLook(msgspec.Struct):
    """All nodes that answered."""

    nodes: list[NodeLook]
