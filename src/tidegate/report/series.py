"""Reduction of long series to a number of points that can be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TypeVar

POINTS_MAX = 220
ROWS_MAX = 24

T = TypeVar("T")


def slices(items: Sequence[T], at_most: int) -> list[Sequence[T]]:
    """Divide items into at most `at_most` slices of neighbours, of equal length except the last."""
    if not items:
        return []
    size = -(-len(items) // at_most)
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def shortened(items: Sequence[T], merge: Callable[[Sequence[T]], T], at_most: int) -> list[T]:
    """Return one merged item per slice of neighbours, at most `at_most` in total."""
    return [merge(part) for part in slices(items, at_most)]


def rows_behind(items: Sequence[T], worst: Callable[[T], float]) -> list[T]:
    """Return the item with the highest value of each slice, for the table of a chart."""
    return [max(part, key=worst) for part in slices(items, ROWS_MAX)]


def window_s(begins: Sequence[datetime]) -> float:
    """Return the length of windows in seconds, the smallest distance between two of them.

    A single window counts as one minute.
    """
    distances = (after - before for before, after in pairwise(begins))
    return min((one.total_seconds() for one in distances), default=60.0)
