"""A mean, and how far off it may be.

    mean ± t(0.975, n − 1) · s / √n

From count, mean and variance, which are what aggregates give; the values themselves are not needed.
`s²` is the variance of the sample (divided by n − 1). One value has a mean and no interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds between which the true one lies, with the asked confidence."""

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
    """The interval of a mean; without bounds (NaN) when there are fewer than two values."""
    if n < 2 or not math.isfinite(sample_variance):
        return Interval(mean=mean, low=math.nan, high=math.nan, n=n)
    quantile = float(stdtrit(n - 1, 0.5 + confidence / 2.0))
    half_width = quantile * math.sqrt(max(sample_variance, 0.0) / n)
    return Interval(mean=mean, low=mean - half_width, high=mean + half_width, n=n)


def mean_interval_of(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The same of values at hand."""
    n = len(values)
    if n == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan, n=0)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean_interval(n, mean, squares / (n - 1) if n > 1 else math.nan, confidence)
