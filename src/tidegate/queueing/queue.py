"""One queue in memory: what is ready, in which order, for whom. Pure: no clock, no I/O.

Messages for anyone lie in one lane per priority. Messages addressed to a receiver lie
in lanes of that receiver, which nobody else sees. A read merges the (at most two) lanes
of a priority by id, so order per producer holds within a priority. With ageing, priorities are
merged by

    arrival − ageing · priority

which never changes, so low priority waits longer, but not for ever.

Of the messages of a group only one lies in a lane, or is with somebody: see groups.py. Where
tenants share a lane: see tenants.py.

A bound on memory is kept by tails: see lane.py. The caller asks `tail_wanted` and brings
segments back from the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice

from tidegate.core.budget import Budget
from tidegate.core.id_ranges import Range, holds
from tidegate.core.model import Order
from tidegate.core.segment import Segment
from tidegate.queueing.groups import Groups, group_of, has_groups
from tidegate.queueing.lane import NO_ID, Lane
from tidegate.queueing.lifecycle import Event, State
from tidegate.queueing.row import between, span_first_id
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
        "_groups",
        "_lanes",
        "_searched",
        "freed",
        "head_count",
        "held_count",
        "later_floor",
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
        # Receiver (or ANYONE) → groups; a group of one receiver is not that of another.
        self._groups: dict[int, Groups] = {}
        # Messages that may be taken, and messages that wait for an earlier one of their group.
        self.head_count = 0
        self.held_count = 0
        # Whether a message was let out by its group since the caller unset this.
        self.freed = False
        # What waits for its time: by the wall clock, and (to be tried again) by the monotonic one.
        self.scheduled = Schedule()
        self.retrying = Schedule()
        # Of what waits for its time, how many only the store holds.
        self.later_in_store = 0
        # The last (time, id) of which something has left the schedule: up to there all that is not
        # done is in memory, ready or with somebody, and must not be read from the store again.
        self.later_floor = (0.0, 0)
        # When the first message in memory may expire.
        self.next_expiry = NEVER
        # How long messages live that say nothing themselves.
        self.ttl_s: float | None = None
        # What the open segments of this queue weigh, ready or leased.
        self.resident_bytes = 0

    def __len__(self) -> int:
        return self.head_count + self.held_count + self.tail_count + self.later_count

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
            total += sum(lane.head_bytes + lane.held_bytes for lane in lanes.values())
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
        elif segment.attributes is not None and has_groups(segment):
            # A newer one of its group may be out, of whatever priority.
            newest_id = max((t.newest_id for t in self._lanes[ANYONE].values()), default=0)
        tail = self.tail_lane(segment.priority, segment.receivers is not None)
        # A message that was stored in several queues at once may have an older id than what
        # came meanwhile; the tail may not be read there again, so it stays.
        if not tail.comes_late(segment, newest_id) and (tail.tail_count or not keep):
            if segment.receivers is not None:
                self._note_unsearched(segment)
            tail.send_to_tail(segment, segment.open)
            if self._groups:
                self._reach_groups()
            return False
        self._place(segment, segment.open_ranges())
        return True

    def _note_unsearched(self, segment: Segment) -> None:
        """Who was searched for up to here still is: up to this one, or past it if not meant."""
        addressed_to = set(segment.receivers or ())
        end = self.addressed_end
        for client_id, searched in self._searched.items():
            if searched >= end:
                is_meant = client_id in addressed_to
                self._searched[client_id] = segment.first_id if is_meant else segment.last_id + 1

    def bring_back(self, segments: Iterable[Segment], *, pulled: bool = False) -> None:
        """Segments of a tail, read from the store: from its front, or pulled out of it."""
        for segment in segments:
            tail = self.tail_lane(segment.priority, segment.receivers is not None)
            if tail.leave_tail(segment, pulled=pulled):
                self._place(segment, segment.open_ranges())
        self._reach_groups()

    def _place(self, segment: Segment, ranges: Iterable[tuple[int, int]]) -> None:
        self._weigh_in(segment)
        for low, high in ranges:
            if segment.retry_at is None:
                self._enter(Span(segment, low, high, State.READY))
            else:
                for span in self._ready_now(segment, low, high):
                    self._enter(span)

    def _weigh_in(self, segment: Segment) -> None:
        self._weigh(segment.cost_bytes)
        if self.ttl_s is not None:
            segment.expire_by_policy(self.ttl_s)
        self._note_expiry(segment)

    def _note_expiry(self, segment: Segment) -> None:
        """Also of what comes back: while it was held, nobody looked at its time."""
        if segment.expires_at is not None:
            self.next_expiry = min(self.next_expiry, segment.expires_at)

    def _ready_now(self, segment: Segment, low: int, high: int) -> Iterator[Span]:
        """The messages of a range that need not wait before they are tried again."""
        retry_at = segment.retry_at or {}
        for offset in sorted(retry_at):
            if low <= offset < high:
                if offset > low:
                    yield Span(segment, low, offset, State.READY)
                later = Span(segment, offset, offset + 1, State.SCHEDULED)
                # It keeps its group waiting, unless it is itself kept aside.
                if any(self._in_turn(self._receiver(segment, offset), later)):
                    self.scheduled.add(retry_at[offset], later)
                low = offset + 1
        if low < high:
            yield Span(segment, low, high, State.READY)

    def _enter(self, span: Span) -> None:
        """A ready span finds its lanes, but for messages that wait for their group."""
        if span.segment.attributes is None and span.segment.receivers is None:
            self._into_lane(ANYONE, span)
            return
        for receiver, piece in self._by_receiver(span):
            if piece.segment.attributes is None:
                self._into_lane(receiver, piece)
            else:
                for run in self._in_turn(receiver, piece):
                    self._into_lane(receiver, run)

    def _into_lane(self, receiver: int, span: Span) -> None:
        self.head_count += len(span)
        self.lane(receiver, span.segment.priority).insert(span)

    # Groups

    def _in_turn(self, receiver: int, span: Span) -> Iterator[Span]:
        """The messages of a span that need not wait for others of their group, in runs."""
        segment = span.segment
        low = span.low
        for offset in range(span.low, span.high):
            group = group_of(segment, offset)
            if group is None:
                continue
            if self._is_out(receiver, group, Span(segment, offset, offset + 1, State.READY)):
                continue
            if low < offset:
                yield Span(segment, low, offset, span.state)
            low = offset + 1
        if low == span.low:
            yield span
        elif low < span.high:
            yield Span(segment, low, span.high, span.state)

    def _is_out(self, receiver: int, group: str, span: Span) -> bool:
        """Whether it is a message's turn in its group; if not, it is kept aside."""
        groups = self._groups.get(receiver)
        if groups is None:
            groups = self._groups[receiver] = Groups()
        newer = groups.newer_out(group, span.first_id)
        # An older one came late: if nobody has had the newer one yet, that stands back.
        stands_back = (
            newer is not None
            and not newer.segment.was_attempted(newer.low)
            and self.lane(receiver, newer.segment.priority).withdraw(newer)
        )
        if stands_back:
            self.head_count -= 1
            self._hold(receiver, groups.step_back(group), 1)
        horizon = self._group_horizon(receiver)
        if groups.enter(group, span, horizon):
            return True
        self._hold(receiver, span, 1)
        if stands_back:
            # For one that is older still, and came while the newer one was with somebody.
            following = groups.next_out(group, horizon)
            if following is not None:
                self._let_out(receiver, following)
        return False

    def _hold(self, receiver: int, span: Span, count: int) -> None:
        """Count a message that is kept aside, or with -1 is no more."""
        lane = self.lane(receiver, span.segment.priority)
        self.held_count += count
        lane.held_count += count
        lane.held_bytes += count * span.payload_bytes

    def _let_out(self, receiver: int, span: Span) -> None:
        self._hold(receiver, span, -1)
        self._into_lane(receiver, span)
        self.freed = True

    def leave_groups(self, span: Span) -> None:
        """Messages are done, whichever way: the next of their groups are out."""
        segment = span.segment
        for offset in range(span.low, span.high):
            group = group_of(segment, offset)
            if group is None:
                continue
            receiver = self._receiver(segment, offset)
            groups = self._groups.get(receiver)
            if groups is not None:
                following = groups.leave(
                    group, segment.first_id + offset, self._group_horizon(receiver)
                )
                if following is not None:
                    self._let_out(receiver, following)

    def _group_horizon(self, receiver: int) -> int:
        """Up to which id all messages of the receiver's groups are in memory."""
        if receiver == ANYONE:
            searched, tails = 0, self._lanes[ANYONE]
        else:
            searched, tails = self._searched.get(receiver, 0), self._addressed_tails
        return min(
            (
                max(tail.tail_from, tail.tail_groups_from, searched)
                for tail in tails.values()
                if tail.tail_count and searched <= tail.tail_last
            ),
            default=NO_ID,
        )

    def _reach_groups(self) -> None:
        """More is in memory: those who were kept aside for that may be out."""
        for receiver, groups in self._groups.items():
            for span in groups.reach(self._group_horizon(receiver)):
                self._let_out(receiver, span)

    def is_crowded(self, lane: Lane, held_bytes_max: int) -> bool:
        """Whether a lane has nothing but messages that wait for their groups, and enough of them.

        More would only wait beside them until messages that are out are done.
        """
        if lane.count or lane.held_bytes < held_bytes_max or not lane.held_bytes:
            return False
        return self._groups[ANYONE].has_any_out

    # Later

    def add_for_later(self, segment: Segment) -> None:
        """A stored segment that is not due yet, with what is open of it."""
        assert segment.due_at is not None
        self._weigh_in(segment)
        for low, high in segment.open_ranges():
            # What has failed since waits for its next try, not for its first.
            for span in self._ready_now(segment, low, high):
                later = Span(segment, span.low, span.high, State.SCHEDULED)
                self.scheduled.add(segment.due_at, later)

    def evict_later(self) -> tuple[float, int]:
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
            if in_parts or (due, span.segment.first_id) <= self.later_floor:
                middle = max(middle, index + 1)
        for due, span in first_tries[:middle]:
            self.scheduled.add(due, span)
        for _, span in first_tries[middle:]:
            self.later_in_store += len(span)
            self._weigh(-span.segment.cost_bytes)
        dues = [(due, span.segment.first_id) for due, span in first_tries[:middle]]
        return max([self.later_floor, *dues])

    def _leaves_schedule(self, segment: Segment) -> None:
        if segment.due_at is not None:
            self.later_floor = max(self.later_floor, (segment.due_at, segment.first_id))

    def put_off(self, spans: list[Span], due: float) -> None:
        """Leased messages that failed are to be tried again, at a monotonic time."""
        for span in spans:
            span.segment.mark_attempted(span.low, span.high)
            self._note_expiry(span.segment)
            self.retrying.add(due, span.advance(Event.PUT_OFF))

    def release_due(self, now_wall: float, now_monotonic: float) -> int:
        """Let in what is due; how many messages that is."""
        due = self.scheduled.take_due(now_wall)
        for span in due:
            self._leaves_schedule(span.segment)
        due += self.retrying.take_due(now_monotonic)
        # Counted first: a span that enters may grow by its neighbours.
        count = sum(map(len, due))
        for span in due:
            self._enter(span.advance(Event.DUE))
        return count

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
        expired += self._cut_expired_held(now)
        return expired

    def _cut_expired(self, lane: Lane, span: Span, now: float) -> Iterator[Span]:
        for low, high in self._expired_ranges(span, now):
            # The span may be in pieces by now: find the one that holds the range.
            piece = lane.find(Span(span.segment, low, high, span.state))
            assert piece is not None
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
                    self._leaves_schedule(span.segment)
                    yield Span(span.segment, expired_low, expired_high, span.state)
                low = expired_high

    def _cut_expired_held(self, now: float) -> Iterator[Span]:
        for receiver, groups in self._groups.items():
            for span in list(groups):
                if self._expired_ranges(span, now):
                    groups.remove(span)
                    self._hold(receiver, span, -1)
                    yield span

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

    @staticmethod
    def _receiver(segment: Segment, offset: int) -> int:
        """Who a message is for."""
        receivers = segment.receivers
        if receivers is None:
            return ANYONE
        return receivers[offset] if len(receivers) > 1 else receivers[0]

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

    def put_back(self, spans: list[Span], event: Event) -> None:
        """Leased messages are ready again, at their old place."""
        # Newest first: then each is older than the head, and found its place at once.
        for span in sorted(spans, key=lambda span: span.first_id, reverse=True):
            self._note_expiry(span.segment)
            span.advance(event)
            span.segment.mark_attempted(span.low, span.high)
            for receiver, piece in self._by_receiver(span):
                self._into_lane(receiver, piece)

    # Out

    def take(self, count: int, client_id: int, order: Order, ageing_s: float = 0.0) -> list[Span]:
        """Up to `count` messages that this client may have, in order.

        In order of priority, so many seconds of waiting weigh as much as one step; 0: priority
        alone decides.
        """
        taken: list[Span] = []
        is_aged = ageing_s > 0 and order is Order.PRIORITY
        while count > 0:
            if is_aged:
                lane = self._next_aged_lane(client_id, ageing_s)
            else:
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
                waits = lane.tail_count > 0 and lane.waits_for_tail
                if lane.stalled if waits else not lane.count:
                    continue
                next_id = lane.tail_from if waits else lane.first.first_id
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

    def _next_aged_lane(self, client_id: int, ageing_s: float) -> Lane | None:
        """As `_next_lane`. All messages of a segment arrived together, so they stay together."""
        best: Lane | None = None
        best_rank = (0.0, 0)
        in_store = False
        mine = self._lanes.get(client_id, _NO_LANES) if client_id != ANYONE else _NO_LANES
        for lane in (*self._lanes[ANYONE].values(), *mine.values()):
            waits = lane.waits_for_tail
            if waits and lane.stalled:
                continue
            if waits:
                arrived_at, next_id = lane.tail_arrived_at, lane.tail_from
            elif lane.count:
                first = lane.first
                arrived_at, next_id = first.segment.arrived_at, first.first_id
            else:
                continue
            rank = (arrived_at - ageing_s * lane.priority, next_id)
            if best is None or rank < best_rank:
                best, best_rank, in_store = lane, rank, waits
        if best is None or in_store:
            return None
        if not self._addressed_tails:
            return best
        searched = self._searched.get(client_id, 0)
        for tail in self._addressed_tails.values():
            if not tail.tail_count or searched > tail.tail_last:
                continue
            rank = (tail.tail_arrived_at - ageing_s * tail.priority, max(tail.tail_from, searched))
            # Within a lane ids decide, whatever arrived first.
            is_same_lane = mine.get(tail.priority) is best
            if rank[1] < best_rank[1] if is_same_lane else rank < best_rank:
                return None
        return best

    def take_regardless(self, count: int) -> list[Span]:
        """Up to `count` messages for anyone, oldest first, though some wait for their group.

        For those that leave the queue without being delivered.
        """
        spans = self.take(count, ANYONE, Order.OLDEST)
        groups = self._groups.get(ANYONE)
        if groups is None:
            return spans
        held = heapq.nsmallest(count, groups, key=lambda span: span.first_id)
        kept_aside = set(held)
        taken: list[Span] = []
        for span in sorted(spans + held, key=lambda span: span.first_id):
            piece = span
            if span not in kept_aside and len(span) > count:
                piece = span.split(count)
                self._into_lane(ANYONE, span)
            if count <= 0:
                continue
            if span in kept_aside:
                groups.remove(span)
                self._hold(ANYONE, span, -1)
            taken.append(piece)
            count -= len(piece)
        return taken

    def take_addressed(self, count: int) -> list[Span]:
        """Up to `count` messages addressed to whomever, the oldest of those in memory."""
        lanes = [
            lane
            for receiver, lanes in self._lanes.items()
            if receiver != ANYONE
            for lane in lanes.values()
            if lane.count
        ]
        if not lanes:
            return []
        span = min(lanes, key=lambda lane: lane.first.first_id).take(count)
        self.head_count -= len(span)
        return [span]

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
        self._reach_groups()

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
            self._note_expiry(span.segment)
            self._enter(span.advance(Event.STAYED))

    def done(self, span: Span, event: Event = Event.ACKED) -> bool:
        """Settle a span; True when its whole segment is done."""
        span.advance(event)
        finished = span.segment.mark_done(span.low, span.high)
        if finished:
            self._weigh(-span.segment.cost_bytes)
        if self._groups and span.segment.attributes is not None:
            self.leave_groups(span)
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
        for receiver, groups in self._groups.items():
            for span in groups.clear():
                self._hold(receiver, span, -1)
                dropped.append(span)
        for lanes in self._lanes.values():
            for lane in lanes.values():
                while lane.count:
                    span = lane.take(lane.count)
                    self.head_count -= len(span)
                    dropped.append(span)
        dropped += [span for _, span in self.scheduled.take_all() + self.retrying.take_all()]
        for span in dropped:
            self.done(span, Event.PURGED)
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
            lane.oldest for lanes in self._lanes.values() for lane in lanes.values() if lane.count
        ]
        heads += [span for groups in self._groups.values() if (span := groups.oldest) is not None]
        return min(heads, key=lambda span: span.first_id).segment if heads else None

    def browse(
        self,
        limit: int,
        first_id: int = 0,
        last_id: int = NO_ID,
        *,
        for_anyone: bool = False,
        spans_max: int | None = None,
    ) -> list[Span]:
        """Up to `limit` ready messages in memory with these ids, in order, left where they are."""
        seen: list[Span] = []
        if first_id > last_id:
            return seen
        # As many are looked at as are wanted, whatever waits besides.
        for span in islice(self._between(first_id, last_id, for_anyone), spans_max):
            if limit <= 0:
                break
            low, high = span.offsets_between(first_id, last_id)
            high = min(high, low + limit)
            seen.append(Span(span.segment, low, high, span.state))
            limit -= high - low
        return seen

    def _between(self, first_id: int, last_id: int, for_anyone: bool) -> Iterator[Span]:
        """The spans in memory that hold these ids, in order."""
        receivers = [ANYONE] if for_anyone else list(self._lanes)
        rows: list[Iterable[Span]] = [
            between(row, first_id, last_id)
            for each in receivers
            for lane in self._lanes[each].values()
            for row in lane.rows()
        ]
        rows += [
            sorted(
                (span for span in groups if first_id <= span.first_id <= last_id), key=span_first_id
            )
            for each, groups in self._groups.items()
            if each in receivers
        ]
        return heapq.merge(*rows, key=span_first_id)

    def tail_pieces(self, segment: Segment, first_id: int, last_id: int) -> list[Span]:
        """What of a segment that was read from the store only the store holds, with these ids."""
        tail = self.tail_lane(segment.priority, segment.receivers is not None)
        if not tail.holds(segment):
            return []
        pieces = (Span(segment, low, high, State.READY) for low, high in segment.open_ranges())
        cut = [piece.offsets_between(first_id, last_id) for piece in pieces]
        return [Span(segment, low, high, State.READY) for low, high in cut if low < high]

    @property
    def tail_begins(self) -> int:
        """The lowest id of a message for anyone that only the store may hold."""
        tails = (lane.tail_from for lane in self._lanes[ANYONE].values() if lane.tail_count)
        return min(tails, default=NO_ID)

    def has_tail_between(self, first_id: int, last_id: int, *, for_anyone: bool = False) -> bool:
        """Whether the store may hold messages with these ids that memory does not."""
        tails = self._lanes[ANYONE].values() if for_anyone else self._all_tails()
        return any(
            tail.tail_count and tail.tail_from <= last_id and tail.tail_last >= first_id
            for tail in tails
        )

    def take_between(self, ranges: list[Range]) -> list[Span]:
        """The messages for anyone in memory with these ids, which thereby are nobody's.

        The ranges are in order and apart.
        """
        if not ranges:
            return []
        taken: list[Span] = []
        groups = self._groups.get(ANYONE)
        if groups is not None:
            for span in [span for span in groups if holds(ranges, span.first_id)]:
                groups.remove(span)
                self._hold(ANYONE, span, -1)
                taken.append(span)
        for lane in self._lanes[ANYONE].values():
            for span in lane.take_between(ranges):
                self.head_count -= len(span)
                taken.append(span)
        return taken

    def tail_wanted(self, head_bytes_low: int) -> list[tuple[Lane, bool]]:
        """Lanes whose head is short while their tail is not; True for addressed ones."""
        wanted = [
            (lane, False)
            for lane in self._lanes[ANYONE].values()
            if lane.tail_count
            and (lane.waits_for_tail or lane.head_bytes + lane.held_bytes < head_bytes_low)
        ]
        wanted += [(lane, True) for lane in self._addressed_tails.values() if lane.tail_count]
        return wanted

    def forget_tail(self, lane: Lane) -> None:
        """The store holds nothing where a tail was counted."""
        lane.forget_tail()
        self._reach_groups()

    def skip_tail(self, lane: Lane, to_id: int) -> None:
        """The store holds nothing of a tail before an id."""
        lane.tail_from = max(lane.tail_from, to_id)
        self._reach_groups()
