"""Packets to read messages without holding them, and to acknowledge them by id."""

from __future__ import annotations

from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request
from tidegate.wire.packets.run import Run


class GetMessagesResponse(Answer):
    """Messages in the order of their ids; payloads in the body."""

    method = 0x2E
    runs: list[Run]
    # The id to continue from; `None` means that there are no more.
    more_from: int | None = None


class GetMessages(Request):
    """Browse waiting messages, or those with ids in a range, without taking them."""

    method = 0x2D
    answer = GetMessagesResponse
    right = Right.READ
    queue_id: int
    limit: int = 100
    first_id: int = 0
    last_id: int | None = None


class GetWaitingIdsResponse(Answer):
    """Ids as ranges [first, last]; all ids assigned so far are below `below_id`."""

    method = 0x54
    ranges: list[tuple[int, int]]
    below_id: int


class GetWaitingIds(Request):
    """List ids of waiting messages without a receiver up to `last_id`, the lowest ids first.

    The list may be incomplete even within the limit; an empty list means that no message waits.
    """

    method = 0x53
    answer = GetWaitingIdsResponse
    right = Right.READ
    queue_id: int
    limit: int
    last_id: int | None = None


class AcknowledgeIdsResponse(Answer):
    """The number of messages acknowledged; this is on disk."""

    method = 0x56
    count: int


class AcknowledgeIds(Request):
    """Acknowledge waiting messages without a receiver by id, each range [first, last]."""

    method = 0x55
    answer = AcknowledgeIdsResponse
    right = Right.READ
    queue_id: int
    ranges: list[tuple[int, int]]
