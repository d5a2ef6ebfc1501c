"""Offline identification of a consumer's model, judged on samples it was not fitted on.

    y(k+1) = a·y(k) + b·u(k)        y arrival rate (msg/s), u prefetch

The samples are sums by prefetch u(k), for fitting and held out. The linear range is found first,
and only samples within it are fitted. A model is accepted under three conditions: R² ≥ 0.8 on the
held-out samples within the range, stability (|a| < 1), and a rise of the rate with the prefetch
beyond noise (b > 3 standard errors). A model that is not accepted carries the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tidegate.core.prefetch import R2_ACCEPTED
from tidegate.laws.placement import ROUNDING as PLACEMENT_ROUNDING
from tidegate.laws.prefetch.fit import (
    FIELDS,
    ROUNDING,
    LinearModel,
    NoExcitation,
    RegressionSums,
    fit_model,
    r_squared,
    squared_error,
    standard_errors,
)

# Fewer samples cannot justify controlling anything.
TRAIN_MIN = 30
TEST_MIN = 10
# Standard errors by which b must exceed zero.
SIGNIFICANT = 3.0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class IdentifiedModel:
    """A fitted model, its quality, and whether it may be used."""

    accepted: bool
    reason: str
    linear_range: LinearRange
    n_train: int
    n_test: int
    # NaN where nothing could be fitted or judged.
    a: float = math.nan
    b: float = math.nan
    # Standard errors, from the fitted samples.
    a_error: float = math.nan
    b_error: float = math.nan
    offset_per_s: float = math.nan
    r2_train: float = math.nan
    r2_test: float = math.nan
    rmse_train_per_s: float = math.nan
    rmse_test_per_s: float = math.nan


@dataclass(frozen=True)
class LevelSums:
    """Sums by prefetch u(k), as arrays. Thousands of groups leave no time for objects."""

    # In ascending order.
    prefetch: Array
    # One row per prefetch, with the fields of `RegressionSums` as columns.
    values: Array

    @staticmethod
    def of(levels: Mapping[float, RegressionSums]) -> LevelSums:
        prefetch = np.array(sorted(levels), dtype=np.float64)
        rows = [[getattr(levels[u], name) for name in FIELDS] for u in sorted(levels)]
        return LevelSums(prefetch, np.array(rows, dtype=np.float64).reshape(-1, len(FIELDS)))

    def usable(self) -> LevelSums:
        """Return the levels with finite samples; a NaN excludes only its own level."""
        keep = (self.values[:, FIELDS.index("n")] > 0.0) & np.isfinite(self.values.sum(axis=1))
        return self if keep.all() else LevelSums(self.prefetch[keep], self.values[keep])

    def by_field(self) -> RegressionSums:
        return RegressionSums(*self.values.T)

    def within(self, found: LinearRange) -> RegressionSums:
        """Return the sums over the linear range, or over all samples without a range."""
        if found.shape not in (Shape.LINEAR, Shape.KNEE):
            return RegressionSums(*self.values.sum(axis=0).tolist())
        inside = (self.prefetch >= found.low) & (self.prefetch <= found.high)
        return RegressionSums(*self.values[inside].sum(axis=0).tolist())


def identify(
    train: Mapping[float, RegressionSums],
    test: Mapping[float, RegressionSums],
    r2_accepted: float = R2_ACCEPTED,
) -> IdentifiedModel:
    """Return the model of one consumer group from its sums by prefetch u(k).

    Poor data raises no error; the result is then not accepted and has a reason.
    """
    return identify_levels(LevelSums.of(train), LevelSums.of(test), r2_accepted)


def identify_levels(
    train: LevelSums, test: LevelSums, r2_accepted: float = R2_ACCEPTED
) -> IdentifiedModel:
    """Return the model of one consumer group from sums as arrays."""
    train = train.usable()
    sums = train.by_field()
    mean = sums.y_next / sums.n
    variance = np.maximum(sums.y_next2 / sums.n - mean * mean, 0.0)
    whole = range_of(train.prefetch, sums.n, mean, variance)
    # Without a linear range the model is refused, but fitted on all samples for inspection.
    fit, held_out = train.within(whole), test.usable().within(whole)
    found = IdentifiedModel(
        accepted=False,
        reason="",
        linear_range=whole,
        n_train=int(fit.n),
        n_test=int(held_out.n),
    )
    if fit.n < TRAIN_MIN or held_out.n < TEST_MIN:
        return replace(
            found,
            reason=f"{fit.n:g} samples to fit and {held_out.n:g} held out within the linear range "
            f"are too few: {TRAIN_MIN} and {TEST_MIN} are needed",
        )
    try:
        fitted = fit_model(fit)
    except NoExcitation as error:
        return replace(found, reason=str(error))
    a_error, b_error = standard_errors(fitted, fit)
    found = replace(
        found,
        a=fitted.a,
        b=fitted.b,
        a_error=a_error,
        b_error=b_error,
        offset_per_s=fitted.offset_per_s,
        r2_train=_r_squared(fitted, fit),
        r2_test=_r_squared(fitted, held_out),
        rmse_train_per_s=_rmse(fitted, fit),
        rmse_test_per_s=_rmse(fitted, held_out),
    )
    reason = _refusal(found, r2_accepted)
    if reason is not None:
        return replace(found, reason=reason)
    return replace(
        found,
        accepted=True,
        reason=f"explains {found.r2_test:.1%} of held-out data; {whole.reason}",
    )


def _refusal(found: IdentifiedModel, r2_accepted: float) -> str | None:
    """Return why a fitted model may not be used, or `None` if it may."""
    if found.linear_range.shape not in (Shape.LINEAR, Shape.KNEE):
        return f"the rate {found.linear_range.reason}"
    if math.isnan(found.r2_test):
        return "the held-out rates never change, so nothing is left to explain"
    if found.r2_test < r2_accepted:
        return (
            f"explains {found.r2_test:.1%} of held-out data, and {r2_accepted:.0%} is needed: "
            "the rate depends on more than prefetch and the rate before"
        )
    if abs(found.a) >= 1.0:
        return f"a = {found.a:.4g} is outside −1 to 1: a rate that runs away is no model"
    if found.b <= SIGNIFICANT * found.b_error:
        return f"b = {found.b:.4g} cannot be told from 0: prefetch does not drive this rate"
    return None


def _r_squared(fitted: LinearModel, sums: RegressionSums) -> float:
    still = sums.deviations().y_next2 <= ROUNDING * sums.y_next2
    return math.nan if still else float(r_squared(fitted, sums))


def _rmse(fitted: LinearModel, sums: RegressionSums) -> float:
    return math.sqrt(max(squared_error(fitted, sums), 0.0) / sums.n)


# -- linear_range --
# The linear range: the prefetch up to which the arrival rate grows with it.
#
#     mean rate at prefetch u ≈ α + β·u + γ·max(u − knee, 0)
#
# A consumer's rate grows with its prefetch until another bottleneck limits it (beyond u = 22 in the
# paper). A line fitted across that knee describes neither side. Every level, and some places
# between levels, are tried as the knee, by least squares weighted with the number of samples.
#
# The best knee is used under two conditions. It must explain more than a straight line, beyond
# noise (an F test). The rate must grow less than half as fast behind it as before it. Noise is the
# variance within levels or the residuals of the hinge, the larger of the two. So neither single
# samples nor a bent curve pretend certainty.


# A line has two unknowns and a hinge has four, the knee included; fewer levels determine nothing.
LEVELS_MIN = 3
BELOW_KNEE_MIN = 3
ABOVE_KNEE_MIN = 2
LEVELS_MIN_FOR_KNEE = BELOW_KNEE_MIN + ABOVE_KNEE_MIN
# A knee need not fall on a level: this many places are tried from each level to the next.
KNEES_PER_GAP = 4
# Behind the knee the rate must grow by less than this fraction of its growth before.
SLOPE_FRACTION = 0.5
# Growth over all levels as a fraction of the mean rate: with enough samples any growth is
# significant.
GROWTH_MIN = 0.05


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


# -- intervals --
# The confidence interval of a mean.
#
#     mean ± t(0.975, n − 1) · s / √n
#
# It needs only count, mean and variance, which aggregates provide; the values are not needed. `s²`
# is the variance of the sample (divided by n − 1). A single value has a mean and no interval.


@dataclass(frozen=True)
class ConfidenceInterval:
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
) -> ConfidenceInterval:
    """Return the interval of a mean; the bounds are NaN for fewer than two values."""
    if n < 2 or not math.isfinite(sample_variance):
        return ConfidenceInterval(mean=mean, low=math.nan, high=math.nan, n=n)
    quantile = float(stdtrit(n - 1, 0.5 + confidence / 2.0))
    half_width = quantile * math.sqrt(max(sample_variance, 0.0) / n)
    return ConfidenceInterval(mean=mean, low=mean - half_width, high=mean + half_width, n=n)


def mean_interval_of(values: Sequence[float], confidence: float = 0.95) -> ConfidenceInterval:
    """Return the interval of the mean of these values."""
    n = len(values)
    if n == 0:
        return ConfidenceInterval(mean=math.nan, low=math.nan, high=math.nan, n=0)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean_interval(n, mean, squares / (n - 1) if n > 1 else math.nan, confidence)


# -- provisioning --
# Inputs of NPP (`warm_machines`) learned from history: boot time and growth.
#
# A mean boot time is too short half of the time, so the 95th percentile is used as soon as enough
# boots are known.
#
# Growth is the slope of the least-squares line through `sustained_s` seconds of rates. A staircase
# (100 msg/s each 25 s) counts as the ramp that it is, and a single spike counts for little. A slope
# that noise alone could cause counts as 0.


# With fewer than 20 boots the 95th percentile is the longest boot.
BOOTS_FOR_PERCENTILE = 20
# Standard errors that a slope must exceed. The largest of a day's windows is sought, so the limit
# is higher than for a single window.
PROVISIONING_SIGNIFICANT = 5.0
STEPS_MIN = 5


class BootTimeEstimate(NamedTuple):
    """The boot time to plan with, how it was computed, and from how many boots."""

    boot_s: float
    kind: Literal["mean", "p95"]
    n: int


def boot_time_s(boots_s: Sequence[float]) -> BootTimeEstimate:
    """Return the boot time to plan with: the mean of a few boots, the 95th percentile of many.

    Raises `ValueError` if no boot is known.
    """
    known = [boot for boot in boots_s if math.isfinite(boot) and boot >= 0.0]
    if not known:
        raise ValueError("no boot was recorded: boot a machine, or say how long it takes")
    if len(known) < BOOTS_FOR_PERCENTILE:
        return BootTimeEstimate(math.fsum(known) / len(known), "mean", len(known))
    return BootTimeEstimate(float(np.percentile(known, 95.0)), "p95", len(known))


def sla_delta(rate_per_s: NDArray[np.float64], step_s: float, sustained_s: float = 60.0) -> float:
    """Return the largest sustained growth (msg/s²) of evenly spaced rates.

    Returns 0 if the rate never grows, and NaN if no stretch of `sustained_s` was recorded
    without a gap.
    """
    steps = max(round(sustained_s / step_s), STEPS_MIN)
    rates = np.asarray(rate_per_s, dtype=np.float64)
    if len(rates) < steps:
        return math.nan
    known = np.isfinite(rates)
    if not known.any():
        return math.nan
    ones = np.ones(steps)
    whole = np.convolve(~known, ones, mode="valid") < 0.5
    if not whole.any():
        return math.nan
    # Subtract the mean, so that squares of large rates do not lose the residuals to rounding.
    y = np.where(known, rates - rates[known].mean(), 0.0)
    t = (np.arange(steps) - (steps - 1) / 2.0) * step_s
    spread = float(t @ t)
    slope = np.correlate(y, t, mode="valid") / spread
    sums = np.convolve(y, ones, mode="valid")
    squares = np.convolve(y * y, ones, mode="valid") - sums * sums / steps
    left_over = np.maximum(squares - slope * slope * spread, 0.0)
    error = np.sqrt(left_over / (steps - 2) / spread)
    # Without any noise only rounding errors remain, and they are no growth.
    grows = (slope > PROVISIONING_SIGNIFICANT * error) & (
        slope * sustained_s > PLACEMENT_ROUNDING * np.abs(y).max()
    )
    return float(np.max(slope, where=whole & grows, initial=0.0))
