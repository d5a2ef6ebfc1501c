"""Knee tracking during a climb: the prefetch of the knee, and the ceiling of the rate beyond it.

    ceiling = the largest mean of three rates,   knee = the mean of their prefetches

Beyond the knee of a consumer more prefetch gives no more rate. A controller whose target is above
the ceiling climbs to its limit. When the target comes within reach, it would have to return all the
way at the pace of its design. This is windup in the plant, which no clamp of the integral detects.
But the rate there is that of the knee, so the controller can return to the knee at once, without a
jump of the rate.

If the rate jumps after more prefetch had no effect for a while, the consumer has changed, for
example because its handler is fast again. The prefetch at that moment is no knee.
"""

from __future__ import annotations

import math
from collections import deque

from tidegate.laws.actuation import PREFETCH_MIN

# Number of rates in the mean that counts.
MEAN_OF = 3
# Factors of a rise and of a fall that exceed noise.
ROSE, FELL = 1.05, 1.2
# How far beyond the knee the prefetch must be before the loop reacts. The knee seen during a climb
# gives nearly the same rate, so it may be closer.
BEYOND, BEYOND_AT_LEAST = 1.25, 1.0
NEAR, NEAR_AT_LEAST = 1.1, 0.5
# Samples beyond the knee that are no coincidence.
FLAT_SAMPLES = 3


class Climb:
    """The climb since the rate was last at its target."""

    def __init__(self) -> None:
        # Pairs of prefetch and rate.
        self._recent: deque[tuple[float, float]] = deque(maxlen=MEAN_OF)
        # msg/s. NaN means that nothing was measured yet.
        self.ceiling_per_s = math.nan
        self._knee = math.nan
        # Samples in a row beyond the knee without a higher rate.
        self._flat = 0
        # Whether the rate rose after that.
        self.has_jumped = False
        # Prefetch and rate at the beginning.
        self.foot: tuple[float, float] | None = None

    @property
    def rate_per_s(self) -> float:
        """The mean of the last few rates. NaN means that there are none."""
        return _mean([rate for _, rate in self._recent])

    def see(self, prefetch: float, rate_per_s: float) -> None:
        """Add a rate and the prefetch with which it was measured."""
        self._recent.append((prefetch, rate_per_s))
        if self.foot is None:
            self.foot = (prefetch, rate_per_s)
        mean = self.rate_per_s
        prefetch = _mean([prefetch for prefetch, _ in self._recent])
        if not mean <= ROSE * self.ceiling_per_s:
            self.ceiling_per_s = mean
            self.has_jumped = self.has_jumped or self.is_flat
            if not self.has_jumped:
                self._knee = prefetch
            self._flat = 0
        elif mean < self.ceiling_per_s / FELL and prefetch >= self._knee:
            # Less rate for the same prefetch: a longer round trip or a slower handler. Earlier
            # samples no longer apply.
            self.ceiling_per_s, self._knee, self._flat = mean, prefetch, 0
        elif self.knee_below(prefetch) is not None:
            self._flat += 1

    @property
    def is_flat(self) -> bool:
        """Whether more prefetch gave no more rate for a while; false for a loop that oscillates."""
        return self._flat >= FLAT_SAMPLES

    @property
    def knee(self) -> float:
        """The prefetch of the knee. NaN means that nothing was measured yet."""
        return self._knee

    def knee_below(self, prefetch: float) -> float | None:
        """Return the prefetch that gives the same rate, if `prefetch` is beyond it, else `None`."""
        return self._knee if prefetch > NEAR * self._knee + NEAR_AT_LEAST else None

    def end(self) -> None:
        """Reset because the target was reached; a new climb may follow."""
        self.ceiling_per_s = self._knee = math.nan
        self._recent.clear()
        self._flat = 0
        self.has_jumped = False
        self.foot = None


def clearly_below(prefetch: float, knee: float) -> float | None:
    """Return the knee, at least 1, if the prefetch is beyond it by more than noise, else `None`."""
    knee = max(knee, float(PREFETCH_MIN))
    return knee if prefetch > BEYOND * knee + BEYOND_AT_LEAST else None


def _mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
