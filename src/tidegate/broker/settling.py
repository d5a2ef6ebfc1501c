"""Settling: how leases end, and how that is stored.

Theory of operation

A lease ends in one of three ways. An acknowledgement settles its messages (`settle`). A return or
an expired deadline takes the lease back (`take_back`), and `Dispatch` retries the messages. A
transaction reserves leases (`lease_to_transaction`) and later settles them (`commit_transaction`)
or returns them (`abort_transaction`).

Settled messages are noted in the next `Settlement`. At most two settlements exist: `_settlement`
collects, `_under_way` is being stored by the `Settler`. A settlement lists segments whose last
message is done, which the store deletes. For other segments it lists the offsets that are done. It
also lists failed deliveries, so that a restart does not forget them.

Acknowledgements are stored late, since few clients wait for them: `Settler` collects for some
milliseconds. `when_on_disk` makes it urgent.

Invariants:

- Memory is ahead of the store. If the node dies, acknowledgements that were not stored are lost and
  the messages are delivered again.
- Storing a settlement twice changes nothing, so the `Settler` repeats it until the store answers.

Failures: if the store refuses the epoch, `settled(stored=False)` fences the replica. Callers that
wait for the disk are called back all the same and must check `fenced`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.broker.recording import ACKED, EXPIRED
from tidegate.core.errors import InvalidValue
from tidegate.core.model import DeathReason, Failure, QueuePolicy
from tidegate.core.segment import Segment
from tidegate.core.store import FailedDelivery, Settlement
from tidegate.queueing.leases import Lease
from tidegate.queueing.spans import MessageEvent, MessageState, Span
from tidegate.storage.writer import Settler

if TYPE_CHECKING:
    from tidegate.broker.context import ReplicaContext
    from tidegate.broker.dispatch import Consumer, DeliveryTarget, Dispatch


Ranges = list[tuple[int, int]]


class TransactionLeases:
    """Leases that a transaction has reserved.

    They neither expire nor return until the result of the transaction is known. The transaction
    stores only done offsets, since other messages of the same segment may be settled at the same
    time. The part that settles the last message of a segment deletes the segment.
    """

    __slots__ = ("holder", "leases")

    def __init__(self, holder: Consumer, leases: list[Lease]) -> None:
        self.holder = holder
        self.leases = leases

    def settlement(self, queue_id: int, epoch: int) -> Settlement:
        settlement = Settlement(queue_id, epoch)
        for lease in self.leases:
            span = lease.span
            settlement.partly.setdefault(span.segment.first_id, []).append((span.low, span.high))
        return settlement


class Settling:
    """Acknowledgements of one replica; a `SettleSource` of the settler."""

    def __init__(self, context: ReplicaContext, settler: Settler) -> None:
        self._context = context
        self._settler = settler
        self._settlement: Settlement | None = None
        self._under_way: Settlement | None = None
        self._waiters: list[Callable[[], None]] = []
        self._waiters_under_way: list[Callable[[], None]] = []
        self._pledges: set[TransactionLeases] = set()

    @property
    def busy(self) -> bool:
        """Return whether something done is not on disk yet."""
        return self._settlement is not None or self._under_way is not None

    def settle(self, holder: Consumer, ranges: Ranges) -> int:
        """Acknowledge ranges of tags; return how many tags were no longer held."""
        meters = self._context.meters
        queue = self._context.queue
        watch = self._context.watch
        now = self._context.clock.monotonic()
        lost = 0
        holder.meters.settlements += 1
        for first, last in ranges:
            held = 0
            for lease in holder.book.take(first, last):
                count = len(lease.span)
                held += count
                meters.service.add(now - lease.granted_at, count)
                holder.meters.settled(lease.granted_at, now, count)
                if watch is not None and lease.span.segment.first_id in watch.segments:
                    watch.ended(lease.span, ACKED, now)
                self.note_done(lease.span, queue.done(lease.span))
            meters.acked.add(held)
            holder.meters.acked.add(held)
            lost += last - first + 1 - held
        return lost

    def settle_waiting(self, spans: list[Span]) -> int:
        """Acknowledge messages that were taken out of the queue by their ids; return how many."""
        meters = self._context.meters
        self._context.note_ended(spans, ACKED)
        for span in spans:
            # The client that acknowledges them has read them without a lease.
            meters.delivered.add(len(span))
            meters.acked.add(len(span))
            self.note_done(span, self._context.queue.done(span))
        return sum(map(len, spans))

    def when_on_disk(self, tell: Callable[[], None]) -> None:
        """Call `tell` when everything acknowledged so far is on disk, or the replica is fenced."""
        if self._settlement is not None:
            self._waiters.append(tell)
            self._settler.schedule(self, urgent=True)
        elif self._under_way is not None:
            self._waiters_under_way.append(tell)
        else:
            tell()

    async def on_disk(self) -> None:
        """Wait until everything done so far is on disk, or the replica is fenced."""
        on_disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_on_disk(lambda: None if on_disk.done() else on_disk.set_result(None))
        await on_disk

    def hurry(self) -> None:
        if self._settlement is not None:
            self._settler.schedule(self, urgent=True)

    def note_done(self, span: Span, finished: bool) -> None:
        """Note done messages for the next commit; with `finished`, their whole segment is done."""
        context = self._context
        if not context.info.durable:
            return
        settlement = self._next()
        first_id = span.segment.first_id
        if finished:
            settlement.finished.append(first_id)
            settlement.partly.pop(first_id, None)
            if span.segment.failed is not None:
                settlement.forgotten.append(first_id)
        else:
            settlement.partly.setdefault(first_id, []).append((span.low, span.high))

    def note_failed(self, segment: Segment, offset: int, attempt: FailedDelivery) -> None:
        """Note a failed delivery for the next commit, so that a restart does not forget it."""
        if self._context.info.durable:
            self._next().attempts[segment.first_id, offset] = attempt

    def _next(self) -> Settlement:
        if self._settlement is None:
            context = self._context
            self._settlement = Settlement(context.info.queue_id, context.epoch)
            self._settler.schedule(self)
        return self._settlement

    @staticmethod
    def take_back(holder: Consumer, ranges: Ranges) -> tuple[list[Lease], int]:
        """End leases without settling; return them and the number of tags that were not held."""
        leases: list[Lease] = []
        lost = 0
        for first, last in ranges:
            taken = holder.book.take(first, last)
            lost += last - first + 1 - sum(len(lease.span) for lease in taken)
            leases += taken
        return leases, lost

    # Transactions

    def lease_to_transaction(self, holder: Consumer, ranges: Ranges) -> TransactionLeases | None:
        """Reserve leases for a transaction; None if not all of them are held."""
        leases, lost = self.take_back(holder, ranges)
        if lost:
            holder.book.restore(leases)
            return None
        pledge = TransactionLeases(holder, leases)
        self._pledges.add(pledge)
        return pledge

    def segments_pledged(self) -> set[Segment]:
        """Return the segments of which transactions have reserved messages."""
        return {lease.span.segment for each in self._pledges for lease in each.leases}

    def commit_transaction(self, pledge: TransactionLeases) -> None:
        """Settle the reserved leases: the transaction, and with it their end, is on disk."""
        self._pledges.discard(pledge)
        context = self._context
        if context.fenced:
            return
        now = context.clock.monotonic()
        for lease in pledge.leases:
            count = len(lease.span)
            context.meters.service.add(now - lease.granted_at, count)
            pledge.holder.meters.settled(lease.granted_at, now, count)
            for meters in (context.meters, pledge.holder.meters):
                meters.acked.add(count)
            if context.watch is not None and lease.span.segment.first_id in context.watch.segments:
                context.watch.ended(lease.span, ACKED, now)
            if context.queue.done(lease.span):
                # The transaction stored offsets only. It could not know that these were the last
                # ones of the segment.
                self.note_done(lease.span, True)

    def abort_transaction(self, pledge: TransactionLeases, *, is_there: bool) -> list[Lease]:
        """End the reservation after the transaction has failed.

        If the holder is still registered (`is_there`), it holds the messages again and the result
        is empty. Otherwise returns the leases, which the caller puts back into the queue.
        """
        self._pledges.discard(pledge)
        if is_there:
            pledge.holder.book.restore(pledge.leases)
            return []
        return pledge.leases

    # Called by the settler

    def collect_settlement(self) -> Settlement | None:
        self._under_way, self._settlement = self._settlement, None
        if self._under_way is None:
            return None
        self._waiters_under_way, self._waiters = self._waiters, []
        return self._under_way

    def settled(self, settlement: Settlement, stored: bool) -> None:
        self._under_way = None
        waiters, self._waiters_under_way = self._waiters_under_way, []
        if not stored:
            self._context.listener.fence(self._context.taken_over())
        for tell in waiters:
            tell()

    def fenced(self) -> None:
        """Drop the next settlement, and call back all waiting callers.

        They must check `fenced`.
        """
        self._settlement = None
        waiters, self._waiters = self._waiters, []
        for tell in waiters:
            tell()


# The wait before a failed message is tried again.


def retry_wait_s(policy: QueuePolicy, failed: int) -> float:
    """Return the seconds to wait after `failed` failures.

        wait = min(first * factor ** (failed - 1), max)

    Less a random part of up to `retry_jitter` of it.
    """
    # Limited, since a thousand failures would overflow a float.
    steps = min(failed - 1, 1000)
    try:
        wait_s = policy.retry_first_s * policy.retry_factor**steps
    except OverflowError:
        wait_s = policy.retry_max_s
    return min(wait_s, policy.retry_max_s) * (1 - policy.retry_jitter * random.random())


# Messages that no consumer gets any more: failed too often, rejected, expired, or over a limit.
#
# They go to the dead letters if the queue has any. Expired messages go there only if the policy
# keeps them.


class MessageExpiry:
    """Gives up messages of one replica."""

    __slots__ = ("_context", "_settling")

    def __init__(self, context: ReplicaContext, settling: Settling) -> None:
        self._context = context
        self._settling = settling

    def dead_letter(self, spans: list[Span], reason: DeathReason, error: str | None) -> None:
        if not spans or self._context.fenced:
            return
        for span in spans:
            if span.state is MessageState.LEASED:
                span.segment.mark_attempted(span.low, span.high)
            span.advance(MessageEvent.GIVEN_UP)
        self._context.listener.dead_letter(spans, reason, error)

    def shed(self, count: int) -> bool:
        """Give up `count` of the oldest messages to shorten the queue; False if there are none."""
        queue = self._context.queue
        spans = queue.take_regardless(count) or queue.lanes.take_addressed(count)
        self.dead_letter(spans, DeathReason.OVERFLOW, None)
        return bool(spans)

    # Failed too often

    def failed(
        self, spans: list[Span], event: MessageEvent, failure: Failure, wait_s: float | None
    ) -> list[Span]:
        """Count failed deliveries; return the messages to be retried at once.

        Others are scheduled for later, or given up after `deliveries_max` failures.
        """
        policy = self._context.policy
        hopeless: list[Span] = []
        again: list[Span] = []
        for span in spans:
            segment = span.segment
            for offset in range(span.low, span.high):
                failed = segment.mark_failed(offset, failure)
                if policy.deliveries_max and failed >= policy.deliveries_max:
                    hopeless.append(Span(segment, offset, offset + 1, span.state))
                    continue
                pause_s = retry_wait_s(policy, failed) if wait_s is None else wait_s
                if pause_s > 0:
                    self._put_off(Span(segment, offset, offset + 1, span.state), pause_s)
                elif again and again[-1].segment is segment and again[-1].high == offset:
                    again[-1].high += 1
                else:
                    again.append(Span(segment, offset, offset + 1, span.state))
                # A consumer that is gone held many messages and had seen few of them. Storing a
                # failure for each would not be worth a row. After a restart all are flagged as
                # redelivered anyway.
                if event is not MessageEvent.CONSUMER_GONE:
                    self._note_failed(segment, offset, failed, pause_s)
        self.dead_letter(hopeless, DeathReason.DELIVERIES, failure.error)
        return again

    def _put_off(self, span: Span, pause_s: float) -> None:
        self._context.queue.put_off([span], self._context.clock.monotonic() + pause_s)
        self._context.meters.returned.add(len(span))

    def _note_failed(self, segment: Segment, offset: int, failed: int, pause_s: float) -> None:
        due_at = self._context.clock.wall() + pause_s if pause_s > 0 else None
        failures = (segment.failures or {})[offset]
        self._settling.note_failed(segment, offset, FailedDelivery(failed, due_at, failures))

    # Expired

    def living(self, spans: list[Span]) -> list[Span]:
        """Expire messages among spans that were just taken; return the others."""
        if all(span.segment.expires_at is None for span in spans):
            return spans
        now = self._context.clock.wall()
        living: list[Span] = []
        for span in spans:
            for piece, is_over in span.parted(now):
                if is_over:
                    self._expire([piece])
                else:
                    living.append(piece)
        return living

    def expire(self) -> None:
        """Remove expired messages that wait in memory."""
        self._expire(self._context.queue.take_expired(self._context.clock.wall()))

    def _expire(self, spans: list[Span]) -> None:
        context = self._context
        if not spans:
            return
        context.meters.expired.add(sum(map(len, spans)))
        if context.policy.keep_expired:
            self.dead_letter(spans, DeathReason.EXPIRED, None)
            return
        context.note_ended(spans, EXPIRED)
        for span in spans:
            self._settling.note_done(span, context.queue.done(span, MessageEvent.EXPIRED))


# Prefetch experiments: a client sets another consumer's prefetch for a while.
#
# An experiment belongs to the connection that began it. When that connection ends, even by a crash,
# the consumer gets the prefetch that it had asked for. Only one client at a time may experiment
# with a consumer: a second one would measure the first and restore the wrong prefetch.


def check_no_other_experiment(consumer: Consumer, by: DeliveryTarget) -> None:
    """Raise `InvalidValue` if another client experiments with the consumer."""
    if consumer.experiment is not None and consumer.experiment is not by:
        raise InvalidValue(
            f"{consumer.experiment.client_name} is trying out prefetches with "
            f"{consumer.target.client_name} just now (`tidegate tune prefetch` does): wait until "
            "that has ended, or end it"
        )


def set_experiment_prefetch(
    dispatch: Dispatch, consumer: Consumer, prefetch: int, by: DeliveryTarget
) -> None:
    """Set the prefetch of an experiment; 0 ends the experiment."""
    if not prefetch:
        if consumer.experiment is not None:
            _end(dispatch, consumer)
        return
    consumer.experiment = by
    _set(dispatch, consumer, prefetch)


def end_experiments(dispatch: Dispatch, by: DeliveryTarget) -> None:
    """End the experiments of a connection that is gone."""
    for consumer in dispatch.holders.consumers:
        if consumer.experiment is by:
            _end(dispatch, consumer)


def _end(dispatch: Dispatch, consumer: Consumer) -> None:
    consumer.experiment = None
    # If a control loop sets the prefetch by now, its value stays.
    if consumer.control is None:
        _set(dispatch, consumer, consumer.asked)


def _set(dispatch: Dispatch, consumer: Consumer, prefetch: int) -> None:
    if not consumer.asked:
        return  # The client wants no more messages
    consumer.target.prefetch_changed(consumer.consumer, prefetch, lasting=False)
    dispatch.set_prefetches([(consumer, prefetch)])
