"""The first guess of a consumer's model, before any identification: Little's law.

    in flight = rate · round trip,   so worth = rate / (prefetch − held)        a = 0

Messages that wait in the consumer (`held`) are not in flight. If their number is unknown, a
consumer beyond its knee seems to gain less from a unit than it does, and gains would be too large.
So the largest of several guesses counts, and the gains are designed for half as much again, which
is slow and stable. The module uses the standard library only, because it runs in nodes and workers.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from tidegate.core.prefetch import ConsumerSample
from tidegate.laws.least_squares import Model

# Fewer samples may be an accident.
SAMPLES_MIN = 3
SAMPLES_LOOKED_AT = 5
# Safety factor by which the design assumes a larger response than the guess.
DETUNED = 1.5
# Factor by which another guess must be larger to justify a redesign.
LARGER = 1.1


class FirstGuess:
    """Guesses the model from samples until a better one is known."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=SAMPLES_LOOKED_AT)
        # msg/s per unit of prefetch. NaN means not known yet.
        self.worth_per_s = math.nan

    def see(self, sample: ConsumerSample, prefetch: float) -> bool:
        """Add a sample measured with this prefetch, and return whether the guess changed."""
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
        """The model to design for: a plant with a stronger response than the guess."""
        return Model(0.0, DETUNED * self.worth_per_s, 0.0)
