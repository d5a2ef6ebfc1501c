"""Extrapolation methods: each continues a series from its level, trend and season.

    f(t+h) = P(t+h) + D(t)·φ^h                with a season: profile and deviation from it
    f(t+h) = D(t) + slope(t)·(φ + … + φ^h)    without: the level, and a trend that dies away

D is an average whose weights halve every `half_life` steps. P is, for each time, the median of the
values at the same time of earlier seasons, smoothed over neighbours; of two values it is the mean.
No value after t is used: P(t+h) comes from seasons that ended before.

Series are rows, steps are columns, and NaN means not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Older seasons do not describe the present one.
SEASONS_MAX = 4
# Steps to either side over which a profile is smoothed, as a fraction of the season.
SMOOTHED = 1 / 200


@dataclass(frozen=True)
class Profile:
    """The usual value at each time, from the end of the first season to `steps` ahead."""

    season: int
    usual: Matrix  # NaN before the first season is over


@dataclass(frozen=True)
class Way:
    """One method of continuing a series."""

    half_life: float  # of the weights of D, in steps
    damping: float  # φ
    profile: Profile | None = None
    has_trend: bool = False

    def expected(self, history: Matrix, at: int, steps: int) -> Matrix:
        """Return the values expected after the first `at` columns."""
        width = min(at, max(int(self.half_life * 5), 2))
        recent = history[:, at - width : at]
        ahead = np.arange(1, steps + 1)
        if self.profile is not None:
            recent = recent - self.profile.usual[:, at - width : at]
            gap = _average(recent, self.half_life)[:, None]
            usual = self.profile.usual[:, at : at + steps]
            # Without recent values to compare, the profile alone is used.
            carried = np.nan_to_num(gap) * self.damping**ahead
            return np.asarray(np.maximum(usual + carried, 0.0))
        level = _average(recent, self.half_life)[:, None]
        if not self.has_trend:
            return np.repeat(np.maximum(level, 0.0), steps, axis=1)
        slope = _slope(recent)[:, None]
        # The average lags behind a trend by its mean age.
        lag = self.half_life / np.log(2.0)
        grown = slope * (lag + np.cumsum(self.damping**ahead))
        return np.asarray(np.maximum(level + grown, 0.0))


def profile(history: Matrix, season: int, steps: int) -> Profile | None:
    """Return the profile of a season, or `None` if the history or the season is too short."""
    series, length = history.shape
    # Smoothing looks ahead within the earlier season, and must not reach beyond the present.
    reach = min(int(season * SMOOTHED), season - steps)
    seasons = min((length - 1) // season, SEASONS_MAX)
    if seasons < 1 or reach < 0:
        return None
    smooth = _smoothed(history, reach)
    usual = np.full((series, length + steps), np.nan)
    # `before` is the number of whole seasons before a time: none for the first season.
    for before in range(1, seasons + 1):
        first = before * season
        last = length + steps if before == seasons else min(first + season, length + steps)
        shifted = [smooth[:, first - j * season : last - j * season] for j in range(1, before + 1)]
        usual[:, first:last] = _middle(np.stack(shifted))
    return Profile(season, usual)


def season_ago(history: Matrix, at: int, steps: int, season: int) -> Matrix:
    """Return the values of one season ago, and the last known value where there is none."""
    known = history[:, :at]
    ago = np.full((history.shape[0], steps), np.nan)
    if season and at >= season >= steps:
        ago = known[:, at - season : at - season + steps]
    if np.isfinite(ago).all():
        return ago
    return np.where(np.isfinite(ago), ago, last_known(known)[:, None])


def last_known(history: Matrix) -> NDArray[np.float64]:
    """Return the last recorded value of each series, or NaN if there is none."""
    finite = np.isfinite(history)
    last = history.shape[1] - 1 - np.argmax(finite[:, ::-1], axis=1)
    return np.where(finite.any(axis=1), history[np.arange(len(history)), last], np.nan)


def _average(recent: Matrix, half_life: float) -> NDArray[np.float64]:
    weight = 0.5 ** (np.arange(recent.shape[1])[::-1] / half_life)
    finite = np.isfinite(recent)
    mass = finite @ weight
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(finite, recent, 0.0) @ weight / mass)


def _slope(recent: Matrix) -> NDArray[np.float64]:
    """Return the slope of the line through each row's known values; 0 if there is none."""
    finite = np.isfinite(recent)
    count = np.maximum(finite.sum(axis=1), 1)
    t = np.where(finite, np.arange(recent.shape[1], dtype=np.float64), 0.0)
    y = np.where(finite, recent, 0.0)
    spread = (t * t).sum(axis=1) - t.sum(axis=1) ** 2 / count
    common = (t * y).sum(axis=1) - t.sum(axis=1) * y.sum(axis=1) / count
    return np.where(spread > 0.0, common / np.maximum(spread, 1e-300), 0.0)


def _smoothed(history: Matrix, reach: int) -> Matrix:
    """Return the mean of the known values within `reach` steps to either side."""
    if reach == 0:
        return history
    finite = np.isfinite(history)
    width = [(0, 0), (reach + 1, reach)]
    sums = np.cumsum(np.pad(np.where(finite, history, 0.0), width), axis=1)
    counts = np.cumsum(np.pad(finite, width), axis=1)
    span = 2 * reach + 1
    count = counts[:, span:] - counts[:, :-span]
    total = sums[:, span:] - sums[:, :-span]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _middle(stack: Matrix) -> Matrix:
    """Return the median of the known values over the first axis; unknown values sort last."""
    ordered = np.sort(stack, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, len(stack) - 1)[None], axis=0)[0]
    # Of an even count `count // 2` is the upper of the two in the middle, of an odd count the
    # middle.
    return np.asarray((low + high) / 2.0)
