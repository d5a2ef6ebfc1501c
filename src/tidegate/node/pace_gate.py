"""Holds back messages of a replica with a delivery rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.node.holding import Holding
from tidegate.node.pace import Pace


class PaceGate:
    """Applies the rate limit of one replica and calls `may_go` when a message may be delivered."""

    __slots__ = ("_alarm", "_holding", "_may_go")

    def __init__(self, holding: Holding, may_go: Callable[[], None]) -> None:
        self._holding = holding
        self._may_go = may_go
        # Fires when the limit allows the next message; None: not set.
        self._alarm: asyncio.TimerHandle | None = None

    def allowed(self, pace: Pace) -> int:
        """Return how many messages may be delivered now.

        If none may, a timer calls `may_go` as soon as one may.
        """
        allowed = pace.allowed(self._holding.clock.monotonic())
        if not allowed and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(pace.wait_s, self._ring)
        return allowed

    def _ring(self) -> None:
        self._alarm = None
        if not self._holding.fenced:
            self._may_go()
