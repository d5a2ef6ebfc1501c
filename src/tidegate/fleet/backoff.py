"""Exponential backoff: each wait is twice as long as the one before, up to a maximum."""

from __future__ import annotations


class Backoff:
    """The waits between attempts of one thing."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0
        self.next_at = 0.0

    def failed(self, now: float) -> float:
        """Record a failure and return the seconds to wait."""
        # Limit the exponent: 2.0**1100 overflows.
        wait_s = min(self._first_s * 2.0 ** min(self.failures, 60), self._most_s)
        self.failures += 1
        self.next_at = now + wait_s
        return wait_s

    def succeeded(self) -> None:
        self.failures = 0
        self.next_at = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.next_at
