"""The lanes of a queue: ready messages in memory, by receiver and priority.

Unaddressed messages are in one lane per priority. Messages for a receiver are in lanes of that
receiver, which no other client sees.
"""

from __future__ import annotations

import heapq
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tidegate.core.model import IdRange
from tidegate.core.segment import Segment
from tidegate.queueing import spans as spans_module
from tidegate.queueing.fairness import Tenants, carries_tenants
from tidegate.queueing.spans import ANYONE, MessageState, Row, Span

if TYPE_CHECKING:
    from tidegate.queueing.queue import ExpiryTracker


# A lane: ready messages of one priority, in the order of their ids.
#
# The head of a lane is in memory. If memory is short, the rest is a tail that is in the store only.
# New segments then join the tail, and the tail is read back from its front, so the order never
# changes. Returned messages go back to their place in the head.
#
# While a lane contains messages of tenants, its head is shared among them: see `Tenants`. A lane
# without tenants does no work for single messages.


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
            spans_module.insert_span(self.ready, span)
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
            return self._without(spans_module.cut_out_range(self.ready, span, low, high))
        return self._without(self.tenants.cut_out(span, low, high))

    def take_between(self, ranges: list[IdRange]) -> list[Span]:
        """Take the messages with these ids; the ranges are in order and do not touch."""
        if self.tenants is None:
            taken = spans_module.take_ranges(self.ready, ranges)
        else:
            taken = self.tenants.take_between(ranges)
        return [self._without(span) for span in taken]

    def find(self, span: Span) -> Span | None:
        """Return the ready span that holds the first message of `span`; None if there is none."""
        ready = self.ready if self.tenants is None else self.tenants.row_of(span)
        return spans_module.find_span(ready, span.first_id)

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


NO_LANES: dict[int, Lane] = {}


class Lanes:
    """All lanes of a queue, and the number of messages in them."""

    __slots__ = ("anyones", "by_receiver", "head_count", "held_count")

    def __init__(self) -> None:
        # Receiver (or ANYONE) -> priority -> lane, with priorities from high to low.
        self.anyones: dict[int, Lane] = {}
        self.by_receiver = {ANYONE: self.anyones}
        # Messages that may be taken, and messages that wait for an earlier one of their group.
        self.head_count = 0
        self.held_count = 0

    def __iter__(self) -> Iterator[Lane]:
        for lanes in self.by_receiver.values():
            yield from lanes.values()

    def lane(self, receiver: int, priority: int) -> Lane:
        lanes = self.by_receiver.get(receiver)
        if lanes is None:
            lanes = self.by_receiver[receiver] = {}
        lane = lanes.get(priority)
        if lane is None:
            lane = lanes[priority] = Lane(priority)
            if len(lanes) > 1:
                in_order = sorted(lanes.items(), reverse=True)
                lanes.clear()
                lanes.update(in_order)
        return lane

    def seen_by(self, client_id: int) -> Iterator[Lane]:
        """Yield the lanes from which a client may have messages."""
        yield from self.anyones.values()
        if client_id != ANYONE:
            yield from self.by_receiver.get(client_id, NO_LANES).values()

    # Adding and taking

    def insert(self, receiver: int, span: Span) -> None:
        self.head_count += span.high - span.low
        self.lane(receiver, span.segment.priority).insert(span)

    def cut_out(self, lane: Lane, span: Span, low: int, high: int) -> Span:
        """Take offsets `low` to `high - 1` out of a span of `lane`."""
        self.head_count -= high - low
        return lane.remove(span, low, high)

    def take_expired(self, expiry: ExpiryTracker, now: float) -> Iterator[Span]:
        """Take expired messages, as spans of their own."""
        for lane in self:
            for span in list(lane.spans()):
                for low, high in expiry.ranges(span, now):
                    # Earlier cuts may have split the span: find the piece that holds the range.
                    piece = lane.find(Span(span.segment, low, high, span.state))
                    assert piece is not None
                    yield self.cut_out(lane, piece, low, high)

    def withdraw(self, receiver: int, span: Span) -> bool:
        """Take a span out, wherever it is; False if it is in no lane."""
        if not self.lane(receiver, span.segment.priority).withdraw(span):
            return False
        self.head_count -= span.high - span.low
        return True

    def take_between(self, ranges: list[IdRange]) -> list[Span]:
        """Take the unaddressed messages with these ids.

        The ranges are in order and do not touch.
        """
        taken = [span for lane in self.anyones.values() for span in lane.take_between(ranges)]
        self.head_count -= sum(map(len, taken))
        return taken

    def take_addressed(self, count: int) -> list[Span]:
        """Take up to `count` addressed messages, the oldest ones in memory."""
        addressed = [
            lane
            for receiver, lanes in self.by_receiver.items()
            if receiver != ANYONE
            for lane in lanes.values()
            if lane.count
        ]
        if not addressed:
            return []
        span = min(addressed, key=lambda lane: lane.first.first_id).take(count)
        self.head_count -= len(span)
        return [span]

    def take_all(self) -> list[Span]:
        taken: list[Span] = []
        for lane in self:
            while lane.count:
                taken.append(lane.take(lane.count))
        self.head_count -= sum(map(len, taken))
        return taken

    def hold(self, receiver: int, span: Span, count: int) -> None:
        """Count a message that waits for its group; with `count` -1, count it no longer."""
        lane = self.lane(receiver, span.segment.priority)
        self.held_count += count
        lane.held_count += count
        lane.held_bytes += count * span.payload_bytes

    # Reading

    def has_for(self, client_id: int) -> bool:
        """Return whether a message in these lanes or their tails waits for the client."""
        return any(map(len, self.seen_by(client_id)))

    def has_addressed_to(self, client_id: int) -> bool:
        """Return whether a message in memory is addressed to this client."""
        mine = self.by_receiver.get(client_id, NO_LANES)
        return any(lane.count for lane in mine.values())

    @property
    def payload_bytes(self) -> int:
        """The payload bytes of all messages in memory that are ready or wait for their group."""
        return sum(lane.head_bytes + lane.held_bytes for lane in self)


# Message groups: one message of a group is out at a time, in order of their ids.
#
# A message is out from when it enters its lane until it is done. While it is leased, returned or
# put off, no other message of its group comes out. Later ones are kept aside here. They block no
# other message, and `Queue.take` needs to know nothing of groups: every message in a lane may be
# taken.
#
# From a frozen group, which is about to move to another queue, no more messages come out.
#
# Part of the queue may be in the store only. A message whose group may have an older message there
# is kept aside too, until everything up to it is in memory. The horizon is the id below which that
# is so.


def group_of(segment: Segment, offset: int) -> str | None:
    attributes = segment.attributes
    mine = None if attributes is None else attributes[offset]
    return None if mine is None else mine.group


def has_groups(segment: Segment) -> bool:
    attributes = segment.attributes
    return attributes is not None and any(
        mine is not None and mine.group is not None for mine in attributes
    )


class MessageGroups:
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
        return Span(out[0], out[1], out[1] + 1, MessageState.READY)

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
        span = Span(segment, offset, offset + 1, MessageState.READY)
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
            (group, Span(segment, offset, offset + 1, MessageState.READY))
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
