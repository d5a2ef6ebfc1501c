"""Forecasts of arrival rates, with their uncertainty.

For each series the extrapolation method is chosen that was best on earlier windows of its own
history. It is judged on later windows (backtest) against a baseline:

    skill = 1 − mean absolute error / that of the baseline

The baseline repeats the values of one season ago, with the season that works best for it. Without a
season it repeats the last value. A forecast is accepted only if it beats the baseline beyond
chance. Otherwise `reason` says so, and the caller should use the baseline. Intervals are quantiles
of the errors of the same forecast.

Series are rows of evenly spaced rates (NaN: not recorded). All series are forecast at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.text import format_duration

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]

# Series per chunk; it limits the memory and stays in the cache.
CHUNK = 256


@dataclass(frozen=True)
class Forecast:
    """Expected values of each series (rows) at each step ahead (columns), with their intervals."""

    expected_per_s: Matrix
    low_per_s: Matrix
    high_per_s: Matrix
    # The same values of the baseline, for series whose forecast is not accepted.
    baseline_per_s: Matrix
    baseline_low_per_s: Matrix
    baseline_high_per_s: Matrix
    # Mean absolute errors on held-out windows, of the forecast and of the baseline.
    error_per_s: Vector
    baseline_error_per_s: Vector
    # 1 − error / baseline error; above 0 is better than the baseline.
    skill: Vector
    # Fraction of the held-out values that were within their interval.
    coverage: Vector
    # The season in use, in steps. 0 means none.
    season: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    reason: NDArray[np.str_]


def seasonal_naive(history_per_s: Matrix, steps: int, season: int) -> Matrix:
    """Return the baseline: the values of one season ago, else the last known value.

    A season of 0 means that the last value is repeated.
    """
    return season_ago(history_per_s, history_per_s.shape[1], steps, season)


def forecast(
    history_per_s: Matrix,
    steps: int,
    seasons: Sequence[int] = (),
    confidence: float = 0.9,
    step_s: float = 60.0,
) -> Forecast:
    """Return the forecast of the next `steps` of every series.

    `seasons` are the periods to try, in steps. `step_s` affects only the text of `reason`.
    """
    history = np.asarray(history_per_s, dtype=np.float64)
    history = np.where(np.isfinite(history), history, np.nan)
    parts = [
        _forecast(history[first : first + CHUNK], steps, seasons, confidence, step_s)
        for first in range(0, max(len(history), 1), CHUNK)
    ]
    return Forecast(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Forecast))
    )


def _forecast(
    history: Matrix, steps: int, seasons: Sequence[int], confidence: float, step_s: float
) -> Forecast:
    length = history.shape[1]
    first, profiles = _usable(history, steps, seasons)
    tried = forecast_origins(first, length, steps)
    if tried is None or not len(history):
        return _unknown(history, steps, step_s)
    ways = _ways(steps, profiles)
    real = actual_values(history, tried.choose, steps)
    # Each series takes its own best method and its own best baseline, both on the earlier windows.
    chosen = _best(
        [mean_error(real - _forecast_from(way, history, tried.choose, steps)) for way in ways]
    )
    base_seasons = [p.season for p in profiles] or [0]
    base_chosen = _best(
        [mean_error(real - _ago(history, tried.choose, steps, s)) for s in base_seasons]
    )
    ours = _picked(chosen, [_forecast_from(way, history, tried.all, steps) for way in ways])
    base = _picked(base_chosen, [_ago(history, tried.all, steps, s) for s in base_seasons])
    expected = _picked(chosen, [way.expected(history, length, steps)[None] for way in ways])[0]
    expected = np.where(np.isfinite(expected), expected, last_known(history)[:, None])
    baseline = _picked(base_chosen, [_ago(history, (length,), steps, s) for s in base_seasons])[0]
    judged = _judge(history, tried, ours, base, steps, confidence)
    real = actual_values(history, tried.all, steps)
    low, high = _interval(expected, *error_bands(real - ours, confidence))
    baseline_low, baseline_high = _interval(baseline, *error_bands(real - base, confidence))
    return Forecast(
        expected_per_s=expected,
        low_per_s=low,
        high_per_s=high,
        baseline_per_s=baseline,
        baseline_low_per_s=baseline_low,
        baseline_high_per_s=baseline_high,
        season=np.array([way.profile.season if way.profile else 0 for way in ways])[chosen],
        error_per_s=judged.error_per_s,
        baseline_error_per_s=judged.baseline_error_per_s,
        skill=judged.skill,
        coverage=judged.coverage,
        accepted=judged.accepted,
        reason=np.array([_reason(*one) for one in zip(*judged[:3], judged.accepted, strict=True)]),
    )


def _interval(expected: Matrix, below: Matrix, above: Matrix) -> tuple[Matrix, Matrix]:
    """Return the interval around the expected values; it contains them, and is never negative."""
    low = np.maximum(np.minimum(expected + below, expected), 0.0)
    return low, np.maximum(expected + above, expected)


class _Judged(NamedTuple):
    error_per_s: Vector
    baseline_error_per_s: Vector
    skill: Vector
    coverage: Vector
    accepted: NDArray[np.bool_]


def _judge(
    history: Matrix, tried: Origins, ours: Matrix, base: Matrix, steps: int, confidence: float
) -> _Judged:
    """Return error, skill and coverage on the later windows, which were not used for any choice."""
    split = len(tried.choose)
    low, high = error_bands(actual_values(history, tried.choose, steps) - ours[:split], confidence)
    residual = actual_values(history, tried.judge, steps) - ours[split:]
    base_residual = actual_values(history, tried.judge, steps) - base[split:]
    within = (residual >= np.minimum(low, 0.0)) & (residual <= np.maximum(high, 0.0))
    coverage = _known_mean(np.where(np.isfinite(residual), within, np.nan), (0, 2))
    error, base_error = mean_error(residual), mean_error(base_residual)
    with np.errstate(invalid="ignore", divide="ignore"):
        skill = 1.0 - error / base_error
    # The gain of the forecast in each window, and how far the windows agree on it.
    gain = _known_mean(np.abs(base_residual) - np.abs(residual), (2,))
    mean_gain = _known_mean(gain, (0,))
    windows = np.maximum(np.isfinite(gain).sum(axis=0), 2)
    chance = np.sqrt(_known_mean((gain - mean_gain) ** 2, (0,)) / (windows - 1))
    accepted = np.isfinite(skill) & (skill > 0.0) & (mean_gain > chance)
    skill = np.where(np.isfinite(skill), skill, np.nan)
    return _Judged(error, base_error, skill, coverage, accepted)


def _known_mean(values: Matrix, axes: tuple[int, ...]) -> Matrix:
    """Return the mean of the known values, or NaN without a warning if there are none."""
    known = np.isfinite(values)
    count = known.sum(axis=axes)
    total = np.where(known, values, 0.0).sum(axis=axes)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _reason(error_per_s: float, baseline_error_per_s: float, skill: float, accepted: bool) -> str:
    if not np.isfinite(error_per_s):
        return "too much of the history was not recorded to judge a forecast by"
    if accepted:
        return f"{skill:.0%} less error than the baseline on held-out windows"
    if baseline_error_per_s == 0.0:
        return "not better than the baseline, which makes no error at all: use the baseline"
    return f"not better than the baseline beyond chance (skill {skill:.2f}): use the baseline"


def _usable(
    history: Matrix, steps: int, seasons: Sequence[int]
) -> tuple[int, list[SeasonalProfile]]:
    """Return the first possible origin, and the profiles with enough history."""
    length = history.shape[1]
    first, profiles = min(steps, length), list[SeasonalProfile]()
    for season in sorted(set(seasons)):
        if forecast_origins(season + 1, length, steps) is None:
            continue
        found = seasonal_profile(history, season, steps)
        if found is not None:
            # The first season has no profile yet, so windows there could not be compared.
            first = season + 1
            profiles.append(found)
    return first, profiles


def _ways(steps: int, profiles: Sequence[SeasonalProfile]) -> list[ExtrapolationMethod]:
    """Return the methods to try: slow and fast levels, a trend, and each season close or loose."""
    ways = [
        ExtrapolationMethod(half_life=max(steps * part, 1.0), damping=1.0)
        for part in (0.05, 0.25, 1.0)
    ]
    ways.append(
        ExtrapolationMethod(
            half_life=max(steps / 4, 2.0), damping=1.0 - 1.0 / steps, has_trend=True
        )
    )
    ways += [
        ExtrapolationMethod(max(half_life, 1.0), damping, usual)
        for usual in profiles
        for half_life in (steps / 12, steps / 2)
        for damping in (1.0, 0.5 ** (2.0 / steps))
    ]
    return ways


def _forecast_from(
    way: ExtrapolationMethod, history: Matrix, at: Sequence[int], steps: int
) -> Matrix:
    return np.stack([way.expected(history, origin, steps) for origin in at])


def _ago(history: Matrix, at: Sequence[int], steps: int, season: int) -> Matrix:
    return np.stack([season_ago(history, origin, steps, season) for origin in at])


def _best(errors: Sequence[Vector]) -> NDArray[np.int64]:
    return np.asarray(np.argmin(np.stack(errors), axis=0), dtype=np.int64)


def _picked(chosen: NDArray[np.int64], of_ways: Sequence[Matrix]) -> Matrix:
    """Return for each series (second axis) the values of its chosen method."""
    stacked = np.stack(of_ways)
    return np.asarray(stacked[chosen, :, np.arange(len(chosen))].transpose(1, 0, 2))


def _unknown(history: Matrix, steps: int, step_s: float) -> Forecast:
    series, length = history.shape
    last = np.repeat(
        last_known(history)[:, None] if length else np.full((series, 1), np.nan), steps, 1
    )
    nothing = np.full(series, np.nan)
    reason = (
        f"{format_duration(length * step_s)} of history is too little to choose and judge a "
        f"forecast by, which takes {format_duration(length_min(steps, steps) * step_s)}: the last "
        "value is repeated"
    )
    return Forecast(
        expected_per_s=last,
        low_per_s=np.full((series, steps), np.nan),
        high_per_s=np.full((series, steps), np.nan),
        baseline_per_s=last,
        baseline_low_per_s=np.full((series, steps), np.nan),
        baseline_high_per_s=np.full((series, steps), np.nan),
        error_per_s=nothing,
        baseline_error_per_s=nothing,
        skill=nothing,
        coverage=nothing,
        season=np.zeros(series, dtype=np.int64),
        accepted=np.zeros(series, dtype=np.bool_),
        reason=np.array([reason] * series, dtype=np.str_),
    )


# -- extrapolation --
# Extrapolation methods: each continues a series from its level, trend and season.
#
#     f(t+h) = P(t+h) + D(t)·φ^h                with a season: profile and deviation from it
#     f(t+h) = D(t) + slope(t)·(φ + … + φ^h)    without: the level, and a trend that dies away
#
# D is an average whose weights halve every `half_life` steps. P is, for each time, the median of
# the values at the same time of earlier seasons, smoothed over neighbours; of two values it is the
# mean. No value after t is used: P(t+h) comes from seasons that ended before.
#
# Series are rows, steps are columns, and NaN means not recorded.


# Older seasons do not describe the present one.
SEASONS_MAX = 4
# Steps to either side over which a profile is smoothed, as a fraction of the season.
SMOOTHED = 1 / 200


@dataclass(frozen=True)
class SeasonalProfile:
    """The usual value at each time, from the end of the first season to `steps` ahead."""

    season: int
    usual: Matrix  # NaN before the first season is over


@dataclass(frozen=True)
class ExtrapolationMethod:
    """One method of continuing a series."""

    half_life: float  # of the weights of D, in steps
    damping: float  # φ
    profile: SeasonalProfile | None = None
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


def seasonal_profile(history: Matrix, season: int, steps: int) -> SeasonalProfile | None:
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
    return SeasonalProfile(season, usual)


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


# -- backtest --
# Backtests: the error of a forecast, measured by forecasting a known past.
#
# Origins are times in the past from which the forecast is repeated without any later value. The
# earlier origins choose and calibrate. The later ones judge, and no choice is made on them.
#
# Intervals are quantiles of the residuals at the same distance ahead, with neighbouring distances
# pooled in blocks. With few origins the largest residual is not yet a quantile. The level is
# therefore raised as for a prediction from n residuals: confidence·(n + 1)/n.

Cube = NDArray[np.float64]  # origins × series × steps

ORIGINS_MAX = 36
# With fewer windows, intervals of 90 % contained only 60 to 70 % of the values when measured.
ORIGINS_MIN = 12
JUDGES = 1 / 3
BLOCKS = 6


@dataclass(frozen=True)
class Origins:
    """The times from which forecasts are repeated: for choosing, and for judging."""

    choose: tuple[int, ...]
    judge: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return self.choose + self.judge


def forecast_origins(first: int, length: int, steps: int) -> Origins | None:
    """Return evenly spaced origins after `first` columns, or `None` if too few fit."""
    last = length - steps
    # Windows that overlap by more than half are nearly the same.
    room = (last - first) // max(steps // 2, 1) + 1
    count = min(room, ORIGINS_MAX)
    if last < first or count < ORIGINS_MIN:
        return None
    places = np.unique(np.linspace(first, last, count).round().astype(int))
    judges = max(round(len(places) * JUDGES), 2)
    chosen = [int(place) for place in places]
    # A window used for choosing must end before the first judging window, or it has seen its
    # values.
    choose = [place for place in chosen[:-judges] if place + steps <= chosen[-judges]]
    return Origins(tuple(choose), tuple(chosen[-judges:]))


def length_min(first: int, steps: int) -> int:
    """Return the smallest number of columns with room for enough origins after `first`."""
    return first + steps + (ORIGINS_MIN - 1) * max(steps // 2, 1)


def actual_values(history: Matrix, at: tuple[int, ...], steps: int) -> Cube:
    """Return the actual values after each origin."""
    return np.stack([history[:, origin : origin + steps] for origin in at])


def mean_error(residuals: Cube) -> NDArray[np.float64]:
    """Return the mean absolute residual per series; infinite if less than half of it is known."""
    known = np.isfinite(residuals)
    count = known.sum(axis=(0, 2))
    total = np.abs(np.where(known, residuals, 0.0)).sum(axis=(0, 2))
    enough = count * 2 >= residuals.shape[0] * residuals.shape[2]
    return np.where(enough & (count > 0), total / np.maximum(count, 1), np.inf)


def error_bands(residuals: Cube, confidence: float) -> tuple[Matrix, Matrix]:
    """Return how far below and above the forecast the values were, by series and step."""
    count, series, steps = residuals.shape
    level = min(confidence * (count + 1) / count, 1.0)
    edges = np.linspace(0, steps, min(BLOCKS, steps) + 1).round().astype(int)
    centres, lows, highs = [], [], []
    for start, end in pairwise(edges.tolist()):
        block = residuals[:, :, start:end].transpose(1, 0, 2).reshape(series, -1)
        ordered = np.sort(block, axis=1)
        known = np.isfinite(ordered).sum(axis=1)
        centres.append((start + end - 1) / 2.0)
        lows.append(_quantile(ordered, known, (1.0 - level) / 2.0))
        highs.append(_quantile(ordered, known, (1.0 + level) / 2.0))
    return _between(centres, lows, steps), _between(centres, highs, steps)


def _quantile(ordered: Matrix, known: NDArray[np.int64], level: float) -> NDArray[np.float64]:
    """Return a quantile of each row, whose unknown values are sorted to its end."""
    place = level * np.maximum(known - 1, 0)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, np.maximum(known - 1, 0))
    rows = np.arange(len(ordered))
    part = place - low
    return np.asarray(ordered[rows, low] * (1.0 - part) + ordered[rows, high] * part)


def _between(centres: list[float], values: list[NDArray[np.float64]], steps: int) -> Matrix:
    """Interpolate the values of blocks to steps, linearly between the centres."""
    at = np.interp(np.arange(steps), centres, np.arange(len(centres)))
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, len(centres) - 1)
    stacked = np.stack(values, axis=1)
    part = at - low
    return np.asarray(stacked[:, low] * (1.0 - part) + stacked[:, high] * part)


# -- anomaly --
# Robust anomaly detection: whether a metric differs from its past.
#
#     expected = median of the last windows that were normal
#     spread   = max(1.4826 · MAD, relative · |expected|, absolute)
#     score    = (seen − expected) / spread
#
# Single unusual windows hardly change the median and the median absolute deviation (MAD). 1.4826 ·
# MAD estimates the standard deviation. The lower limits of the spread prevent that a constant
# metric becomes an anomaly by a tiny change.
#
# An anomaly begins when |score| ≥ `enter` for `persist` windows in a row, all on one side. It ends
# when |score| < `leave` for as many windows. So a single outlier is no anomaly, and a metric that
# varies around the threshold causes one anomaly and not many. Windows of an anomaly are not learned
# as normal. If it lasts as long as the baseline, its values become the new baseline, and it ends.


_DEVIATION_PER_MAD = 1.4826


class AnomalyChange(StrEnum):
    """The change of an anomaly that a window causes."""

    BEGAN = "began"
    ENDED = "ended"
    # It lasted so long that its values are normal now.
    SETTLED = "settled"


@dataclass(frozen=True)
class AnomalySettings:
    """The settings of anomaly detection."""

    # Smaller differences are never an anomaly. In the metric's own unit.
    absolute: float
    relative: float = 0.1
    enter: float = 5.0
    leave: float = 2.5
    persist: int = 2
    # Windows in the baseline, and the number needed before a window can be an anomaly.
    windows: int = 30
    windows_min: int = 8


@dataclass(frozen=True)
class SeriesHistory:
    """The remembered state of one metric."""

    normal: tuple[float, ...] = ()
    # Consecutive windows outside the baseline, or within an anomaly those back inside it, as
    # values.
    row: tuple[float, ...] = ()
    # When the row began.
    row_since_s: float = 0.0
    # Of a current anomaly: when it began, and its values so far.
    since_s: float | None = None
    lasting: tuple[float, ...] = ()


@dataclass(frozen=True)
class AnomalyResult:
    """The result for one window."""

    track: SeriesHistory
    expected: float | None = None
    score: float = 0.0
    change: AnomalyChange | None = None
    # When the anomaly that changed began.
    since_s: float = 0.0
    # The value, or the median of the row that caused the change.
    seen: float = 0.0


def judge_window(
    track: SeriesHistory, at_s: float, value: float, sensitivity: AnomalySettings
) -> AnomalyResult:
    """Judge the next window of a metric."""
    if len(track.normal) < sensitivity.windows_min:
        return AnomalyResult(_learned(track, value, sensitivity), seen=value)
    expected = median(track.normal)
    score = (value - expected) / _spread(track.normal, expected, sensitivity)
    if track.since_s is None:
        return _outside(track, at_s, value, expected, score, sensitivity)
    return _within(track, track.since_s, at_s, value, expected, score, sensitivity)


def _outside(
    track: SeriesHistory,
    at_s: float,
    value: float,
    expected: float,
    score: float,
    how: AnomalySettings,
) -> AnomalyResult:
    if abs(score) < how.enter:
        return AnomalyResult(_learned(track, value, how), expected, score, seen=value)
    same_side = bool(track.row) and (track.row[-1] > expected) == (value > expected)
    row = (*track.row, value) if same_side else (value,)
    since_s = track.row_since_s if same_side else at_s
    if len(row) < how.persist:
        return AnomalyResult(
            replace(track, row=row, row_since_s=since_s), expected, score, seen=value
        )
    begun = replace(track, row=(), since_s=since_s, lasting=row)
    return AnomalyResult(begun, expected, score, AnomalyChange.BEGAN, since_s, median(row))


def _within(
    track: SeriesHistory,
    since_s: float,
    at_s: float,
    value: float,
    expected: float,
    score: float,
    how: AnomalySettings,
) -> AnomalyResult:
    lasting = (*track.lasting, value)
    row = (*track.row, value) if abs(score) < how.leave else ()
    if len(row) >= how.persist:
        calm = SeriesHistory(normal=(*track.normal, *row)[-how.windows :])
        return AnomalyResult(calm, expected, score, AnomalyChange.ENDED, since_s, median(row))
    if len(lasting) >= how.windows:
        settled = SeriesHistory(normal=lasting[-how.windows :])
        return AnomalyResult(
            settled, expected, score, AnomalyChange.SETTLED, since_s, median(lasting)
        )
    return AnomalyResult(replace(track, row=row, lasting=lasting), expected, score, seen=value)


def _learned(track: SeriesHistory, value: float, how: AnomalySettings) -> SeriesHistory:
    return SeriesHistory(normal=(*track.normal, value)[-how.windows :])


def _spread(normal: tuple[float, ...], expected: float, how: AnomalySettings) -> float:
    deviation = median(abs(value - expected) for value in normal)
    return max(_DEVIATION_PER_MAD * deviation, how.relative * abs(expected), how.absolute)
