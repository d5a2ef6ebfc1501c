"""Packets about where the messages of logical queues are."""

from __future__ import annotations

from tidegate.core.replication import Topology
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Push, Request


class TopologyChanged(Push):
    """Shares have changed, or replicas have come or are going."""

    method = 0x86
    topology: Topology


class GetTopologyResponse(Answer):
    """Where the messages of a logical queue are."""

    method = 0x8A
    topology: Topology


class GetTopology(Request):
    """Ask for the topology of a logical queue without coming to it."""

    method = 0x89
    answer = GetTopologyResponse
    right = Right.SEE
    queue_id: int


class GetTopologiesResponse(Answer):
    """Every logical queue that one may see, without homes; None: as it was at that version."""

    method = 0x9A
    version: int
    topologies: list[Topology] | None


class GetTopologies(Request):
    """How every logical queue is spread and scales, if that has changed since a version."""

    method = 0x99
    answer = GetTopologiesResponse
    right = Right.SEE
    version: int = -1
