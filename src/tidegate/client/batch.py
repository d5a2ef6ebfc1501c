"""A batch: messages that travel together, and who waits for them.

It keeps its number until its fate is known.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tidegate.client.options import Special
from tidegate.core.errors import TidegateError
from tidegate.wire.packets.puts import PutMessages


class Batch:
    """A packet with its payloads, and a future for each message or one for all."""

    __slots__ = (
        "bodies",
        "failing_since",
        "full_at",
        "futures",
        "is_unknown",
        "looked_up",
        "packet",
        "tries",
    )

    def __init__(
        self,
        packet: PutMessages,
        bodies: list[bytes | memoryview],
        futures: list[asyncio.Future[int]] | asyncio.Future[list[int]],
    ) -> None:
        self.packet = packet
        self.bodies = bodies
        self.futures = futures
        self.tries = 0
        self.failing_since: float | None = None
        self.looked_up = False
        # It may be stored: only the queue that it was sent to can say so.
        self.is_unknown = False
        # Queues that had no room for it.
        self.full_at: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.packet.lengths)

    def stored(self, first_id: int, ids: list[int] | None) -> None:
        """Tell who waits: ids count up from the first, unless each is said; 0: there are none."""
        futures = self.futures
        step = 1 if first_id else 0
        if isinstance(futures, asyncio.Future):
            if not futures.done():
                count = self.count
                futures.set_result(list(range(first_id, first_id + count)) if step else [0] * count)
            return
        if ids is not None:
            for future, each_id in zip(futures, ids, strict=False):
                if not future.done():
                    future.set_result(each_id)
            return
        for future in futures:
            if not future.done():
                future.set_result(first_id)
            first_id += step

    def give_up(self, error: TidegateError) -> None:
        """Tell who waits that it will not arrive."""
        futures = self.futures
        for future in [futures] if isinstance(futures, asyncio.Future) else futures:
            if not future.done():
                future.set_exception(error)


def fill_columns(packet: PutMessages, special: list[Special]) -> None:
    """Only columns in which somebody says something travel."""
    receivers, contexts, priorities, attributes, delays_s, ttls_s = map(
        list, zip(*special, strict=True)
    )
    first = priorities[0]
    packet.priorities = [first] if all(p == first for p in priorities) else priorities
    packet.receivers = _unless_empty(receivers)
    packet.contexts = _unless_empty(contexts)
    packet.attributes = _unless_empty(attributes)
    packet.delays_s = _unless_empty(delays_s)
    packet.ttls_s = _unless_empty(ttls_s)


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return None if all(entry is None for entry in column) else column
