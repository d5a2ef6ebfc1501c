"""Retention: which hours of a lake are too old, decided by a clock that may be wrong.

A clock that jumps ahead by a year would make all history look expired. The clock is therefore
trusted only as far as recorded rows confirm it: up to one day after the 24th newest recorded hour.

    present = min(clock, end of the day that begins with the 24th newest hour)

A process that records continuously is not affected. After a jump of the clock nothing is deleted
until a day has been recorded at the new time. A process that records one hour a day keeps some
hours longer than configured, but it has few hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

HOUR_S = 3600
# Recorded hours that confirm a new time. Fewer are needed if the retention is shorter than this.
_HOURS_BELIEVED = 24
_HOURS_BELIEVED_LEAST = 2


def expired_hours(hours: Iterable[int], retention_s: float, now_s: float) -> set[int]:
    """Return the hours to delete, from the hours since 1970 that have rows of any kind.

    A retention of 0 keeps all hours.
    """
    if not retention_s:
        return set()
    # Hours in the future come from a clock that was ahead, and confirm nothing.
    past = sorted({hour for hour in hours if hour * HOUR_S <= now_s}, reverse=True)
    kept_hours = math.ceil(retention_s / HOUR_S)
    needed = max(min(_HOURS_BELIEVED, kept_hours), _HOURS_BELIEVED_LEAST)
    if len(past) < needed:
        return set()
    present_s = min(now_s, (past[needed - 1] + needed) * HOUR_S)
    return {hour for hour in past if (hour + 1) * HOUR_S + retention_s < present_s}
