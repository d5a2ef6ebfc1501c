"""One queue in memory: what is ready, in which order, for whom. Pure: no clock, no I/O.

Messages for anyone lie in one lane per priority. Messages addressed to a receiver lie
in lanes of that receiver, which nobody else sees. A read merges the (at most two) lanes
of a priority by id, so order per producer holds within a priority.

A bound on memory is kept by tails: see lane.py. The caller asks `tail_wanted` and brings
segments back from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidegate.core.budget import Budget
from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.lane import Lane
from tidegate.queueing.lifecycle import Event, State
from tidegate.queueing.schedule import NEVER, Schedule
from tidegate.queueing.span import Span

# Who an unaddressed message is for.
ANYONE = 0

# Where a message stands in an order: its priority (highest first) if that counts, then its id.
Rank = tuple[int, int]
NOTHING: Rank = (-(1 << 62), 0)
EVERYTHING: Rank = (1 << 62, 0)
_NO_LANES: dict[int, Lane] = {}


class Match:
    """Which messages a selective read wants."""

    __slots__ = ("asker", "context", "sender")

    def __init__(
        self,
        sender: int | None = None,
        context: int | None = None,
        asker: int | None = None,
    ) -> None:
        self.sender = sender
        self.context = context
        # Who waits for a reply: its own request has the same context, and is none.
        self.asker = asker

    def find(self, span: Span) -> int | None:
        """The offset of the first message of the span that matches."""
        segment = span.segment
        # Whole columns are searched at the speed of C before messages are looked at one by one.
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


class Queue:
    """The ready messages of a queue."""

    __slots__ = (
        "_addressed_tails",
        "_budget",
        "_lanes",
        "_searched",
        "head_count",
        "later_in_store",
        "next_expiry",
        "resident_bytes",
        "retrying",
        "scheduled",
        "ttl_s",
    )

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        # Receiver (or ANYONE) → priority → lane; priorities kept from high to low.
        self._lanes: dict[int, dict[int, Lane]] = {ANYONE: {}}
        # Addressed segments beyond memory: priority → a lane of which only the tail is used.
        self._addressed_tails: dict[int, Lane] = {}
        # Receiver → up to which id the store was searched for its messages.
        self._searched: dict[int, int] = {}
        self.head_count = 0
        # What waits for its time: by the wall clock, and (to be tried again) by the monotonic one.
        self.scheduled = Schedule()
        self.retrying = Schedule()
        # Of what waits for its time, how many only the store holds.
        self.later_in_store = 0
        # When the first message in memory may expire.
        self.next_expiry = NEVER
        # How long messages live that say nothing themselves.
        self.ttl_s: float | None = None
        # What the open segments of this queue weigh, ready or leased.
        self.resident_bytes = 0

    def __len__(self) -> int:
        return self.head_count + self.tail_count + self.later_count

    @property
    def tail_count(self) -> int:
        return sum(lane.tail_count for lane in self._all_tails())

    @property
    def later_count(self) -> int:
        """How many wait for their time."""
        return self.scheduled.count + self.retrying.count + self.later_in_store

    @property
    def tail_bytes(self) -> int:
        return sum(lane.tail_bytes for lane in self._all_tails())

    @property
    def waiting_bytes(self) -> int:
        """What the payloads weigh that wait; of a tail, whole segments."""
        total = self.tail_bytes
        for lanes in self._lanes.values():
            total += sum(lane.head_bytes for lane in lanes.values())
        for schedule in (self.scheduled, self.retrying):
            total += sum(span.payload_bytes for span in schedule)
        return total

    @property
    def has_tail_for_anyone(self) -> bool:
        return any(lane.tail_count for lane in self._lanes[ANYONE].values())

    def _all_tails(self) -> Iterator[Lane]:
        yield from self._lanes[ANYONE].values()
        yield from self._addressed_tails.values()

    def lane(self, receiver: int, priority: int) -> Lane:
        lanes = self._lanes.get(receiver)
        if lanes is None:
            lanes = self._lanes[receiver] = {}
        lane = lanes.get(priority)
        if lane is None:
            lane = lanes[priority] = Lane(priority)
            if len(lanes) > 1:
                self._lanes[receiver] = dict(sorted(lanes.items(), reverse=True))
        return lane

    def tail_lane(self, priority: int, addressed: bool) -> Lane:
        """The lane that keeps the tail for such segments."""
        if not addressed:
            return self.lane(ANYONE, priority)
        lane = self._addressed_tails.get(priority)
        if lane is None:
            lane = self._addressed_tails[priority] = Lane(priority)
        return lane

    # In

    def add(self, segment: Segment, *, keep: bool) -> bool:
        """A stored segment. With `keep` unset, or a tail before it, it stays in the store.

        True when it is in memory.
        """
        newest_id = 0
        if segment.receivers is not None:
            # Receivers are searched for in all addressed tails at once.
            newest_id = max((t.newest_id for t in self._addressed_tails.values()), default=0)
        tail = self.tail_lane(segment.priority, segment.receivers is not None)
        # A message that was stored in several queues at once may have an older id than what
        # came meanwhile; the tail may not be read there again, so it stays.
        if not tail.comes_late(segment, newest_id) and (tail.tail_count or not keep):
            if segment.receivers is not None:
                self._note_unsearched(segment)
            tail.send_to_tail(segment, segment.open)
            return False
        self._place(segment, segment.open_ranges())
        return True

    def _note_unsearched(self, segment: Segment) -> None:
        """Who was searched for up to here, and is not meant by this one, still is."""
        addressed_to = set(segment.receivers or ())
        end = self.addressed_end
        for client_id, searched in self._searched.items():
            if searched >= end and client_id not in addressed_to:
                self._searched[client_id] = segment.last_id + 1

    def bring_back(self, segments: Iterable[Segment], *, pulled: bool = False) -> None:
        """Segments of a tail, read from the store: from its front, or pulled out of it."""
        for segment in segments:
            tail = self.tail_lane(segment.priority, segment.receivers is not None)
            if tail.leave_tail(segment, pulled=pulled):
                self._place(segment, segment.open_ranges())

    def _place(self, segment: Segment, ranges: Iterable[tuple[int, int]]) -> None:
        self._weigh_in(segment)
        for low, high in ranges:
            for span in self._ready_now(segment, low, high):
                self._enter(span)

    def _weigh_in(self, segment: Segment) -> None:
        self._weigh(segment.cost_bytes)
        if self.ttl_s is not None:
            segment.expire_by_policy(self.ttl_s)
        if segment.expires_at is not None:
            self.next_expiry = min(self.next_expiry, segment.expires_at)

    def _ready_now(self, segment: Segment, low: int, high: int) -> Iterator[Span]:
        """The messages of a range that need not wait before they are tried again."""
        retry_at = segment.retry_at
        if retry_at is not None:
            for offset in sorted(retry_at):
                if low <= offset < high:
                    if offset > low:
                        yield Span(segment, low, offset, State.READY)
                    later = Span(segment, offset, offset + 1, State.SCHEDULED)
                    self.scheduled.add(retry_at[offset], later)
                    low = offset + 1
        if low < high:
            yield Span(segment, low, high, State.READY)

    def _enter(self, span: Span) -> None:
        """A ready span finds its lanes."""
        self.head_count += len(span)
        for receiver, piece in self._by_receiver(span):
            lane = self.lane(receiver, span.segment.priority)
            if lane.ready and lane.ready[-1].first_id > piece.first_id:
                lane.put_back(piece)
            else:
                lane.append(piece)

    # Later

    def add_for_later(self, segment: Segment) -> None:
        """A stored segment that is not due yet, with what is open of it."""
        assert segment.due_at is not None
        self._weigh_in(segment)
        for low, high in segment.open_ranges():
            due_at = segment.due_at
            self.scheduled.add(due_at, Span(segment, low, high, State.SCHEDULED))

    def evict_later(self) -> tuple[float, int]:
        """Let go of the half that is due last, of which the store has all.

        The time and id behind which nothing of it is in memory.
        """
        entries = self.scheduled.take_all()
        middle = (len(entries) + 1) // 2
        kept, rest = entries[:middle], entries[middle:]
        for due, span in kept:
            self.scheduled.add(due, span)
        for due, span in rest:
            segment = span.segment
            if segment.due_at is None or len(span) != segment.open:
                self.scheduled.add(due, span)  # parts of it are elsewhere in memory
            else:
                self.later_in_store += len(span)
                self._weigh(-segment.cost_bytes)
        dues = [(due, span.segment.first_id) for due, span in kept]
        return max(dues, default=(0.0, 0))

    def put_off(self, spans: list[Span], due: float) -> None:
        """Leased messages that failed are to be tried again, at a monotonic time."""
        for span in spans:
            span.segment.mark_attempted(span.low, span.high)
            self.retrying.add(due, span.advance(Event.PUT_OFF))

    def release_due(self, now_wall: float, now_monotonic: float) -> int:
        """Let in what is due; how many messages that is."""
        due = self.scheduled.take_due(now_wall) + self.retrying.take_due(now_monotonic)
        for span in due:
            self._enter(span.advance(Event.DUE))
        return sum(map(len, due))

    # Expiry

    def take_expired(self, now: float) -> list[Span]:
        """The messages in memory whose time is over, as spans of their own that are nobody's."""
        if now < self.next_expiry:
            return []
        expired: list[Span] = []
        self.next_expiry = NEVER
        for lanes in self._lanes.values():
            for lane in lanes.values():
                for span in list(lane.spans()):
                    expired += self._cut_expired(lane, span, now)
        for schedule in (self.scheduled, self.retrying):
            expired += self._cut_expired_later(schedule, now)
        return expired

    def _cut_expired(self, lane: Lane, span: Span, now: float) -> Iterator[Span]:
        for low, high in self._expired_ranges(span, now):
            # The span may be in pieces by now: find the one that holds the range.
            piece = next(
                s for s in lane.spans() if s.segment is span.segment and s.low <= low < s.high
            )
            self.head_count -= high - low
            yield lane.remove(piece, low, high)

    def _cut_expired_later(self, schedule: Schedule, now: float) -> Iterator[Span]:
        if not any(span.segment.expires_at is not None for span in schedule):
            return
        for due, span in schedule.take_all():
            low = span.low
            for expired_low, expired_high in [
                *self._expired_ranges(span, now),
                (span.high, span.high),
            ]:
                if expired_low > low:
                    schedule.add(due, Span(span.segment, low, expired_low, span.state))
                if expired_high > expired_low:
                    yield Span(span.segment, expired_low, expired_high, span.state)
                low = expired_high

    def _expired_ranges(self, span: Span, now: float) -> list[tuple[int, int]]:
        """Offsets whose time is over; of the others the next expiry is noted."""
        segment = span.segment
        if segment.expires_at is None:
            return []
        if segment.expires_at > now:
            self.next_expiry = min(self.next_expiry, segment.expires_at)
            return []
        ranges: list[tuple[int, int]] = []
        for offset in range(span.low, span.high):
            expires_at = segment.expiry(offset)
            if expires_at is None:
                continue
            if expires_at > now:
                self.next_expiry = min(self.next_expiry, expires_at)
            elif ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + 1)
            else:
                ranges.append((offset, offset + 1))
        return ranges

    def _by_receiver(self, span: Span) -> Iterator[tuple[int, Span]]:
        receivers = span.segment.receivers
        if receivers is None:
            yield ANYONE, span
            return
        if len(receivers) == 1:
            yield receivers[0], span
            return
        low = span.low
        for offset in range(span.low + 1, span.high + 1):
            if offset == span.high or receivers[offset] != receivers[low]:
                yield receivers[low], Span(span.segment, low, offset, span.state)
                low = offset

    def put_back(self, spans: list[Span], event: Event, *, attempted: bool = True) -> None:
        """Leased messages are ready again, at their old place."""
        # Newest first: then each is older than the head, and found its place at once.
        for span in sorted(spans, key=lambda span: span.first_id, reverse=True):
            span.advance(event)
            if attempted:
                span.segment.mark_attempted(span.low, span.high)
            self.head_count += len(span)
            for receiver, piece in self._by_receiver(span):
                self.lane(receiver, span.segment.priority).put_back(piece)

    # Out

    def take(self, count: int, client_id: int, order: Order) -> list[Span]:
        """Up to `count` messages that this client may have, in order."""
        taken: list[Span] = []
        while count > 0:
            lane = self._next_lane(client_id, order)
            if lane is None:
                break
            span = lane.take(count)
            taken.append(span)
            count -= len(span)
            self.head_count -= len(span)
        return taken

    def _next_lane(self, client_id: int, order: Order) -> Lane | None:
        """The lane whose turn it is; None when nothing is there, or only the store holds it.

        A span is never cut short for another lane: nothing lies between the ids of a segment.
        """
        best: Lane | None = None
        best_id = 0
        in_store = False
        by_priority = order is Order.PRIORITY
        mine = self._lanes.get(client_id) if client_id != ANYONE else None
        for lanes in (self._lanes[ANYONE], mine):
            if lanes is None:
                continue
            for lane in lanes.values():
                waits = lane.waits_for_tail
                if not waits and not lane.ready:
                    continue
                next_id = lane.tail_from if waits else lane.first_id
                if (
                    best is None
                    or (by_priority and lane.priority > best.priority)
                    or (next_id < best_id and not (by_priority and lane.priority < best.priority))
                ):
                    best, best_id, in_store = lane, next_id, waits
                if by_priority:
                    break  # lanes are kept from high to low
        if best is None or in_store or self._is_overtaken(best, best_id, client_id, by_priority):
            return None
        return best

    def _is_overtaken(self, best: Lane, best_id: int, client_id: int, by_priority: bool) -> bool:
        """Whether something addressed to the client may come first, and only the store knows."""
        if not self._addressed_tails:
            return False
        searched = self._searched.get(client_id, 0)
        for tail in self._addressed_tails.values():
            if not tail.tail_count or searched > tail.tail_last:
                continue
            if by_priority and tail.priority != best.priority:
                if tail.priority > best.priority:
                    return True
            elif max(tail.tail_from, searched) < best_id:
                return True
        return False

    # Messages for one receiver, beyond memory

    @property
    def addressed_end(self) -> int:
        """One more than the last id of all addressed tails; 0 when there are none."""
        return max(
            (lane.tail_last + 1 for lane in self._addressed_tails.values() if lane.tail_count),
            default=0,
        )

    def unsearched_from(self, client_id: int) -> int | None:
        """From which id on the store may hold messages for the client that we have not seen."""
        tails = [lane for lane in self._addressed_tails.values() if lane.tail_count]
        if not tails:
            self._searched.clear()
            return None
        start = max(self._searched.get(client_id, 0), min(lane.tail_from for lane in tails))
        return start if start < self.addressed_end else None

    def searched(self, client_id: int, end: int) -> None:
        """All that is addressed to the client, with ids below `end`, is in memory."""
        self._searched[client_id] = max(end, self._searched.get(client_id, 0))

    def take_match(
        self, match: Match, client_id: int, order: Order, horizon: Rank = NOTHING
    ) -> Span | None:
        """The first message in order that matches, out of what is in memory.

        None, too, when the store may hold one that comes first. Up to the `horizon` it does not:
        what matches there was brought back.
        """
        best: tuple[Rank, Lane, Span, int] | None = None
        for receiver in {ANYONE, client_id}:
            for lane in self._lanes.get(receiver, {}).values():
                for span in lane.spans():
                    offset = match.find(span)
                    if offset is None:
                        continue
                    message_id = span.segment.first_id + offset
                    rank = (-lane.priority if order is Order.PRIORITY else 0, message_id)
                    if best is None or rank < best[0]:
                        best = (rank, lane, span, offset)
                    break
        if best is None:
            return None
        rank, lane, span, offset = best
        # A context names one reply: there is no other that could come first.
        if match.context is None and self._may_come_first(rank, client_id, order, horizon):
            return None
        self.head_count -= 1
        return lane.remove(span, offset, offset + 1)

    def _may_come_first(self, rank: Rank, client_id: int, order: Order, horizon: Rank) -> bool:
        """Whether the store may hold something for the client before `rank`, beyond `horizon`."""
        for lane in self._all_tails():
            if not lane.tail_count:
                continue
            priority = -lane.priority if order is Order.PRIORITY else 0
            first = max((priority, lane.tail_from), horizon)
            if first < rank and first <= (priority, lane.tail_last):
                return True
        return False

    def stay(self, spans: list[Span]) -> None:
        """Messages that were to leave do not: they are ready again, at their old place."""
        for span in spans:
            self._enter(span.advance(Event.STAYED))

    def done(self, span: Span, event: Event = Event.ACKED) -> bool:
        """Settle a span; True when its whole segment is done."""
        span.advance(event)
        finished = span.segment.mark_done(span.low, span.high)
        if finished:
            self._weigh(-span.segment.cost_bytes)
        return finished

    def _weigh(self, change_bytes: int) -> None:
        self.resident_bytes += change_bytes
        self._budget.used_bytes += change_bytes

    def forget(self) -> None:
        """The queue is no longer ours: give its memory back."""
        self._weigh(-self.resident_bytes)

    def purge(self) -> tuple[list[Span], int]:
        """Drop everything ready; what is leased stays with its holders.

        The spans that were in memory, and how many messages went in all.
        """
        dropped: list[Span] = []
        for lanes in self._lanes.values():
            for lane in lanes.values():
                while lane.ready:
                    span = lane.take(1 << 62).advance(Event.PURGED)
                    self.head_count -= len(span)
                    dropped.append(span)
                    if span.segment.mark_done(span.low, span.high):
                        self._weigh(-span.segment.cost_bytes)
        for _, span in (*self.scheduled.take_all(), *self.retrying.take_all()):
            dropped.append(span.advance(Event.PURGED))
            if span.segment.mark_done(span.low, span.high):
                self._weigh(-span.segment.cost_bytes)
        in_store = sum(lane.forget_tail() for lane in self._all_tails()) + self.later_in_store
        self.later_in_store = 0
        return dropped, sum(map(len, dropped)) + in_store

    # Looking

    def has_for(self, client_id: int) -> bool:
        """Whether anything is ready for the client, as far as is known here."""
        return any(
            len(lane)
            for receiver in (ANYONE, client_id)
            for lane in self._lanes.get(receiver, {}).values()
        )

    def oldest(self) -> Segment | None:
        """The oldest ready segment in memory."""
        heads = [
            lane.ready[0] for lanes in self._lanes.values() for lane in lanes.values() if lane.ready
        ]
        return min(heads, key=lambda span: span.first_id).segment if heads else None

    def browse(self, limit: int) -> list[Span]:
        """Up to `limit` ready messages in memory, oldest first, left where they are."""
        spans = sorted(
            (
                span
                for lanes in self._lanes.values()
                for lane in lanes.values()
                for span in lane.ready
            ),
            key=lambda span: span.first_id,
        )
        seen: list[Span] = []
        for span in spans:
            if limit <= 0:
                break
            high = min(span.high, span.low + limit)
            seen.append(Span(span.segment, span.low, high, span.state))
            limit -= high - span.low
        return seen

    @staticmethod
    def looked_at(segment: Segment, low: int, high: int) -> Span:
        """Messages of a tail that somebody browses."""
        return Span(segment, low, high, State.READY)

    def tail_wanted(self, head_bytes_low: int) -> list[tuple[Lane, bool]]:
        """Lanes whose head is short while their tail is not; True for addressed ones."""
        wanted = [
            (lane, False)
            for lane in self._lanes[ANYONE].values()
            if lane.tail_count and (lane.waits_for_tail or lane.head_bytes < head_bytes_low)
        ]
        wanted += [(lane, True) for lane in self._addressed_tails.values() if lane.tail_count]
        return wanted
