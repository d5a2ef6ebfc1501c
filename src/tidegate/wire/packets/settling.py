"""Packets about messages that a consumer holds: acknowledge, return, extend the lease."""

from __future__ import annotations

from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request


class SettleResponse(Answer):
    """The number of tags that the consumer no longer held."""

    method = 0x46
    lost: int


class Settle(Request):
    """Acknowledge ranges of tags, each [first, last]; answered only if `confirm` is set."""

    method = 0x45
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    confirm: bool = False


class Return(Request):
    """Return ranges of tags to the queue: failed, rejected or not begun."""

    method = 0x47
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    # The delay of the next delivery; `None` means the delay of the queue's policy.
    delay_ms: int | None = None
    error: str | None = None
    # Move to the dead letters.
    reject: bool = False
    # Not begun: deliver again at once, and do not count it as a failure.
    unstarted: bool = False


class Extend(Request):
    """Extend the leases on ranges of tags; `None` means all that the consumer holds."""

    method = 0x49
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]] | None = None
    lease_ms: int | None = None
