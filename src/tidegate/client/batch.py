"""A batch of messages on its way to a node, with the futures of its puts."""

from __future__ import annotations

import asyncio
from typing import Any

from tidegate.client.options import Special
from tidegate.core.errors import TidegateError
from tidegate.wire.packets.puts import PutMessages


class Batch:
    """A put request with its payloads, and one future per message or one for all.

    It keeps its number until its result is known.
    """

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
        # Whether it may be stored at the queue it was sent to. Only that queue can tell.
        self.is_unknown = False
        # Ids of replicas that had no room for it.
        self.full_at: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.packet.lengths)

    def stored(self, first_id: int, ids: list[int] | None) -> None:
        """Set the results of the futures.

        Ids count up from `first_id`, unless `ids` lists them. A `first_id` of 0 means that the ids
        are not known: each result is 0.
        """
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
        """Fail the futures with `error`."""
        futures = self.futures
        for future in [futures] if isinstance(futures, asyncio.Future) else futures:
            if not future.done():
                future.set_exception(error)


def fill_columns(packet: PutMessages, special: list[Special]) -> None:
    """Fill the option columns of a put request; leave out columns without a value."""
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
