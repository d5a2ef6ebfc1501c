"""A rate that is kept on average: credit grows with time, and is spent on messages."""

from __future__ import annotations

import time
from collections.abc import Callable

# Credit for more than this is not saved up.
SAVED_S_MAX = 10.0
# What has to wait waits for so much at least, or it would go on in drops.
WORTHWHILE_S = 0.1
# Else rounding could ask for less than time can be counted in.
SLEEP_S_MIN = 0.001


class Pace:
    """So many messages per second; without a rate, as many as one likes."""

    def __init__(
        self,
        per_second: float | None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._credit = 0.0
        self._at = monotonic()

    def allowance(self, count: int) -> int:
        """How many of `count` may go now: at least one, for which is waited if need be."""
        if self._per_second is None:
            return count
        self._grow(self._per_second)
        worthwhile = min(count, max(1.0, self._per_second * WORTHWHILE_S))
        while self._credit < worthwhile:
            self._sleep(max((worthwhile - self._credit) / self._per_second, SLEEP_S_MIN))
            self._grow(self._per_second)
        return min(count, int(self._credit))

    def spend(self, count: int) -> None:
        self._credit -= count

    def _grow(self, per_second: float) -> None:
        now = self._monotonic()
        saved_max = max(per_second * SAVED_S_MAX, 1.0)
        self._credit = min(self._credit + (now - self._at) * per_second, saved_max)
        self._at = now
