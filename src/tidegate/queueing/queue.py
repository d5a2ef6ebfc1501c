"""One queue in memory: how messages come, whose turn they are, and how they end.

Pure: no clock, no I/O. A stored segment is noted by the tails: with memory short, or a tail before
it, it stays in the store (tails.py), and the caller brings it back before its turn. Else it is a
resident (residents.py), and its messages lie in lanes (lanes.py), but for those that wait for
an earlier one of their group (turnstile.py) or for their time (delayed.py). Who takes gets what
is next in order (turn.py), or matches (match.py). What was taken is done, or comes back to its
old place. What is over leaves by itself (expiry.py), and whoever knows ids may look and take by
them (contents.py).
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
    """The messages of a queue that nobody holds."""

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
        """What the payloads weigh that wait; of a tail, whole segments."""
        delayed_bytes = sum(span.payload_bytes for span in self.delayed)
        return self.tails.payload_bytes + self.lanes.payload_bytes + delayed_bytes

    def segments(self) -> set[Segment]:
        """Those in memory of which something is ready or waits for its time."""
        return {*self.contents.segments(), *(span.segment for span in self.delayed)}

    # In

    def add(self, segment: Segment, *, keep: bool) -> bool:
        """A stored segment. With `keep` unset, or a tail before it, it stays in the store.

        True when it is in memory.
        """
        if self.tails.receive(segment, keep=keep):
            self.turnstile.reach()
            return False
        self._place(segment)
        return True

    def bring_back(self, segments: Iterable[Segment], *, pulled: bool = False) -> None:
        """Segments of a tail, read from the store: from its front, or pulled out of it."""
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
        """The messages of a range that need not wait before they are tried again."""
        retry_at = segment.retry_at or {}
        for offset in sorted(retry_at):
            if low <= offset < high:
                if offset > low:
                    yield Span(segment, low, offset, State.READY)
                later = Span(segment, offset, offset + 1, State.SCHEDULED)
                # It keeps its group waiting, unless it is itself kept aside.
                if any(self.turnstile.in_turn(receiver_of(segment, offset), later)):
                    self.delayed.scheduled.add(retry_at[offset], later)
                low = offset + 1
        if low < high:
            yield Span(segment, low, high, State.READY)

    def _enter(self, span: Span) -> None:
        """A ready span finds its lanes, but for messages that wait for their group."""
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
        """Leased messages are ready again, at their old place."""
        # Newest first: then each is older than the head, and found its place at once.
        for span in sorted(spans, key=span_first_id, reverse=True):
            self.expiry.resume(span.segment)
            span.advance(event)
            span.segment.mark_attempted(span.low, span.high)
            for receiver, piece in by_receiver(span):
                self.lanes.insert(receiver, piece)

    def stay(self, spans: list[Span]) -> None:
        """Messages that were to leave do not: they are ready again, at their old place."""
        for span in spans:
            self.expiry.resume(span.segment)
            self._enter(span.advance(Event.STAYED))

    # Beyond memory

    def forget_tail(self, lane: Lane) -> None:
        """The store holds nothing where a tail was counted."""
        lane.forget_tail()
        self.turnstile.reach()

    def skip_tail(self, lane: Lane, to_id: int) -> None:
        """The store holds nothing of a tail before an id."""
        lane.tail_from = max(lane.tail_from, to_id)
        self.turnstile.reach()

    def searched(self, client_id: int, end: int) -> None:
        """All that is addressed to the client, with ids below `end`, is in memory."""
        self.tails.searched(client_id, end)
        self.turnstile.reach()

    # Later

    def add_for_later(self, segment: Segment) -> None:
        """A stored segment that is not due yet, with what is open of it."""
        assert segment.due_at is not None
        self.residents.add(segment)
        self.expiry.begin(segment)
        for low, high in segment.open_ranges():
            # What has failed since waits for its next try, not for its first.
            for span in self._ready_now(segment, low, high):
                later = Span(segment, span.low, span.high, State.SCHEDULED)
                self.delayed.scheduled.add(segment.due_at, later)

    def put_off(self, spans: list[Span], due: float) -> None:
        """Leased messages that failed are to be tried again, at a monotonic time."""
        for span in spans:
            self.expiry.resume(span.segment)
            self.delayed.put_off(span, due)

    def release_due(self, now_wall: float, now_monotonic: float) -> int:
        """Let in what is due; how many messages that is."""
        due = self.delayed.take_due(now_wall, now_monotonic)
        # Counted first: a span that enters may grow by its neighbours.
        count = sum(map(len, due))
        for span in due:
            self._enter(span.advance(Event.DUE))
        return count

    # Out

    def take(
        self,
        count: int,
        client_id: int,
        order: Order,
        ageing_s: float = 0.0,
        *,
        mine_only: bool = False,
    ) -> list[Span]:
        """Up to `count` messages that this client may have, in order.

        In order of priority, so many seconds of waiting weigh as much as one step; 0: priority
        alone decides. With `mine_only`, those that are addressed to it.
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
        """The first message in order that matches, out of what is in memory.

        None, too, when the store may hold one that comes first. Up to the `horizon` it does not:
        what matches there was brought back.
        """
        found = match.first(self.lanes.seen_by(client_id), order)
        if found is None:
            return None
        rank, lane, span, offset = found
        # A context names one reply: there is no other that could come first.
        if match.context is None and self.tails.may_precede(rank, order, horizon):
            return None
        return self.lanes.cut_out(lane, span, offset, offset + 1)

    def take_regardless(self, count: int) -> list[Span]:
        """Up to `count` messages for anyone, oldest first, though some wait for their group.

        For those that leave the queue without being delivered.
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
        """The messages in memory whose time is over, as spans of their own that are nobody's."""
        expiry = self.expiry
        if now < expiry.next_at:
            return []
        expiry.next_at = NEVER
        expired = list(self.lanes.take_expired(expiry, now))
        expired += self.delayed.take_expired(expiry, now)
        expired += self.turnstile.take_expired(expiry, now)
        return expired

    # The end

    def done(self, span: Span, event: Event = Event.ACKED) -> bool:
        """Settle a span; True when its whole segment is done."""
        segment = span.segment
        span.advance(event)
        finished = segment.mark_done(span.low, span.high)
        if finished:
            self.residents.remove(segment)
        if segment.attributes is not None and self.turnstile.by_receiver:
            self.turnstile.leave(span)
        return finished

    def purge(self) -> tuple[list[Span], int]:
        """Drop everything ready; what is leased stays with its holders.

        The spans that were in memory, and how many messages went in all.
        """
        delayed, in_store = self.delayed.take_all()
        dropped = [*self.turnstile.take_all(), *self.lanes.take_all(), *delayed]
        for span in dropped:
            self.done(span, Event.PURGED)
        return dropped, sum(map(len, dropped)) + in_store + self.tails.clear()
