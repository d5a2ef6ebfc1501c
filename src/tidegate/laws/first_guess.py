"""What a unit of prefetch is worth, before anything was identified: Little's law.

    in flight = rate · round trip,   so worth = rate / (prefetch − held)        a = 0

Messages that wait in the consumer are not in flight; where they are not known, a consumer beyond
its knee looks as if a unit were worth less than it is, and gains would be too large. So of several
guesses the largest counts, and the gains are for half as much again: slow, and stable.
Standard library only: it runs in nodes and workers.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from tidegate.core.prefetch import ConsumerSample
from tidegate.laws.least_squares import Model

# Fewer are an accident.
SAMPLES_MIN = 3
SAMPLES_LOOKED_AT = 5
# By how much gains are smaller than the guess would have them.
DETUNED = 1.5
# Another guess must be that much larger to be worth a redesign.
LARGER = 1.1


class FirstGuess:
    """Guesses from what it is shown, until something better is known."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SAMPLES_LOOKED_AT)
        # msg/s per unit of prefetch; NaN: not yet known.
        self.worth_per_s = math.nan

    def see(self, sample: ConsumerSample, prefetch: float) -> bool:
        """A sample with this prefetch; whether the guess is new because of it."""
        rate = sample.arrived_per_s
        in_flight = prefetch - (sample.held or 0.0)
        if sample.starved or not (0.0 < rate < math.inf and math.isfinite(in_flight)):
            return False
        self._recent.append(rate / max(in_flight, 1.0))
        if len(self._recent) < SAMPLES_MIN:
            return False
        guess = median(self._recent)
        if guess <= LARGER * self.worth_per_s:
            return False
        self.worth_per_s = guess
        return True

    @property
    def model(self) -> Model:
        """What to design for: a plant that answers more than this one is thought to do."""
        return Model(0.0, DETUNED * self.worth_per_s, 0.0)
