"""Ids as ranges, in order and apart: how a batch is named, and written down in an offset."""

from __future__ import annotations

from tidegate.core.id_ranges import Range, joined


def written(ranges: list[Range]) -> str:
    """As `1-500,502`."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def read(text: str) -> list[Range]:
    ranges = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
    return ranges


def count(ranges: list[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def overlap(ranges: list[Range], others: list[Range]) -> bool:
    """Whether some id lies in both."""
    return count(joined([*ranges, *others])) < count(ranges) + count(others)


def without(ranges: list[Range], ids: list[int]) -> list[Range]:
    """What is left when these ids, in order, are taken out."""
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
