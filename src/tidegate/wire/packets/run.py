"""How messages travel to a client, wherever they do: as runs of neighbours."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Attributes


class Run(msgspec.Struct, array_like=True):
    """Neighbouring messages of one segment; a column of one element speaks for all.

    `tag` numbers the deliveries of a consumer, for ack, nack and extend.
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
    # How often each was delivered, this time included; [1] for first deliveries.
    deliveries: list[int] = msgspec.field(default_factory=lambda: [1])
