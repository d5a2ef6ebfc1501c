"""Message groups: one message of a group is out at a time, in order of their ids.

A message is out from when it enters its lane until it is done. While it is leased, returned or put
off, no other message of its group comes out. Later ones are kept aside here. They block no other
message, and `Queue.take` needs to know nothing of groups: every message in a lane may be taken.

From a frozen group, which is about to move to another queue, no more messages come out.

Part of the queue may be in the store only. A message whose group may have an older message there is
kept aside too, until everything up to it is in memory. The horizon is the id below which that is
so.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator

from tidegate.core.segment import Segment
from tidegate.queueing.lifecycle import State
from tidegate.queueing.row import Row
from tidegate.queueing.span import Span


def group_of(segment: Segment, offset: int) -> str | None:
    attributes = segment.attributes
    mine = None if attributes is None else attributes[offset]
    return None if mine is None else mine.group


def has_groups(segment: Segment) -> bool:
    attributes = segment.attributes
    return attributes is not None and any(
        mine is not None and mine.group is not None for mine in attributes
    )


class Groups:
    """The groups of one receiver. All spans here are of one message."""

    __slots__ = ("_beyond", "_is_frozen", "_out", "_waiting")

    def __init__(self, is_frozen: Callable[[str], bool] = lambda group: False) -> None:
        self._is_frozen = is_frozen
        # Group -> the message that is out: its segment and its offset there.
        self._out: dict[str, tuple[Segment, int]] = {}
        self._waiting: dict[str, Row] = {}
        # Groups with none out, since their first message is beyond the horizon: a heap by its id.
        # Outdated entries are skipped.
        self._beyond: list[tuple[int, str]] = []

    @property
    def has_any_out(self) -> bool:
        return bool(self._out)

    def newer_out(self, group: str, first_id: int) -> Span | None:
        """Return the message of the group that is out if its id is above `first_id`, else None."""
        out = self._out.get(group)
        if out is None or out[0].first_id + out[1] <= first_id:
            return None
        return Span(out[0], out[1], out[1] + 1, State.READY)

    def enter(self, group: str, span: Span, horizon: int) -> bool:
        """Add a new or returned message; return whether it is out. Otherwise it waits here."""
        first_id = span.first_id
        out = self._out.get(group)
        if out is not None:
            if out[0].first_id + out[1] == first_id:
                return True
            self._wait(group, span)
            return False
        waiting = self._waiting.get(group)
        is_first = waiting is None or first_id < waiting[0].first_id
        if is_first and first_id < horizon and not self._is_frozen(group):
            self._out[group] = (span.segment, span.low)
            return True
        self._wait(group, span)
        if is_first:
            heapq.heappush(self._beyond, (first_id, group))
        return False

    def _wait(self, group: str, span: Span) -> None:
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = deque()
        if not waiting or waiting[-1].first_id < span.first_id:
            # Not merged with adjacent messages, since they leave one by one.
            waiting.append(span)
        else:
            at = bisect(waiting, span.first_id, key=lambda other: other.first_id)
            waiting.insert(at, span)

    def step_back(self, group: str) -> Span:
        """Make the message that is out, and not leased, wait behind a late, older one."""
        segment, offset = self._out.pop(group)
        span = Span(segment, offset, offset + 1, State.READY)
        self._wait(group, span)
        return span

    def leave(self, group: str, first_id: int, horizon: int) -> Span | None:
        """Note that a message is done; return the next one of its group, which is out now."""
        out = self._out.get(group)
        if out is None or out[0].first_id + out[1] != first_id:
            return None
        del self._out[group]
        return self.next_out(group, horizon)

    def next_out(self, group: str, horizon: int) -> Span | None:
        """Let the first waiting message of the group out and return it; None if there is none."""
        waiting = self._waiting.get(group)
        if waiting is None or self._is_frozen(group):
            return None
        span = waiting[0]
        if span.first_id >= horizon:
            heapq.heappush(self._beyond, (span.first_id, group))
            return None
        self._remove(group, waiting, span)
        self._out[group] = (span.segment, span.low)
        return span

    def _remove(self, group: str, waiting: Row, span: Span) -> None:
        waiting.remove(span)
        if not waiting:
            del self._waiting[group]

    def reach(self, horizon: int) -> Iterator[Span]:
        """Yield the messages that a higher horizon lets out."""
        while self._beyond and self._beyond[0][0] < horizon:
            _, group = heapq.heappop(self._beyond)
            if group not in self._out:
                span = self.next_out(group, horizon)
                if span is not None:
                    yield span

    # Freezing

    def frozen_out(self) -> list[tuple[str, Span]]:
        """Return the messages of frozen groups that are out."""
        return [
            (group, Span(segment, offset, offset + 1, State.READY))
            for group, (segment, offset) in self._out.items()
            if self._is_frozen(group)
        ]

    def thawed(self, horizon: int) -> Iterator[Span]:
        """Yield the messages that come out after other groups were frozen than before."""
        for group in [group for group in self._waiting if group not in self._out]:
            span = self.next_out(group, horizon)
            if span is not None:
                yield span

    # Waiting messages

    def remove(self, span: Span) -> None:
        """Remove a message that waits here."""
        group = group_of(span.segment, span.low)
        assert group is not None
        self._remove(group, self._waiting[group], span)

    def __iter__(self) -> Iterator[Span]:
        return (span for waiting in self._waiting.values() for span in waiting)

    @property
    def oldest(self) -> Span | None:
        firsts = (waiting[0] for waiting in self._waiting.values())
        return min(firsts, key=lambda span: span.first_id, default=None)

    def clear(self) -> list[Span]:
        """Remove and return all waiting messages."""
        waiting = list(self)
        self._waiting.clear()
        self._beyond.clear()
        return waiting
