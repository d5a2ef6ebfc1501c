"""Messages that are in no batch, taken from one producer to another."""

from __future__ import annotations

import asyncio
from itertools import accumulate, pairwise
from typing import NamedTuple

from tidegate.client.batch import Batch
from tidegate.client.options import Special


class Unsent(NamedTuple):
    """Columns of messages with their futures."""

    payloads: list[bytes]
    futures: list[asyncio.Future[int]]
    special: list[Special] | None

    @classmethod
    def of(cls, batch: Batch) -> Unsent | None:
        """Return the messages of a batch that is not stored; `None` for a batch of `put_many`.

        A batch of `put_many` has one future for all messages, so it cannot be split.
        """
        if isinstance(batch.futures, asyncio.Future):
            return None
        packet, body = batch.packet, memoryview(b"".join(batch.bodies))
        count = batch.count
        ends = list(accumulate(packet.lengths, initial=0))
        nothing = [None] * count
        priorities = packet.priorities
        columns = (
            packet.receivers or nothing,
            packet.contexts or nothing,
            priorities if len(priorities) == count else priorities * count,
            packet.attributes or nothing,
            packet.delays_s or nothing,
            packet.ttls_s or nothing,
        )
        return cls(
            [bytes(body[low:high]) for low, high in pairwise(ends)],
            batch.futures,
            [Special(*of_one) for of_one in zip(*columns, strict=True)],
        )
