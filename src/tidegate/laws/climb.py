"""How far a rate followed its prefetch upwards: where the knee was, and the ceiling beyond it.

Beyond the knee of a consumer more prefetch gives no more rate. A controller whose target lies above
the ceiling climbs on to its limit, and when the target comes within reach it would have to come all
that way back at the pace of its design: windup in the plant, which no clamp of the integral sees.
But the rate there is that of the knee. So the way back begins at the knee, without a bump.

    ceiling = the largest mean of three rates,   knee = the mean of their prefetches

When the rate jumps after more prefetch had brought none for a while, the consumer has changed (its
handler is quick again), and not found a knee where it happens to be.
"""

from __future__ import annotations

import math
from collections import deque

from tidegate.laws.actuation import PREFETCH_MIN

# As many rates have the mean that counts.
MEAN_OF = 3
# What is more than noise.
ROSE, FELL = 1.05, 1.2
# How far beyond the knee the prefetch must be before anything is done about it. The knee that a
# climb has seen gives nearly the same rate, and may be near.
BEYOND, BEYOND_AT_LEAST = 1.25, 1.0
NEAR, NEAR_AT_LEAST = 1.1, 0.5
# Samples beyond the knee that are no coincidence.
FLAT_SAMPLES = 3


class Climb:
    """Since the rate was last at its target."""

    def __init__(self) -> None:
        # Prefetch and rate.
        self._recent: deque[tuple[float, float]] = deque(maxlen=MEAN_OF)
        # msg/s; NaN: nothing was seen yet.
        self.ceiling_per_s = math.nan
        self._knee = math.nan
        # Samples in a row beyond the knee that brought no more.
        self._flat = 0
        # Whether the rate rose after that.
        self.has_jumped = False
        # Where it began: prefetch and rate.
        self.foot: tuple[float, float] | None = None

    @property
    def rate_per_s(self) -> float:
        """The mean of the last few; NaN: there were none."""
        return _mean([rate for _, rate in self._recent])

    def see(self, prefetch: float, rate_per_s: float) -> None:
        """A rate, and the prefetch that it was measured with."""
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
            # Less for as much: a longer way, a slower handler. What was seen before says nothing.
            self.ceiling_per_s, self._knee, self._flat = mean, prefetch, 0
        elif self.knee_below(prefetch) is not None:
            self._flat += 1

    @property
    def is_flat(self) -> bool:
        """Whether more has brought no more for a while: a loop that swings does not say so."""
        return self._flat >= FLAT_SAMPLES

    @property
    def knee(self) -> float:
        """NaN: nothing was seen yet."""
        return self._knee

    def knee_below(self, prefetch: float) -> float | None:
        """The prefetch that gives the same rate, if this one lies beyond it."""
        return self._knee if prefetch > NEAR * self._knee + NEAR_AT_LEAST else None

    def end(self) -> None:
        """The target was reached: what comes is another climb."""
        self.ceiling_per_s = self._knee = math.nan
        self._recent.clear()
        self._flat = 0
        self.has_jumped = False
        self.foot = None


def clearly_below(prefetch: float, knee: float) -> float | None:
    """The knee, at least 1, if the prefetch lies beyond it by more than noise."""
    knee = max(knee, float(PREFETCH_MIN))
    return knee if prefetch > BEYOND * knee + BEYOND_AT_LEAST else None


def _mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
