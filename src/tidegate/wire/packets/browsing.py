"""Packets for who reads without holding, and acknowledges by id when all of it is processed."""

from __future__ import annotations

from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request
from tidegate.wire.packets.run import Run


class GetMessagesResponse(Answer):
    """Messages in the queue in order of their ids; payloads in the body."""

    method = 0x2E
    runs: list[Run]
    # The id from which on there may be more; None: that was all.
    more_from: int | None = None


class GetMessages(Request):
    """Browse a queue without consuming: what waits, or what of it has these ids."""

    method = 0x2D
    answer = GetMessagesResponse
    right = Right.READ
    queue_id: int
    limit: int = 100
    first_id: int = 0
    last_id: int | None = None


class GetWaitingIdsResponse(Answer):
    """The ids, each range [first, last]; every id that was given out so far is below `below_id`."""

    method = 0x54
    ranges: list[tuple[int, int]]
    below_id: int


class GetWaitingIds(Request):
    """Which messages for anyone wait, the lowest ids first, up to `last_id`.

    There may be more than are listed, even within the limit; there are none if none is.
    """

    method = 0x53
    answer = GetWaitingIdsResponse
    right = Right.READ
    queue_id: int
    limit: int
    last_id: int | None = None


class AcknowledgeIdsResponse(Answer):
    """How many messages there were; that they are done is on disk."""

    method = 0x56
    count: int


class AcknowledgeIds(Request):
    """Acknowledge messages for anyone by their ids, each range [first, last], if they wait."""

    method = 0x55
    answer = AcknowledgeIdsResponse
    right = Right.READ
    queue_id: int
    ranges: list[tuple[int, int]]
