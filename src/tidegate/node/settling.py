"""The way back: leases end by ack, by return or by time; what is done is written down.

Acknowledgements are gathered into one settlement per commit. Most leave whole segments done,
which are then deleted; of others the done offsets are noted.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core.ports import Attempt, Settlement
from tidegate.core.segment import Segment
from tidegate.node.consumer import Consumer
from tidegate.node.holding import Holding
from tidegate.queueing.lease import Lease
from tidegate.queueing.span import Span
from tidegate.storage.writer import Settler

Ranges = list[tuple[int, int]]


class Settling:
    """Acknowledgements of one replica; a source of settlements."""

    def __init__(self, holding: Holding, settler: Settler) -> None:
        self._holding = holding
        self._settler = settler
        self._settlement: Settlement | None = None
        self._under_way: Settlement | None = None
        self._waiters: list[Callable[[], None]] = []
        self._waiters_under_way: list[Callable[[], None]] = []

    @property
    def busy(self) -> bool:
        """Whether something done is not on disk yet."""
        return self._settlement is not None or self._under_way is not None

    def settle(self, holder: Consumer, ranges: Ranges) -> int:
        """Acknowledge ranges of tags; how many were no longer held."""
        meters = self._holding.meters
        queue = self._holding.queue
        now = self._holding.clock.monotonic()
        lost = 0
        for first, last in ranges:
            held = 0
            for lease in holder.book.take(first, last):
                count = len(lease.span)
                held += count
                meters.service.add(now - lease.granted_at, count)
                holder.meters.service.add(now - lease.granted_at, count)
                self.note_done(lease.span, queue.done(lease.span))
            meters.acked.add(held)
            holder.meters.acked.add(held)
            lost += last - first + 1 - held
        return lost

    def when_on_disk(self, tell: Callable[[], None]) -> None:
        """Call back when everything acknowledged so far is on disk."""
        if self._settlement is not None:
            self._waiters.append(tell)
            self._settler.wants(self, urgent=True)
        elif self._under_way is not None:
            self._waiters_under_way.append(tell)
        else:
            tell()

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
