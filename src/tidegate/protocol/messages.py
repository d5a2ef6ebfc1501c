"""Packets to put messages into queues, and to get the result of a put."""

from __future__ import annotations

from tidegate.core.model import Attributes, Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request


class PutMessageResponse(Answer):
    """The batch is on disk. Ids count up from `first_id` unless `ids` lists them.

    A `first_id` of 0 means that the batch of this producer was stored before.
    """

    method = 0x32
    first_id: int
    ids: list[int] | None = None


class PutMessages(Request):
    """Put a batch into one queue; `producer` and `batch` identify it, so a resend is stored once.

    `after` is a batch of the producer that was in flight when this one was sent. A node that has
    never received that batch refuses this one. That batch was refused elsewhere and comes again,
    and it must be stored first.
    """

    method = 0x31
    answer = PutMessageResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    queue_id: int
    producer: int
    batch: int
    lengths: list[int]
    priorities: list[int]
    receivers: list[int | None] | None = None
    contexts: list[int | None] | None = None
    attributes: list[Attributes | None] | None = None
    after: int | None = None
    # Seconds from now by the node's clock: the delay, and the time to live.
    delays_s: list[float | None] | None = None
    ttls_s: list[float | None] | None = None


class PutToQueuesResponse(Answer):
    """The queues that accepted the message."""

    method = 0x38
    queue_ids: list[int]


class PutToQueues(Request):
    """Put one message into several queues: into all or none, or with `partial` where possible."""

    method = 0x37
    answer = PutToQueuesResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    queue_ids: list[int]
    producer: int
    batch: int
    priority: int
    partial: bool = False
    receiver: int | None = None
    context: int | None = None
    attributes: Attributes | None = None

    def claims(self) -> list[Claim]:
        return [(Right.WRITE, queue_id) for queue_id in self.queue_ids]


class GetFateResponse(Answer):
    """Whether the batch was stored."""

    method = 0x98
    stored: bool


class GetFate(Request):
    """Ask whether a replica that no longer exists had stored a batch whose answer was lost."""

    method = 0x97
    answer = GetFateResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    queue_id: int
    replica_id: int
    producer: int
    batch: int
