"""Packets about the replicas of logical queues."""

from __future__ import annotations

from tidegate.core.replication import Topology
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Push, Request


class TopologyChanged(Push):
    """The topology has changed: shares, or replicas."""

    method = 0x86
    topology: Topology


class GetTopologyResponse(Answer):
    """The topology of a logical queue."""

    method = 0x8A
    topology: Topology


class GetTopology(Request):
    """Get the topology of a logical queue without joining it."""

    method = 0x89
    answer = GetTopologyResponse
    right = Right.SEE
    queue_id: int


class GetTopologiesResponse(Answer):
    """All visible logical queues, without assignments; `None` if nothing has changed."""

    method = 0x9A
    version: int
    topologies: list[Topology] | None


class GetTopologies(Request):
    """Get the topologies of all logical queues, if any has changed since a version."""

    method = 0x99
    answer = GetTopologiesResponse
    right = Right.SEE
    version: int = -1
