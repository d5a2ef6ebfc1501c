"""A lane: ready messages of one priority, in the order of their ids.

The head of a lane is in memory. If memory is short, the rest is a tail that is in the store only.
New segments then join the tail, and the tail is read back from its front, so the order never
changes. Returned messages go back to their place in the head.

While a lane contains messages of tenants, its head is shared among them: see `Tenants`. A lane
without tenants does no work for single messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from tidegate.core.id_ranges import Range
from tidegate.core.segment import Segment
from tidegate.queueing import row
from tidegate.queueing.groups import has_groups
from tidegate.queueing.row import Row
from tidegate.queueing.span import Span
from tidegate.queueing.tenants import Tenants, carries_tenants

# Above all ids.
NO_ID = 1 << 62


class Lane:
    """The head of a lane as spans in order of their ids, and the extent of its tail."""

    __slots__ = (
        "count",
        "head_bytes",
        "held_bytes",
        "held_count",
        "newest_id",
        "priority",
        "pulled",
        "ready",
        "stalled",
        "tail_arrived_at",
        "tail_bytes",
        "tail_count",
        "tail_from",
        "tail_groups_from",
        "tail_last",
        "tail_newest_at",
        "tail_unsorted_to",
        "tenants",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        # The head: one row, or one for each tenant.
        self.ready: Row = deque()
        self.tenants: Tenants | None = None
        # Messages in the head, and their payload bytes. Returned ones count again.
        self.count = 0
        self.head_bytes = 0
        # Messages of this lane in memory that wait for an earlier one of their group.
        self.held_count = 0
        self.held_bytes = 0
        # The tail: every open segment of the lane with an id from `tail_from` to `tail_last`.
        self.tail_count = 0
        self.tail_bytes = 0
        self.tail_from = 0
        self.tail_last = 0
        # No message of the tail arrived before `tail_arrived_at`. From `tail_groups_from` on it may
        # contain messages of groups.
        self.tail_arrived_at = 0.0
        self.tail_groups_from = NO_ID
        # Up to this id a segment may have arrived before one with a lower id: a former owner stored
        # it late or had another clock. Behind it, ids and arrivals are in the same order, and the
        # newest arrived at `tail_newest_at`.
        self.tail_unsorted_to = 0
        self.tail_newest_at = 0.0
        # Whether the tail is not read for now, since the head is full of messages that wait for
        # their groups. Clients then do not wait for the tail.
        self.stalled = False
        # Segments within the tail's range that are in memory: a selective read has fetched them, or
        # they were stored late.
        self.pulled: set[int] = set()
        # The highest id that ever came. A segment with a lower one was stored late.
        self.newest_id = 0

    def __len__(self) -> int:
        return self.count + self.held_count + self.tail_count

    @property
    def first(self) -> Span:
        """The span from which the next message is taken."""
        return self.ready[0] if self.tenants is None else self.tenants.first

    @property
    def waits_for_tail(self) -> bool:
        """Whether the next message is in the store only."""
        return bool(self.tail_count) and (not self.count or self.first.first_id > self.tail_from)

    def insert(self, span: Span) -> None:
        """Put a ready span, new or returned, into its place."""
        self.count += len(span)
        self.head_bytes += span.payload_bytes
        tenants = self.tenants
        if tenants is None and span.segment.attributes is not None and carries_tenants(span):
            tenants = self._share()
        if tenants is not None:
            tenants.insert(span)
        elif self.ready:
            row.insert(self.ready, span)
        else:
            self.ready.append(span)

    def _share(self) -> Tenants:
        tenants = self.tenants = Tenants()
        while self.ready:
            tenants.insert(self.ready.popleft())
        return tenants

    def take(self, count: int) -> Span:
        """Take at most `count` messages from the first span."""
        if self.tenants is not None:
            return self._without(self.tenants.take(count))
        span = self.ready[0]
        if len(span) > count:
            span = span.split(count)
        else:
            self.ready.popleft()
        self.count -= len(span)
        self.head_bytes -= span.payload_bytes
        return span

    def _without(self, span: Span) -> Span:
        self.count -= len(span)
        self.head_bytes -= span.payload_bytes
        if not self.count:
            self.tenants = None
        return span

    def remove(self, span: Span, low: int, high: int) -> Span:
        """Take offsets `low` to `high - 1` out of a ready span."""
        if self.tenants is None:
            return self._without(row.cut_out(self.ready, span, low, high))
        return self._without(self.tenants.cut_out(span, low, high))

    def take_between(self, ranges: list[Range]) -> list[Span]:
        """Take the messages with these ids; the ranges are in order and do not touch."""
        if self.tenants is None:
            taken = row.take_between(self.ready, ranges)
        else:
            taken = self.tenants.take_between(ranges)
        return [self._without(span) for span in taken]

    def find(self, span: Span) -> Span | None:
        """Return the ready span that holds the first message of `span`; None if there is none."""
        ready = self.ready if self.tenants is None else self.tenants.row_of(span)
        return row.find(ready, span.first_id)

    def withdraw(self, span: Span) -> bool:
        """Take a span out, wherever it is; False if it is not in the lane."""
        around = self.find(span)
        if around is None:
            return False
        self.remove(around, span.low, span.high)
        return True

    def spans(self) -> Iterator[Span]:
        """Iterate over the head in order of ids."""
        return iter(self.ready if self.tenants is None else self.tenants)

    def rows(self) -> list[Row]:
        """Return the head in parts, each in order of ids."""
        return [self.ready] if self.tenants is None else self.tenants.rows()

    @property
    def oldest(self) -> Span:
        return self.ready[0] if self.tenants is None else self.tenants.oldest

    # The tail

    def send_to_tail(self, segment: Segment, open_count: int) -> None:
        """Add a segment that stays in the store only."""
        if not self.tail_count:
            self.tail_from = segment.first_id
            self.tail_arrived_at = self.tail_newest_at = segment.arrived_at
        elif segment.arrived_at >= self.tail_newest_at:
            self.tail_newest_at = segment.arrived_at
        else:
            # The wall clock was set back.
            self.tail_arrived_at = min(self.tail_arrived_at, segment.arrived_at)
            self.tail_unsorted_to = segment.last_id
        if self.tail_groups_from == NO_ID and has_groups(segment):
            self.tail_groups_from = segment.first_id
        self.tail_count += open_count
        self.tail_bytes += segment.payload_bytes
        self.tail_last = max(self.tail_last, segment.last_id)

    def expect_tail(
        self, first_id: int, last_id: int, count: int, payload_bytes: int, arrived_at: float
    ) -> None:
        """Set the tail to what a reload found in the store."""
        self.tail_arrived_at = self.tail_newest_at = arrived_at
        self.tail_unsorted_to = last_id
        self.tail_groups_from = first_id
        self.tail_from, self.tail_last = first_id, last_id
        self.tail_count, self.tail_bytes = count, payload_bytes
        self.newest_id = last_id

    def comes_late(self, segment: Segment, newest_id: int) -> bool:
        """Note a new segment; return whether its id is below others that are known."""
        newest_id = max(newest_id, self.newest_id)
        self.newest_id = max(segment.last_id, self.newest_id)
        if segment.first_id > newest_id:
            return False
        if self.tail_count and segment.first_id >= self.tail_from:
            self.pulled.add(segment.first_id)
        return True

    def holds(self, segment: Segment) -> bool:
        """Return whether a segment is in the tail, and in the store only."""
        return (
            self.tail_count > 0
            and self.tail_from <= segment.first_id <= self.tail_last
            and segment.first_id not in self.pulled
        )

    def leave_tail(self, segment: Segment, *, pulled: bool = False) -> bool:
        """Note that a segment of the tail is in memory now; False if it was before."""
        if not self.tail_count or not self.tail_from <= segment.first_id <= self.tail_last:
            return False
        known = segment.first_id in self.pulled
        if not pulled:
            self.tail_from = segment.open_end_id
            # If it was in memory already, it may have been stored late, and its arrival does not
            # bound those behind it.
            if not known and segment.first_id > self.tail_unsorted_to:
                self.tail_arrived_at = segment.arrived_at
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
        """Drop the tail, which was purged or found empty; return how many messages it had."""
        count, self.tail_count, self.tail_bytes = self.tail_count, 0, 0
        self.tail_groups_from = NO_ID
        self.pulled.clear()
        return count
