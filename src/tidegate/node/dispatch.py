"""The way out: what is ready goes to readers who wait and to consumers who have credit.

Readers come first. Consumers take turns; each gets a share of what is there, within its credit.
Those who came only for what is addressed to them get that before the others. What comes back is
ready again, for whoever is next. Nothing is sent when our lease on the queue has run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidegate.core.errors import TidegateError
from tidegate.core.model import DeathReason, Failure, Order
from tidegate.core.segment import Segment
from tidegate.node.consumer import Consumer, Outlet
from tidegate.node.giving_up import GivingUp
from tidegate.node.holders import Holders
from tidegate.node.holding import Holding
from tidegate.node.later import Later
from tidegate.node.pace_gate import PaceGate
from tidegate.node.readers import Readers
from tidegate.node.runs import counted_run
from tidegate.node.settling import Pledge, Ranges, Settling
from tidegate.node.tail import TailReader
from tidegate.node.trial import end_trials
from tidegate.queueing.lifecycle import Event
from tidegate.queueing.span import Span
from tidegate.wire.packets.run import Run
from tidegate.wire.packets.settling import Return

DELIVERY_COUNT_MAX = 2000
DELIVERY_BYTES_MAX = 1024 * 1024


class Dispatch:
    """Those who take from one replica."""

    def __init__(
        self,
        holding: Holding,
        settling: Settling,
        known: Callable[[list[Segment]], list[Segment]],
    ) -> None:
        self._holding = holding
        self._settling = settling
        self.tail = TailReader(holding, lambda: self.serve(None), known)
        self.later = Later(holding, self.serve_all, known)
        self.giving_up = GivingUp(holding, settling)
        self.holders = Holders(holding)
        self._gate = PaceGate(holding, self.serve_all)
        self.readers = Readers(
            holding, settling, self.giving_up, self.tail, self._gate, self.dispatch
        )

    @property
    def is_idle(self) -> bool:
        """Whether there is nobody at all, waiting, subscribed or holding something."""
        return self.holders.is_empty and not self.readers.waiting

    def first_ids_held(self) -> set[int]:
        """The segments of which somebody holds messages."""
        return {segment.first_id for segment in self.segments_held()}

    def segments_held(self) -> set[Segment]:
        """The same segments."""
        return self._settling.segments_pledged() | self.holders.segments()

    # Consumers

    def subscribe(
        self,
        outlet: Outlet,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
        *,
        mine_only: bool = False,
    ) -> None:
        self.holders.add(outlet, consumer, prefetch, order, automatic, mine_only=mine_only)
        self.dispatch()
        self.tail.search_for_receiver(outlet.client_id)

    def unsubscribe(self, outlet: Outlet, consumer: int) -> bool:
        """End a subscription; what it holds goes back, flagged."""
        holder = self.holders.remove(outlet, consumer)
        if holder is None:
            return False
        self._put_back([lease.span for lease in holder.book.clear()], Event.CONSUMER_GONE)
        return True

    def forget_outlet(self, outlet: Outlet) -> None:
        """A connection is gone: what it held may be what killed it, and counts as failed."""
        # All of its consumers at once: what one of them held is not handed to the next.
        gone = [self.holders.remove(outlet, each) for each in self.holders.numbers_of(outlet)]
        spans = [lease.span for each in gone if each is not None for lease in each.book.clear()]
        self._fail(spans, Event.CONSUMER_GONE, Failure(self._now(), "consumer gone"), 0.0)
        end_trials(self, outlet)

    def set_prefetch(self, holder: Consumer, prefetch: int) -> None:
        """As it asks for; one that is steered stays so, and gets no more than this."""
        holder.asked = prefetch
        if holder.trial is not None and holder.control is None and prefetch:
            return  # it has it when the trial is over
        if holder.control is None or not prefetch:
            holder.prefetch = prefetch
            self.dispatch()
        else:
            holder.limit = prefetch
            holder.prefetch = min(holder.prefetch, prefetch)

    def steer(self, changes: Iterable[tuple[Consumer, int]]) -> None:
        """Credit that a loop sets, for many at a time."""
        has_more = False
        for consumer, prefetch in changes:
            if not consumer.asked:
                continue  # it drains, and wants nothing more
            if consumer.limit is not None:
                prefetch = min(prefetch, consumer.limit)
            has_more |= prefetch > consumer.prefetch
            consumer.prefetch = prefetch
        if has_more and self._holding.queue.lanes.head_count:
            self.dispatch()

    # Out

    def serve(self, receivers: list[int] | None) -> None:
        """Something became ready: for these receivers, or for anyone."""
        if self.readers.waiting:
            self.readers.serve(receivers)
        holders = self.holders
        if holders.turns or holders.addressees or self._holding.queue.turnstile.freed:
            self.dispatch()

    def spilled(self, segment: Segment) -> None:
        """A segment went to the tail; somebody here may be waiting for just this one."""
        for receiver in set(segment.receivers or ()):
            if self.readers.has_client(receiver) or self.holders.is_here(receiver):
                self.tail.search_for_receiver(receiver)
        if self.readers.want(segment):
            self._holding.queue.bring_back([segment], pulled=True)
            self.serve(None)
        self.tail.fill_head()

    def dispatch(self) -> None:
        """Share what is ready over those who have credit, in turns."""
        turnstile = self._holding.queue.turnstile
        self._share()
        while turnstile.freed:
            # What was acknowledged let out the next of its group: perhaps just what a reader,
            # or a consumer that came up empty, waits for.
            turnstile.freed = False
            if self.readers.waiting:
                self.readers.serve(None)
            self._share()

    def _share(self) -> None:
        holding = self._holding
        lanes = holding.queue.lanes
        consumers = self.holders.turns
        if not holding.may_deliver() or holding.policy.paused:
            return
        if self.holders.addressees and lanes.head_count:
            self._share_addressed()
        idle = 0
        while lanes.head_count and idle < len(consumers):
            consumer = consumers[0]
            consumers.rotate(-1)
            share = -(-lanes.head_count // len(consumers))
            idle = 0 if self._serve_some(consumer, share) else idle + 1
        self.tail.fill_head()
        holding.made_room()

    def _share_addressed(self) -> None:
        """What is addressed to those who came for nothing else; one of a client after the other."""
        lanes, tails = self._holding.queue.lanes, self._holding.queue.tails
        for client_id, mine in list(self.holders.addressees.items()):
            if not lanes.has_addressed_to(client_id) and tails.unsearched_from(client_id) is None:
                continue
            for consumer in mine:
                while self._serve_some(consumer, DELIVERY_COUNT_MAX):
                    pass

    def _serve_some(self, consumer: Consumer, count: int) -> bool:
        """Up to so many messages for one who has credit; whether any were taken."""
        holding = self._holding
        credit = consumer.credit()
        if credit > 0 and holding.pace is not None:
            credit = min(credit, self._gate.allowed(holding.pace))
        if credit <= 0:
            return False
        spans = holding.queue.take(
            min(credit, count, DELIVERY_COUNT_MAX),
            consumer.outlet.client_id,
            consumer.order,
            holding.policy.ageing_s,
            mine_only=consumer.mine_only,
        )
        if not spans:
            self.tail.search_for_receiver(consumer.outlet.client_id)
            return False
        spans = self.giving_up.living(spans)
        if spans:
            self._deliver(consumer, spans)
            if holding.pace is not None:
                holding.pace.spend(sum(map(len, spans)))
        return True

    def _deliver(self, consumer: Consumer, spans: list[Span]) -> None:
        holding = self._holding
        now = holding.clock.monotonic()
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
            runs.append(counted_run(holding, lease))
            bodies.append(body)
            body_bytes += len(body)
            consumer.meters.delivered.add(len(span))
            if consumer.automatic:
                self._settling.settle(consumer, [(lease.tag, lease.last_tag)])
        consumer.outlet.deliver(consumer.consumer, runs, bodies)

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
            self.giving_up.give_up(spans, DeathReason.REJECTED, how.error)
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

    def release(self, pledge: Pledge) -> None:
        """The transaction came to nothing."""
        leases = self._settling.release(pledge, is_there=self.holders.has(pledge.holder))
        self._put_back([lease.span for lease in leases], Event.CONSUMER_GONE)

    def _now(self) -> float:
        return self._holding.clock.wall()

    def _put_back(self, spans: list[Span], event: Event) -> None:
        if not spans or self._holding.fenced:
            return
        # Counted first: a span that is back may grow by its neighbours.
        self._holding.meters.returned.add(sum(map(len, spans)))
        self._holding.queue.put_back(spans, event)
        self.serve_all()

    def serve_all(self) -> None:
        """Something became ready, for whomever."""
        self.serve(None)
        for receiver in self.readers.clients:
            self.serve([receiver])

    def _fail(
        self, spans: list[Span], event: Event, failure: Failure, wait_s: float | None
    ) -> None:
        """Deliveries came to nothing: try again, at once or later, or give up."""
        if not spans or self._holding.fenced:
            return
        again = self.giving_up.failed(spans, event, failure, wait_s)
        self._put_back(again, event)
        self.later.set_alarm()
        self.dispatch()

    def extend(self, holder: Consumer, ranges: Ranges | None, lease_s: float | None) -> int:
        """Lengthen leases; how many of the tags were no longer held."""
        lease_s = lease_s or holder.lease_s
        held = holder.book.extend(ranges, self._holding.clock.monotonic() + lease_s)
        return 0 if ranges is None else sum(b - a + 1 for a, b in ranges) - held

    def expire(self, now: float) -> None:
        """Leases that have run out go back."""
        for holder in self.holders.all():
            late = holder.book.lapsed(now)
            if late:
                spans = [lease.span for lease in late]
                self._fail(spans, Event.LEASE_EXPIRED, Failure(self._now(), "lease expired"), 0.0)

    # The end

    def end_all(self, error: TidegateError, *, give_back: bool) -> None:
        """Tell everyone that it is over here; what they hold goes back unless it is not ours."""
        self.readers.end_all(error)
        # All at once, so that what one gives back is not handed to the next.
        holders, pushed_to = self.holders.clear()
        for holder in holders:
            leases = holder.book.clear()
            if give_back:
                self._put_back([lease.span for lease in leases], Event.CONSUMER_GONE)
        for consumer in pushed_to:
            consumer.outlet.consumer_ended(consumer.consumer, error)
