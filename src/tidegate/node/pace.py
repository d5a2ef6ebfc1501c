"""A stated limit on what goes out, smooth: so many messages a second, a few at a time.

    allowed(now) = min(burst, saved + rate · elapsed)

Whoever is told to wait and is asked again late, as on a computer that others use, makes up for it:
the burst then is what a second brings, or the limit would be lower than it says.

For experiments in which a replica stands for a machine that is no faster. Without a limit nobody
has one of these, and nothing is computed.
"""

from __future__ import annotations

# What may go out at once after a pause: smooth to the eye, and few enough wake-ups.
BURST_S = 0.02
# What is made up for at most when messages had to wait for us.
MADE_UP_S = 1.0
# The shortest wait: what rounding leaves of a token can be shorter than any clock's step.
WAIT_S_MIN = 0.0001


class Pace:
    """A bucket of tokens; one goes with each message."""

    __slots__ = ("_burst", "_filled_at", "_is_awaited", "_tokens", "per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = per_s
        self._burst = max(1.0, BURST_S * per_s)
        self._tokens = 1.0
        self._filled_at = now
        # Somebody was told to wait.
        self._is_awaited = False

    def allowed(self, now: float) -> int:
        """How many messages may go out now."""
        filled = self._tokens + self.per_s * max(now - self._filled_at, 0.0)
        most = MADE_UP_S * self.per_s if self._is_awaited else self._burst
        self._tokens, self._filled_at = min(filled, max(most, self._burst)), now
        self._is_awaited = self._tokens < 1.0
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """So many have gone."""
        self._tokens -= count

    @property
    def wait_s(self) -> float:
        """How long until the next may go."""
        lacking = 1.0 - self._tokens
        return max(lacking / self.per_s, WAIT_S_MIN) if lacking > 0.0 else 0.0
