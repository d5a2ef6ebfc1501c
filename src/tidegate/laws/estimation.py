"""The linear range: the prefetch up to which the arrival rate grows with it.

    mean rate at prefetch u ≈ α + β·u + γ·max(u − knee, 0)

A consumer's rate grows with its prefetch until another bottleneck limits it (beyond u = 22 in the
paper). A line fitted across that knee describes neither side. Every level, and some places between
levels, are tried as the knee, by least squares weighted with the number of samples.

The best knee is used under two conditions. It must explain more than a straight line, beyond noise
(an F test). The rate must grow less than half as fast behind it as before it. Noise is the variance
within levels or the residuals of the hinge, the larger of the two. So neither single samples nor a
bent curve pretend certainty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

# A line has two unknowns and a hinge has four, the knee included; fewer levels determine nothing.
LEVELS_MIN = 3
BELOW_KNEE_MIN = 3
ABOVE_KNEE_MIN = 2
LEVELS_MIN_FOR_KNEE = BELOW_KNEE_MIN + ABOVE_KNEE_MIN
# A knee need not fall on a level: this many places are tried from each level to the next.
KNEES_PER_GAP = 4
# Behind the knee the rate must grow by less than this fraction of its growth before.
SLOPE_FRACTION = 0.5
# Standard errors; noise alone exceeds three of them in one case of 700.
SIGNIFICANT = 3.0
# Growth over all levels as a fraction of the mean rate: with enough samples any growth is
# significant.
GROWTH_MIN = 0.05

Array = NDArray[np.float64]


class Shape(StrEnum):
    """How the rate depends on the prefetch, over the measured levels."""

    LINEAR = "linear"  # grows over all levels: no knee
    KNEE = "knee"  # grows up to a knee
    SATURATED = "saturated"  # grows nowhere: all levels are beyond the knee
    UNKNOWN = "unknown"  # too few levels to decide


@dataclass(frozen=True)
class Level:
    """Number, mean and variance of the arrival rates at one prefetch."""

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
    # Growth of the rate per unit of prefetch within the range and behind it (NaN without a knee).
    slope: float
    slope_beyond: float
    reason: str

    def contains(self, prefetch: float) -> bool:
        return self.shape in (Shape.LINEAR, Shape.KNEE) and self.low <= prefetch <= self.high


def linear_range(levels: Sequence[Level]) -> LinearRange:
    """Return the range of the levels within which the rate is linear in the prefetch."""
    usable = sorted(
        (level for level in levels if level.n > 0 and math.isfinite(level.mean_per_s)),
        key=lambda level: level.prefetch,
    )
    columns = [(level.prefetch, level.n, level.mean_per_s, level.variance) for level in usable]
    return range_of(*np.array(columns, dtype=np.float64).reshape(-1, 4).T)


def range_of(u: Array, weight: Array, rate: Array, variance: Array) -> LinearRange:
    """Return the linear range from arrays: prefetches in order, with the samples of each.

    `weight`, `rate` and `variance` are the number, mean and variance of the samples at each
    prefetch.
    """
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
    """The best fit of a line with one bend."""

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
        """Return the result of an F test.

        The hinge has two more unknowns than the line: the knee and the second slope.
        """
        return (squares_of_line - self.squares) / 2.0 > SIGNIFICANT**2 * self.noise


def _noise(within: float, squares: float, freedom: int) -> float:
    """Return the variance of a sample: within levels, or from the residuals if that is larger."""
    return max(within, squares / freedom if freedom > 0 else 0.0)


def _noise_within(weight: Array, variance: Array) -> float:
    """Return the variance of samples around the mean of their level; a single sample has none."""
    seen = (weight > 1.0) & np.isfinite(variance)
    samples = float(weight[seen].sum())
    return float(weight[seen] @ np.maximum(variance[seen], 0.0)) / samples if samples else 0.0


def _fit_line(u: Array, weight: Array, rate: Array) -> tuple[float, float, float]:
    """Return the slope, the spread of u on which it rests, and the sum of squared residuals."""
    total = float(weight.sum())
    du = u - float(weight @ u) / total
    dy = rate - float(weight @ rate) / total
    spread = float(weight @ (du * du))
    slope = float(weight @ (du * dy)) / spread
    return slope, spread, float(weight @ (dy - slope * du) ** 2)


def _fit_hinge(u: Array, weight: Array, rate: Array, within: float) -> _Hinge:
    """Fit every knee at once: values behind a knee enter as sums from the right end."""
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
    # h = max(u − knee, 0), with its mean subtracted.
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
