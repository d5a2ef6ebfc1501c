"""The format in which messages travel to a client: runs of consecutive messages."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Attributes


class Run(msgspec.Struct, array_like=True):
    """Consecutive messages of one segment; a column with one element applies to all.

    `tag` numbers the deliveries of a consumer and is used to settle them.
    """

    tag: int
    message_id: int
    lengths: list[int]
    senders: list[int]
    priority: int
    arrived_at: float
    receivers: list[int] | None = None
    contexts: list[int | None] | None = None
    attributes: list[Attributes | None] | None = None
    redelivered: bool = False
    # How often each message was delivered, this time included; [1] for first deliveries.
    deliveries: list[int] = msgspec.field(default_factory=lambda: [1])
