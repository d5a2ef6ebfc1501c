"""Packets about messages that a consumer holds: done, given back, or kept longer."""

from __future__ import annotations

from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Request


class SettleResponse(Answer):
    """How many of the tags were no longer ours."""

    method = 0x46
    lost: int


class Settle(Request):
    """Acknowledge ranges of tags, each [first, last]; answered only when `confirm` is set."""

    method = 0x45
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    confirm: bool = False


class Return(Request):
    """Give ranges of tags back to the queue: they failed, are hopeless, or were never begun."""

    method = 0x47
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]
    # How long until the next delivery; None: as the queue's policy says.
    delay_ms: int | None = None
    error: str | None = None
    # Straight to the dead letters.
    reject: bool = False
    # Never begun: at once, and not counted as a failure.
    unstarted: bool = False


class Extend(Request):
    """Lengthen the leases on ranges of tags; None: all that the consumer holds."""

    method = 0x49
    answer = SettleResponse
    right = Right.READ
    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]] | None = None
    lease_ms: int | None = None
