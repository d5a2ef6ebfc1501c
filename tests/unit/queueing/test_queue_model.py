"""One queue in memory against a model: a dictionary of messages and a sort.

The machine plays the replica and the store: segments come in and stay or spill, tails come back
from the front or are searched, messages are taken in every way, returned, put off, given up,
settled and purged, and a new owner begins with what is stored. Some messages belong to groups.
A second machine has tenants, where the order between them is not the model's to foretell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from thoroughness import examples

from tidegate.core.model import Attributes, Order, merge_ranges
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.queue import MessageSelector, Queue
from tidegate.queueing.spans import AFTER_ALL, ANYONE, BEFORE_ALL, MessageEvent, MessageState, Span

CLIENTS = [1, 2, 3]
SENDERS = [1, 2]
CONTEXTS = [None, 7, 8]
PRIORITIES = [1, 5, 9]
GROUPS = [None, "ann", "bob"]
TENANTS = [None, "red", "blue", "green"]
AGEINGS_S = [0.0, 1.0, 10.0]

Key = tuple[int | None, str]


class Entry:
    """What the model knows of a message."""

    def __init__(self, segment: Segment, offset: int) -> None:
        self.message_id = segment.first_id + offset
        self.segment_id = segment.first_id
        self.priority = segment.priority
        receivers = segment.receivers
        self.receiver = None if receivers is None else receivers[offset]
        self.sender = segment.sender(offset)
        self.context = segment.context(offset)
        self.arrived_at = segment.arrived_at
        mine = None if segment.attributes is None else segment.attributes[offset]
        self.tenant = None if mine is None else mine.tenant
        # A group of one receiver is not that of another.
        self.key: Key | None = None
        if mine is not None and mine.group is not None:
            self.key = (self.receiver, mine.group)
        # ready, leased, later (to be tried again when due), done
        self.state = "ready"
        self.due = 0.0

    def is_for(self, client: int) -> bool:
        return self.receiver in (None, client)

    def rank(self, order: Order, ageing_s: float = 0.0) -> tuple[float, int]:
        if order is Order.OLDEST:
            return (0, self.message_id)
        aged = self.arrived_at - ageing_s * self.priority if ageing_s else -self.priority
        return (aged, self.message_id)


class QueueMachine(RuleBasedStateMachine):
    """Everything that can happen to a queue, in any order."""

    leased = Bundle("leased")
    has_tenants = False

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(1 << 40)
        self.queue = Queue(self.budget)
        self.next_id = 1
        self.reserved: list[int] = []
        self.now = 0.0
        self.messages: dict[int, Entry] = {}
        # The message of a group that was delivered and is not done: the group is its own.
        self.owners: dict[Key, int] = {}
        # The message of a group whose turn it was seen to be: what comes to the store behind it
        # does not change that, though the queue may then know less of the store than before.
        self.let_out: dict[Key, int] = {}
        # Columns as the store keeps them, and which segments are in memory.
        self.stored: dict[int, Segment] = {}
        self.resident: dict[int, Segment] = {}

    # The store

    def fresh_copy(self, first_id: int) -> Segment:
        stored = self.stored[first_id]
        copy = Segment(
            queue_id=1,
            first_id=stored.first_id,
            priority=stored.priority,
            arrived_at=stored.arrived_at,
            lengths=stored.lengths,
            payload=stored.payload,
            senders=stored.senders,
            receivers=stored.receivers,
            contexts=stored.contexts,
            attributes=stored.attributes,
            reloaded=True,
        )
        for offset in range(copy.count):
            if self.messages[first_id + offset].state == "done":
                copy.mark_done(offset, offset + 1)
        return copy

    def settle(self, message_ids: Iterable[int]) -> None:
        for message_id in message_ids:
            entry = self.messages[message_id]
            entry.state = "done"
            if entry.key is not None and self.owners.get(entry.key) == message_id:
                del self.owners[entry.key]
        for first_id in list(self.stored):
            count = self.stored[first_id].count
            if all(self.messages[first_id + n].state == "done" for n in range(count)):
                del self.stored[first_id]
                self.resident.pop(first_id, None)

    def note_residents(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            if segment.first_id not in self.resident:
                self.resident[segment.first_id] = segment

    # In

    @rule(
        count=st.integers(1, 5),
        priority=st.sampled_from(PRIORITIES),
        receivers=st.none() | st.lists(st.sampled_from(CLIENTS), min_size=5, max_size=5),
        senders=st.lists(st.sampled_from(SENDERS), min_size=5, max_size=5) | st.just([1]),
        contexts=st.none() | st.lists(st.sampled_from(CONTEXTS), min_size=5, max_size=5),
        groups=st.none() | st.lists(st.sampled_from(GROUPS), min_size=5, max_size=5),
        tenants=st.none() | st.lists(st.sampled_from(TENANTS), min_size=5, max_size=5),
        waited_s=st.sampled_from([0.0, 1.0, 7.0]),
        keep=st.booleans(),
        late=st.booleans(),
    )
    def add(
        self,
        count: int,
        priority: int,
        receivers: list[int] | None,
        senders: list[int],
        contexts: list[int | None] | None,
        groups: list[str | None] | None,
        tenants: list[str | None] | None,
        waited_s: float,
        keep: bool,
        late: bool,
    ) -> None:
        self.now += waited_s
        if late and self.reserved:
            # A message to several queues got its id earlier and is stored only now.
            first_id, count = self.reserved.pop(), 1
        else:
            first_id = self.next_id
            self.next_id += count
        attributes: list[Attributes | None] | None = None
        if groups is not None or (tenants is not None and self.has_tenants):
            attributes = [
                Attributes(
                    group=None if groups is None else groups[n],
                    tenant=None if tenants is None or not self.has_tenants else tenants[n],
                )
                for n in range(count)
            ]
        segment = Segment(
            queue_id=1,
            first_id=first_id,
            priority=priority,
            arrived_at=self.now,
            lengths=[1] * count,
            payload=b"x" * count,
            senders=senders[:count] if len(senders) > 1 else senders,
            receivers=None if receivers is None else receivers[:count],
            contexts=None if contexts is None else contexts[:count],
            attributes=attributes,
        )
        self.stored[first_id] = segment
        for offset in range(count):
            entry = self.messages[first_id + offset] = Entry(segment, offset)
            owner = self.owners.get(entry.key, 0) if entry.key is not None else 0
            if entry.message_id < owner and self.messages[owner].state == "ready":
                # It was returned, and an older one has come late: that one goes first.
                self.owners = {key: m for key, m in self.owners.items() if m != owner}
            if entry.key is not None and entry.message_id < self.let_out.get(entry.key, 0):
                del self.let_out[entry.key]
        if self.queue.add(segment, keep=keep):
            self.resident[first_id] = segment

    @rule()
    def reserve_an_id(self) -> None:
        self.reserved.append(self.next_id)
        self.next_id += 1

    # The tail

    def lane_segments(self, priority: int, addressed: bool, low: int, high: int) -> list[Segment]:
        return [
            self.fresh_copy(first_id)
            for first_id, segment in sorted(self.stored.items())
            if segment.priority == priority
            and (segment.receivers is not None) == addressed
            and low <= first_id <= high
        ]

    @precondition(lambda self: self.queue.spilled.count)
    @rule(which=st.integers(0, 10), count_max=st.integers(1, 3))
    def read_front(self, which: int, count_max: int) -> None:
        wanted = self.queue.spilled.wanted(1 << 62)
        lane, addressed = wanted[which % len(wanted)]
        found = self.lane_segments(lane.priority, addressed, lane.tail_from, lane.tail_last)
        if found:
            self.queue.bring_back(found[:count_max])
            self.note_residents(found[:count_max])
        else:
            self.queue.forget_tail(lane)

    @precondition(lambda self: self.queue.spilled.count)
    @rule(
        client=st.sampled_from(CLIENTS),
        sender=st.none() | st.sampled_from(SENDERS),
        context=st.sampled_from(CONTEXTS),
        count_max=st.integers(1, 3),
    )
    def search(self, client: int, sender: int | None, context: int | None, count_max: int) -> None:
        """As find_segments of the store does."""
        start = min(lane.tail_from for lane, _ in self.queue.spilled.wanted(1 << 62))
        found = [
            self.fresh_copy(first_id)
            for first_id, segment in sorted(self.stored.items())
            if first_id >= start
            and (segment.receivers is None or client in segment.receivers)
            and (sender is None or sender in segment.senders)
            and (context is None or context in (segment.contexts or ()))
            and not (sender is None and context is None and segment.receivers is None)
        ][:count_max]
        before = self.queue.lanes.head_count + self.queue.lanes.held_count
        self.queue.bring_back(found, pulled=True)
        new = [segment for segment in found if segment.first_id not in self.resident]
        after = self.queue.lanes.head_count + self.queue.lanes.held_count
        assert after - before == sum(segment.open for segment in new)
        self.note_residents(new)

    @rule(client=st.sampled_from(CLIENTS), count_max=st.integers(1, 3))
    def search_for_receiver(self, client: int, count_max: int) -> None:
        start = self.queue.spilled.unsearched_from(client)
        if start is None:
            for segment in self.spilled():
                assert client not in (segment.receivers or ())
            return
        end = self.queue.spilled.addressed_end
        found = [
            self.fresh_copy(first_id)
            for first_id, segment in sorted(self.stored.items())
            if first_id >= start and client in (segment.receivers or ())
        ][:count_max]
        self.queue.bring_back(found, pulled=True)
        self.note_residents(found)
        self.queue.searched(client, found[-1].last_id + 1 if len(found) == count_max else end)

    def bring_everything_back(self) -> None:
        for _ in range(10_000):
            if not self.queue.spilled.count:
                return
            self.read_front(0, 3)
        raise AssertionError("the tail never ends")

    # Out

    def in_turn(self) -> list[Entry]:
        """Ready messages that need not wait for others of their groups, in order of their ids."""
        turn: list[Entry] = []
        seen: set[Key] = set()
        for _, entry in sorted(self.messages.items()):
            if entry.state != "ready":
                continue
            if entry.key is not None:
                is_first = entry.key not in seen and not self.may_have_older_in_store(entry)
                seen.add(entry.key)
                owner = self.owners.get(entry.key)
                if not (is_first if owner is None else owner == entry.message_id):
                    continue
            turn.append(entry)
        return turn

    def may_have_older_in_store(self, entry: Entry) -> bool:
        """What the store holds of its group is not known: the queue lets it wait."""
        if not self.is_in_memory(entry):
            return False
        if entry.key is not None and self.let_out.get(entry.key) == entry.message_id:
            return False
        receiver = ANYONE if entry.receiver is None else entry.receiver
        return entry.message_id >= self.queue.group_gate.horizon(receiver)

    def expected(self, client: int, order: Order, ageing_s: float = 0.0) -> list[Entry]:
        """Lanes are in order of ids; which one is next, is decided by the first of each."""
        lanes: dict[tuple[int | None, int], deque[Entry]] = {}
        for entry in self.in_turn():
            if entry.is_for(client):
                lanes.setdefault((entry.receiver, entry.priority), deque()).append(entry)
        merged: list[Entry] = []
        while lanes:
            best = min(lanes, key=lambda at: lanes[at][0].rank(order, ageing_s))
            merged.append(lanes[best].popleft())
            if not lanes[best]:
                del lanes[best]
        return merged

    def spilled(self) -> list[Segment]:
        return [s for first_id, s in self.stored.items() if first_id not in self.resident]

    def may_stand_before(
        self, entry: Entry, tail: Segment, client: int, order: Order, ageing_s: float
    ) -> bool:
        """Whether a queue that cannot see into a tail must let the entry wait for it."""
        if order is Order.PRIORITY and not ageing_s and tail.priority < entry.priority:
            return False
        if ageing_s and order is Order.PRIORITY:
            lane = self.queue.spilled.lane(tail.priority, tail.receivers is not None)
            earliest = lane.tail_arrived_at - ageing_s * tail.priority
            if earliest > entry.rank(order, ageing_s)[0]:
                return False
        return tail.receivers is None or self.queue.spilled.unsearched_from(client) is not None

    def is_in_memory(self, entry: Entry) -> bool:
        return entry.segment_id in self.resident

    def check_taken(
        self, spans: list[Span], client: int, order: Order, count: int, ageing_s: float = 0.0
    ) -> None:
        taken = [span.first_id + n for span in spans for n in range(len(span))]
        expected = self.expected(client, order, ageing_s)
        self.check_order(taken, expected)
        assert len(taken) <= count
        if len(taken) < min(count, len(expected)):
            rest = [entry for entry in expected if entry.message_id not in taken]
            assert any(
                self.may_stand_before(entry, s, client, order, ageing_s)
                for entry in self.may_be_next(rest)
                for s in self.spilled()
            )
        for message_id in taken:
            self.lease(self.messages[message_id])

    def check_order(self, taken: list[int], expected: list[Entry]) -> None:
        assert taken == [entry.message_id for entry in expected[: len(taken)]]

    def may_be_next(self, rest: list[Entry]) -> list[Entry]:
        return rest[:1]

    def lease(self, entry: Entry) -> None:
        """The law of groups, whatever the model expected."""
        if entry.key is not None:
            mates = [m for m in self.messages.values() if m.key == entry.key and m is not entry]
            assert all(mate.state != "leased" for mate in mates), "one at a time"
            if self.owners.get(entry.key) != entry.message_id:
                older = [mate for mate in mates if mate.message_id < entry.message_id]
                assert all(mate.state == "done" for mate in older), "in order"
            self.owners[entry.key] = entry.message_id
        entry.state = "leased"

    @rule(
        target=leased,
        count=st.integers(1, 12),
        client=st.sampled_from(CLIENTS),
        order=st.sampled_from(Order),
        ageing_s=st.sampled_from(AGEINGS_S),
    )
    def take(self, count: int, client: int, order: Order, ageing_s: float) -> object:
        spans = self.queue.take(count, client, order, ageing_s)
        self.check_taken(spans, client, order, count, ageing_s)
        for span in spans:
            span.advance(MessageEvent.DELIVERED)
        return multiple(*spans)

    @rule(
        target=leased,
        client=st.sampled_from(CLIENTS),
        order=st.sampled_from(Order),
        sender=st.none() | st.sampled_from(SENDERS),
        context=st.sampled_from(CONTEXTS),
        searched=st.booleans(),
    )
    def take_match(
        self,
        client: int,
        order: Order,
        sender: int | None,
        context: int | None,
        searched: bool,
    ) -> object:
        horizon = AFTER_ALL if searched else BEFORE_ALL
        span = self.queue.take_match(MessageSelector(sender, context), client, order, horizon)
        if span is not None and not searched and context is None:
            # Then it is the first of all, in memory or not.
            first = next(
                entry
                for entry in self.expected(client, order)
                if sender is None or entry.sender == sender
            )
            assert span.first_id == first.message_id
        matching = [
            entry
            for entry in self.expected(client, order)
            if self.is_in_memory(entry)
            and (sender is None or entry.sender == sender)
            and (context is None or entry.context == context)
        ]
        if span is None:
            assert not matching or (not searched and self.queue.spilled.count)
            return multiple()
        assert len(span) == 1
        assert span.first_id == matching[0].message_id
        self.lease(matching[0])
        span.advance(MessageEvent.DELIVERED)
        return span

    def is_ours(self, span: Span) -> bool:
        """Whether it was taken from this queue, not from that of an owner before."""
        return self.resident.get(span.segment.first_id) is span.segment

    @rule(span=consumes(leased), at=st.integers(0, 10), put_off_s=st.none() | st.just(5.0))
    def give_back(self, span: Span, at: int, put_off_s: float | None) -> None:
        """A part is acknowledged, the rest returns: spans split and join again."""
        if not self.is_ours(span):
            return
        cut = span.low + at % (len(span) + 1)
        if cut > span.low:
            self.done(Span(span.segment, span.low, cut, span.state))
        if cut == span.high:
            return
        rest = Span(span.segment, cut, span.high, span.state)
        for entry in self.entries(rest):
            entry.state = "ready" if put_off_s is None else "later"
            entry.due = self.now + (put_off_s or 0.0)
        if put_off_s is None:
            self.queue.put_back([rest], MessageEvent.RETURNED)
        else:
            self.queue.put_off([rest], self.now + put_off_s)

    def entries(self, span: Span) -> list[Entry]:
        return [self.messages[span.first_id + n] for n in range(len(span))]

    @rule(waited_s=st.sampled_from([1.0, 5.0]))
    def time_passes(self, waited_s: float) -> None:
        self.now += waited_s
        due = [m for m in self.messages.values() if m.state == "later" and m.due <= self.now]
        assert self.queue.release_due(0.0, self.now) == len(due)
        for entry in due:
            entry.state = "ready"

    @rule(span=consumes(leased))
    def acknowledge(self, span: Span) -> None:
        if self.is_ours(span):
            self.done(span)

    @rule(span=consumes(leased), stays=st.booleans())
    def give_up(self, span: Span, stays: bool) -> None:
        if self.is_ours(span):
            self.leave([span], stays)

    def leave(self, spans: list[Span], stays: bool) -> None:
        """For another queue; or that could not take them."""
        for span in spans:
            span.advance(MessageEvent.GIVEN_UP)
            if not stays:
                self.done(span, MessageEvent.MOVED)
            else:
                for entry in self.entries(span):
                    entry.state = "ready"
        if stays:
            self.queue.stay(spans)

    @rule(count=st.integers(1, 12), stays=st.booleans())
    def take_regardless(self, count: int, stays: bool) -> None:
        """Whatever their groups say."""
        spans = self.queue.take_regardless(count)
        taken = [entry for span in spans for entry in self.entries(span)]
        ready = [m for m in self.messages.values() if m.state == "ready" and m.receiver is None]
        oldest = sorted(m.message_id for m in ready)[:count]
        assert all(entry in ready for entry in taken)
        if not self.has_tenants and not self.spilled():
            assert [entry.message_id for entry in taken] == oldest
        assert len(taken) <= count
        self.leave(spans, stays)

    def done(self, span: Span, event: MessageEvent = MessageEvent.ACKED) -> None:
        finished = self.queue.done(span, event)
        first_id = span.segment.first_id
        self.settle(range(span.first_id, span.first_id + len(span)))
        assert finished == (first_id not in self.stored)

    @rule()
    def purge(self) -> None:
        waiting = [m.message_id for m in self.messages.values() if m.state in ("ready", "later")]
        _, count = self.queue.purge()
        assert count == len(waiting)
        self.settle(waiting)

    @rule()
    def take_over(self) -> None:
        """A new owner knows what is stored, and nothing of deliveries."""
        self.queue.in_memory.clear()
        self.queue = Queue(self.budget)
        self.resident.clear()
        self.reserved.clear()
        self.owners.clear()
        self.let_out.clear()
        for entry in self.messages.values():
            if entry.state != "done":
                entry.state = "ready"
        lanes: dict[tuple[int, bool], list[Segment]] = {}
        for first_id, stored in sorted(self.stored.items()):
            key = (stored.priority, stored.receivers is not None)
            lanes.setdefault(key, []).append(self.fresh_copy(first_id))
        for (priority, addressed), segments in lanes.items():
            self.queue.spilled.lane(priority, addressed).expect_tail(
                segments[0].first_id,
                segments[-1].last_id,
                sum(segment.open for segment in segments),
                sum(segment.payload_bytes for segment in segments),
                min(segment.arrived_at for segment in segments),
            )

    @rule(limit=st.integers(1, 20))
    def browse(self, limit: int) -> None:
        spans = self.queue.contents.browse(limit)
        seen = [span.first_id + n for span in spans for n in range(len(span))]
        ready = sorted(
            m.message_id
            for m in self.messages.values()
            if m.state == "ready" and self.is_in_memory(m)
        )
        assert seen == ready[:limit]

    @rule(first_id=st.integers(1, 40), count=st.integers(1, 20), limit=st.integers(1, 20))
    def browse_between(self, first_id: int, count: int, limit: int) -> None:
        ids = range(first_id, first_id + count)
        spans = self.queue.contents.browse(limit, ids[0], ids[-1], for_anyone=True)
        seen = [span.first_id + n for span in spans for n in range(len(span))]
        assert seen == [entry.message_id for entry in self.ready_for_anyone(ids)][:limit]
        # What memory does not have of them, only the store has.
        in_store = [
            span.first_id + n
            for first in sorted(self.stored)
            for span in self.queue.spilled.pieces(self.fresh_copy(first), ids[0], ids[-1])
            for n in range(len(span))
        ]
        assert in_store == sorted(
            m.message_id
            for m in self.messages.values()
            if m.state == "ready" and m.message_id in ids and not self.is_in_memory(m)
        )

    @rule(ids=st.sets(st.integers(1, 60), min_size=1))
    def acknowledge_ids(self, ids: set[int]) -> None:
        expected = [entry.message_id for entry in self.ready_for_anyone(ids)]
        spans = self.queue.contents.take_between(merge_ranges((each, each) for each in ids))
        assert sorted(span.first_id + n for span in spans for n in range(len(span))) == expected
        for span in spans:
            self.done(span)

    def ready_for_anyone(self, ids: Container[int]) -> list[Entry]:
        found = [
            m
            for m in self.messages.values()
            if m.state == "ready"
            and m.message_id in ids
            and m.receiver is None
            and self.is_in_memory(m)
        ]
        return sorted(found, key=lambda entry: entry.message_id)

    # What always holds

    @invariant()
    def nothing_is_lost_or_counted_twice(self) -> None:
        ready = [entry for entry in self.messages.values() if entry.state == "ready"]
        later = [entry for entry in self.messages.values() if entry.state == "later"]
        assert len(self.queue) == len(ready) + len(later)
        in_memory = [entry for entry in ready if self.is_in_memory(entry)]
        assert self.queue.lanes.head_count + self.queue.lanes.held_count == len(in_memory)
        in_turn = [entry for entry in self.in_turn() if self.is_in_memory(entry)]
        assert self.queue.lanes.head_count == len(in_turn)
        self.let_out.update({e.key: e.message_id for e in in_turn if e.key is not None})
        for client in CLIENTS:
            for_client = [entry for entry in in_memory if entry.is_for(client)]
            if for_client:
                assert self.queue.lanes.has_for(client)

    @invariant()
    def memory_is_accounted_for(self) -> None:
        weight = sum(segment.cost_bytes for segment in self.resident.values())
        assert self.queue.in_memory.cost_bytes == weight
        assert self.budget.used_bytes == weight
        lanes = self.queue.lanes
        assert sum(lane.head_bytes for lane in lanes) == lanes.head_count, "one byte each"
        assert sum(lane.held_bytes for lane in lanes) == lanes.held_count

    @property
    def open_count(self) -> int:
        """How many are not done: waiting, or with somebody."""
        return sum(entry.state != "done" for entry in self.messages.values())

    def teardown(self) -> None:
        """In the end everything comes back and comes out, once and in order."""
        self.bring_everything_back()
        self.time_passes(5.0)
        while self.open_count:
            before = self.open_count
            for client in CLIENTS:
                self.check_taken(
                    self.queue.take(1 << 62, client, Order.OLDEST), client, Order.OLDEST, 1 << 62
                )
            # Those behind them in their groups come out when these are done.
            for entry in list(self.messages.values()):
                if entry.state == "leased":
                    offset = entry.message_id - entry.segment_id
                    held = self.resident[entry.segment_id]
                    self.done(Span(held, offset, offset + 1, MessageState.LEASED))
            assert self.open_count < before
        assert len(self.queue) == 0


class SharedQueueMachine(QueueMachine):
    """The same with tenants: in order within each, and none is left out."""

    has_tenants = True

    def check_order(self, taken: list[int], expected: list[Entry]) -> None:
        first = [self.lane_of(self.messages[message_id]) for message_id in taken]
        for lane in set(first):
            mine = [entry.message_id for entry in expected if self.lane_of(entry) == lane]
            out = [m for m in taken if self.lane_of(self.messages[m]) == lane]
            assert out == mine[: len(out)]

    def may_be_next(self, rest: list[Entry]) -> list[Entry]:
        """Whose turn it is, is not foretold: the one whose it is may have to wait for the store."""
        firsts: dict[object, Entry] = {}
        for entry in rest:
            firsts.setdefault(self.lane_of(entry), entry)
        return list(firsts.values())

    @staticmethod
    def lane_of(entry: Entry) -> tuple[int | None, int, str | None]:
        return entry.receiver, entry.priority, entry.tenant


TestSharedQueueModel = SharedQueueMachine.TestCase
TestSharedQueueModel.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)

TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)


@pytest.mark.parametrize("machine", [QueueMachine, SharedQueueMachine])
def test_a_queue_behaves_as_the_model_for_longer(machine: type[QueueMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples(300), stateful_step_count=60, deadline=None),
    )


def test_client_ids_of_the_model_exclude_anyone() -> None:
    assert ANYONE not in CLIENTS
