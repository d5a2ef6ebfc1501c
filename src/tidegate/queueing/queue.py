"""The messages of one queue that no consumer holds.

Theory of operation

Everything that decides which message is next lives in this package. It is pure: it reads no clock
and does no I/O, and its callers pass the time in. The node's `Replica` feeds it with segments after
they are stored, and takes messages out of it.

A message is in one of these places:

- In a lane (`Lanes`): ready in memory. There is one lane per priority for unaddressed messages, and
  one per receiver and priority for addressed ones.
- In the `GroupGate`: in memory, but an earlier message of its group is not done yet.
- In a schedule (`DelayedMessages`): its time has not come, as a delayed message or a retry.
- In the store only (`SpilledRanges`): memory was short. Each lane has a head in memory and a tail
  in the store.
- Leased (`LeaseBook`), or leaving for another queue: outside this class until it is done or
  returned.

`add` accepts a stored segment. If there is no room, or the lane has a tail already, the segment
joins the tail; the caller reads it later and calls `bring_back`. `take` returns the next messages
for a client. `done` settles them, `put_back` returns them to their old place, `put_off` schedules a
retry.

Invariants:

- Within a priority, messages of one receiver, and messages for any client, leave in the order of
  their ids. `take` returns nothing while a message that may come first is in the store only.
  Exceptions: tenants share a lane fairly, and no client waits for the tail of a stalled lane
  (`Lane.stalled`).
- Of each group at most one message is out: in a lane, leased or put off.
- A segment is in memory once. `InMemorySegments` counts its cost against the node's budget until
  all its messages are done.
- Every change of a message's state is an event of the table `TRANSITIONS`; any other raises
  `InternalError`.

If memory is short, `add` returns False, and the queue works from its heads. Nothing is lost, since
every segment is in the store. If the queue moves to another node, the object is dropped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

from tidegate.core.model import IdRange, Order, contains_id
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.delayed import NEVER, DelayedMessages
from tidegate.queueing.fairness import next_aged_lane, next_lane
from tidegate.queueing.groups import GroupGate
from tidegate.queueing.lanes import NO_ID, NO_LANES, Lane, Lanes, has_groups
from tidegate.queueing.spans import (
    ANYONE,
    BEFORE_ALL,
    MessageEvent,
    MessageState,
    Rank,
    Span,
    receiver_of,
    span_first_id,
    spans_between,
    split_by_receiver,
)
from tidegate.queueing.spilled import SpilledRanges


class Queue:
    """The messages of a queue that no consumer holds."""

    __slots__ = ("contents", "delayed", "expiry", "group_gate", "in_memory", "lanes", "spilled")

    def __init__(self, budget: Budget) -> None:
        self.lanes = Lanes()
        self.spilled = SpilledRanges(self.lanes)
        self.group_gate = GroupGate(self.lanes, self.spilled)
        self.contents = MessagesById(self.lanes, self.group_gate)
        self.in_memory = InMemorySegments(budget)
        self.delayed = DelayedMessages(self.in_memory)
        self.expiry = ExpiryTracker()

    def __len__(self) -> int:
        lanes = self.lanes
        return lanes.head_count + lanes.held_count + self.spilled.count + self.delayed.count

    @property
    def waiting_bytes(self) -> int:
        """The payload bytes of all waiting messages; segments in the store count whole."""
        delayed_bytes = sum(span.payload_bytes for span in self.delayed)
        return self.spilled.payload_bytes + self.lanes.payload_bytes + delayed_bytes

    def segments(self) -> set[Segment]:
        """Return the segments in memory with messages that are not leased."""
        return {*self.contents.segments(), *(span.segment for span in self.delayed)}

    # Adding

    def add(self, segment: Segment, *, keep: bool) -> bool:
        """Add a stored segment; return whether it is in memory.

        With `keep` False, or behind a tail, it stays in the store only.
        """
        if self.spilled.receive(segment, keep=keep):
            self.group_gate.reach()
            return False
        self._place(segment)
        return True

    def bring_back(self, segments: Iterable[Segment], *, pulled: bool = False) -> None:
        """Add segments that were read from the store.

        They come from the front of a tail or, with `pulled`, from the middle of it.
        """
        for segment in segments:
            if self.spilled.release(segment, pulled=pulled):
                self._place(segment)
        self.group_gate.reach()

    def _place(self, segment: Segment) -> None:
        self.in_memory.add(segment)
        self.expiry.begin(segment)
        for low, high in segment.open_ranges():
            if segment.retry_at is None:
                self._enter(Span(segment, low, high, MessageState.READY))
            else:
                for span in self._ready_now(segment, low, high):
                    self._enter(span)

    def _ready_now(self, segment: Segment, low: int, high: int) -> Iterator[Span]:
        """Yield the messages of a range that wait for no retry; schedule the others."""
        retry_at = segment.retry_at or {}
        for offset in sorted(retry_at):
            if low <= offset < high:
                if offset > low:
                    yield Span(segment, low, offset, MessageState.READY)
                later = Span(segment, offset, offset + 1, MessageState.SCHEDULED)
                # A scheduled message keeps its group waiting, unless it waits for its group itself.
                if any(self.group_gate.in_turn(receiver_of(segment, offset), later)):
                    self.delayed.scheduled.add(retry_at[offset], later)
                low = offset + 1
        if low < high:
            yield Span(segment, low, high, MessageState.READY)

    def _enter(self, span: Span) -> None:
        """Put a ready span into its lanes, except messages that wait for their group."""
        segment = span.segment
        if segment.attributes is None and segment.receivers is None:
            self.lanes.insert(ANYONE, span)
            return
        for receiver, piece in split_by_receiver(span):
            if segment.attributes is None:
                self.lanes.insert(receiver, piece)
            else:
                for run in self.group_gate.in_turn(receiver, piece):
                    self.lanes.insert(receiver, run)

    def put_back(self, spans: list[Span], event: MessageEvent) -> None:
        """Return leased messages to their old place."""
        # Newest first: each span is then older than the head, and its place is found at once.
        for span in sorted(spans, key=span_first_id, reverse=True):
            self.expiry.resume(span.segment)
            span.advance(event)
            span.segment.mark_attempted(span.low, span.high)
            for receiver, piece in split_by_receiver(span):
                self.lanes.insert(receiver, piece)

    def stay(self, spans: list[Span]) -> None:
        """Return messages to their old place that were to leave for another queue."""
        for span in spans:
            self.expiry.resume(span.segment)
            self._enter(span.advance(MessageEvent.STAYED))

    # The store

    def forget_tail(self, lane: Lane) -> None:
        """Drop a tail that the store does not have."""
        lane.forget_tail()
        self.group_gate.reach()

    def skip_tail(self, lane: Lane, to_id: int) -> None:
        """Note that the store has nothing of the tail before `to_id`."""
        lane.tail_from = max(lane.tail_from, to_id)
        self.group_gate.reach()

    def searched(self, client_id: int, end: int) -> None:
        """Note that all messages below `end` for the client are in memory."""
        self.spilled.searched(client_id, end)
        self.group_gate.reach()

    # Delayed messages

    def add_for_later(self, segment: Segment) -> None:
        """Add a stored segment that is not due yet."""
        assert segment.due_at is not None
        self.in_memory.add(segment)
        self.expiry.begin(segment)
        for low, high in segment.open_ranges():
            # A message that has failed waits for its retry, not for the due time of the segment.
            for span in self._ready_now(segment, low, high):
                later = Span(segment, span.low, span.high, MessageState.SCHEDULED)
                self.delayed.scheduled.add(segment.due_at, later)

    def put_off(self, spans: list[Span], due: float) -> None:
        """Schedule leased messages that failed for a retry at the monotonic time `due`."""
        for span in spans:
            self.expiry.resume(span.segment)
            self.delayed.put_off(span, due)

    def release_due(self, now_wall: float, now_monotonic: float) -> int:
        """Make due messages ready; return how many."""
        due = self.delayed.take_due(now_wall, now_monotonic)
        # Counted first: a span that enters a lane may be merged with its neighbours.
        count = sum(map(len, due))
        for span in due:
            self._enter(span.advance(MessageEvent.DUE))
        return count

    # Taking

    def take(
        self,
        count: int,
        client_id: int,
        order: Order,
        ageing_s: float = 0.0,
        *,
        mine_only: bool = False,
    ) -> list[Span]:
        """Take up to `count` messages that this client may have, in order.

        With the order `PRIORITY`, `ageing_s` seconds of waiting weigh as much as one step of
        priority; 0: priority alone decides. With `mine_only`, only messages addressed to the
        client.
        """
        taken: list[Span] = []
        lanes, tails = self.lanes, self.spilled
        by_priority = order is Order.PRIORITY
        is_aged = by_priority and ageing_s > 0
        anyones = NO_LANES if mine_only else lanes.anyones
        mine = NO_LANES if client_id == ANYONE else lanes.by_receiver.get(client_id, NO_LANES)
        while count > 0:
            if is_aged:
                lane = next_aged_lane(anyones, mine, tails, client_id, ageing_s)
            else:
                lane = next_lane(anyones, mine, tails, client_id, by_priority)
            if lane is None:
                break
            span = lane.take(count)
            taken.append(span)
            size = span.high - span.low
            count -= size
            lanes.head_count -= size
        return taken

    def take_match(
        self, match: MessageSelector, client_id: int, order: Order, horizon: Rank = BEFORE_ALL
    ) -> Span | None:
        """Take the first message in memory that matches; None if there is none.

        Also None if the store may hold an earlier match. Up to `horizon` it holds none: its matches
        there were brought back.
        """
        found = match.first(self.lanes.seen_by(client_id), order)
        if found is None:
            return None
        rank, lane, span, offset = found
        # A context belongs to one reply, so no other match can come first.
        if match.context is None and self.spilled.may_precede(rank, order, horizon):
            return None
        return self.lanes.cut_out(lane, span, offset, offset + 1)

    def take_regardless(self, count: int) -> list[Span]:
        """Take up to `count` unaddressed messages, oldest first, ignoring their groups.

        For messages that leave the queue without being delivered.
        """
        spans = self.take(count, ANYONE, Order.OLDEST)
        waiting = self.group_gate.by_receiver.get(ANYONE)
        if waiting is None:
            return spans
        held = heapq.nsmallest(count, waiting, key=span_first_id)
        kept_aside = set(held)
        taken: list[Span] = []
        for span in sorted(spans + held, key=span_first_id):
            piece = span
            if span not in kept_aside and len(span) > count:
                piece = span.split(count)
                self.lanes.insert(ANYONE, span)
            if count <= 0:
                continue
            if span in kept_aside:
                self.group_gate.remove(ANYONE, span)
            taken.append(piece)
            count -= len(piece)
        return taken

    def take_expired(self, now: float) -> list[Span]:
        """Take the expired messages in memory, as spans of their own."""
        expiry = self.expiry
        if now < expiry.next_at:
            return []
        expiry.next_at = NEVER
        expired = list(self.lanes.take_expired(expiry, now))
        expired += self.delayed.take_expired(expiry, now)
        expired += self.group_gate.take_expired(expiry, now)
        return expired

    # Settling

    def done(self, span: Span, event: MessageEvent = MessageEvent.ACKED) -> bool:
        """Settle a span; return whether its whole segment is done."""
        segment = span.segment
        span.advance(event)
        finished = segment.mark_done(span.low, span.high)
        if finished:
            self.in_memory.remove(segment)
        if segment.attributes is not None and self.group_gate.by_receiver:
            self.group_gate.leave(span)
        return finished

    def purge(self) -> tuple[list[Span], int]:
        """Drop everything but leased messages.

        Returns the spans that were in memory, and how many messages were dropped in all.
        """
        delayed, in_store = self.delayed.take_all()
        dropped = [*self.group_gate.take_all(), *self.lanes.take_all(), *delayed]
        for span in dropped:
            self.done(span, MessageEvent.PURGED)
        return dropped, sum(map(len, dropped)) + in_store + self.spilled.clear()


# Spans that one call examines before the event loop runs; some milliseconds.
_SPANS_PER_TURN = 5000


class MessagesById:
    """Browses messages without moving them, and takes them out regardless of their order."""

    __slots__ = ("_group_gate", "_lanes")

    def __init__(self, lanes: Lanes, group_gate: GroupGate) -> None:
        self._lanes = lanes
        self._group_gate = group_gate

    # Reading

    def oldest(self) -> Segment | None:
        """Return the oldest segment in memory with a ready message; None if there is none."""
        heads = [lane.oldest for lane in self._lanes if lane.count]
        all_groups = self._group_gate.by_receiver.values()
        heads += [span for groups in all_groups if (span := groups.oldest) is not None]
        return min(heads, key=span_first_id).segment if heads else None

    def browse(
        self,
        limit: int,
        first_id: int = 0,
        last_id: int = NO_ID,
        *,
        for_anyone: bool = False,
        spans_max: int | None = None,
    ) -> list[Span]:
        """Return up to `limit` ready messages with these ids, in order, without moving them."""
        seen: list[Span] = []
        if first_id > last_id:
            return seen
        # Only as many spans as needed are examined, however many messages wait.
        for span in islice(self._between(first_id, last_id, for_anyone), spans_max):
            if limit <= 0:
                break
            low, high = span.offsets_between(first_id, last_id)
            high = min(high, low + limit)
            seen.append(Span(span.segment, low, high, span.state))
            limit -= high - low
        return seen

    def segments(self) -> Iterator[Segment]:
        """Yield the segments with messages that are ready or wait for their group, in order."""
        for segment, _ in groupby(self._between(0, NO_ID, False), key=lambda span: span.segment):
            yield segment

    def _between(self, first_id: int, last_id: int, for_anyone: bool) -> Iterator[Span]:
        """Yield the spans that hold these ids, in order."""
        receivers = [ANYONE] if for_anyone else list(self._lanes.by_receiver)
        rows: list[Iterable[Span]] = [
            spans_between(row, first_id, last_id)
            for each in receivers
            for lane in self._lanes.by_receiver[each].values()
            for row in lane.rows()
        ]
        rows += [
            sorted(
                (span for span in groups if first_id <= span.first_id <= last_id), key=span_first_id
            )
            for each, groups in self._group_gate.by_receiver.items()
            if each in receivers
        ]
        return heapq.merge(*rows, key=span_first_id)

    # Taking

    def take_between(self, ranges: list[IdRange]) -> list[Span]:
        """Take the unaddressed messages with these ids.

        The ranges are in order and do not touch.
        """
        if not ranges:
            return []
        waiting = self._group_gate.waiting(ANYONE)
        taken = [span for span in waiting if contains_id(ranges, span.first_id)]
        for span in taken:
            self._group_gate.remove(ANYONE, span)
        return taken + self._lanes.take_between(ranges)

    def take_segments(
        self, is_wanted: Callable[[Segment, bool], bool], count: int, bytes_max: int, ids_max: int
    ) -> list[list[Span]]:
        """Take whole segments that are wanted, oldest first. Whole: all open messages are ready.

        `is_wanted` is asked about every segment in order, with whether it is whole. Returns the
        spans of each taken segment. The last one may exceed `count` and `bytes_max`. The segments
        together have at most `ids_max` messages, where done messages count too.
        """
        chosen: list[list[Span]] = []
        looked_at = islice(self._between(0, NO_ID, False), _SPANS_PER_TURN)
        for segment, pieces in groupby(looked_at, key=lambda span: span.segment):
            spans = list(pieces)
            is_whole = sum(map(len, spans)) == segment.open
            if not is_wanted(segment, is_whole) or not is_whole:
                continue
            if segment.count > ids_max:
                break
            ids_max -= segment.count
            count -= segment.open
            bytes_max -= segment.payload_bytes
            chosen.append(spans)
            if count <= 0 or bytes_max <= 0:
                break
        for spans in chosen:
            for span in spans:
                self._withdraw(span)
        return chosen

    def _withdraw(self, span: Span) -> None:
        """Take a ready span out of its lane or out of the group gate."""
        receiver = receiver_of(span.segment, span.low)
        lane = self._lanes.lane(receiver, span.segment.priority)
        if lane.find(span) is span:
            self._lanes.cut_out(lane, span, span.low, span.high)
        else:
            self._group_gate.remove(receiver, span)


class InMemorySegments:
    """Counts the memory of one queue's open segments, which is part of the node's budget."""

    __slots__ = ("_budget", "cost_bytes", "has_homed")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.cost_bytes = 0
        # Whether any segment since the last time there was none had groups or receivers.
        self.has_homed = False

    def add(self, segment: Segment) -> None:
        cost_bytes = segment.cost_bytes
        self.cost_bytes += cost_bytes
        self._budget.used_bytes += cost_bytes
        if segment.receivers is not None or (
            segment.attributes is not None and has_groups(segment)
        ):
            self.has_homed = True

    def remove(self, segment: Segment) -> None:
        cost_bytes = segment.cost_bytes
        self.cost_bytes -= cost_bytes
        self._budget.used_bytes -= cost_bytes
        if not self.cost_bytes:
            self.has_homed = False

    def clear(self) -> None:
        """Return all memory to the node's budget."""
        self._budget.used_bytes -= self.cost_bytes
        self.cost_bytes = 0
        self.has_homed = False


