"""How long to wait before the next try: twice as long each time, up to a most."""

from __future__ import annotations


class Backoff:
    """One thing that fails, tried again later and later."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0
        self.next_at = 0.0

    def failed(self, now: float) -> float:
        """It did not work; how long to wait now."""
        # Bounded before it is raised: 2.0**1100 is no number.
        wait_s = min(self._first_s * 2.0 ** min(self.failures, 60), self._most_s)
        self.failures += 1
        self.next_at = now + wait_s
        return wait_s

    def succeeded(self) -> None:
        self.failures = 0
        self.next_at = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.next_at
