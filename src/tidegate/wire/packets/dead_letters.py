"""Packets to send dead letters back."""

from __future__ import annotations

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request


class RedriveResponse(Answer):
    """The number of messages sent back."""

    method = 0x6C
    count: int


class Redrive(Request):
    """Send dead letters back to their queues, or to `to`: all, or a selection."""

    method = 0x6B
    answer = RedriveResponse
    right = Right.READ
    mode = Mode.READ_WRITE
    queue_id: int
    to: str | None = None
    message_ids: list[int] | None = None
    reason: str | None = None
    limit: int | None = None

    def claims(self) -> list[Claim]:
        # Without `to`, only the node knows the queues of the messages, and checks the rights there.
        where: list[Claim] = [] if self.to is None else [(Right.WRITE, self.to)]
        return [(Right.READ, self.queue_id), *where]