class ExpiryTracker:
    """Notes when the next message may expire, so that no scan runs before."""

    __slots__ = ("next_at", "ttl_s")

    def __init__(self) -> None:
        # When the first message in memory may expire.
        self.next_at = NEVER
        # Time to live of messages that have none of their own; None: unlimited.
        self.ttl_s: float | None = None

    def begin(self, segment: Segment) -> None:
        """Note the expiry of a segment that enters memory."""
        if self.ttl_s is not None:
            segment.expire_by_policy(self.ttl_s)
        if segment.expires_at is not None:
            self.next_at = min(self.next_at, segment.expires_at)

    def resume(self, segment: Segment) -> None:
        """Note the expiry of messages that are returned; leased ones are not scanned."""
        if segment.expires_at is not None:
            self.next_at = min(self.next_at, segment.expires_at)

    def ranges(self, span: Span, now: float) -> list[tuple[int, int]]:
        """Return the expired offsets of a span, and note the next expiry of the others."""
        segment = span.segment
        if segment.expires_at is None:
            return []
        if segment.expires_at > now:
            self.next_at = min(self.next_at, segment.expires_at)
            return []
        ranges: list[tuple[int, int]] = []
        for offset in range(span.low, span.high):
            expires_at = segment.expiry(offset)
            if expires_at is None:
                continue
            if expires_at > now:
                self.next_at = min(self.next_at, expires_at)
            elif ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        return ranges


