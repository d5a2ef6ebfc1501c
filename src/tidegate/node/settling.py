"""The way back: leases end by ack, by return or by time; what is done is written down.

Acknowledgements are gathered into one settlement per commit. Most leave whole segments done,
which are then deleted; of others the done offsets are noted.
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
    """Leases in the hands of a transaction: they neither lapse nor return until its fate is known.

    Of their segments only the done offsets are written, since others of the same segment may be
    settled at the same time; whose turn is the last deletes it.
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
    """Acknowledgements of one replica; a source of settlements."""

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
        """Whether something done is not on disk yet."""
        return self._settlement is not None or self._under_way is not None

    def settle(self, holder: Consumer, ranges: Ranges) -> int:
        """Acknowledge ranges of tags; how many were no longer held."""
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
        """Acknowledge messages that nobody held, just taken out of the queue; how many."""
        meters = self._holding.meters
        self._holding.note_ended(spans, ACKED)
        for span in spans:
            # Whoever acknowledges them has read them.
            meters.delivered.add(len(span))
            meters.acked.add(len(span))
            self.note_done(span, self._holding.queue.done(span))
        return sum(map(len, spans))

    def when_on_disk(self, tell: Callable[[], None]) -> None:
        """Call back when everything acknowledged so far is on disk."""
        if self._settlement is not None:
            self._waiters.append(tell)
            self._settler.wants(self, urgent=True)
        elif self._under_way is not None:
            self._waiters_under_way.append(tell)
        else:
            tell()

    async def on_disk(self) -> None:
        """Wait until everything that is done so far is so on disk."""
        on_disk: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.when_on_disk(lambda: None if on_disk.done() else on_disk.set_result(None))
        await on_disk

    def hurry(self) -> None:
        if self._settlement is not None:
            self._settler.wants(self, urgent=True)

    def note_done(self, span: Span, finished: bool) -> None:
        """For the next commit; with `finished`, its whole segment is done."""
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
        """For the next commit: a delivery came to nothing, and that shall not be forgotten."""
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
        """End leases without settling: they, and how many were no longer held."""
        leases: list[Lease] = []
        lost = 0
        for first, last in ranges:
            taken = holder.book.take(first, last)
            lost += last - first + 1 - sum(len(lease.span) for lease in taken)
            leases += taken
        return leases, lost

    # For transactions

    def pledge(self, holder: Consumer, ranges: Ranges) -> Pledge | None:
        """Take leases out of a holder's hands for a transaction; None: not all were there."""
        leases, lost = self.take_back(holder, ranges)
        if lost:
            holder.book.restore(leases)
            return None
        pledge = Pledge(holder, leases)
        self._pledges.add(pledge)
        return pledge

    def segments_pledged(self) -> set[Segment]:
        """Those of which messages are in the hands of transactions."""
        return {lease.span.segment for each in self._pledges for lease in each.leases}

    def redeem(self, pledge: Pledge) -> None:
        """The transaction is on disk, and so is that these messages are done."""
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
                # Who settled the rest meanwhile could not know that it was the rest.
                self.note_done(lease.span, True)

    def release(self, pledge: Pledge, *, is_there: bool) -> list[Lease]:
        """The transaction came to nothing: who held them does again, if it is still there.

        Else what has to go back to the queue.
        """
        self._pledges.discard(pledge)
        if is_there:
            pledge.holder.book.restore(pledge.leases)
            return []
        return pledge.leases

    # For the settler

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
        """Nothing more is written; whoever waits is told, and looks whether we are fenced."""
        self._settlement = None
        waiters, self._waiters = self._waiters, []
        for tell in waiters:
            tell()
