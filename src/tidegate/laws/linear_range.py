"""Up to which prefetch the arrival rate grows with it.

    mean rate at level u ≈ α + β·u + γ·max(u − knee, 0)

A consumer's rate grows with its prefetch until something else is the bottleneck (beyond u = 22 in
the paper), and a line fitted across that knee describes neither side. Every level is tried as the
knee, by least squares weighted with the number of samples; the knee with the smallest error is
taken if it explains more than a straight line does, beyond noise, and if the slope behind it is
less than half of the slope before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """How the rate depends on the prefetch, over the levels seen."""

    LINEAR = "linear"  # it grows over all of them: no knee
    KNEE = "knee"  # it grows up to a knee
    SATURATED = "saturated"  # it grows nowhere: all levels lie beyond the knee
    UNKNOWN = "unknown"  # too few levels to say


@dataclass(frozen=True)
class Level:
    """What was measured at one prefetch: count, mean and variance of the arrival rate."""

    prefetch: float
    n: float
    mean_per_s: float
    variance: float


@dataclass(frozen=True)
class LinearRange:
    """The prefetches, both ends included, between which the rate is a line."""

    shape: Shape
    low: float
    high: float
    # Growth of the rate per unit of prefetch within the range, and behind it.
    slope: float
    slope_beyond: float
    reason: str

    def contains(self, prefetch: float) -> bool:
        return self.shape in (Shape.LINEAR, Shape.KNEE) and self.low <= prefetch <= self.high


def linear_range(levels: Sequence[Level]) -> LinearRange:
    """The range of the levels within which the rate is linear in the prefetch."""
    raise NotImplementedError