# A message by its rank, and its position: lane, span and offset.
FoundMessage = tuple[Rank, Lane, Span, int]


class MessageSelector:
    """Selects messages by a sender, a context, or both."""

    __slots__ = ("asker", "context", "sender")

    def __init__(
        self,
        sender: int | None = None,
        context: int | None = None,
        asker: int | None = None,
    ) -> None:
        self.sender = sender
        self.context = context
        # The client that waits for a reply. Its own request has the same context and is no reply.
        self.asker = asker

    def find(self, span: Span) -> int | None:
        """Return the offset of the first matching message of the span; None if there is none."""
        segment = span.segment
        # Whole columns are searched in C first, since that is fast.
        if self.sender is not None and self.sender not in segment.senders:
            return None
        if self.context is not None and self.context not in (segment.contexts or ()):
            return None
        for offset in range(span.low, span.high):
            if self.sender is not None and segment.sender(offset) != self.sender:
                continue
            if self.context is not None and segment.context(offset) != self.context:
                continue
            if (
                self.asker is not None
                and segment.receivers is None
                and segment.sender(offset) == self.asker
            ):
                continue
            return offset
        return None

    def first(self, lanes: Iterable[Lane], order: Order) -> FoundMessage | None:
        """Return the first match in these lanes, in order; None if there is none."""
        best: FoundMessage | None = None
        for lane in lanes:
            for span in lane.spans():
                offset = self.find(span)
                if offset is None:
                    continue
                message_id = span.segment.first_id + offset
                rank = (-lane.priority if order is Order.PRIORITY else 0, message_id)
                if best is None or rank < best[0]:
                    best = (rank, lane, span, offset)
                break
        return best
