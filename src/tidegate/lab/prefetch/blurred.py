"""Measurement faults for control loops: lost, noisy and late measurements.

The paper names them as future work.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec

from tidegate.core.prefetch import ConsumerSample


class Blur(msgspec.Struct, frozen=True):
    """The faults of measurements."""

    # The fraction of the measurements that is lost.
    lost: float = 0.0
    # The standard deviation of the noise, as a fraction of the rate.
    noise: float = 0.0
    # The delay of a measurement in samples.
    late_samples: int = 0


class BlurredSensor:
    """A filter between a sensor and a control loop that applies measurement faults."""

    def __init__(self, blur: Blur, seed: int = 6) -> None:
        self.blur = blur
        self._random = random.Random(seed)
        self._on_the_way: deque[ConsumerSample] = deque()

    def seen(self, sample: ConsumerSample) -> ConsumerSample | None:
        """Return the sample as the loop receives it, or None if it is lost."""
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
