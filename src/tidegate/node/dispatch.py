"""The way out: what is ready goes to readers who wait and to consumers who have credit.

Readers come first, in the order in which they asked. Consumers take turns; each gets a share
of what is there, within its credit. Nothing is sent when our lease on the queue has run out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidegate.core.errors import (
    NoMessagesInQueue,
    NoMessagesRetrieved,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import DeathReason, Failure, Order
from tidegate.core.ports import Attempt
from tidegate.core.segment import Segment
from tidegate.node.consumer import Consumer, Outlet, Reader
from tidegate.node.holding import Holding
from tidegate.node.later import Later
from tidegate.node.lifecycle_watch import EXPIRED
from tidegate.node.retries import retry_wait_s
from tidegate.node.runs import run_of
from tidegate.node.settling import Pledge, Ranges, Settling
from tidegate.node.tail import TailReader
from tidegate.queueing.lease import Lease
from tidegate.queueing.lifecycle import Event, State
from tidegate.queueing.queue import EVERYTHING
from tidegate.queueing.span import Span
from tidegate.wire.packets import Return, Run

DELIVERY_COUNT_MAX = 2000
DELIVERY_BYTES_MAX = 1024 * 1024


class Dispatch:
    """Those who take from one replica."""

    def __init__(
        self, holding: Holding, settling: Settling, under_way: Callable[[], set[int]]
    ) -> None:
        self._holding = holding
        self._settling = settling
        self._consumers: deque[Consumer] = deque()
        # Everyone who holds leases: consumers, and as number 0 those who read under a lease.
        self._holders: dict[tuple[Outlet, int], Consumer] = {}
        self._readers: dict[Reader, None] = {}
        self._readers_of: dict[int, dict[Reader, None]] = {}
        # Consumers that have gone since somebody last asked; None: nobody does.
        self.departed: list[Consumer] | None = None
        self.tail = TailReader(holding, lambda: self.serve(None), under_way)
        self.later = Later(holding, self.serve_all, under_way)

    @property
    def consumers(self) -> list[Consumer]:
        return list(self._consumers)

    @property
    def readers_waiting(self) -> int:
        return len(self._readers)

    @property
    def unacknowledged(self) -> int:
        return sum(holder.book.outstanding for holder in self._holders.values())

    @property
    def is_idle(self) -> bool:
        """Whether there is nobody at all, waiting, subscribed or holding something."""
        return not (self._consumers or self._readers or self._holders)

    def first_ids_held(self) -> set[int]:
        """The segments of which somebody holds messages."""
        return self._settling.first_ids_pledged() | {
            lease.span.segment.first_id
            for holder in self._holders.values()
            for lease in holder.book
        }

    # Readers

    def read(self, reader: Reader, wait_s: float) -> None:
        """One message for a reader: now, or when it comes, or a miss."""
        if not self._holding.may_deliver():
            reader.miss(Unavailable("this node's lease has lapsed: ask again"))
            return
        if self._try_reader(reader):
            if self._holding.queue.freed:
                self.dispatch()
            return
        in_store = self._holding.queue.tail_count > 0
        if wait_s <= 0 and not in_store:
            self._miss(reader)
            return
        self._readers[reader] = None
        self._readers_of.setdefault(reader.client_id, {})[reader] = None
        if wait_s > 0:
            reader.timer = asyncio.get_running_loop().call_later(wait_s, self._miss, reader)
        if not in_store:
            # Nothing older lies in the store; what goes there from now on is looked at for it.
            reader.horizon = EVERYTHING
        else:
            # What it wants may be beyond memory.
            self.tail.search(
                reader,
                lambda: reader not in self._readers or self._try_reader(reader),
                lambda: self._not_found(reader),
            )

    def _not_found(self, reader: Reader) -> None:
        if reader.timer is None:
            self._miss(reader)

    def _miss(self, reader: Reader) -> None:
        self.drop_reader(reader)
        name = self._holding.info.name
        if self._holding.policy.paused:
            reader.miss(NoMessagesRetrieved(f"queue {name!r} is paused: resume it"))
        elif len(self._holding.queue) == 0:
            reader.miss(NoMessagesInQueue(f"queue {name!r} is empty"))
        else:
            reader.miss(NoMessagesRetrieved(f"queue {name!r} holds no message that matches"))

    def drop_reader(self, reader: Reader) -> None:
        """Served, timed out, or its connection is gone."""
        if reader.timer is not None:
            reader.timer.cancel()
        self._readers.pop(reader, None)
        mine = self._readers_of.get(reader.client_id)
        if mine is not None:
            mine.pop(reader, None)
            if not mine:
                del self._readers_of[reader.client_id]

    def _try_reader(self, reader: Reader) -> bool:
        holding = self._holding
        if not holding.may_deliver() or holding.policy.paused:
            return False
        span = self._take_for(reader)
        if span is None:
            if reader.match is None:
                # It may be held up by what lies in the store, and be for somebody else.
                self.tail.search_for_receiver(reader.client_id)
            return False
        self.drop_reader(reader)
        holder = reader.book_for()
        lease = holder.book.grant(span, holding.clock.monotonic(), reader.lease_s or 0.0)
        run = self._run(lease)
        body = span.segment.body(span.low, span.high)
        if reader.lease_s is None:
            # Reading removes (Telesto): returned is acknowledged.
            self._settling.settle(holder, [(lease.tag, lease.tag)])
        reader.answer(run, body)
        self.tail.fill_head()
        return True

    def _take_for(self, reader: Reader) -> Span | None:
        queue = self._holding.queue
        while True:
            if reader.match is None:
                spans = queue.take(1, reader.client_id, reader.order)
                span = spans[0] if spans else None
            else:
                span = queue.take_match(
                    reader.match, reader.client_id, reader.order, reader.horizon
                )
            if span is None or self._living([span]):
                return span

    # Consumers

    def subscribe(
        self, outlet: Outlet, consumer: int, prefetch: int, order: Order, automatic: bool
    ) -> None:
        subscriber = self._new_holder(outlet, consumer, prefetch, order, automatic)
        self._consumers.append(subscriber)
        self.dispatch()
        self.tail.search_for_receiver(outlet.client_id)

    def holder(self, outlet: Outlet, consumer: int) -> Consumer | None:
        return self._holders.get((outlet, consumer))

    def reading_holder(self, outlet: Outlet) -> Consumer:
        """Who holds what a connection has read under lease: its consumer 0."""
        holder = self._holders.get((outlet, 0))
        if holder is None:
            holder = self._new_holder(outlet, 0, 0, Order.OLDEST, False)
        return holder

    def _new_holder(
        self, outlet: Outlet, consumer: int, prefetch: int, order: Order, automatic: bool
    ) -> Consumer:
        holding = self._holding
        bounds = (holding.limits.memory_bytes, holding.lease_s)
        holder = Consumer(outlet, consumer, prefetch, order, automatic, *bounds)
        holder.since = holding.clock.monotonic()
        self._holders[outlet, consumer] = holder
        return holder

    def unsubscribe(self, outlet: Outlet, consumer: int) -> bool:
        """End a subscription; what it holds goes back, flagged."""
        holder = self._end(outlet, consumer)
        if holder is None:
            return False
        self._put_back([lease.span for lease in holder.book.clear()], Event.CONSUMER_GONE)
        return True

    def _end(self, outlet: Outlet, consumer: int) -> Consumer | None:
        holder = self._holders.pop((outlet, consumer), None)
        if holder is not None and consumer:
            self._consumers.remove(holder)
            if self.departed is not None:
                self.departed.append(holder)
        return holder

    def forget_outlet(self, outlet: Outlet) -> None:
        """A connection is gone: what it held may be what killed it, and counts as failed."""
        for _, consumer in [key for key in self._holders if key[0] is outlet]:
            holder = self._end(outlet, consumer)
            if holder is not None:
                spans = [lease.span for lease in holder.book.clear()]
                self._fail(spans, Event.CONSUMER_GONE, Failure(self._now(), "consumer gone"), 0.0)

    def set_prefetch(self, holder: Consumer, prefetch: int) -> None:
        holder.prefetch = prefetch
        self.dispatch()

    # Out

    def serve(self, receivers: list[int] | None) -> None:
        """Something became ready: for these receivers, or for anyone."""
        if self._readers:
            self._serve_readers(receivers)
        if self._consumers or self._holding.queue.freed:
            self.dispatch()

    def _serve_readers(self, receivers: list[int] | None) -> None:
        if receivers is None:
            for reader in list(self._readers):
                if not self._holding.queue.head_count:
                    break
                self._try_reader(reader)
        else:
            for receiver in set(receivers):
                for reader in list(self._readers_of.get(receiver, ())):
                    if not self._try_reader(reader) and reader.match is None:
                        break

    def spilled(self, segment: Segment) -> None:
        """A segment went to the tail; somebody here may be waiting for just this one."""
        for receiver in set(segment.receivers or ()):
            if receiver in self._readers_of or any(
                consumer.outlet.client_id == receiver for consumer in self._consumers
            ):
                self.tail.search_for_receiver(receiver)
        whole = Span(segment, 0, segment.count, State.READY)
        if any(
            reader.match is not None and reader.match.find(whole) is not None
            for reader in self._readers
        ):
            self._holding.queue.bring_back([segment], pulled=True)
            self.serve(None)
        self.tail.fill_head()

    def dispatch(self) -> None:
        """Share what is ready over those who have credit, in turns."""
        queue = self._holding.queue
        self._share()
        while queue.freed:
            # What was acknowledged let out the next of its group: perhaps just what a reader,
            # or a consumer that came up empty, waits for.
            queue.freed = False
            if self._readers:
                self._serve_readers(None)
            self._share()

    def _share(self) -> None:
        holding = self._holding
        queue = holding.queue
        consumers = self._consumers
        if not holding.may_deliver() or holding.policy.paused:
            return
        idle = 0
        while queue.head_count and idle < len(consumers):
            consumer = consumers[0]
            consumers.rotate(-1)
            credit = consumer.credit()
            if credit <= 0:
                idle += 1
                continue
            share = -(-queue.head_count // len(consumers))
            spans = queue.take(
                min(credit, share, DELIVERY_COUNT_MAX),
                consumer.outlet.client_id,
                consumer.order,
                holding.policy.ageing_s,
            )
            if not spans:
                self.tail.search_for_receiver(consumer.outlet.client_id)
                idle += 1
                continue
            idle = 0
            spans = self._living(spans)
            if spans:
                self._deliver(consumer, spans)
        self.tail.fill_head()
        holding.made_room()

    def _deliver(self, consumer: Consumer, spans: list[Span]) -> None:
        now = self._holding.clock.monotonic()
        lease_s = consumer.lease_s
        runs: list[Run] = []
        bodies: list[memoryview | bytes] = []
        body_bytes = 0
        for span in spans:
            body = span.segment.body(span.low, span.high)
            if runs and body_bytes + len(body) > DELIVERY_BYTES_MAX:
                consumer.outlet.deliver(consumer.consumer, runs, bodies)
                runs, bodies, body_bytes = [], [], 0
            lease = consumer.book.grant(span, now, lease_s)
            runs.append(self._run(lease))
            bodies.append(body)
            body_bytes += len(body)
            consumer.meters.delivered.add(len(span))
            if consumer.automatic:
                self._settling.settle(consumer, [(lease.tag, lease.last_tag)])
        consumer.outlet.deliver(consumer.consumer, runs, bodies)

    def _run(self, lease: Lease) -> Run:
        """A leased span as it travels, counted."""
        span = lease.span
        segment = span.segment
        meters = self._holding.meters
        meters.delivered.add(len(span))
        watch = self._holding.watch
        if watch is not None and segment.first_id in watch.segments:
            watch.delivered(span, lease.granted_at)
        if segment.reloaded or segment.attempts is not None:
            meters.redelivered.add(len(span))
        else:
            # A delay that was asked for is no wait.
            waited_s = self._holding.clock.wall() - (segment.due_at or segment.arrived_at)
            meters.wait.add(max(waited_s, 0.0), len(span))
        return run_of(span, lease.tag)

    # Back

    def settle(
        self, holder: Consumer, ranges: Ranges, confirm: Callable[[int], None] | None
    ) -> None:
        """Acknowledge; `confirm` is called with the number of lost ones once it is on disk."""
        lost = self._settling.settle(holder, ranges)
        if confirm is not None:
            self._settling.when_on_disk(lambda: confirm(lost))
        self.dispatch()

    def give_back(self, holder: Consumer, ranges: Ranges, how: Return) -> int:
        """Return messages to the queue; how many were no longer held."""
        leases, lost = self._settling.take_back(holder, ranges)
        spans = [lease.span for lease in leases]
        if how.unstarted:
            # Flagged all the same: whether it was begun is what a client says.
            self._put_back(spans, Event.RETURNED)
        elif how.reject:
            self._give_up(spans, DeathReason.REJECTED, how.error)
            self.dispatch()
        else:
            wait_s = None if how.delay_ms is None else how.delay_ms / 1e3
            self._fail(spans, Event.RETURNED, Failure(self._now(), "nack", how.error), wait_s)
        return lost

    def pledge(self, holder: Consumer, ranges: Ranges) -> Pledge | None:
        """For a transaction; None: not all of them are held."""
        return self._settling.pledge(holder, ranges)

    def redeem(self, pledge: Pledge) -> None:
        """The transaction is on disk."""
        self._settling.redeem(pledge)
        self.dispatch()

    def is_held_by(self, holder: Consumer) -> bool:
        """Whether it is still the one of its number."""
        return self._holders.get((holder.outlet, holder.consumer)) is holder

    def release(self, pledge: Pledge) -> None:
        """The transaction came to nothing."""
        leases = self._settling.release(pledge, is_there=self.is_held_by(pledge.holder))
        self._put_back([lease.span for lease in leases], Event.CONSUMER_GONE)

    def _now(self) -> float:
        return self._holding.clock.wall()

    def _put_back(self, spans: list[Span], event: Event) -> None:
        if not spans or self._holding.fenced:
            return
        self._holding.queue.put_back(spans, event)
        self._holding.meters.returned.add(sum(map(len, spans)))
        self.serve_all()

    def serve_all(self) -> None:
        """Something became ready, for whomever."""
        self.serve(None)
        for receiver in list(self._readers_of):
            self.serve([receiver])

    def _fail(
        self, spans: list[Span], event: Event, failure: Failure, wait_s: float | None
    ) -> None:
        """Deliveries came to nothing: try again, at once or later, or give up."""
        holding = self._holding
        if not spans or holding.fenced:
            return
        hopeless: list[Span] = []
        again: list[Span] = []
        for span in spans:
            segment = span.segment
            for offset in range(span.low, span.high):
                failed = segment.mark_failed(offset, failure)
                if holding.policy.deliveries_max and failed >= holding.policy.deliveries_max:
                    hopeless.append(Span(segment, offset, offset + 1, span.state))
                    continue
                pause_s = retry_wait_s(holding.policy, failed) if wait_s is None else wait_s
                if pause_s > 0:
                    self._put_off(Span(segment, offset, offset + 1, span.state), pause_s)
                elif again and again[-1].segment is segment and again[-1].high == offset:
                    again[-1].high += 1
                else:
                    again.append(Span(segment, offset, offset + 1, span.state))
                # A consumer that is gone took all it held along, most of it unseen: that is not
                # worth a row each. A node that starts again flags everything anyway.
                if event is not Event.CONSUMER_GONE:
                    self._note_failed(segment, offset, failed, pause_s)
        self._give_up(hopeless, DeathReason.DELIVERIES, failure.error)
        self._put_back(again, event)
        self.later.set_alarm()
        self.dispatch()

    def _put_off(self, span: Span, pause_s: float) -> None:
        self._holding.queue.put_off([span], self._holding.clock.monotonic() + pause_s)
        self._holding.meters.returned.add(len(span))

    def _note_failed(self, segment: Segment, offset: int, failed: int, pause_s: float) -> None:
        due_at = self._now() + pause_s if pause_s > 0 else None
        failures = (segment.failures or {})[offset]
        self._settling.note_failed(segment, offset, Attempt(failed, due_at, failures))

    def _give_up(self, spans: list[Span], reason: DeathReason, error: str | None) -> None:
        if not spans or self._holding.fenced:
            return
        for span in spans:
            if span.state is State.LEASED:
                span.segment.mark_attempted(span.low, span.high)
            span.advance(Event.GIVEN_UP)
        self._holding.give_up(spans, reason, error)

    # What lived long enough

    def _living(self, spans: list[Span]) -> list[Span]:
        """Spans that were just taken, without those whose time is over."""
        if all(span.segment.expires_at is None for span in spans):
            return spans
        now = self._now()
        living: list[Span] = []
        for span in spans:
            for piece, is_over in span.parted(now):
                if is_over:
                    self._expire([piece])
                else:
                    living.append(piece)
        return living

    def expire_messages(self) -> None:
        """Those whose time is over leave, wherever they wait in memory."""
        self._expire(self._holding.queue.take_expired(self._now()))

    def _expire(self, spans: list[Span]) -> None:
        holding = self._holding
        if not spans:
            return
        holding.meters.expired.add(sum(map(len, spans)))
        if holding.policy.keep_expired:
            self._give_up(spans, DeathReason.EXPIRED, None)
            return
        holding.note_ended(spans, EXPIRED)
        for span in spans:
            self._settling.note_done(span, holding.queue.done(span, Event.EXPIRED))

    def shed(self, count: int) -> bool:
        """The queue is too long: its oldest messages are given up; False if none can be had."""
        queue = self._holding.queue
        spans = queue.take_regardless(count) or queue.take_addressed(count)
        self._give_up(spans, DeathReason.OVERFLOW, None)
        return bool(spans)

    def extend(self, holder: Consumer, ranges: Ranges | None, lease_s: float | None) -> int:
        """Lengthen leases; how many of the tags were no longer held."""
        lease_s = lease_s or holder.lease_s
        held = holder.book.extend(ranges, self._holding.clock.monotonic() + lease_s)
        return 0 if ranges is None else sum(b - a + 1 for a, b in ranges) - held

    def expire(self, now: float) -> None:
        """Leases that have run out go back."""
        for holder in list(self._holders.values()):
            late = holder.book.lapsed(now)
            if late:
                spans = [lease.span for lease in late]
                self._fail(spans, Event.LEASE_EXPIRED, Failure(self._now(), "lease expired"), 0.0)

    # The end

    def end_all(self, error: TidegateError, *, give_back: bool) -> None:
        """Tell everyone that it is over here; what they hold goes back unless it is not ours."""
        for reader in list(self._readers):
            self.drop_reader(reader)
            reader.miss(error)
        consumers = list(self._consumers)
        if self.departed is not None:
            self.departed += consumers
        # All at once, so that what one gives back is not handed to the next.
        self._consumers.clear()
        holders, self._holders = self._holders, {}
        for holder in holders.values():
            leases = holder.book.clear()
            if give_back:
                self._put_back([lease.span for lease in leases], Event.CONSUMER_GONE)
        for consumer in consumers:
            consumer.outlet.consumer_ended(consumer.consumer, error)
