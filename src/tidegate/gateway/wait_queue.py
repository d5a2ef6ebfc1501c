"""Requests that wait for a server, first come first served.

Most requests take the first server with room. A request of a session waits for its own server,
because moving the session would lose it. There is one line for all servers, and one for each server
that sessions wait for. A server with room takes the first request of both lines, so a session that
waits for a full server does not delay other requests.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    """A request that can wait."""

    # Servers on which it has failed.
    tried: set[str]


Waiting = TypeVar("Waiting", bound=Waiter)


class WaitQueue(Generic[Waiting]):
    """Waiting requests in their lines; the number is limited."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._numbers = count()
        # By the only server that will do; None means any.
        self._lines: dict[str | None, OrderedDict[Waiting, int]] = {}
        self._line_of: dict[Waiting, str | None] = {}

    def __len__(self) -> int:
        return len(self._line_of)

    @property
    def full(self) -> bool:
        return len(self._line_of) >= self._waiting_max

    def put(self, waiter: Waiting, server: str | None) -> None:
        self._line_of[waiter] = server
        self._lines.setdefault(server, OrderedDict())[waiter] = next(self._numbers)

    def leave(self, waiter: Waiting) -> None:
        """Remove a request that has a server or has waited long enough."""
        if waiter in self._line_of:
            server = self._line_of.pop(waiter)
            line = self._lines[server]
            del line[waiter]
            if not line:
                del self._lines[server]

    def first_for(self, server: str, *, only_sessions: bool = False) -> Waiting | None:
        """Return, but do not remove, the next request for a server with room; else None."""
        own = next(iter(self._lines.get(server, {}).items()), None)
        if only_sessions:
            return None if own is None else own[0]
        anybody = next(
            (one for one in self._lines.get(None, {}).items() if server not in one[0].tried), None
        )
        candidates = [one for one in (own, anybody) if one is not None]
        return min(candidates, key=lambda one: one[1])[0] if candidates else None

    def waited_for(self) -> list[str]:
        """Return the servers that sessions wait for."""
        return [name for name in self._lines if name is not None]

    def line(self, server: str | None) -> list[Waiting]:
        return list(self._lines.get(server, ()))
