"""Groups: of the messages of a group one is out at a time, in order of their ids.

A message is out from when it lies in its lane until it is done: leased, returned and put off it
stays its group's only one. Those behind it are kept aside here, so they stand in nobody's way, and
taking needs to know nothing of groups: what lies in a lane may be taken.

Of a group that is frozen (it is to go to another queue) none comes out any more: all wait here,
behind the one that is with somebody.

Part of a queue may lie in the store only. A message whose group may have an older one there is kept
aside too, until everything up to the message is in memory: the horizon has passed it.
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
    """The groups of one receiver. All spans in here are of one message."""

    __slots__ = ("_beyond", "_is_frozen", "_out", "_waiting")

    def __init__(self, is_frozen: Callable[[str], bool] = lambda group: False) -> None:
        self._is_frozen = is_frozen
        # Where the message lies that is out: its segment, and its offset there.
        self._out: dict[str, tuple[Segment, int]] = {}
        self._waiting: dict[str, Row] = {}
        # Groups of which none is out since the first that waits is beyond the horizon: a heap by
        # its id. Entries that are no longer true are passed over.
        self._beyond: list[tuple[int, str]] = []

    @property
    def has_any_out(self) -> bool:
        return bool(self._out)

    def newer_out(self, group: str, first_id: int) -> Span | None:
        """The message of the group that is out, if its id is higher."""
        out = self._out.get(group)
        if out is None or out[0].first_id + out[1] <= first_id:
            return None
        return Span(out[0], out[1], out[1] + 1, State.READY)

    def enter(self, group: str, span: Span, horizon: int) -> bool:
        """A message comes, or comes back; True when it is out, else it waits here."""
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
            # Not joined with its neighbour: they leave one by one.
            waiting.append(span)
        else:
            at = bisect(waiting, span.first_id, key=lambda other: other.first_id)
            waiting.insert(at, span)

    def step_back(self, group: str) -> Span:
        """The one that is out, and with nobody, waits behind an older one that came late."""
        segment, offset = self._out.pop(group)
        span = Span(segment, offset, offset + 1, State.READY)
        self._wait(group, span)
        return span

    def leave(self, group: str, first_id: int, horizon: int) -> Span | None:
        """A message is done; the one that is out in its place."""
        out = self._out.get(group)
        if out is None or out[0].first_id + out[1] != first_id:
            return None
        del self._out[group]
        return self.next_out(group, horizon)

    def next_out(self, group: str, horizon: int) -> Span | None:
        """None of the group is out: the first that waits is from now on, if there is one."""
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
        """The horizon is further away: who is out now."""
        while self._beyond and self._beyond[0][0] < horizon:
            _, group = heapq.heappop(self._beyond)
            if group not in self._out:
                span = self.next_out(group, horizon)
                if span is not None:
                    yield span

    # Freezing

    def frozen_out(self) -> list[tuple[str, Span]]:
        """Messages of frozen groups that are out."""
        return [
            (group, Span(segment, offset, offset + 1, State.READY))
            for group, (segment, offset) in self._out.items()
            if self._is_frozen(group)
        ]

    def thawed(self, horizon: int) -> Iterator[Span]:
        """Other groups are frozen than before: who is out now."""
        for group in [group for group in self._waiting if group not in self._out]:
            span = self.next_out(group, horizon)
            if span is not None:
                yield span

    # Who waits

    def remove(self, span: Span) -> None:
        """A message that waits here goes."""
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
        """All that wait, which thereby leave."""
        waiting = list(self)
        self._waiting.clear()
        self._beyond.clear()
        return waiting
