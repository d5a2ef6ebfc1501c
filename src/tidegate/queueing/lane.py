"""A lane: ready messages of one priority in the order in which they were stored.

The head is in memory. When memory is short the rest is a tail that only the store
holds: then new segments join the tail, and the tail comes back from its front, so the
order never changes. Returned messages go back to their place in the head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tidegate.core.segment import Segment
from tidegate.queueing.span import Span


class Lane:
    """Spans in order of their ids, and the counters of the tail behind them."""

    __slots__ = (
        "count",
        "head_bytes",
        "newest_id",
        "priority",
        "pulled",
        "ready",
        "tail_bytes",
        "tail_count",
        "tail_from",
        "tail_last",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.ready: deque[Span] = deque()
        # Messages in the head, and what their payloads weigh (returned ones count again).
        self.count = 0
        self.head_bytes = 0
        # The tail: every live segment of the lane with an id from `tail_from` to `tail_last`.
        self.tail_count = 0
        self.tail_bytes = 0
        self.tail_from = 0
        self.tail_last = 0
        # Segments in the range of the tail that are in memory all the same: a selective read
        # fetched them, or they were stored late.
        self.pulled: set[int] = set()
        # The newest that ever came; what comes with an older id was stored late.
        self.newest_id = 0

    def __len__(self) -> int:
        return self.count + self.tail_count

    @property
    def first_id(self) -> int:
        return self.ready[0].first_id

    @property
    def waits_for_tail(self) -> bool:
        """Whether the next message is one that only the store holds."""
        return bool(self.tail_count) and (not self.ready or self.first_id > self.tail_from)

    def append(self, span: Span) -> None:
        """A fresh span, newer than all others."""
        self.ready.append(span)
        self.count += len(span)
        self.head_bytes += span.payload_bytes

    def take(self, count: int) -> Span:
        """The first span, at most `count` messages of it."""
        span = self.ready[0]
        if len(span) > count:
            span = span.split(count)
        else:
            self.ready.popleft()
        self.count -= len(span)
        self.head_bytes -= span.payload_bytes
        return span

    def put_back(self, span: Span) -> None:
        """A returned or pulled span, at its place; join neighbours that are alike."""
        self.count += len(span)
        self.head_bytes += span.payload_bytes
        ready = self.ready
        first_id = span.first_id
        # Returned messages are older than almost all others: look from the front.
        at = 0
        for other in ready:
            if other.first_id > first_id:
                break
            at += 1
        if at < len(ready):
            behind = ready[at]
            if behind.segment is span.segment and behind.low == span.high:
                behind.low = span.low
                span = behind
            else:
                ready.insert(at, span)
        else:
            ready.append(span)
        if at > 0:
            before = ready[at - 1]
            if before.segment is span.segment and before.high == span.low:
                before.high = span.high
                del ready[at]

    def remove(self, span: Span, low: int, high: int) -> Span:
        """Take offsets `low` to `high - 1` out of the middle of a ready span."""
        before, taken, behind = span.cut_out(low, high)
        at = self.ready.index(span)
        del self.ready[at]
        for piece in (behind, before):
            if piece is not None:
                self.ready.insert(at, piece)
        self.count -= high - low
        self.head_bytes -= taken.payload_bytes
        return taken

    def spans(self) -> Iterator[Span]:
        return iter(self.ready)

    # The tail

    def send_to_tail(self, segment: Segment, open_count: int) -> None:
        """A segment that stays in the store only."""
        if not self.tail_count:
            self.tail_from = segment.first_id
        self.tail_count += open_count
        self.tail_bytes += segment.payload_bytes
        self.tail_last = max(self.tail_last, segment.last_id)

    def expect_tail(self, first_id: int, last_id: int, count: int, payload_bytes: int) -> None:
        """What a reload found in the store beyond the head."""
        self.tail_from, self.tail_last = first_id, last_id
        self.tail_count, self.tail_bytes = count, payload_bytes
        self.newest_id = last_id

    def comes_late(self, segment: Segment, newest_id: int) -> bool:
        """Note a new segment; whether it lies before others that are known, here or beside."""
        newest_id = max(newest_id, self.newest_id)
        self.newest_id = max(segment.last_id, self.newest_id)
        if segment.first_id > newest_id:
            return False
        if self.tail_count and segment.first_id >= self.tail_from:
            self.pulled.add(segment.first_id)
        return True

    def leave_tail(self, segment: Segment, *, pulled: bool = False) -> bool:
        """A segment of the tail is in memory now; False if it was before."""
        if not self.tail_count or not self.tail_from <= segment.first_id <= self.tail_last:
            return False
        known = segment.first_id in self.pulled
        if not pulled:
            self.tail_from = segment.last_id + 1
            self.pulled.discard(segment.first_id)
        if known:
            return False
        if pulled:
            self.pulled.add(segment.first_id)
        self.tail_bytes = max(self.tail_bytes - segment.payload_bytes, 0)
        self.tail_count -= segment.open
        if self.tail_count <= 0:
            self.forget_tail()
        return True

    def forget_tail(self) -> int:
        """Drop the tail (it was purged, or found empty); how many messages it was."""
        count, self.tail_count, self.tail_bytes = self.tail_count, 0, 0
        self.pulled.clear()
        return count
