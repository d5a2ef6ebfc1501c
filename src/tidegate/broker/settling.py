"""Settling: how leases end, and how that is stored.

Theory of operation

A lease ends in one of three ways. An acknowledgement settles its messages (`settle`). A return or
an expired deadline takes the lease back (`take_back`), and `Dispatch` retries the messages. A
transaction reserves leases (`pledge`) and later settles them (`redeem`) or returns them
(`release`).

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
from collections.abc import Callable

from tidegate.core.ports import Attempt, Settlement
from tidegate.core.segment import Segment
from tidegate.node.consumer import Consumer
from tidegate.node.holding import Holding
from tidegate.node.lifecycle_watch import ACKED
from tidegate.queueing.lease import Lease
from tidegate.queueing.span import Span
from tidegate.storage.writer import Settler

Ranges = list[tuple[int, int]]


class Pledge:
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

    def __init__(self, holding: Holding, settler: Settler) -> None:
        self._holding = holding
        self._settler = settler
        self._settlement: Settlement | None = None
        self._under_way: Settlement | None = None
        self._waiters: list[Callable[[], None]] = []
        self._waiters_under_way: list[Callable[[], None]] = []
        self._pledges: set[Pledge] = set()

    @property
    def busy(self) -> bool:
        """Return whether something done is not on disk yet."""
        return self._settlement is not None or self._under_way is not None

    def settle(self, holder: Consumer, ranges: Ranges) -> int:
        """Acknowledge ranges of tags; return how many tags were no longer held."""
        meters = self._holding.meters
        queue = self._holding.queue
        watch = self._holding.watch
        now = self._holding.clock.monotonic()
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
        meters = self._holding.meters
        self._holding.note_ended(spans, ACKED)
        for span in spans:
            # The client that acknowledges them has read them without a lease.
            meters.delivered.add(len(span))
            meters.acked.add(len(span))
            self.note_done(span, self._holding.queue.done(span))
        return sum(map(len, spans))

    def when_on_disk(self, tell: Callable[[], None]) -> None:
        """Call `tell` when everything acknowledged so far is on disk, or the replica is fenced."""
        if self._settlement is not None:
            self._waiters.append(tell)
            self._settler.wants(self, urgent=True)
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
            self._settler.wants(self, urgent=True)

    def note_done(self, span: Span, finished: bool) -> None:
        """Note done messages for the next commit; with `finished`, their whole segment is done."""
        holding = self._holding
        if not holding.info.durable:
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

    def note_failed(self, segment: Segment, offset: int, attempt: Attempt) -> None:
        """Note a failed delivery for the next commit, so that a restart does not forget it."""
        if self._holding.info.durable:
            self._next().attempts[segment.first_id, offset] = attempt

    def _next(self) -> Settlement:
        if self._settlement is None:
            holding = self._holding
            self._settlement = Settlement(holding.info.queue_id, holding.epoch)
            self._settler.wants(self)
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

    def pledge(self, holder: Consumer, ranges: Ranges) -> Pledge | None:
        """Reserve leases for a transaction; None if not all of them are held."""
        leases, lost = self.take_back(holder, ranges)
        if lost:
            holder.book.restore(leases)
            return None
        pledge = Pledge(holder, leases)
        self._pledges.add(pledge)
        return pledge

    def segments_pledged(self) -> set[Segment]:
        """Return the segments of which transactions have reserved messages."""
        return {lease.span.segment for each in self._pledges for lease in each.leases}

    def redeem(self, pledge: Pledge) -> None:
        """Settle the reserved leases: the transaction, and with it their end, is on disk."""
        self._pledges.discard(pledge)
        holding = self._holding
        if holding.fenced:
            return
        now = holding.clock.monotonic()
        for lease in pledge.leases:
            count = len(lease.span)
            holding.meters.service.add(now - lease.granted_at, count)
            pledge.holder.meters.settled(lease.granted_at, now, count)
            for meters in (holding.meters, pledge.holder.meters):
                meters.acked.add(count)
            if holding.watch is not None and lease.span.segment.first_id in holding.watch.segments:
                holding.watch.ended(lease.span, ACKED, now)
            if holding.queue.done(lease.span):
                # The transaction stored offsets only. It could not know that these were the last
                # ones of the segment.
                self.note_done(lease.span, True)

    def release(self, pledge: Pledge, *, is_there: bool) -> list[Lease]:
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
            self._holding.fence(self._holding.taken_over())
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
