"""Whether a figure is unlike what it was: robust, and explainable in one sentence.

    expected = median of the last windows that were normal
    spread   = max(1.4826 · MAD, relative · |expected|, absolute)
    score    = (seen − expected) / spread

The median and the median absolute deviation (MAD; 1.4826 of it estimate a standard deviation)
hardly move when single windows are odd. The floors keep a figure that never moved from being odd
when it does by a hair.

An anomaly begins when |score| ≥ `enter` for `persist` windows in a row, all on one side, and ends
when |score| < `leave` for as many: a blip is none, and what swings around the edge is one and not
many. While it lasts nothing is learned from it. When it has lasted for as long as the baseline is,
it is what is normal now, and it ends with that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median

_DEVIATION_PER_MAD = 1.4826


class Change(StrEnum):
    """What a window says about an anomaly."""

    BEGAN = "began"
    ENDED = "ended"
    # It lasted so long that it is what is normal now.
    SETTLED = "settled"


@dataclass(frozen=True)
class Sensitivity:
    """How odd is odd."""

    # Differences below this are never odd, in the figure's own unit.
    absolute: float
    relative: float = 0.1
    enter: float = 5.0
    leave: float = 2.5
    persist: int = 2
    # Of the baseline: how many windows, and how many before anything is called odd.
    windows: int = 30
    windows_min: int = 8


@dataclass(frozen=True)
class Track:
    """What is remembered of one figure."""

    normal: tuple[float, ...] = ()
    # Windows in a row that were odd, or, within an anomaly, those that were not; their values.
    row: tuple[float, ...] = ()
    # When the row began.
    row_since_s: float = 0.0
    # Of an anomaly that goes on: when it began, and its values so far.
    since_s: float | None = None
    lasting: tuple[float, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What one window says."""

    track: Track
    expected: float | None = None
    score: float = 0.0
    change: Change | None = None
    # When what changed began.
    since_s: float = 0.0
    # The value, or the median of the row that made the change.
    seen: float = 0.0


def step(track: Track, at_s: float, value: float, sensitivity: Sensitivity) -> Judgement:
    """Judge the next window of a figure."""
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
