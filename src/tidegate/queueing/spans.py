"""A row: spans in order of their ids. Returned messages go back to their place."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import islice

from tidegate.core.id_ranges import Range
from tidegate.queueing.span import Span

Row = deque[Span]


def span_first_id(span: Span) -> int:
    """Return the first id of a span, the key by which rows are sorted."""
    return span.segment.first_id + span.low


def insert(row: Row, span: Span) -> None:
    """Put a span into its place, and merge it with adjacent spans of the same segment."""
    first_id = span.first_id
    # Returned messages are older than almost all others; those of a group are newer than most.
    if not row or row[-1].first_id < first_id:
        at = len(row)
    elif first_id < row[0].first_id:
        at = 0
    else:
        at = bisect_right(row, first_id, key=span_first_id)
    if at < len(row):
        behind = row[at]
        if behind.segment is span.segment and behind.low == span.high:
            behind.low = span.low
            span = behind
        else:
            row.insert(at, span)
    else:
        row.append(span)
    if at > 0:
        before = row[at - 1]
        if before.segment is span.segment and before.high == span.low:
            before.high = span.high
            del row[at]


def find(row: Row, message_id: int) -> Span | None:
    """Return the span that holds a message; None if there is none."""
    at = bisect_right(row, message_id, key=span_first_id) - 1
    if at < 0 or message_id >= row[at].first_id + len(row[at]):
        return None
    return row[at]


def between(row: Row, first_id: int, last_id: int) -> Iterator[Span]:
    """Yield the spans that hold ids of a range, in order."""
    start = max(bisect_right(row, first_id, key=span_first_id) - 1, 0)
    for span in islice(row, start, None):
        if span.first_id > last_id:
            return
        if span.first_id + len(span) > first_id:
            yield span


def cut_out(row: Row, span: Span, low: int, high: int) -> Span:
    """Take offsets `low` to `high - 1` out of a span of the row."""
    before, taken, behind = span.cut_out(low, high)
    at = bisect_right(row, span.first_id, key=span_first_id) - 1
    del row[at]
    for piece in (behind, before):
        if piece is not None:
            row.insert(at, piece)
    return taken


def take_between(row: Row, ranges: list[Range]) -> list[Span]:
    """Take the messages with these ids; the ranges are in order and do not touch.

    Examines only the spans between the first and the last range, each once.
    """
    if not row:
        return []
    start = max(bisect_right(row, ranges[0][0], key=span_first_id) - 1, 0)
    behind = len(row) - start
    row.rotate(-start)
    kept: list[Span] = []
    taken: list[Span] = []
    at = 0
    while behind and at < len(ranges):
        span = row[0]
        first_id, last_id = ranges[at]
        if last_id < span.first_id:
            at += 1
            continue
        row.popleft()
        behind -= 1
        low, high = span.offsets_between(first_id, last_id)
        if low >= high:
            kept.append(span)
            continue
        before, inside, rest = span.cut_out(low, high)
        taken.append(inside)
        if before is not None:
            kept.append(before)
        if rest is not None:
            row.appendleft(rest)
            behind += 1
    row.extendleft(reversed(kept))
    row.rotate(start)
    return taken
