"""Between what is measured and what a controller gets: outliers, small errors, silence.

    Hampel      |y − median| > 3 · max(1.4826 · MAD, round/2) of the last few: the median is taken
                instead, unless a model expected y
    Deadband    |target − y| ≤ width: no error
    Fallback    nothing new for `patience_s`: a fixed output, and back without a bump

A true step looks like an outlier until most of the window has seen it: a window of five takes it
for real two samples late, which is the lateness that designs bear (controller_design).

Credit that goes round in bursts gives a short sample two rounds or three, and nothing between. Of
rates such as 136, 136, 136, 190 the median absolute deviation is 0, and without the half of a round
(what the standard deviation of two such values is at most) every rarer one were an outlier: the
median is not the mean, and the loop would hold the wrong one.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from tidegate.laws.control_step import Controller, ControlStep, Layer, Mode, Sample
from tidegate.laws.controllers import held

# Of a normal distribution, its standard deviation over its median absolute deviation.
NORMAL = 1.4826
# Of the median: rates that never vary would make every change an outlier.
SPREAD_MIN = 0.02


class Hampel(Layer):
    """Takes the median in place of a rate that lies far from its neighbours."""

    def __init__(self, inner: Controller, window: int = 5, deviations: float = 3.0) -> None:
        super().__init__(inner)
        if window < 3 or window % 2 == 0:
            raise ValueError(f"a window of {window} has no middle to compare with: take 3, 5 or 7")
        self._recent: deque[float] = deque(maxlen=window)
        self._deviations = deviations

    def step(self, sample: Sample) -> ControlStep:
        # What starves is no measure of what is usual.
        if sample.rate_per_s is None or not sample.is_usable or sample.starved:
            return self._inner.step(sample)
        rate = sample.rate_per_s
        self._recent.append(rate)
        middle = median(self._recent)
        spread = NORMAL * median(abs(one - middle) for one in self._recent)
        spread = max(spread, SPREAD_MIN * abs(middle), 0.5 * sample.round_per_s)
        bound = self._deviations * spread
        # Two say nothing of each other. What was to be expected is no outlier: of a step that the
        # controller itself has made, most is.
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
    """Leaves the actuator alone while the rate is near enough to its target."""

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
    """Holds while a measurement is missing, and sets a fixed value when they stop."""

    def __init__(self, inner: Controller, output: float, patience_s: float) -> None:
        super().__init__(inner)
        if not (math.isfinite(output) and patience_s >= 0.0):
            raise ValueError(f"fall back to a number after 0 s or more: {output}, {patience_s} s")
        self._output = output
        self._patience_s = patience_s
        # When the newest measurement was taken; None: there was none yet.
        self._taken_at: float | None = None
        self._waiting_since: float | None = None
        self._fallen = False

    def step(self, sample: Sample) -> ControlStep:
        # A measurement counts once: a sensor that repeats itself has stopped.
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
