"""Long series made short enough to draw: at most so many points, and honest about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

POINTS_MAX = 220
ROWS_MAX = 24

T = TypeVar("T")


def slices(items: Sequence[T], at_most: int) -> list[Sequence[T]]:
    """Neighbours put together, equally many each, so that no more slices than that remain."""
    if not items:
        return []
    size = -(-len(items) // at_most)
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def shortened(items: Sequence[T], merge: Callable[[Sequence[T]], T], at_most: int) -> list[T]:
    """A series whose points each stand for a slice of it."""
    return [merge(part) for part in slices(items, at_most)]


def rows_behind(items: Sequence[T], worst: Callable[[T], float]) -> list[T]:
    """Of each slice the item that matters most, for a table behind a chart."""
    return [max(part, key=worst) for part in slices(items, ROWS_MAX)]


def window_s(begins: Sequence[datetime]) -> float:
    """How long windows are, by the smallest distance of two; a minute when there is but one."""
    distances = (after - before for before, after in pairwise(begins))
    return min((one.total_seconds() for one in distances), default=60.0)
