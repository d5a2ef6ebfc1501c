"""Packets to move waiting messages from one replica of a logical queue to another."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request


class PullResponse(Answer):
    """How many messages came."""

    method = 0x8E
    count: int


class Pull(Request):
    """As a loop: have the owner of a queue take waiting messages over from a sibling."""

    method = 0x8D
    answer = PullResponse
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    source: int
    count: int
    # What has its home at the queue, and nothing else; else what has none.
    homed: bool = False


class GiveAwayResponse(Answer):
    """First id and count of each segment that is now the other queue's."""

    method = 0x90
    segments: list[tuple[int, int]]
    # First ids of those of which nobody has had a message yet.
    untouched: list[int] = msgspec.field(default_factory=list)
    # So many ids the first of them would have needed; 0: there is none to give.
    ids_needed: int = 0


class GiveAway(Request):
    """From node to node: move whole segments to a queue of mine, under ids that I reserved."""

    method = 0x8F
    answer = GiveAwayResponse
    right = Right.ADMIN
    mode = Mode.ADMIN
    queue_id: int
    target: int
    target_epoch: int
    # Ids from first_id on, so many.
    first_id: int
    id_count: int
    # About so many messages.
    count: int
    move_id: str
    # What has its home at the queue of mine, and nothing else; else what has none.
    homed: bool = False
