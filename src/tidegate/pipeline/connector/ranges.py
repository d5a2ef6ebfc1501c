"""Message ids as ranges, ascending and disjoint: they name the messages of a batch in an offset."""

from __future__ import annotations

from tidegate.core.id_ranges import Range, joined


def written(ranges: list[Range]) -> str:
    """Format ranges as text, such as `1-500,502`."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def read(text: str) -> list[Range]:
    """Parse ranges from text."""
    ranges = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
    return ranges


def count(ranges: list[Range]) -> int:
    """Return the number of ids in the ranges."""
    return sum(last - first + 1 for first, last in ranges)


def overlap(ranges: list[Range], others: list[Range]) -> bool:
    """Return whether some id lies in both lists of ranges."""
    return count(joined([*ranges, *others])) < count(ranges) + count(others)


def without(ranges: list[Range], ids: list[int]) -> list[Range]:
    """Return the ranges without the given ids, which must be ascending."""
    left: list[Range] = []
    taken = iter([*ids, 1 << 63])
    following = next(taken)
    for first, last in ranges:
        while following < first:
            following = next(taken)
        while following <= last:
            if first < following:
                left.append((first, following - 1))
            first = following + 1
            following = next(taken)
        if first <= last:
            left.append((first, last))
    return left
