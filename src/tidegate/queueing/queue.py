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
from collections.abc import Iterable, Iterator

from tidegate.core.budget import Budget
from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.contents import Contents
from tidegate.queueing.delayed import Delayed
from tidegate.queueing.expiry import Expiry
from tidegate.queueing.lane import Lane
from tidegate.queueing.lanes import NO_LANES, Lanes
from tidegate.queueing.lifecycle import Event, State
from tidegate.queueing.match import Match
from tidegate.queueing.rank import NOTHING, Rank
from tidegate.queueing.receiver import ANYONE, by_receiver, receiver_of
from tidegate.queueing.residents import Residents
from tidegate.queueing.row import span_first_id
from tidegate.queueing.schedule import NEVER
from tidegate.queueing.span import Span
from tidegate.queueing.tails import Tails
from tidegate.queueing.turn import next_aged_lane, next_lane
from tidegate.queueing.turnstile import Turnstile


class Queue:
    """The messages of a queue that no consumer holds."""

    __slots__ = ("contents", "delayed", "expiry", "lanes", "residents", "tails", "turnstile")

    def __init__(self, budget: Budget) -> None:
        self.lanes = Lanes()
        self.tails = Tails(self.lanes)
        self.turnstile = Turnstile(self.lanes, self.tails)
        self.contents = Contents(self.lanes, self.turnstile)
        self.residents = Residents(budget)
        self.delayed = Delayed(self.residents)
        self.expiry = Expiry()

    def __len__(self) -> int:
        lanes = self.lanes
        return lanes.head_count + lanes.held_count + self.tails.count + self.delayed.count

    @property
    def waiting_bytes(self) -> int:
        """The payload bytes of all waiting messages; segments in the store count whole."""
        delayed_bytes = sum(span.payload_bytes for span in self.delayed)
        return self.tails.payload_bytes + self.lanes.payload_bytes + delayed_bytes

    def segments(self) -> set[Segment]:
        """Return the segments in memory with messages that are not leased."""
        return {*self.contents.segments(), *(span.segment for span in self.delayed)}

    # Adding

    def add(self, segment: Segment, *, keep: bool) -> bool:
        """Add a stored segment; return whether it is in memory.

        With `keep` False, or behind a tail, it stays in the store only.
        """
        if self.tails.receive(segment, keep=keep):
            self.turnstile.reach()
            return False
        self._place(segment)
        return True

    def bring_back(self, segments: Iterable[Segment], *, pulled: bool = False) -> None:
        """Add segments that were read from the store.

        They come from the front of a tail or, with `pulled`, from the middle of it.
        """
        for segment in segments:
            if self.tails.release(segment, pulled=pulled):
                self._place(segment)
        self.turnstile.reach()

    def _place(self, segment: Segment) -> None:
        self.residents.add(segment)
        self.expiry.begin(segment)
        for low, high in segment.open_ranges():
            if segment.retry_at is None:
                self._enter(Span(segment, low, high, State.READY))
            else:
                for span in self._ready_now(segment, low, high):
                    self._enter(span)

    def _ready_now(self, segment: Segment, low: int, high: int) -> Iterator[Span]:
        """Yield the messages of a range that wait for no retry; schedule the others."""
        retry_at = segment.retry_at or {}
        for offset in sorted(retry_at):
            if low <= offset < high:
                if offset > low:
                    yield Span(segment, low, offset, State.READY)
                later = Span(segment, offset, offset + 1, State.SCHEDULED)
                # A scheduled message keeps its group waiting, unless it waits for its group itself.
                if any(self.turnstile.in_turn(receiver_of(segment, offset), later)):
                    self.delayed.scheduled.add(retry_at[offset], later)
                low = offset + 1
        if low < high:
            yield Span(segment, low, high, State.READY)

    def _enter(self, span: Span) -> None:
        """Put a ready span into its lanes, except messages that wait for their group."""
        segment = span.segment
        if segment.attributes is None and segment.receivers is None:
            self.lanes.insert(ANYONE, span)
            return
        for receiver, piece in by_receiver(span):
            if segment.attributes is None:
                self.lanes.insert(receiver, piece)
            else:
                for run in self.turnstile.in_turn(receiver, piece):
                    self.lanes.insert(receiver, run)

    def put_back(self, spans: list[Span], event: Event) -> None:
        """Return leased messages to their old place."""
        # Newest first: each span is then older than the head, and its place is found at once.
        for span in sorted(spans, key=span_first_id, reverse=True):
            self.expiry.resume(span.segment)
            span.advance(event)
            span.segment.mark_attempted(span.low, span.high)
            for receiver, piece in by_receiver(span):
                self.lanes.insert(receiver, piece)

    def stay(self, spans: list[Span]) -> None:
        """Return messages to their old place that were to leave for another queue."""
        for span in spans:
            self.expiry.resume(span.segment)
            self._enter(span.advance(Event.STAYED))

    # The store

    def forget_tail(self, lane: Lane) -> None:
        """Drop a tail that the store does not have."""
        lane.forget_tail()
        self.turnstile.reach()

    def skip_tail(self, lane: Lane, to_id: int) -> None:
        """Note that the store has nothing of the tail before `to_id`."""
        lane.tail_from = max(lane.tail_from, to_id)
        self.turnstile.reach()

    def searched(self, client_id: int, end: int) -> None:
        """Note that all messages below `end` for the client are in memory."""
        self.tails.searched(client_id, end)
        self.turnstile.reach()

    # Delayed messages

    def add_for_later(self, segment: Segment) -> None:
        """Add a stored segment that is not due yet."""
        assert segment.due_at is not None
        self.residents.add(segment)
        self.expiry.begin(segment)
        for low, high in segment.open_ranges():
            # A message that has failed waits for its retry, not for the due time of the segment.
            for span in self._ready_now(segment, low, high):
                later = Span(segment, span.low, span.high, State.SCHEDULED)
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
            self._enter(span.advance(Event.DUE))
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
        lanes, tails = self.lanes, self.tails
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
        self, match: Match, client_id: int, order: Order, horizon: Rank = NOTHING
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
        if match.context is None and self.tails.may_precede(rank, order, horizon):
            return None
        return self.lanes.cut_out(lane, span, offset, offset + 1)

    def take_regardless(self, count: int) -> list[Span]:
        """Take up to `count` unaddressed messages, oldest first, ignoring their groups.

        For messages that leave the queue without being delivered.
        """
        spans = self.take(count, ANYONE, Order.OLDEST)
        waiting = self.turnstile.by_receiver.get(ANYONE)
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
                self.turnstile.remove(ANYONE, span)
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
        expired += self.turnstile.take_expired(expiry, now)
        return expired

    # Settling

    def done(self, span: Span, event: Event = Event.ACKED) -> bool:
        """Settle a span; return whether its whole segment is done."""
        segment = span.segment
        span.advance(event)
        finished = segment.mark_done(span.low, span.high)
        if finished:
            self.residents.remove(segment)
        if segment.attributes is not None and self.turnstile.by_receiver:
            self.turnstile.leave(span)
        return finished

    def purge(self) -> tuple[list[Span], int]:
        """Drop everything but leased messages.

        Returns the spans that were in memory, and how many messages were dropped in all.
        """
        delayed, in_store = self.delayed.take_all()
        dropped = [*self.turnstile.take_all(), *self.lanes.take_all(), *delayed]
        for span in dropped:
            self.done(span, Event.PURGED)
        return dropped, sum(map(len, dropped)) + in_store + self.tails.clear()
