"""The assignment slots of the messages in a segment."""

from __future__ import annotations

from tidegate.core.replication import home_index, home_key
from tidegate.core.segment import Segment


def homes_of(segment: Segment) -> set[int]:
    """Return the slots of the open messages; empty for messages that may be at any replica."""
    if segment.receivers is None and segment.attributes is None:
        return set()
    keys = {
        _key(segment, offset) for low, high in segment.open_ranges() for offset in range(low, high)
    }
    return {home_index(key) for key in keys if key is not None}


def _key(segment: Segment, offset: int) -> str | int | None:
    receivers, attributes = segment.receivers, segment.attributes
    receiver = None
    if receivers is not None:
        receiver = receivers[offset] if len(receivers) > 1 else receivers[0]
    mine = None if attributes is None else attributes[offset]
    if mine is None:
        return receiver
    return home_key(receiver, mine.group, mine.dedup_id)


def runs_by_home(segment: Segment) -> list[tuple[int, int]]:
    """Return offsets [low, high) of runs of open messages with the same slot, in order."""
    runs: list[tuple[int, int]] = []
    for low, high in segment.open_ranges():
        begin = low
        home = _home(segment, low)
        for offset in range(low + 1, high):
            if _home(segment, offset) != home:
                runs.append((begin, offset))
                begin, home = offset, _home(segment, offset)
        runs.append((begin, high))
    return runs


def _home(segment: Segment, offset: int) -> int | None:
    key = _key(segment, offset)
    return None if key is None else home_index(key)
