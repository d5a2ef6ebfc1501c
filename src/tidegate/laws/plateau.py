"""Plateau detection: where more prefetch brings no more rate, seen from outside the consumer.

    answer = (rate / rate at the knee − 1) / (prefetch / prefetch at the knee − 1)
    answer < ½, beyond noise, for three samples or more     a plateau: back to the knee

A consumer below its knee has an answer of 1, on any line: behind a round trip twice as long a unit
of prefetch is worth half, but half as much again still gives half as much again. A handler at its
limit has an answer of 0. The detector does not use the model, because the model's prediction of
this rate is in doubt. A limit from the model (a multiple of rate / worth) would reduce the prefetch
of every consumer that responds less, without end.

The knee is where the rate last rose by as much as the prefetch explains. Going back there costs
nothing, since the rate is the same. Almost nothing then waits in the consumer, so when its handler
is fast again, the rate is close to its former value. The prefetch stays there until the rate moves,
which on a line it does at once. After `HELD_SAMPLES` the climb is tried again, because noise may
have been mistaken for a plateau.

Noise is the counting noise or one round of credit more or less, the larger of the two. A consumer
that keeps messages for longer than some samples therefore never counts as being on a plateau.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from tidegate.laws.climb import FELL, MEAN_OF, ROSE

# How far beyond the knee the prefetch must have been.
BEYOND, BEYOND_AT_LEAST = 1.5, 1.0
# A smaller answer is a plateau: halfway between a line and a plateau.
ANSWER_MIN = 0.5
# Samples beyond the knee that are needed at least, and that are averaged at most.
SAMPLES_MIN, SAMPLES_MAX = 3, 10
DEVIATIONS = 3.0
# Multiple of the prefetch at the knee: a handler with just enough messages runs dry at times.
STOCK = 1.1
# Samples until the climb is tried again.
HELD_SAMPLES = 20


class Rung(NamedTuple):
    """A prefetch and the rate that it gave."""

    prefetch: float
    rate_per_s: float


class Plateau:
    """The plateau of one consumer whose rate is below its target."""

    def __init__(self) -> None:
        self.end()

    def end(self) -> None:
        """Reset because the target was reached; a new climb may follow."""
        self._recent: deque[Rung] = deque(maxlen=MEAN_OF)
        self._knee: Rung | None = None
        self._begin_climb()

    def _begin_climb(self) -> None:
        self._beyond: deque[Rung] = deque(maxlen=SAMPLES_MAX)
        # More prefetch than this gives no more rate. Infinite means not known.
        self.bound = math.inf
        # Whether a plateau was detected and the rate has not moved since.
        self.is_seen = False
        self._held = 0
        # Samples in which the messages held beyond the knee are worked off and nothing arrives.
        self._emptying = 0

    def see(self, prefetch: float, rate_per_s: float, interval_s: float) -> None:
        """Add a rate below its target and the prefetch with which it was measured."""
        if self._emptying > 0:
            self._emptying -= 1
            return
        sample = Rung(prefetch, rate_per_s)
        self._recent.append(sample)
        if len(self._recent) < MEAN_OF:
            return
        mean = _mean(self._recent)
        knee = self._knee
        if knee is None:
            self._knee = mean
            return
        if _has_risen(knee, mean) or _has_fallen(knee, mean):
            # A change while the prefetch is held or falls is not due to the prefetch, so the knee
            # stays.
            is_climb = math.isinf(self.bound) and _has_risen(knee, mean)
            self._knee = mean if is_climb else knee._replace(rate_per_s=mean.rate_per_s)
            self._begin_climb()
            return
        self._try_anew()
        if prefetch > BEYOND * knee.prefetch + BEYOND_AT_LEAST:
            self._beyond.append(sample)
            if self._is_flat(knee, interval_s):
                self._hold(knee, interval_s)
        else:
            self._beyond.clear()

    def _is_flat(self, knee: Rung, interval_s: float) -> bool:
        seconds = len(self._beyond) * interval_s
        if len(self._beyond) < SAMPLES_MIN or not (seconds > 0.0 and knee.rate_per_s > 0.0):
            return False
        now = _mean(self._beyond)
        noise_per_s = max(math.sqrt(now.rate_per_s * seconds), now.prefetch) / seconds
        at_most_per_s = now.rate_per_s + DEVIATIONS * noise_per_s
        answer = (at_most_per_s / knee.rate_per_s - 1.0) / (now.prefetch / knee.prefetch - 1.0)
        return answer < ANSWER_MIN

    def _hold(self, knee: Rung, interval_s: float) -> None:
        now = _mean(self._beyond)
        # The intersection of the line through the knee with the plateau, plus some stock.
        corner = knee.prefetch * max(now.rate_per_s / knee.rate_per_s, 1.0)
        self._knee = Rung(corner, now.rate_per_s)
        self.bound, self.is_seen, self._held = STOCK * corner, True, 0
        surplus_s = (self._beyond[-1].prefetch - self.bound) / knee.rate_per_s
        self._emptying = 1 + int(max(surplus_s, 0.0) / interval_s)
        self._recent.clear()
        self._beyond.clear()

    def _try_anew(self) -> None:
        if math.isfinite(self.bound):
            self._held += 1
            if self._held >= HELD_SAMPLES:
                self.bound = math.inf


def _has_risen(knee: Rung, mean: Rung) -> bool:
    """Return whether the rate rose beyond noise and by as much as the prefetch explains."""
    explained = 1.0 + ANSWER_MIN * (mean.prefetch / knee.prefetch - 1.0)
    return mean.rate_per_s > max(ROSE, explained) * knee.rate_per_s


def _has_fallen(knee: Rung, mean: Rung) -> bool:
    """Return whether the rate is clearly lower for the same prefetch, as with a slower handler."""
    return mean.rate_per_s < knee.rate_per_s / FELL and mean.prefetch >= knee.prefetch


def _mean(rungs: deque[Rung]) -> Rung:
    return Rung(
        math.fsum(one.prefetch for one in rungs) / len(rungs),
        math.fsum(one.rate_per_s for one in rungs) / len(rungs),
    )
