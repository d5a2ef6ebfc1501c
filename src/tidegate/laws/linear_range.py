"""Up to which prefetch the arrival rate grows with it.

    mean rate at prefetch u ≈ α + β·u + γ·max(u − knee, 0)

A consumer's rate grows with its prefetch until something else is the bottleneck (beyond u = 22 in
the paper), and a line fitted across that knee describes neither side. Every level is tried as the
knee, by least squares weighted with the number of samples. The best one is taken if it explains
more than a straight line does, beyond what noise would (an F test), and if the rate grows less than
half as fast behind it as before it. Noise is what levels show within themselves and what the hinge
leaves over, whichever is larger, so neither lone samples nor a bent curve feign certainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

# A line has two unknowns and a hinge has four, knee included: fewer levels say nothing.
LEVELS_MIN = 3
BELOW_KNEE_MIN = 3
ABOVE_KNEE_MIN = 2
LEVELS_MIN_FOR_KNEE = BELOW_KNEE_MIN + ABOVE_KNEE_MIN
# A knee need not fall on a level: so many places are tried from each level to the next.
KNEES_PER_GAP = 4
# Behind the knee the rate grows less than this fraction of before.
SLOPE_FRACTION = 0.5
# Standard errors: three are passed by one in 700 where there is nothing.
SIGNIFICANT = 3.0
# Growth over all levels, of the mean rate: with enough samples anything is significant.
GROWTH_MIN = 0.05

Array = NDArray[np.float64]


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
    # Growth of the rate per unit of prefetch within the range, and behind it (NaN without a knee).
    slope: float
    slope_beyond: float
    reason: str

    def contains(self, prefetch: float) -> bool:
        return self.shape in (Shape.LINEAR, Shape.KNEE) and self.low <= prefetch <= self.high


def linear_range(levels: Sequence[Level]) -> LinearRange:
    """The range of the levels within which the rate is linear in the prefetch."""
    usable = sorted(
        (level for level in levels if level.n > 0 and math.isfinite(level.mean_per_s)),
        key=lambda level: level.prefetch,
    )
    columns = [(level.prefetch, level.n, level.mean_per_s, level.variance) for level in usable]
    return range_of(*np.array(columns, dtype=np.float64).reshape(-1, 4).T)


def range_of(u: Array, weight: Array, rate: Array, variance: Array) -> LinearRange:
    """The same of arrays: prefetches in order, at each the number, mean and variance of samples."""
    if len(u) < LEVELS_MIN:
        return LinearRange(
            Shape.UNKNOWN, math.nan, math.nan, math.nan, math.nan,
            f"{len(u)} different prefetches were seen; a line needs at least {LEVELS_MIN}",
        )  # fmt: skip
    line = _fit_line(u, weight, rate)
    within = _noise_within(weight, variance)
    low, high = float(u[0]), float(u[-1])
    if len(u) >= LEVELS_MIN_FOR_KNEE:
        hinge = _fit_hinge(u, weight, rate, within)
        if hinge.explains_more_than(line[2]) and hinge.flattens:
            return LinearRange(
                Shape.KNEE, low, float(u[u <= hinge.knee][-1]), hinge.slope, hinge.slope_beyond,
                f"grows by {hinge.slope:.4g} msg/s per prefetch up to {hinge.knee:.4g}, and by "
                f"{hinge.slope_beyond:.4g} beyond",
            )  # fmt: skip
    slope, spread, squares = line
    slope_error = math.sqrt(_noise(within, squares, len(u) - 2) / spread)
    growth = slope * (high - low)
    if slope <= SIGNIFICANT * slope_error or growth < GROWTH_MIN * abs(float(rate.mean())):
        return LinearRange(
            Shape.SATURATED, low, high, slope, math.nan,
            f"does not grow with the prefetch between {low:g} and {high:g}: all of it lies "
            "beyond the knee, or something else bounds the rate",
        )  # fmt: skip
    return LinearRange(
        Shape.LINEAR, low, high, slope, math.nan,
        f"grows by {slope:.4g} msg/s per prefetch all the way from {low:g} to {high:g}",
    )  # fmt: skip


@dataclass(frozen=True)
class _Hinge:
    """The best fit of a line that bends once."""

    knee: float
    slope: float
    slope_beyond: float
    slope_error: float
    squares: float
    noise: float

    @property
    def flattens(self) -> bool:
        grows = self.slope > SIGNIFICANT * self.slope_error
        return grows and self.slope_beyond < SLOPE_FRACTION * self.slope

    def explains_more_than(self, squares_of_line: float) -> bool:
        """An F test; the knee and the second slope are the two unknowns more."""
        return (squares_of_line - self.squares) / 2.0 > SIGNIFICANT**2 * self.noise


def _noise(within: float, squares: float, freedom: int) -> float:
    """The variance of a sample: as seen within levels, or as left over by the fit if larger."""
    return max(within, squares / freedom if freedom > 0 else 0.0)


def _noise_within(weight: Array, variance: Array) -> float:
    """The variance of samples around the mean of their level; one sample has none."""
    seen = (weight > 1.0) & np.isfinite(variance)
    samples = float(weight[seen].sum())
    return float(weight[seen] @ np.maximum(variance[seen], 0.0)) / samples if samples else 0.0


def _fit_line(u: Array, weight: Array, rate: Array) -> tuple[float, float, float]:
    """Slope, the spread of u that it rests on, and the squares left over."""
    total = float(weight.sum())
    du = u - float(weight @ u) / total
    dy = rate - float(weight @ rate) / total
    spread = float(weight @ (du * du))
    slope = float(weight @ (du * dy)) / spread
    return slope, spread, float(weight @ (dy - slope * du) ** 2)


def _fit_hinge(u: Array, weight: Array, rate: Array, within: float) -> _Hinge:
    """Every knee at once: what stands behind it enters through sums from the right end."""
    last_below = np.arange(BELOW_KNEE_MIN - 1, len(u) - ABOVE_KNEE_MIN)
    parts = np.arange(KNEES_PER_GAP) / KNEES_PER_GAP
    knees = (u[last_below, None] + parts * np.diff(u)[last_below, None]).ravel()
    first_above = np.repeat(last_below + 1, KNEES_PER_GAP)
    total = float(weight.sum())
    du = u - float(weight @ u) / total
    dy = rate - float(weight @ rate) / total
    knees_du = knees - float(weight @ u) / total

    def behind(values: Array) -> Array:
        return np.asarray(np.cumsum(values[::-1])[::-1][first_above])

    w0, w1, w2 = behind(weight), behind(weight * du), behind(weight * du * du)
    # h = max(u − knee, 0), with its mean taken out as well.
    h_sum = w1 - knees_du * w0
    c_hh = w2 - 2.0 * knees_du * w1 + knees_du**2 * w0 - h_sum**2 / total
    c_uh = w2 - knees_du * w1
    c_hy = behind(weight * du * dy) - knees_du * behind(weight * dy)
    c_uu, c_uy = float(weight @ (du * du)), float(weight @ (du * dy))
    determinant = c_uu * c_hh - c_uh**2
    slope = (c_hh * c_uy - c_uh * c_hy) / determinant
    bend = (c_uu * c_hy - c_uh * c_uy) / determinant
    squares = float(weight @ (dy * dy)) - slope * c_uy - bend * c_hy
    best = int(np.argmin(squares))
    left_over = max(float(squares[best]), 0.0)
    noise = _noise(within, left_over, len(u) - 4)
    return _Hinge(
        knee=float(knees[best]),
        slope=float(slope[best]),
        slope_beyond=float(slope[best] + bend[best]),
        slope_error=math.sqrt(noise * float(c_hh[best] / determinant[best])),
        squares=left_over,
        noise=noise,
    )
