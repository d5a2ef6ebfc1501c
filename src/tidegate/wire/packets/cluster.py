"""Packets about nodes, the owners of queues, and machines."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request, Success


class Member(msgspec.Struct, array_like=True):
    """A node of the cluster."""

    member_id: int
    name: str
    address: str
    alive: bool
    queues: int


class GetMembersResponse(Answer):
    """The nodes of the cluster."""

    method = 0x68
    members: list[Member]


class GetMembers(Request):
    """List the nodes of the cluster."""

    method = 0x67
    answer = GetMembersResponse
    right = None


class SetOwner(Request):
    """Move a queue to another node; needs admin mode."""

    method = 0x65
    answer = Success
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    member_id: int


class GetFleetResponse(Answer):
    """Leader, machines, slots and warm machines; JSON in the body."""

    method = 0x96


class GetFleet(Request):
    """List the machines."""

    method = 0x95
    answer = GetFleetResponse
    right = None
