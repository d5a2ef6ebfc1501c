"""Ways to go on with a series: each a guess at what comes next, made of level, trend and season.

    f(t+h) = P(t+h) + D(t)·φ^h                  with a season: what is usual, and how far off it is
    f(t+h) = D(t) + slope(t)·(φ + … + φ^h)      without: the level, and a trend that dies away

D is an average with weights that halve every so many steps. P is, for each time, the median (the
mean of two) of what was at the same time of earlier seasons, smoothed over neighbours. Nothing
here looks at what comes after t: P(t+h) comes from seasons that ended before.

Series are rows, steps are columns, NaN is what was not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

# Older seasons say little of this one.
SEASONS_MAX = 4
# Steps to either side over which a profile is smoothed, as a part of the season.
SMOOTHED = 1 / 200


@dataclass(frozen=True)
class Profile:
    """What is usual at each time, from the first one after a season to `steps` after the end."""

    season: int
    usual: Matrix  # NaN before the first season is over


@dataclass(frozen=True)
class Way:
    """One way to go on."""

    half_life: float  # of the weights of D, in steps
    damping: float  # φ
    profile: Profile | None = None
    has_trend: bool = False

    def expected(self, history: Matrix, at: int, steps: int) -> Matrix:
        """What follows the first `at` columns."""
        width = min(at, max(int(self.half_life * 5), 2))
        recent = history[:, at - width : at]
        ahead = np.arange(1, steps + 1)
        if self.profile is not None:
            recent = recent - self.profile.usual[:, at - width : at]
            gap = _average(recent, self.half_life)[:, None]
            usual = self.profile.usual[:, at : at + steps]
            # Where nothing recent can be compared, what is usual is all that is known.
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
    """What is usual by a season; None if the history does not hold one, or it is too short."""
    series, length = history.shape
    # Smoothing looks ahead within the earlier season, and must not see past the present.
    reach = min(int(season * SMOOTHED), season - steps)
    seasons = min((length - 1) // season, SEASONS_MAX)
    if seasons < 1 or reach < 0:
        return None
    smooth = _smoothed(history, reach)
    usual = np.full((series, length + steps), np.nan)
    # By how many whole seasons lie before a time: the first has none, the second one, ….
    for before in range(1, seasons + 1):
        first = before * season
        last = length + steps if before == seasons else min(first + season, length + steps)
        shifted = [smooth[:, first - j * season : last - j * season] for j in range(1, before + 1)]
        usual[:, first:last] = _middle(np.stack(shifted))
    return Profile(season, usual)


def season_ago(history: Matrix, at: int, steps: int, season: int) -> Matrix:
    """The same steps one season ago; the last known value where there is none."""
    known = history[:, :at]
    ago = np.full((history.shape[0], steps), np.nan)
    if season and at >= season >= steps:
        ago = known[:, at - season : at - season + steps]
    if np.isfinite(ago).all():
        return ago
    return np.where(np.isfinite(ago), ago, last_known(known)[:, None])


def last_known(history: Matrix) -> NDArray[np.float64]:
    """The last value of each series that was recorded; NaN if none was."""
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
    """The slope of the line through each row's known values; 0 where there is none."""
    finite = np.isfinite(recent)
    count = np.maximum(finite.sum(axis=1), 1)
    t = np.where(finite, np.arange(recent.shape[1], dtype=np.float64), 0.0)
    y = np.where(finite, recent, 0.0)
    spread = (t * t).sum(axis=1) - t.sum(axis=1) ** 2 / count
    common = (t * y).sum(axis=1) - t.sum(axis=1) * y.sum(axis=1) / count
    return np.where(spread > 0.0, common / np.maximum(spread, 1e-300), 0.0)


def _smoothed(history: Matrix, reach: int) -> Matrix:
    """The mean of what is known within `reach` steps to either side."""
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
    """The median over the first axis of what is known: sorting puts the unknown last."""
    ordered = np.sort(stack, axis=0)
    count = np.isfinite(ordered).sum(axis=0)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], axis=0)[0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, len(stack) - 1)[None], axis=0)[0]
    # Of an even count `count // 2` is the upper of the two in the middle, of an odd one the same.
    return np.asarray((low + high) / 2.0)
