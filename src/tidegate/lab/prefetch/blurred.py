"""Measurements on a bad day: lost, noisy, late.

The paper leaves them for later; here a loop gets its measurements through one of these.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec

from tidegate.core.prefetch import ConsumerSample


class Blur(msgspec.Struct, frozen=True):
    """What becomes of a measurement."""

    # The part that is lost.
    lost: float = 0.0
    # Of the rate, one standard deviation.
    noise: float = 0.0
    # By how many samples it comes late.
    late_samples: int = 0


class BlurredSensor:
    """Samples in, what a loop gets to see out."""

    def __init__(self, blur: Blur, seed: int = 6) -> None:
        self.blur = blur
        self._random = random.Random(seed)
        self._on_the_way: deque[ConsumerSample] = deque()

    def seen(self, sample: ConsumerSample) -> ConsumerSample | None:
        """None: lost."""
        if self._random.random() < self.blur.lost:
            return None
        self._on_the_way.append(sample)
        while len(self._on_the_way) > self.blur.late_samples + 1:
            self._on_the_way.popleft()
        seen = self._on_the_way[0]
        factor = max(1.0 + self._random.gauss(0.0, self.blur.noise), 0.0)
        return msgspec.structs.replace(
            seen,
            at=sample.at,
            arrived_per_s=seen.arrived_per_s * factor,
            prefetch=sample.prefetch,
        )
