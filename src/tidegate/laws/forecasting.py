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
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidegate.core.quantities import format_duration
from tidegate.laws.backtest import Origins, bands, length_min, mean_error, origins, truth
from tidegate.laws.extrapolation import Profile, Way, last_known, profile, season_ago

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
    tried = origins(first, length, steps)
    if tried is None or not len(history):
        return _unknown(history, steps, step_s)
    ways = _ways(steps, profiles)
    real = truth(history, tried.choose, steps)
    # Each series takes its own best method and its own best baseline, both on the earlier windows.
    chosen = _best([mean_error(real - _again(way, history, tried.choose, steps)) for way in ways])
    base_seasons = [p.season for p in profiles] or [0]
    base_chosen = _best(
        [mean_error(real - _ago(history, tried.choose, steps, s)) for s in base_seasons]
    )
    ours = _picked(chosen, [_again(way, history, tried.all, steps) for way in ways])
    base = _picked(base_chosen, [_ago(history, tried.all, steps, s) for s in base_seasons])
    expected = _picked(chosen, [way.expected(history, length, steps)[None] for way in ways])[0]
    expected = np.where(np.isfinite(expected), expected, last_known(history)[:, None])
    baseline = _picked(base_chosen, [_ago(history, (length,), steps, s) for s in base_seasons])[0]
    judged = _judge(history, tried, ours, base, steps, confidence)
    real = truth(history, tried.all, steps)
    low, high = _interval(expected, *bands(real - ours, confidence))
    baseline_low, baseline_high = _interval(baseline, *bands(real - base, confidence))
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
    low, high = bands(truth(history, tried.choose, steps) - ours[:split], confidence)
    residual = truth(history, tried.judge, steps) - ours[split:]
    base_residual = truth(history, tried.judge, steps) - base[split:]
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


def _usable(history: Matrix, steps: int, seasons: Sequence[int]) -> tuple[int, list[Profile]]:
    """Return the first possible origin, and the profiles with enough history."""
    length = history.shape[1]
    first, profiles = min(steps, length), list[Profile]()
    for season in sorted(set(seasons)):
        if origins(season + 1, length, steps) is None:
            continue
        found = profile(history, season, steps)
        if found is not None:
            # The first season has no profile yet, so windows there could not be compared.
            first = season + 1
            profiles.append(found)
    return first, profiles


def _ways(steps: int, profiles: Sequence[Profile]) -> list[Way]:
    """Return the methods to try: slow and fast levels, a trend, and each season close or loose."""
    ways = [Way(half_life=max(steps * part, 1.0), damping=1.0) for part in (0.05, 0.25, 1.0)]
    ways.append(Way(half_life=max(steps / 4, 2.0), damping=1.0 - 1.0 / steps, has_trend=True))
    ways += [
        Way(max(half_life, 1.0), damping, usual)
        for usual in profiles
        for half_life in (steps / 12, steps / 2)
        for damping in (1.0, 0.5 ** (2.0 / steps))
    ]
    return ways


def _again(way: Way, history: Matrix, at: Sequence[int], steps: int) -> Matrix:
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
