"""The order in which publishes reach a channel: the order in which they began.

A publish draws a ticket. It is owed its turn until it has sent its message on the channel, which
keeps the order from there. It does not wait for the confirm before the next one sends.

A publish whose connection was lost is owed its turn again, ahead of all younger tickets. The same
holds for all publishes on a channel that was replaced, even before their calls have failed: the
calls fail one after another, and the first to fail must not overtake older ones.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left, insort


class Turns:
    """The publishes that use one channel after another."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        # Tickets that are owed a turn, in order; and tickets that have sent on the channel.
        self._owed: list[int] = []
        self._there: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def draw(self) -> int:
        """Draw a ticket; the caller must call `leave` in the end, or all others wait for ever."""
        ticket = next(self._tickets)
        self._owed.append(ticket)
        return ticket

    def is_first(self, ticket: int) -> bool:
        return self._owed[0] == ticket

    async def wait(self, ticket: int) -> None:
        """Wait until the ticket may be first.

        The caller checks again: an older ticket may have returned meanwhile.
        """
        first = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            await first
        finally:
            self._waiting.pop(ticket, None)

    def arrive(self, ticket: int) -> None:
        """Record that the first ticket has sent its message."""
        assert self.is_first(ticket)
        del self._owed[0]
        self._there.add(ticket)
        self._wake()

    def come_again(self, ticket: int) -> None:
        self._there.discard(ticket)
        at = bisect_left(self._owed, ticket)
        if self._owed[at : at + 1] != [ticket]:
            insort(self._owed, ticket)

    def all_come_again(self) -> None:
        """Owe all sent tickets their turn again, because the channel was replaced."""
        self._owed = sorted({*self._owed, *self._there})
        self._there.clear()

    def leave(self, ticket: int) -> None:
        """Remove a ticket that is confirmed or failed, or that lets others pass for now."""
        self._there.discard(ticket)
        at = bisect_left(self._owed, ticket)
        if self._owed[at : at + 1] == [ticket]:
            del self._owed[at]
            self._wake()

    def _wake(self) -> None:
        waiting = self._waiting.get(self._owed[0]) if self._owed else None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
