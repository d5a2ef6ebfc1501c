"""OpenSLO durations: whole minutes, hours, days and weeks; months vary in length."""

from __future__ import annotations

import math
import re

_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_SHORTHAND = re.compile(r"(?P<number>\d{1,9})(?P<unit>[mhdwMQY])")
# About two thousand years.
_MINUTES_MAX = 1_000_000_000

SHORTHAND_IS = "a whole number and one of m, h, d, w, such as 5m or 28d"


def shorthand_s(said: object) -> float | None:
    """Return the seconds of a shorthand; None if its length is not fixed.

    A bare number means minutes.
    """
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said) * 60.0 if 0.0 < said < _MINUTES_MAX else None
    match = _SHORTHAND.fullmatch(said.strip()) if isinstance(said, str) else None
    if match is None or match["unit"] not in _SECONDS:
        return None
    return float(int(match["number"]) * _SECONDS[match["unit"]])


def shorthand(duration_s: float) -> str:
    """Return the shorthand of a duration, rounded up to whole minutes."""
    minutes = math.ceil(duration_s / 60.0)
    for unit in ("d", "h"):
        scale = _SECONDS[unit] // 60
        if minutes % scale == 0:
            return f"{minutes // scale}{unit}"
    return f"{minutes}m"
