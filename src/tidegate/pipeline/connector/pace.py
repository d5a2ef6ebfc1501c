"""A limit of messages per second on average, as a token bucket."""

from __future__ import annotations

import time
from collections.abc import Callable

# Unused credit is kept for at most this long.
SAVED_S_MAX = 10.0
# After a wait, allow messages for at least this long, so that chunks do not become tiny.
WORTHWHILE_S = 0.1
# Rounding could otherwise request a sleep shorter than the clock's resolution.
SLEEP_S_MIN = 0.001


class Pace:
    """Limits messages per second; a rate of `None` means unlimited."""

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
        """Return how many of `count` messages may go now, at least one; sleep until one may.

        The caller then passes the number it used to `spend`.
        """
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
