"""Layers between the measurement and the controller: outliers, small errors, missing samples.

    Hampel      |y − median| > 3 · max(1.4826 · MAD, round/2) of the last few: use the median
                instead, unless a model predicted y
    Deadband    |target − y| ≤ width: no error
    Fallback    no new sample for `patience_s`: a fixed output, and back without a bump

A true step looks like an outlier until most of the window has seen it. A window of five accepts it
two samples late, which is the lateness that designs tolerate (`Requirement.late_samples`).

Credit that circulates in bursts gives a short sample two rounds or three, and nothing in between.
For rates such as 136, 136, 136, 190 the median absolute deviation is 0, and every rarer value would
be an outlier. The loop would then hold the median, which is not the mean. Half a round bounds the
standard deviation of two such values, so the threshold is at least three times that.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from tidegate.laws.control_step import Controller, ControlStep, Layer, Mode, Sample
from tidegate.laws.controllers import held

# Ratio of the standard deviation to the median absolute deviation of a normal distribution.
NORMAL = 1.4826
# Fraction of the median. If rates never vary, every change would otherwise be an outlier.
SPREAD_MIN = 0.02


class Hampel(Layer):
    """Replaces a rate that is far from its neighbours by their median."""

    def __init__(self, inner: Controller, window: int = 5, deviations: float = 3.0) -> None:
        super().__init__(inner)
        if window < 3 or window % 2 == 0:
            raise ValueError(f"a window of {window} has no middle to compare with: take 3, 5 or 7")
        self._recent: deque[float] = deque(maxlen=window)
        self._deviations = deviations

    def step(self, sample: Sample) -> ControlStep:
        # A starved sample does not show the usual rate.
        if sample.rate_per_s is None or not sample.is_usable or sample.starved:
            return self._inner.step(sample)
        rate = sample.rate_per_s
        self._recent.append(rate)
        middle = median(self._recent)
        spread = NORMAL * median(abs(one - middle) for one in self._recent)
        spread = max(spread, SPREAD_MIN * abs(middle), 0.5 * sample.round_per_s)
        bound = self._deviations * spread
        # Two samples cannot show an outlier. A rate that the model predicts is none either: most of
        # a step that the controller caused itself was expected.
        expected = sample.expected_per_s
        is_explained = expected is not None and abs(rate - expected) <= 0.5 * abs(rate - middle)
        if len(self._recent) < 3 or abs(rate - middle) <= bound or is_explained:
            return self._inner.step(sample)
        step = self._inner.step(sample._replace(rate_per_s=middle))
        return step._replace(measured_per_s=rate).noted("outlier")

    def restart(self, output: float) -> None:
        self._recent.clear()
        super().restart(output)


class Deadband(Layer):
    """Leaves the output unchanged while the rate is close enough to its target."""

    def __init__(self, inner: Controller, width_per_s: float) -> None:
        super().__init__(inner)
        if not width_per_s >= 0.0:
            raise ValueError(f"a deadband is 0 msg/s wide or more, not {width_per_s}")
        self._width_per_s = width_per_s

    def step(self, sample: Sample) -> ControlStep:
        rate = sample.rate_per_s
        if rate is None or not abs(sample.target_per_s - rate) <= self._width_per_s:
            return self._inner.step(sample)
        step = self._inner.step(sample._replace(rate_per_s=sample.target_per_s))
        return step._replace(measured_per_s=rate).noted("deadband")


class Fallback(Layer):
    """Holds the output while measurements are missing, and sets a fixed value when that lasts."""

    def __init__(self, inner: Controller, output: float, patience_s: float) -> None:
        super().__init__(inner)
        if not (math.isfinite(output) and patience_s >= 0.0):
            raise ValueError(f"fall back to a number after 0 s or more: {output}, {patience_s} s")
        self._output = output
        self._patience_s = patience_s
        # When the newest measurement was taken. `None` means that there was none yet.
        self._taken_at: float | None = None
        self._waiting_since: float | None = None
        self._fallen = False

    def step(self, sample: Sample) -> ControlStep:
        # Count each measurement once: a sensor that repeats its last value has stopped.
        is_new = self._taken_at is None or sample.taken_at > self._taken_at
        if sample.is_usable and is_new:
            self._taken_at = sample.taken_at
            self._waiting_since = None
            self._fallen = False
            return self._inner.step(sample)
        if self._waiting_since is None:
            self._waiting_since = sample.at if self._taken_at is None else self._taken_at
        if sample.at - self._waiting_since < self._patience_s:
            return self._inner.step(sample._replace(rate_per_s=None))
        if not self._fallen:
            self._fallen = True
            self._inner.restart(self._output)
        silent_s = sample.at - self._waiting_since
        return held(sample, self._output)._replace(
            mode=Mode.FALLBACK, notes=(f"nothing was measured for {silent_s:g} s",)
        )
