"""In which order puts come to a channel: as they were begun, also those that come again.

A ticket is owed its turn from when it is drawn until it has come to the channel, which keeps the
order from there; nobody waits for a confirmation. Whoever fails there with the connection is owed
it again, and has the older ticket. Who has come to a channel that another one replaced is, too,
even before he hears of it: of a thousand on a channel each hears after the one before.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left, insort


class Turns:
    """Those who publish on one channel after the other."""

    def __init__(self) -> None:
        self._tickets = itertools.count()
        # In order; those who have come to the channel.
        self._owed: list[int] = []
        self._there: set[int] = set()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def draw(self) -> int:
        """A ticket; who draws one leaves in the end, or all others wait."""
        ticket = next(self._tickets)
        self._owed.append(ticket)
        return ticket

    def is_first(self, ticket: int) -> bool:
        return self._owed[0] == ticket

    async def wait(self, ticket: int) -> None:
        """Until it is the first; somebody with an older one may come back meanwhile."""
        first = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        try:
            await first
        finally:
            self._waiting.pop(ticket, None)

    def arrive(self, ticket: int) -> None:
        """The first has come to the channel."""
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
        """There is another channel."""
        self._owed = sorted({*self._owed, *self._there})
        self._there.clear()

    def leave(self, ticket: int) -> None:
        """It is done, or given up, or others may pass for now."""
        self._there.discard(ticket)
        at = bisect_left(self._owed, ticket)
        if self._owed[at : at + 1] == [ticket]:
            del self._owed[at]
            self._wake()

    def _wake(self) -> None:
        waiting = self._waiting.get(self._owed[0]) if self._owed else None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)
