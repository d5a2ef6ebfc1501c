"""A token bucket that limits messages per second.

    allowed(now) = min(burst, tokens + rate * elapsed)

The burst is normally what 20 ms bring. If messages had to wait for a token and the node is
scheduled late, the burst is what one second brings. Otherwise a busy machine would deliver less
than the stated rate.

Experiments use it to make a replica as slow as a slower machine. A replica without a limit has no
bucket and computes nothing.
"""

from __future__ import annotations

# What may be delivered at once after a pause, in seconds of the rate. Small enough for smooth
# delivery, and large enough that not every message needs a timer of its own.
BURST_S = 0.02
# Upper bound, in seconds of the rate, on the delivery that is made up for after a wait.
MADE_UP_S = 1.0
# Shortest timer. Rounding can leave a fraction of a token that is shorter than a clock step. The
# timer would then fire too early again and again.
WAIT_S_MIN = 0.0001


class Pace:
    """A token bucket; each delivered message takes one token."""

    __slots__ = ("_burst", "_filled_at", "_is_awaited", "_tokens", "per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = per_s
        self._burst = max(1.0, BURST_S * per_s)
        self._tokens = 1.0
        self._filled_at = now
        # Whether messages wait for a token since `allowed` last returned 0.
        self._is_awaited = False

    def allowed(self, now: float) -> int:
        """Return how many messages may be delivered now."""
        filled = self._tokens + self.per_s * max(now - self._filled_at, 0.0)
        most = MADE_UP_S * self.per_s if self._is_awaited else self._burst
        self._tokens, self._filled_at = min(filled, max(most, self._burst)), now
        self._is_awaited = self._tokens < 1.0
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Take the tokens of `count` delivered messages."""
        self._tokens -= count

    @property
    def wait_s(self) -> float:
        """Seconds until the next message may be delivered; 0 if one may now."""
        lacking = 1.0 - self._tokens
        return max(lacking / self.per_s, WAIT_S_MIN) if lacking > 0.0 else 0.0
