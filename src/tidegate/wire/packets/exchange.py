"""Packets to move waiting messages between replicas of a logical queue."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request


class PullResponse(Answer):
    """The number of messages moved."""

    method = 0x8E
    count: int


class Pull(Request):
    """Sent by a control loop: take waiting messages from another replica into this one."""

    method = 0x8D
    answer = PullResponse
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    source: int
    count: int
    # Move only messages assigned to this replica; otherwise only messages without an assignment.
    homed: bool = False


class GiveAwayResponse(Answer):
    """The first id and count of each segment that now belongs to the other queue."""

    method = 0x90
    segments: list[tuple[int, int]]
    # First ids of segments that were never delivered.
    untouched: list[int] = msgspec.field(default_factory=list)
    # The number of ids that the first segment would have needed; 0 means that there is no segment
    # to give.
    ids_needed: int = 0


class GiveAway(Request):
    """Sent between nodes: move whole segments to a queue of the sender.

    The sender has reserved the ids for them.
    """

    method = 0x8F
    answer = GiveAwayResponse
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    target: int
    target_epoch: int
    # The reserved ids start at `first_id`.
    first_id: int
    id_count: int
    # About this many messages.
    count: int
    move_id: str
    # Move only messages assigned to the sender's queue; otherwise only messages without an
    # assignment.
    homed: bool = False
