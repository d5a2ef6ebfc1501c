"""The confidence interval of a mean.

    mean ± t(0.975, n − 1) · s / √n

It needs only count, mean and variance, which aggregates provide; the values are not needed. `s²` is
the variance of the sample (divided by n − 1). A single value has a mean and no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds that contain the true mean with the given confidence."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2.0


def mean_interval(
    n: int, mean: float, sample_variance: float, confidence: float = 0.95
) -> Interval:
    """Return the interval of a mean; the bounds are NaN for fewer than two values."""
    if n < 2 or not math.isfinite(sample_variance):
        return Interval(mean=mean, low=math.nan, high=math.nan, n=n)
    quantile = float(stdtrit(n - 1, 0.5 + confidence / 2.0))
    half_width = quantile * math.sqrt(max(sample_variance, 0.0) / n)
    return Interval(mean=mean, low=mean - half_width, high=mean + half_width, n=n)


def mean_interval_of(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the interval of the mean of these values."""
    n = len(values)
    if n == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan, n=0)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean_interval(n, mean, squares / (n - 1) if n > 1 else math.nan, confidence)
