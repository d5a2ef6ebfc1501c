"""Packets to put and acknowledge across queues, all or none."""

from __future__ import annotations

import msgspec

from tidegate.core.model import Mode
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request
from tidegate.wire.packets.puts import PutMessageResponse, PutMessages


class Acknowledged(msgspec.Struct, array_like=True):
    """Tags of one consumer of this connection, each range [first, last]."""

    queue_id: int
    consumer: int
    ranges: list[tuple[int, int]]


class TransactResponse(Answer):
    """All of it is done and on disk. The ids of the puts, as PutMessageResponse would give them.

    Without any, it was done before: this is the answer to a resend.
    """

    method = 0x3C
    puts: list[PutMessageResponse]


class Transact(Request):
    """Puts and acknowledgements across queues, all or none.

    It names the queues of its `puts` (written to) and of its `acks` (read from); the leases must
    be this connection's. `producer` and `batch` stand for those of the puts, whose own count for
    nothing; their payloads follow each other in the body. `resent` says that the leases may have
    been another connection's: then it is done only if it was before.
    """

    method = 0x3B
    answer = TransactResponse
    right = Right.WRITE
    mode = Mode.READ_WRITE
    producer: int
    batch: int
    puts: list[PutMessages]
    acks: list[Acknowledged]
    resent: bool = False

    def claims(self) -> list[Claim]:
        puts: list[Claim] = [(Right.WRITE, put.queue_id) for put in self.puts]
        return [*puts, *((Right.READ, ack.queue_id) for ack in self.acks)]
