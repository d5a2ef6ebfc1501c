"""The delayed messages of a queue: what was put for later, and what failed and is tried again.

Part of what was put for later may be in the store only. What is to be tried again is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from tidegate.core.segment import Segment
from tidegate.queueing.expiry import Expiry
from tidegate.queueing.lifecycle import Event
from tidegate.queueing.residents import Residents
from tidegate.queueing.schedule import Schedule
from tidegate.queueing.span import Span


class Delayed:
    """Two schedules, and how much of the first the store has."""

    __slots__ = ("_floor", "_residents", "in_store", "retrying", "scheduled")

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        # By the wall clock, and (to be tried again) by the monotonic one.
        self.scheduled = Schedule()
        self.retrying = Schedule()
        # How many only the store holds.
        self.in_store = 0
        # The last (time, id) of which something has left the schedule: up to there all that is not
        # done is in memory, ready or with somebody, and must not be read from the store again.
        self._floor = (0.0, 0)

    @property
    def count(self) -> int:
        return self.scheduled.count + self.retrying.count + self.in_store

    def __iter__(self) -> Iterator[Span]:
        """Those in memory, in no order."""
        return chain(self.scheduled, self.retrying)

    def retried(self, now: float) -> set[Segment]:
        """The segments of which something was tried, and waits before it is tried again."""
        # What was put for later has had no turn yet.
        return {span.segment for span in self if (span.segment.due_at or 0.0) <= now}

    def put_off(self, span: Span, due: float) -> None:
        """A leased span failed, and is to be tried again at a monotonic time."""
        span.segment.mark_attempted(span.low, span.high)
        self.retrying.add(due, span.advance(Event.PUT_OFF))

    def evict(self) -> tuple[float, int]:
        """Let go of the half that is due last, of which the store has all.

        The time and id behind which nothing of it is in memory.
        """
        # What waits to be tried again stays: the store is not read for that.
        first_tries: list[tuple[float, Span]] = []
        for due, span in self.scheduled.take_all():
            if due == span.segment.due_at:
                first_tries.append((due, span))
            else:
                self.scheduled.add(due, span)
        middle = (len(first_tries) + 1) // 2
        for index, (due, span) in enumerate(first_tries):
            # Parts of it are elsewhere in memory.
            in_parts = len(span) != span.segment.open
            if in_parts or (due, span.segment.first_id) <= self._floor:
                middle = max(middle, index + 1)
        for due, span in first_tries[:middle]:
            self.scheduled.add(due, span)
        for _, span in first_tries[middle:]:
            self.in_store += len(span)
            self._residents.remove(span.segment)
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

    def take_expired(self, expiry: Expiry, now: float) -> Iterator[Span]:
        """Those in memory whose time is over, as spans of their own."""
        for schedule in (self.scheduled, self.retrying):
            if any(span.segment.expires_at is not None for span in schedule):
                for due, span in schedule.take_all():
                    yield from self._cut_expired(schedule, due, span, expiry.ranges(span, now))

    def _cut_expired(
        self, schedule: Schedule, due: float, span: Span, ranges: list[tuple[int, int]]
    ) -> Iterator[Span]:
        """What is over; the rest waits on."""
        low = span.low
        for expired_low, expired_high in [*ranges, (span.high, span.high)]:
            if expired_low > low:
                schedule.add(due, Span(span.segment, low, expired_low, span.state))
            if expired_high > expired_low:
                self._note_left(span.segment)
                yield Span(span.segment, expired_low, expired_high, span.state)
            low = expired_high

    def take_all(self) -> tuple[list[Span], int]:
        """All in memory, and how many were in the store only."""
        in_store, self.in_store = self.in_store, 0
        both = self.scheduled.take_all() + self.retrying.take_all()
        return [span for _, span in both], in_store
