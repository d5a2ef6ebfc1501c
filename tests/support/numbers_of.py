"""Live numbers as nodes would say them."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.core.topology import ReplicaInfo, ReplicaState, Scaling, Topology
from tidegate.engines.native.sensor import SensorClusterStats
from tidegate.telemetry.stats import (
    ClusterStats,
    ConsumerStats,
    Durations,
    NodeStats,
    PhaseStats,
    QueueStats,
)

ALIAS_ID = 10


def queue(queue_id: int, **changes: Any) -> QueueStats:
    values: dict[str, Any] = {
        "queue_id": queue_id,
        "name": f"queue {queue_id}",
        "durable": True,
        "epoch": 1,
        "waiting": 0,
        "waiting_in_store": 0,
        "unacknowledged": 0,
        "oldest_age_s": 0.0,
        "resident_bytes": 0,
        "put": 0,
        "delivered": 0,
        "acked": 0,
        "returned": 0,
        "redelivered": 0,
        "refused": 0,
        "put_per_s": 0.0,
        "delivered_per_s": 0.0,
        "acked_per_s": 0.0,
        "readers_waiting": 0,
        "wait": Durations(),
        "service": Durations(),
        "consumers": [],
    }
    return QueueStats(**(values | changes))


def consumer(number: int, prefetch: int = 10, unacknowledged: int = 0) -> ConsumerStats:
    return ConsumerStats(
        consumer=number,
        client_id=number,
        client_name=f"client {number}",
        prefetch=prefetch,
        unacknowledged=unacknowledged,
        delivered=0,
        acked=0,
        delivered_per_s=0.0,
        acked_per_s=0.0,
        automatic=False,
        service=Durations(),
    )


def node(member_id: int, *queues: QueueStats, **changes: Any) -> NodeStats:
    values: dict[str, Any] = {
        "member_id": member_id,
        "name": f"node {member_id}",
        "address": f"tidegate://127.0.0.1:{member_id}",
        "uptime_s": 1.0,
        "connections": 1,
        "memory_bound_bytes": 1000,
        "memory_resident_bytes": 0,
        "process_memory_bytes": 0,
        "process_cpu_s": 0.0,
        "commits": 0,
        "commit": Durations(),
        "messages_per_commit": 0.0,
        "packets_in": 0,
        "packets_out": 0,
        "queues": list(queues),
        "phases": PhaseStats(*(Durations() for _ in range(5))),
    }
    return NodeStats(**(values | changes))


def cluster(*nodes: NodeStats) -> SensorClusterStats:
    """As it travels, and as the sensor reads it."""
    said = msgspec.json.encode(ClusterStats(list(nodes)))
    return msgspec.json.decode(said, type=SensorClusterStats)


def place(number: int, **changes: Any) -> ReplicaInfo:
    values: dict[str, Any] = {
        "queue_id": ALIAS_ID + number,
        "number": number,
        "state": ReplicaState.SERVING,
        "share": 0.5,
        "address": "tidegate://127.0.0.1:1",
    }
    return ReplicaInfo(**(values | changes))


def topology(*places: ReplicaInfo, homes: list[int] | None = None, **scaling: Any) -> Topology:
    return Topology(ALIAS_ID, "orders", 1, Scaling(**scaling), list(places), homes or [])
