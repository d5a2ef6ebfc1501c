"""Where a stated pace holds messages back, and when the next may go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.node.holding import Holding
from tidegate.node.pace import Pace


class PaceGate:
    """That of one replica."""

    __slots__ = ("_alarm", "_holding", "_may_go")

    def __init__(self, holding: Holding, may_go: Callable[[], None]) -> None:
        self._holding = holding
        self._may_go = may_go
        # Until the pace allows the next message.
        self._alarm: asyncio.TimerHandle | None = None

    def allowed(self, pace: Pace) -> int:
        """How many may go out now; if none, it is looked again when one may."""
        allowed = pace.allowed(self._holding.clock.monotonic())
        if not allowed and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(pace.wait_s, self._ring)
        return allowed

    def _ring(self) -> None:
        self._alarm = None
        if not self._holding.fenced:
            self._may_go()
