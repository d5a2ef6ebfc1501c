"""Offline identification of a consumer's model, judged on samples it was not fitted on.

    y(k+1) = a·y(k) + b·u(k)        y arrival rate (msg/s), u prefetch

The samples are sums by prefetch u(k), for fitting and held out. The linear range is found first,
and only samples within it are fitted. A model is accepted under three conditions: R² ≥ 0.8 on the
held-out samples within the range, stability (|a| < 1), and a rise of the rate with the prefetch
beyond noise (b > 3 standard errors). A model that is not accepted carries the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tidegate.core.prefetch import R2_ACCEPTED
from tidegate.laws.least_squares import (
    FIELDS,
    ROUNDING,
    Model,
    NoExcitation,
    Sums,
    gains,
    model,
    r_squared,
    solve,
    squared_error,
    standard_errors,
)
from tidegate.laws.linear_range import LinearRange, Shape, range_of

__all__ = [
    "FIELDS", "Identified", "Model", "NoExcitation", "Sums", "gains", "identify", "model",
    "r_squared", "solve", "squared_error",
]  # fmt: skip

# Fewer samples cannot justify controlling anything.
TRAIN_MIN = 30
TEST_MIN = 10
# Standard errors by which b must exceed zero.
SIGNIFICANT = 3.0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Identified:
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
    def of(levels: Mapping[float, Sums]) -> LevelSums:
        prefetch = np.array(sorted(levels), dtype=np.float64)
        rows = [[getattr(levels[u], name) for name in FIELDS] for u in sorted(levels)]
        return LevelSums(prefetch, np.array(rows, dtype=np.float64).reshape(-1, len(FIELDS)))

    def usable(self) -> LevelSums:
        """Return the levels with finite samples; a NaN excludes only its own level."""
        keep = (self.values[:, FIELDS.index("n")] > 0.0) & np.isfinite(self.values.sum(axis=1))
        return self if keep.all() else LevelSums(self.prefetch[keep], self.values[keep])

    def by_field(self) -> Sums:
        return Sums(*self.values.T)

    def within(self, found: LinearRange) -> Sums:
        """Return the sums over the linear range, or over all samples without a range."""
        if found.shape not in (Shape.LINEAR, Shape.KNEE):
            return Sums(*self.values.sum(axis=0).tolist())
        inside = (self.prefetch >= found.low) & (self.prefetch <= found.high)
        return Sums(*self.values[inside].sum(axis=0).tolist())


def identify(
    train: Mapping[float, Sums],
    test: Mapping[float, Sums],
    r2_accepted: float = R2_ACCEPTED,
) -> Identified:
    """Return the model of one consumer group from its sums by prefetch u(k).

    Poor data raises no error; the result is then not accepted and has a reason.
    """
    return identify_levels(LevelSums.of(train), LevelSums.of(test), r2_accepted)


def identify_levels(
    train: LevelSums, test: LevelSums, r2_accepted: float = R2_ACCEPTED
) -> Identified:
    """Return the model of one consumer group from sums as arrays."""
    train = train.usable()
    sums = train.by_field()
    mean = sums.y_next / sums.n
    variance = np.maximum(sums.y_next2 / sums.n - mean * mean, 0.0)
    whole = range_of(train.prefetch, sums.n, mean, variance)
    # Without a linear range the model is refused, but fitted on all samples for inspection.
    fit, held_out = train.within(whole), test.usable().within(whole)
    found = Identified(
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
        fitted = solve(fit)
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


def _refusal(found: Identified, r2_accepted: float) -> str | None:
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


def _r_squared(fitted: Model, sums: Sums) -> float:
    still = sums.deviations().y_next2 <= ROUNDING * sums.y_next2
    return math.nan if still else float(r_squared(fitted, sums))


def _rmse(fitted: Model, sums: Sums) -> float:
    return math.sqrt(max(squared_error(fitted, sums), 0.0) / sums.n)
