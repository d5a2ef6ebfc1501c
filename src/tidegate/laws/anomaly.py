"""Robust anomaly detection: whether a metric differs from its past.

    expected = median of the last windows that were normal
    spread   = max(1.4826 · MAD, relative · |expected|, absolute)
    score    = (seen − expected) / spread

Single unusual windows hardly change the median and the median absolute deviation (MAD). 1.4826 ·
MAD estimates the standard deviation. The lower limits of the spread prevent that a constant metric
becomes an anomaly by a tiny change.

An anomaly begins when |score| ≥ `enter` for `persist` windows in a row, all on one side. It ends
when |score| < `leave` for as many windows. So a single outlier is no anomaly, and a metric that
varies around the threshold causes one anomaly and not many. Windows of an anomaly are not learned
as normal. If it lasts as long as the baseline, its values become the new baseline, and it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

_DEVIATION_PER_MAD = 1.4826


class Change(StrEnum):
    """The change of an anomaly that a window causes."""

    BEGAN = "began"
    ENDED = "ended"
    # It lasted so long that its values are normal now.
    SETTLED = "settled"


@dataclass(frozen=True)
class Sensitivity:
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
class Track:
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
class Judgement:
    """The result for one window."""

    track: Track
    expected: float | None = None
    score: float = 0.0
    change: Change | None = None
    # When the anomaly that changed began.
    since_s: float = 0.0
    # The value, or the median of the row that caused the change.
    seen: float = 0.0


def step(track: Track, at_s: float, value: float, sensitivity: Sensitivity) -> Judgement:
    """Judge the next window of a metric."""
    if len(track.normal) < sensitivity.windows_min:
        return Judgement(_learned(track, value, sensitivity), seen=value)
    expected = median(track.normal)
    score = (value - expected) / _spread(track.normal, expected, sensitivity)
    if track.since_s is None:
        return _outside(track, at_s, value, expected, score, sensitivity)
    return _within(track, track.since_s, at_s, value, expected, score, sensitivity)


def _outside(
    track: Track, at_s: float, value: float, expected: float, score: float, how: Sensitivity
) -> Judgement:
    if abs(score) < how.enter:
        return Judgement(_learned(track, value, how), expected, score, seen=value)
    same_side = bool(track.row) and (track.row[-1] > expected) == (value > expected)
    row = (*track.row, value) if same_side else (value,)
    since_s = track.row_since_s if same_side else at_s
    if len(row) < how.persist:
        return Judgement(replace(track, row=row, row_since_s=since_s), expected, score, seen=value)
    begun = replace(track, row=(), since_s=since_s, lasting=row)
    return Judgement(begun, expected, score, Change.BEGAN, since_s, median(row))


def _within(
    track: Track,
    since_s: float,
    at_s: float,
    value: float,
    expected: float,
    score: float,
    how: Sensitivity,
) -> Judgement:
    lasting = (*track.lasting, value)
    row = (*track.row, value) if abs(score) < how.leave else ()
    if len(row) >= how.persist:
        calm = Track(normal=(*track.normal, *row)[-how.windows :])
        return Judgement(calm, expected, score, Change.ENDED, since_s, median(row))
    if len(lasting) >= how.windows:
        settled = Track(normal=lasting[-how.windows :])
        return Judgement(settled, expected, score, Change.SETTLED, since_s, median(lasting))
    return Judgement(replace(track, row=row, lasting=lasting), expected, score, seen=value)


def _learned(track: Track, value: float, how: Sensitivity) -> Track:
    return Track(normal=(*track.normal, value)[-how.windows :])


def _spread(normal: tuple[float, ...], expected: float, how: Sensitivity) -> float:
    deviation = median(abs(value - expected) for value in normal)
    return max(_DEVIATION_PER_MAD * deviation, how.relative * abs(expected), how.absolute)
