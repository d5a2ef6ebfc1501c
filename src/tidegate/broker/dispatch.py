"""Delivery: ready messages go to pending reads and to consumers with credit.

Theory of operation

The actors are the queue, which knows the next message for a client; `PendingReads`, each of which
waits for one message; and consumers (`LeaseHolders`), each of which has a prefetch. A consumer's
credit is its prefetch less the messages that it holds.

Delivery runs when something changes: a message became ready, a consumer subscribed or acknowledged,
a socket has drained, a lease expired. It also runs on every tick. In this order:

1. Pending reads, in the order in which they came.
2. Consumers that take only messages addressed to their client.
3. All other consumers in turns. Each gets an equal share of the ready messages, within its credit.

A delivered message is leased: `LeaseBook` keeps it with a deadline until it is acknowledged,
returned or expired. `Settling` stores acknowledgements. A message that failed is retried at once or
later, or becomes a dead letter (`MessageExpiry.failed`).

If memory does not hold the next message, delivery stops until `SpillReader` has read it. The order
is never changed to keep consumers busy.

Invariants:

- Nothing is delivered after the node's lease has ended (`may_deliver`), or while the queue is
  paused. Another node may own the queue by then.
- A consumer gets nothing while its socket is full or while it holds too many bytes, even if it has
  credit.
- With a rate limit (`RateGate`), each delivered message takes a token.

Failures:

- A connection ends: what its consumers held counts as failed, since one of these messages may have
  ended the process. It is ready again at once, or dead after `deliveries_max` failures.
- A lease expires: the same.
- A consumer unsubscribes: what it held is ready again and does not count as failed.
- The queue moves or is fenced: `end_all` ends consumers and reads with an error, and their clients
  ask again.
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
    """The consumers and pending reads of one replica."""

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
        """Return whether there is no consumer, no pending read and no holder of messages."""
        return self.holders.is_empty and not self.readers.waiting

    def first_ids_held(self) -> set[int]:
        """Return the first ids of segments of which messages are held."""
        return {segment.first_id for segment in self.segments_held()}

    def segments_held(self) -> set[Segment]:
        """Return the segments of which consumers or transactions hold messages."""
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
        """End a subscription and return its messages; they do not count as failed.

        Returns False if there is no such consumer.
        """
        holder = self.holders.remove(outlet, consumer)
        if holder is None:
            return False
        self._put_back([lease.span for lease in holder.book.clear()], Event.CONSUMER_GONE)
        return True

    def forget_outlet(self, outlet: Outlet) -> None:
        """End all consumers of a connection that is gone.

        What they held counts as failed, since it may have ended the client's process.
        """
        # All consumers at once, or the messages of one would be delivered to the next.
        gone = [self.holders.remove(outlet, each) for each in self.holders.numbers_of(outlet)]
        spans = [lease.span for each in gone if each is not None for lease in each.book.clear()]
        self._fail(spans, Event.CONSUMER_GONE, Failure(self._now(), "consumer gone"), 0.0)
        end_trials(self, outlet)

    def set_prefetch(self, holder: Consumer, prefetch: int) -> None:
        """Set the prefetch that a client asks for.

        If a control loop sets the prefetch, the client's number is only an upper limit; 0 stops
        delivery.
        """
        holder.asked = prefetch
        if holder.trial is not None and holder.control is None and prefetch:
            return  # It applies when the experiment is over
        if holder.control is None or not prefetch:
            holder.prefetch = prefetch
            self.dispatch()
        else:
            holder.limit = prefetch
            holder.prefetch = min(holder.prefetch, prefetch)

    def steer(self, changes: Iterable[tuple[Consumer, int]]) -> None:
        """Set the prefetch of many consumers, for a control loop."""
        has_more = False
        for consumer, prefetch in changes:
            if not consumer.asked:
                continue  # The client wants no more messages
            if consumer.limit is not None:
                prefetch = min(prefetch, consumer.limit)
            has_more |= prefetch > consumer.prefetch
            consumer.prefetch = prefetch
        if has_more and self._holding.queue.lanes.head_count:
            self.dispatch()

    # Out

    def serve(self, receivers: list[int] | None) -> None:
        """Deliver after messages became ready for `receivers`; None: for any client."""
        if self.readers.waiting:
            self.readers.serve(receivers)
        holders = self.holders
        if holders.turns or holders.addressees or self._holding.queue.turnstile.freed:
            self.dispatch()

    def spilled(self, segment: Segment) -> None:
        """Bring back a segment that was left in the store if a client waits for it here."""
        for receiver in set(segment.receivers or ()):
            if self.readers.has_client(receiver) or self.holders.is_here(receiver):
                self.tail.search_for_receiver(receiver)
        if self.readers.want(segment):
            self._holding.queue.bring_back([segment], pulled=True)
            self.serve(None)
        self.tail.fill_head()

    def dispatch(self) -> None:
        """Deliver ready messages to all consumers with credit, in turns."""
        turnstile = self._holding.queue.turnstile
        self._share()
        while turnstile.freed:
            # Delivery with immediate acknowledgement lets out the next message of a group. A read,
            # or a consumer that found nothing before, may wait for it.
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
        """Deliver addressed messages to the consumers that take nothing else.

        The first consumer of a client gets as much as it can take, then the next one.
        """
        lanes, tails = self._holding.queue.lanes, self._holding.queue.tails
        for client_id, mine in list(self.holders.addressees.items()):
            if not lanes.has_addressed_to(client_id) and tails.unsearched_from(client_id) is None:
                continue
            for consumer in mine:
                while self._serve_some(consumer, DELIVERY_COUNT_MAX):
                    pass

    def _serve_some(self, consumer: Consumer, count: int) -> bool:
        """Deliver up to `count` messages to a consumer; return whether any were taken."""
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
        """Acknowledge ranges of tags.

        `confirm` is called once this is on disk, with the number of tags that were no longer held.
        """
        lost = self._settling.settle(holder, ranges)
        if confirm is not None:
            self._settling.when_on_disk(lambda: confirm(lost))
        self.dispatch()

    def give_back(self, holder: Consumer, ranges: Ranges, how: Return) -> int:
        """Return messages to the queue; return how many tags were no longer held."""
        leases, lost = self._settling.take_back(holder, ranges)
        spans = [lease.span for lease in leases]
        if how.unstarted:
            # Redelivery is flagged even so: the client may have started after all.
            self._put_back(spans, Event.RETURNED)
        elif how.reject:
            self.giving_up.give_up(spans, DeathReason.REJECTED, how.error)
            self.dispatch()
        else:
            wait_s = None if how.delay_ms is None else how.delay_ms / 1e3
            self._fail(spans, Event.RETURNED, Failure(self._now(), "nack", how.error), wait_s)
        return lost

    def pledge(self, holder: Consumer, ranges: Ranges) -> Pledge | None:
        """Reserve leases for a transaction; None if not all of them are held."""
        return self._settling.pledge(holder, ranges)

    def redeem(self, pledge: Pledge) -> None:
        """End the leases of a transaction that is on disk."""
        self._settling.redeem(pledge)
        self.dispatch()

    def release(self, pledge: Pledge) -> None:
        """Give the leases of a failed transaction back to their consumer, or to the queue."""
        leases = self._settling.release(pledge, is_there=self.holders.has(pledge.holder))
        self._put_back([lease.span for lease in leases], Event.CONSUMER_GONE)

    def _now(self) -> float:
        return self._holding.clock.wall()

    def _put_back(self, spans: list[Span], event: Event) -> None:
        if not spans or self._holding.fenced:
            return
        # Counted first: a span that was put back may be merged with its neighbours.
        self._holding.meters.returned.add(sum(map(len, spans)))
        self._holding.queue.put_back(spans, event)
        self.serve_all()

    def serve_all(self) -> None:
        """Deliver after messages became ready for unknown receivers."""
        self.serve(None)
        for receiver in self.readers.clients:
            self.serve([receiver])

    def _fail(
        self, spans: list[Span], event: Event, failure: Failure, wait_s: float | None
    ) -> None:
        """Count failed deliveries; retry the messages at once or later, or give them up.

        `wait_s` overrides the wait of the retry policy; None: the policy decides.
        """
        if not spans or self._holding.fenced:
            return
        again = self.giving_up.failed(spans, event, failure, wait_s)
        self._put_back(again, event)
        self.later.set_alarm()
        self.dispatch()

    def extend(self, holder: Consumer, ranges: Ranges | None, lease_s: float | None) -> int:
        """Extend leases by `lease_s`, or by the consumer's own; return how many tags were not held.

        `ranges` None means all leases of the holder.
        """
        lease_s = lease_s or holder.lease_s
        held = holder.book.extend(ranges, self._holding.clock.monotonic() + lease_s)
        return 0 if ranges is None else sum(b - a + 1 for a, b in ranges) - held

    def expire(self, now: float) -> None:
        """Return messages whose lease has expired; they count as failed."""
        for holder in self.holders.all():
            late = holder.book.lapsed(now)
            if late:
                spans = [lease.span for lease in late]
                self._fail(spans, Event.LEASE_EXPIRED, Failure(self._now(), "lease expired"), 0.0)

    # The end

    def end_all(self, error: TidegateError, *, give_back: bool) -> None:
        """End all consumers and reads with `error`.

        With `give_back`, the messages that they hold return to the queue. Without it the queue
        belongs to another node by now.
        """
        self.readers.end_all(error)
        # All consumers at once, or the messages of one would be delivered to the next.
        holders, pushed_to = self.holders.clear()
        for holder in holders:
            leases = holder.book.clear()
            if give_back:
                self._put_back([lease.span for lease in leases], Event.CONSUMER_GONE)
        for consumer in pushed_to:
            consumer.outlet.consumer_ended(consumer.consumer, error)
