"""Which hours of a lake are too old, by a clock that may be wrong.

A clock that jumps ahead by a year would make all history older than any retention. So the clock is
believed only as far as the lake bears it out: up to a day after the 24th newest hour in which
anything was recorded,

    present = min(clock, end of the day that begins with the 24th newest hour)

Who records all the time notices nothing. After a jump nothing goes until a day was recorded by the
new time; whoever records an hour a day keeps some hours longer, and has few of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

HOUR_S = 3600
# Hours with rows that a new time needs before it is believed; fewer when fewer are to be kept.
_HOURS_BELIEVED = 24
_HOURS_BELIEVED_LEAST = 2


def expired_hours(hours: Iterable[int], retention_s: float, now_s: float) -> set[int]:
    """Of the hours since 1970 with rows of whatever kind, those to delete; 0 s keeps all."""
    if not retention_s:
        return set()
    # What a clock wrote that was ahead bears nothing out.
    past = sorted({hour for hour in hours if hour * HOUR_S <= now_s}, reverse=True)
    kept_hours = math.ceil(retention_s / HOUR_S)
    needed = max(min(_HOURS_BELIEVED, kept_hours), _HOURS_BELIEVED_LEAST)
    if len(past) < needed:
        return set()
    present_s = min(now_s, (past[needed - 1] + needed) * HOUR_S)
    return {hour for hour in past if (hour + 1) * HOUR_S + retention_s < present_s}
