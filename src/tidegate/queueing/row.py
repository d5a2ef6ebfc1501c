"""A row: spans in order of their ids, where returned messages find their place again."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from tidegate.queueing.span import Span

Row = deque[Span]


def _first_id(span: Span) -> int:
    return span.segment.first_id + span.low


def insert(row: Row, span: Span) -> None:
    """Put a span at its place; join neighbours that are alike."""
    first_id = span.first_id
    # Returned messages are older than almost all others, those of a group newer than most.
    if not row or row[-1].first_id < first_id:
        at = len(row)
    elif first_id < row[0].first_id:
        at = 0
    else:
        at = bisect_right(row, first_id, key=_first_id)
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
    """The span that holds a message."""
    at = bisect_right(row, message_id, key=_first_id) - 1
    if at < 0 or message_id >= row[at].first_id + len(row[at]):
        return None
    return row[at]


def cut_out(row: Row, span: Span, low: int, high: int) -> Span:
    """Take offsets `low` to `high - 1` out of the middle of a span of the row."""
    before, taken, behind = span.cut_out(low, high)
    at = row.index(span)
    del row[at]
    for piece in (behind, before):
        if piece is not None:
            row.insert(at, piece)
    return taken
