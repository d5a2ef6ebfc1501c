"""Packets to put messages into queues, and to hear what became of a put."""

from __future__ import annotations

from tidegate.core.model import Attributes, Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request


class PutMessageResponse(Answer):
    """Stored and on disk. Ids count up from `first_id` unless `ids` lists them.

    A first id of 0 says: this batch was stored before, by the same producer.
    """

    method = 0x32
    first_id: int
    ids: list[int] | None = None


class PutMessages(Request):
    """Put a batch into one queue; `producer` and `batch` make a resend harmless.

    `after` is a batch of the producer that was on its way when this one was sent. A node that
    has never met it refuses: it was refused elsewhere, comes again, and must not be overtaken.
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
    # Seconds from now, by the node's clock: not before, and not after.
    delays_s: list[float | None] | None = None
    ttls_s: list[float | None] | None = None


class PutToQueuesResponse(Answer):
    """The queues that took the message."""

    method = 0x38
    queue_ids: list[int]


class PutToQueues(Request):
    """Put one message into several queues: all or none, or with `partial` those that can."""

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
    """Whether a batch, whose answer was lost, was stored by a replica that is gone since."""

    method = 0x97
    answer = GetFateResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    queue_id: int
    replica_id: int
    producer: int
    batch: int
