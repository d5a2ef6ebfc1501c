"""The delayed messages of a queue: put for later, or failed and waiting for a retry.

Some of the messages put for later may be in the store only. Messages that wait for a retry are
always in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from tidegate.core.segment import Segment
from tidegate.queueing.spans import MessageEvent, Span

if TYPE_CHECKING:
    from tidegate.queueing.queue import ExpiryTracker, InMemorySegments


class DelayedMessages:
    """Two schedules, and the number of delayed messages that are in the store only."""

    __slots__ = ("_floor", "_in_memory", "in_store", "retrying", "scheduled")

    def __init__(self, in_memory: InMemorySegments) -> None:
        self._in_memory = in_memory
        # Put for later, by the wall clock; and to be retried, by the monotonic clock.
        self.scheduled = Schedule()
        self.retrying = Schedule()
        # Number of messages that are in the store only.
        self.in_store = 0
        # The highest (due time, id) that has left the schedule. Up to there all open messages are
        # in memory, ready or leased, and must not be read from the store again.
        self._floor = (0.0, 0)

    @property
    def count(self) -> int:
        return self.scheduled.count + self.retrying.count + self.in_store

    def __iter__(self) -> Iterator[Span]:
        """Iterate over those in memory, in no order."""
        return chain(self.scheduled, self.retrying)

    def retried(self, now: float) -> set[Segment]:
        """Return the segments with messages that have failed and wait for their retry."""
        # A segment that was put for later has not been tried before it is due.
        return {span.segment for span in self if (span.segment.due_at or 0.0) <= now}

    def put_off(self, span: Span, due: float) -> None:
        """Schedule a leased span that failed for a retry at a monotonic time."""
        span.segment.mark_attempted(span.low, span.high)
        self.retrying.add(due, span.advance(MessageEvent.PUT_OFF))

    def evict(self) -> tuple[float, int]:
        """Drop the later half of the scheduled messages from memory; the store has them.

        Returns the time and id behind which none of them is in memory.
        """
        # Retries stay: they are not read back from the store.
        first_tries: list[tuple[float, Span]] = []
        for due, span in self.scheduled.take_all():
            if due == span.segment.due_at:
                first_tries.append((due, span))
            else:
                self.scheduled.add(due, span)
        middle = (len(first_tries) + 1) // 2
        for index, (due, span) in enumerate(first_tries):
            # If not all open messages are here, other parts of the segment are elsewhere in memory.
            in_parts = len(span) != span.segment.open
            if in_parts or (due, span.segment.first_id) <= self._floor:
                middle = max(middle, index + 1)
        for due, span in first_tries[:middle]:
            self.scheduled.add(due, span)
        for _, span in first_tries[middle:]:
            self.in_store += len(span)
            self._in_memory.remove(span.segment)
        dues = [(due, span.segment.first_id) for due, span in first_tries[:middle]]
        return max([self._floor, *dues])

    def _note_left(self, segment: Segment) -> None:
        if segment.due_at is not None:
            self._floor = max(self._floor, (segment.due_at, segment.first_id))

    def take_due(self, now_wall: float, now_monotonic: float) -> list[Span]:
        due = self.scheduled.take_due(now_wall)
        for span in due:
            self._note_left(span.segment)
        return due + self.retrying.take_due(now_monotonic)

    def take_expired(self, expiry: ExpiryTracker, now: float) -> Iterator[Span]:
        """Take the expired messages in memory, as spans of their own."""
        for schedule in (self.scheduled, self.retrying):
            if any(span.segment.expires_at is not None for span in schedule):
                for due, span in schedule.take_all():
                    yield from self._cut_expired(schedule, due, span, expiry.ranges(span, now))

    def _cut_expired(
        self, schedule: Schedule, due: float, span: Span, ranges: list[tuple[int, int]]
    ) -> Iterator[Span]:
        """Yield the expired parts of a span, and schedule the rest again."""
        low = span.low
        for expired_low, expired_high in [*ranges, (span.high, span.high)]:
            if expired_low > low:
                schedule.add(due, Span(span.segment, low, expired_low, span.state))
            if expired_high > expired_low:
                self._note_left(span.segment)
                yield Span(span.segment, expired_low, expired_high, span.state)
            low = expired_high

    def take_all(self) -> tuple[list[Span], int]:
        """Take all messages in memory; also return how many were in the store only."""
        in_store, self.in_store = self.in_store, 0
        both = self.scheduled.take_all() + self.retrying.take_all()
        return [span for _, span in both], in_store


NEVER = float("inf")


class Schedule:
    """Spans by due time, on the clock that the caller reads."""

    __slots__ = ("_heap", "count")

    def __init__(self) -> None:
        # Ids break ties, so that messages due together come in order. A span is here only once.
        self._heap: list[tuple[float, int, Span]] = []
        self.count = 0

    def add(self, due: float, span: Span) -> None:
        heapq.heappush(self._heap, (due, span.first_id, span))
        self.count += len(span)

    @property
    def next_due(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def take_due(self, now: float) -> list[Span]:
        """Take the spans that are due."""
        due: list[Span] = []
        while self._heap and self._heap[0][0] <= now:
            span = heapq.heappop(self._heap)[2]
            self.count -= len(span)
            due.append(span)
        return due

    def take_all(self) -> list[tuple[float, Span]]:
        """Take all spans with their due times, in order."""
        heap, self._heap, self.count = self._heap, [], 0
        return [(due, span) for due, _, span in sorted(heap, key=lambda entry: entry[:2])]

    def __iter__(self) -> Iterator[Span]:
        return (span for _, _, span in self._heap)
