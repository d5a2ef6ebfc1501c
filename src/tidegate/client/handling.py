"""Meters of a worker's handlers: messages processed, and busy time of its slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Handled(NamedTuple):
    """Totals since the worker began."""

    messages: int
    # Summed over all slots: two slots that are busy for a second count two.
    busy_s: float


class Handling:
    """Counts when handlers begin and end."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self.slots = slots
        self._clock = clock
        self._at_work = 0
        self._messages = 0
        self._busy_s = 0.0
        self._counted_at = clock()

    def began(self) -> None:
        self._count()
        self._at_work += 1

    def ended(self) -> None:
        self._count()
        self._at_work -= 1
        self._messages += 1

    def read(self) -> Handled:
        self._count()
        return Handled(self._messages, self._busy_s)

    def _count(self) -> None:
        now = self._clock()
        self._busy_s += self._at_work * (now - self._counted_at)
        self._counted_at = now
