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

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from tidegate.broker.context import RateGate, make_counted_run
from tidegate.broker.settling import MessageExpiry, end_experiments
from tidegate.broker.spill import DelayedReader, SpillReader
from tidegate.core.errors import NoMessagesInQueue, NoMessagesRetrieved, TidegateError, Unavailable
from tidegate.core.model import DeathReason, Failure, Order
from tidegate.core.segment import Segment
from tidegate.protocol.messages import Return
from tidegate.protocol.packet import Run
from tidegate.queueing.leases import LeaseBook
from tidegate.queueing.queue import MessageSelector
from tidegate.queueing.spans import AFTER_ALL, BEFORE_ALL, MessageEvent, MessageState, Rank, Span
from tidegate.telemetry.meters import ConsumerMeters

if TYPE_CHECKING:
    from tidegate.broker.context import ReplicaContext
    from tidegate.broker.intake import Intake
    from tidegate.broker.settling import Ranges, Settling, TransactionLeases
    from tidegate.telemetry.stats import ControlStats


DELIVERY_COUNT_MAX = 2000
DELIVERY_BYTES_MAX = 1024 * 1024


class Dispatch:
    """The consumers and pending reads of one replica."""

    def __init__(self, context: ReplicaContext, intake: Intake, settling: Settling) -> None:
        self._context = context
        self._intake = intake
        self._settling = settling
        self.tail = SpillReader(context, lambda: self.serve(None), intake.without_under_way)
        self.later = DelayedReader(context, self.serve_all, intake.without_under_way)
        self.giving_up = MessageExpiry(context, settling)
        self.holders = LeaseHolders(context)
        self._gate = RateGate(context, self.serve_all)
        self.readers = PendingReads(
            context, settling, self.giving_up, self.tail, self._gate, self.dispatch
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
        outlet: DeliveryTarget,
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

    def unsubscribe(self, outlet: DeliveryTarget, consumer: int) -> bool:
        """End a subscription and return its messages; they do not count as failed.

        Returns False if there is no such consumer.
        """
        holder = self.holders.remove(outlet, consumer)
        if holder is None:
            return False
        self._put_back([lease.span for lease in holder.book.clear()], MessageEvent.CONSUMER_GONE)
        return True

    def forget_outlet(self, outlet: DeliveryTarget) -> None:
        """End all consumers of a connection that is gone.

        What they held counts as failed, since it may have ended the client's process.
        """
        # All consumers at once, or the messages of one would be delivered to the next.
        gone = [self.holders.remove(outlet, each) for each in self.holders.numbers_of(outlet)]
        spans = [lease.span for each in gone if each is not None for lease in each.book.clear()]
        self._fail(spans, MessageEvent.CONSUMER_GONE, Failure(self._now(), "consumer gone"), 0.0)
        end_experiments(self, outlet)

    def set_prefetch(self, holder: Consumer, prefetch: int) -> None:
        """Set the prefetch that a client asks for.

        If a control loop sets the prefetch, the client's number is only an upper limit; 0 stops
        delivery.
        """
        holder.asked = prefetch
        if holder.experiment is not None and holder.control is None and prefetch:
            return  # It applies when the experiment is over
        if holder.control is None or not prefetch:
            holder.prefetch = prefetch
            self.dispatch()
        else:
            holder.limit = prefetch
            holder.prefetch = min(holder.prefetch, prefetch)

    def set_prefetches(self, changes: Iterable[tuple[Consumer, int]]) -> None:
        """Set the prefetch of many consumers, for a control loop."""
        has_more = False
        for consumer, prefetch in changes:
            if not consumer.asked:
                continue  # The client wants no more messages
            if consumer.limit is not None:
                prefetch = min(prefetch, consumer.limit)
            has_more |= prefetch > consumer.prefetch
            consumer.prefetch = prefetch
        if has_more and self._context.queue.lanes.head_count:
            self.dispatch()

    # Out

    def serve(self, receivers: list[int] | None) -> None:
        """Deliver after messages became ready for `receivers`; None: for any client."""
        if self.readers.waiting:
            self.readers.serve(receivers)
        holders = self.holders
        if holders.turns or holders.addressees or self._context.queue.group_gate.freed:
            self.dispatch()

    def spilled(self, segment: Segment) -> None:
        """Bring back a segment that was left in the store if a client waits for it here."""
        for receiver in set(segment.receivers or ()):
            if self.readers.has_client(receiver) or self.holders.can_push_to(receiver):
                self.tail.search_for_receiver(receiver)
        if self.readers.has_match(segment):
            self._context.queue.bring_back([segment], pulled=True)
            self.serve(None)
        self.tail.fill_head()

    def dispatch(self) -> None:
        """Deliver ready messages to all consumers with credit, in turns."""
        group_gate = self._context.queue.group_gate
        self._share()
        while group_gate.freed:
            # Delivery with immediate acknowledgement lets out the next message of a group. A read,
            # or a consumer that found nothing before, may wait for it.
            group_gate.freed = False
            if self.readers.waiting:
                self.readers.serve(None)
            self._share()

    def _share(self) -> None:
        context = self._context
        lanes = context.queue.lanes
        consumers = self.holders.turns
        if not context.may_deliver() or context.policy.paused:
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
        self._intake.on_space_freed()

    def _share_addressed(self) -> None:
        """Deliver addressed messages to the consumers that take nothing else.

        The first consumer of a client gets as much as it can take, then the next one.
        """
        lanes, tails = self._context.queue.lanes, self._context.queue.spilled
        for client_id, mine in list(self.holders.addressees.items()):
            if not lanes.has_addressed_to(client_id) and tails.unsearched_from(client_id) is None:
                continue
            for consumer in mine:
                while self._serve_some(consumer, DELIVERY_COUNT_MAX):
                    pass

    def _serve_some(self, consumer: Consumer, count: int) -> bool:
        """Deliver up to `count` messages to a consumer; return whether any were taken."""
        context = self._context
        credit = consumer.credit()
        if credit > 0 and context.rate_limiter is not None:
            credit = min(credit, self._gate.allowed(context.rate_limiter))
        if credit <= 0:
            return False
        spans = context.queue.take(
            min(credit, count, DELIVERY_COUNT_MAX),
            consumer.target.client_id,
            consumer.order,
            context.policy.ageing_s,
            mine_only=consumer.mine_only,
        )
        if not spans:
            self.tail.search_for_receiver(consumer.target.client_id)
            return False
        spans = self.giving_up.living(spans)
        if spans:
            self._deliver(consumer, spans)
            if context.rate_limiter is not None:
                context.rate_limiter.spend(sum(map(len, spans)))
        return True

    def _deliver(self, consumer: Consumer, spans: list[Span]) -> None:
        context = self._context
        now = context.clock.monotonic()
        lease_s = consumer.lease_s
        runs: list[Run] = []
        bodies: list[memoryview | bytes] = []
        body_bytes = 0
        for span in spans:
            body = span.segment.body(span.low, span.high)
            if runs and body_bytes + len(body) > DELIVERY_BYTES_MAX:
                consumer.target.deliver(consumer.consumer, runs, bodies)
                runs, bodies, body_bytes = [], [], 0
            lease = consumer.book.grant(span, now, lease_s)
            runs.append(make_counted_run(context, lease))
            bodies.append(body)
            body_bytes += len(body)
            consumer.meters.delivered.add(len(span))
            if consumer.automatic:
                self._settling.settle(consumer, [(lease.tag, lease.last_tag)])
        consumer.target.deliver(consumer.consumer, runs, bodies)

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

    def return_messages(self, holder: Consumer, ranges: Ranges, how: Return) -> int:
        """Return messages to the queue; return how many tags were no longer held."""
        leases, lost = self._settling.take_back(holder, ranges)
        spans = [lease.span for lease in leases]
        if how.unstarted:
            # Redelivery is flagged even so: the client may have started after all.
            self._put_back(spans, MessageEvent.RETURNED)
        elif how.reject:
            self.giving_up.dead_letter(spans, DeathReason.REJECTED, how.error)
            self.dispatch()
        else:
            wait_s = None if how.delay_ms is None else how.delay_ms / 1e3
            self._fail(
                spans, MessageEvent.RETURNED, Failure(self._now(), "nack", how.error), wait_s
            )
        return lost

    def lease_to_transaction(self, holder: Consumer, ranges: Ranges) -> TransactionLeases | None:
        """Reserve leases for a transaction; None if not all of them are held."""
        return self._settling.lease_to_transaction(holder, ranges)

    def commit_transaction(self, pledge: TransactionLeases) -> None:
        """End the leases of a transaction that is on disk."""
        self._settling.commit_transaction(pledge)
        self.dispatch()

    def abort_transaction(self, pledge: TransactionLeases) -> None:
        """Give the leases of a failed transaction back to their consumer, or to the queue."""
        leases = self._settling.abort_transaction(pledge, is_there=self.holders.has(pledge.holder))
        self._put_back([lease.span for lease in leases], MessageEvent.CONSUMER_GONE)

    def _now(self) -> float:
        return self._context.clock.wall()

    def _put_back(self, spans: list[Span], event: MessageEvent) -> None:
        if not spans or self._context.fenced:
            return
        # Counted first: a span that was put back may be merged with its neighbours.
        self._context.meters.returned.add(sum(map(len, spans)))
        self._context.queue.put_back(spans, event)
        self.serve_all()

    def serve_all(self) -> None:
        """Deliver after messages became ready for unknown receivers."""
        self.serve(None)
        for receiver in self.readers.clients:
            self.serve([receiver])

    def _fail(
        self, spans: list[Span], event: MessageEvent, failure: Failure, wait_s: float | None
    ) -> None:
        """Count failed deliveries; retry the messages at once or later, or give them up.

        `wait_s` overrides the wait of the retry policy; None: the policy decides.
        """
        if not spans or self._context.fenced:
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
        held = holder.book.extend(ranges, self._context.clock.monotonic() + lease_s)
        return 0 if ranges is None else sum(b - a + 1 for a, b in ranges) - held

    def expire(self, now: float) -> None:
        """Return messages whose lease has expired; they count as failed."""
        for holder in self.holders.all():
            late = holder.book.lapsed(now)
            if late:
                spans = [lease.span for lease in late]
                self._fail(
                    spans, MessageEvent.LEASE_EXPIRED, Failure(self._now(), "lease expired"), 0.0
                )

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
                self._put_back([lease.span for lease in leases], MessageEvent.CONSUMER_GONE)
        for consumer in pushed_to:
            consumer.target.consumer_ended(consumer.consumer, error)


# What takes messages from a replica: consumers with credit, and pending reads.


# A consumer that holds this many bytes, or this part of the node's memory, gets no more. It may
# always hold `HELD_BYTES_MIN`, however small the memory.
HELD_BYTES_MAX = 64 * 1024 * 1024
HELD_BYTES_MIN = 1024 * 1024
HELD_PART = 4


class DeliveryTarget(Protocol):
    """A connection to which messages can be delivered."""

    client_id: int
    client_name: str

    def can_take(self) -> bool:
        """Return whether the socket has room for more."""
        ...

    def deliver(self, consumer: int, runs: list[Run], bodies: list[memoryview | bytes]) -> None: ...

    def consumer_ended(self, consumer: int, error: TidegateError) -> None: ...

    def prefetch_changed(self, consumer: int, prefetch: int, lasting: bool = True) -> None: ...


class Consumer:
    """A consumer at this node, with the messages that it holds.

    Its credit is its prefetch less the number of messages that it holds.
    """

    __slots__ = (
        "_held_bytes_max",
        "asked",
        "automatic",
        "book",
        "consumer",
        "control",
        "experiment",
        "lease_s",
        "limit",
        "meters",
        "mine_only",
        "order",
        "prefetch",
        "since",
        "target",
    )

    def __init__(
        self,
        outlet: DeliveryTarget,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
        memory_bytes: int,
        lease_s: float,
    ) -> None:
        self.target = outlet
        self.consumer = consumer
        self.prefetch = prefetch
        # The prefetch that the client asked for, even while a control loop sets another.
        self.asked = prefetch
        # The connection that runs a prefetch experiment with this consumer; None: no experiment.
        self.experiment: DeliveryTarget | None = None
        # While a control loop sets the prefetch: the client's own limit; None: it has set none.
        self.limit: int | None = None
        # The last control steps, newest last; None: no control loop sets the prefetch.
        self.control: Sequence[ControlStats] | None = None
        self.order = order
        self.automatic = automatic
        self._held_bytes_max = max(min(HELD_BYTES_MAX, memory_bytes // HELD_PART), HELD_BYTES_MIN)
        # Whether it takes only messages addressed to its client.
        self.mine_only = False
        # As announced to the client, which renews at this interval even after a change of policy.
        self.lease_s = lease_s
        self.book = LeaseBook()
        self.meters = ConsumerMeters()
        # When it subscribed, by the monotonic clock.
        self.since = 0.0

    def credit(self) -> int:
        if not self.target.can_take() or self.book.held_bytes > self._held_bytes_max:
            return 0
        return max(self.prefetch - self.book.outstanding, 0)


class PendingRead:
    """A request for one message that waits until there is one."""

    __slots__ = (
        "answer",
        "book_for",
        "client_id",
        "horizon",
        "lease_s",
        "match",
        "miss",
        "order",
        "timer",
    )

    def __init__(
        self,
        client_id: int,
        order: Order,
        match: MessageSelector | None,
        lease_s: float | None,
        answer: Callable[[Run, memoryview], None],
        miss: Callable[[TidegateError], None],
        book_for: Callable[[], Consumer],
    ) -> None:
        self.client_id = client_id
        self.order = order
        self.match = match
        self.lease_s = lease_s
        self.answer = answer
        self.miss = miss
        # Returns the consumer 0 of the connection, which holds messages that were read and not
        # pushed.
        self.book_for = book_for
        self.timer: asyncio.TimerHandle | None = None
        # The rank up to which the store was searched for a match.
        self.horizon: Rank = BEFORE_ALL


# The holders of a replica's messages: consumers, and connections that have read under a lease.
#
# Consumers are kept in the order of their turns. Consumers that take only addressed messages are
# kept apart and are not counted: their clients consume at another replica.


class LeaseHolders:
    """The holders of one replica."""

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context
        # The next consumer is first; delivery rotates the deque.
        self.turns: deque[Consumer] = deque()
        # Client id -> its consumers that take only messages addressed to it.
        self.addressees: dict[int, list[Consumer]] = {}
        # Consumers that have left since the recorder last asked; None: not recorded.
        self.departed: list[Consumer] | None = None
        # All holders. Number 0 of a connection holds messages that were read under a lease.
        self._by_number: dict[tuple[DeliveryTarget, int], Consumer] = {}

    @property
    def consumers(self) -> list[Consumer]:
        return list(self.turns)

    @property
    def unacknowledged(self) -> int:
        return sum(holder.book.outstanding for holder in self._by_number.values())

    @property
    def is_empty(self) -> bool:
        return not self._by_number

    def all(self) -> list[Consumer]:
        return list(self._by_number.values())

    def of(self, outlet: DeliveryTarget, consumer: int) -> Consumer | None:
        return self._by_number.get((outlet, consumer))

    def numbers_of(self, outlet: DeliveryTarget) -> list[int]:
        """Return the numbers under which a connection holds, or may hold, messages."""
        return [consumer for each, consumer in self._by_number if each is outlet]

    def has(self, holder: Consumer) -> bool:
        """Return whether `holder` is still registered under its number."""
        return self._by_number.get((holder.target, holder.consumer)) is holder

    def can_push_to(self, client_id: int) -> bool:
        """Return whether messages can be pushed to that client."""
        return client_id in self.addressees or any(
            consumer.target.client_id == client_id for consumer in self.turns
        )

    def segments(self) -> set[Segment]:
        """Return the segments of which holders have messages."""
        return {lease.span.segment for holder in self._by_number.values() for lease in holder.book}

    # Registration

    def add(
        self,
        outlet: DeliveryTarget,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
        *,
        mine_only: bool,
    ) -> None:
        """Register a consumer."""
        subscriber = self._new(outlet, consumer, prefetch, order, automatic)
        if mine_only:
            subscriber.mine_only = True
            self.addressees.setdefault(outlet.client_id, []).append(subscriber)
        else:
            self.turns.append(subscriber)

    def reading(self, outlet: DeliveryTarget) -> Consumer:
        """Return the connection's consumer 0, which holds messages that were read under a lease."""
        holder = self._by_number.get((outlet, 0))
        if holder is None:
            holder = self._new(outlet, 0, 0, Order.OLDEST, False)
        return holder

    def _new(
        self, outlet: DeliveryTarget, consumer: int, prefetch: int, order: Order, automatic: bool
    ) -> Consumer:
        context = self._context
        bounds = (context.limits.memory_bytes, context.lease_s)
        holder = Consumer(outlet, consumer, prefetch, order, automatic, *bounds)
        holder.since = context.clock.monotonic()
        self._by_number[outlet, consumer] = holder
        return holder

    # Removal

    def remove(self, outlet: DeliveryTarget, consumer: int) -> Consumer | None:
        """Remove and return a holder; the caller returns or fails its messages. None: unknown."""
        holder = self._by_number.pop((outlet, consumer), None)
        if holder is None or not consumer:
            return holder
        if holder.mine_only:
            mine = self.addressees[outlet.client_id]
            mine.remove(holder)
            if not mine:
                del self.addressees[outlet.client_id]
        else:
            self.turns.remove(holder)
            if self.departed is not None:
                self.departed.append(holder)
        return holder

    def clear(self) -> tuple[list[Consumer], list[Consumer]]:
        """Remove all; return all holders, and those to which messages were pushed."""
        pushed_to = [*self.turns, *chain.from_iterable(self.addressees.values())]
        if self.departed is not None:
            self.departed += self.turns
        self.turns.clear()
        self.addressees.clear()
        holders, self._by_number = self._by_number, {}
        return list(holders.values()), pushed_to


# Pending reads, served in the order in which they came.
#
# A read may ask for a sender or a context. If memory holds no match, the store is searched.


class PendingReads:
    """The pending reads of one replica."""

    def __init__(
        self,
        context: ReplicaContext,
        settling: Settling,
        giving_up: MessageExpiry,
        tail: SpillReader,
        gate: RateGate,
        freed: Callable[[], None],
    ) -> None:
        self._context = context
        self._settling = settling
        self._giving_up = giving_up
        self._tail = tail
        self._gate = gate
        # Called when a read message has let out the next one of its group.
        self._freed = freed
        self.waiting: dict[PendingRead, None] = {}
        self._of_client: dict[int, dict[PendingRead, None]] = {}

    @property
    def count(self) -> int:
        """Return the number of pending reads."""
        return len(self.waiting)

    @property
    def clients(self) -> list[int]:
        return list(self._of_client)

    def has_client(self, client_id: int) -> bool:
        return client_id in self._of_client

    def has_match(self, segment: Segment) -> bool:
        """Return whether a pending read selects a message of `segment`."""
        whole = Span(segment, 0, segment.count, MessageState.READY)
        return any(
            reader.match is not None and reader.match.find(whole) is not None
            for reader in self.waiting
        )

    def read(self, reader: PendingRead, wait_s: float) -> None:
        """Answer a read now, or when a message comes, or with an error after `wait_s`.

        With `wait_s` 0 the read fails as soon as memory and store are known to hold nothing for it.
        """
        if not self._context.may_deliver():
            reader.miss(Unavailable("this node's lease has lapsed: ask again"))
            return
        if self._try(reader):
            if self._context.queue.group_gate.freed:
                self._freed()
            return
        in_store = self._context.queue.spilled.count > 0
        if wait_s <= 0 and not in_store:
            self._miss(reader)
            return
        self.waiting[reader] = None
        self._of_client.setdefault(reader.client_id, {})[reader] = None
        if wait_s > 0:
            reader.timer = asyncio.get_running_loop().call_later(wait_s, self._miss, reader)
        if not in_store:
            # The store holds nothing older. `Dispatch.spilled` checks segments that stay there
            # later.
            reader.horizon = AFTER_ALL
        else:
            # A match may be in the store only.
            self._tail.search(
                reader,
                lambda: reader not in self.waiting or self._try(reader),
                lambda: self._not_found(reader),
            )

    def _not_found(self, reader: PendingRead) -> None:
        if reader.timer is None:
            self._miss(reader)

    def _miss(self, reader: PendingRead) -> None:
        self.drop(reader)
        name = self._context.logical_name
        if self._context.policy.paused:
            reader.miss(NoMessagesRetrieved(f"queue {name!r} is paused: resume it"))
        elif len(self._context.queue) == 0:
            reader.miss(NoMessagesInQueue(f"queue {name!r} is empty"))
        else:
            reader.miss(NoMessagesRetrieved(f"queue {name!r} holds no message that matches"))

    def drop(self, reader: PendingRead) -> None:
        """Remove a read that was answered, has timed out, or whose connection is gone."""
        if reader.timer is not None:
            reader.timer.cancel()
        self.waiting.pop(reader, None)
        mine = self._of_client.get(reader.client_id)
        if mine is not None:
            mine.pop(reader, None)
            if not mine:
                del self._of_client[reader.client_id]

    def end_all(self, error: TidegateError) -> None:
        """Fail all pending reads with `error`."""
        for reader in list(self.waiting):
            self.drop(reader)
            reader.miss(error)

    # Out

    def serve(self, receivers: list[int] | None) -> None:
        """Answer reads after messages became ready for `receivers`; None: for any client."""
        if receivers is None:
            for reader in list(self.waiting):
                if not self._context.queue.lanes.head_count:
                    break
                self._try(reader)
        else:
            for receiver in set(receivers):
                for reader in list(self._of_client.get(receiver, ())):
                    if not self._try(reader) and reader.match is None:
                        break

    def _try(self, reader: PendingRead) -> bool:
        context = self._context
        if not context.may_deliver() or context.policy.paused:
            return False
        if context.rate_limiter is not None and not self._gate.allowed(context.rate_limiter):
            return False
        span = self._take_for(reader)
        if span is None:
            if reader.match is None:
                # A message for another client that is in the store only may come first.
                self._tail.search_for_receiver(reader.client_id)
            return False
        self.drop(reader)
        if context.rate_limiter is not None:
            context.rate_limiter.spend(1)
        holder = reader.book_for()
        lease = holder.book.grant(span, context.clock.monotonic(), reader.lease_s or 0.0)
        run = make_counted_run(context, lease)
        body = span.segment.body(span.low, span.high)
        if reader.lease_s is None:
            # A read without a lease removes the message: delivering it acknowledges it.
            self._settling.settle(holder, [(lease.tag, lease.tag)])
        reader.answer(run, body)
        self._tail.fill_head()
        return True

    def _take_for(self, reader: PendingRead) -> Span | None:
        queue = self._context.queue
        while True:
            if reader.match is None:
                spans = queue.take(1, reader.client_id, reader.order)
                span = spans[0] if spans else None
            else:
                span = queue.take_match(
                    reader.match, reader.client_id, reader.order, reader.horizon
                )
            if span is None or self._giving_up.living([span]):
                return span
