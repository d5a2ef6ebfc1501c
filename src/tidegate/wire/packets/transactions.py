"""Packets to put and acknowledge across queues in one transaction."""

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
    """The transaction is on disk. The ids of the puts, as in PutMessageResponse.

    An empty list means that it was committed before, so this answers a resend.
    """

    method = 0x3C
    puts: list[PutMessageResponse]


class Transact(Request):
    """Puts and acknowledgements across queues: all or none.

    It names the queues of its `puts`, which need `write`, and of its `acks`, which need `read`. The
    leases must belong to this connection. `producer` and `batch` replace those of the puts, which
    are ignored. The payloads follow each other in the body. `resent` means that the leases may
    belong to an earlier connection; the node then only answers whether it was committed before.
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
