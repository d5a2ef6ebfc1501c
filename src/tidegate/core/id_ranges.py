"""Message ids as ranges [first, last]."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Range = tuple[int, int]

_BEHIND_ALL = 1 << 63


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the same ids as sorted ranges that neither overlap nor touch."""
    apart: list[Range] = []
    for first, last in sorted(ranges):
        if apart and first <= apart[-1][1] + 1:
            apart[-1] = (apart[-1][0], max(apart[-1][1], last))
        else:
            apart.append((first, last))
    return apart


def holds(ranges: list[Range], message_id: int) -> bool:
    """Return whether sorted, disjoint ranges contain an id."""
    at = bisect_right(ranges, (message_id, _BEHIND_ALL)) - 1
    return at >= 0 and message_id <= ranges[at][1]
