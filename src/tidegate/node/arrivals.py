"""Segments that another part of the system stores in a queue of this node.

They come from transactions, from transfers between replicas, or from splitting a segment. Each is
announced before it is stored and admitted after it is on disk. In between, segments read from the
store are filtered with `without`, or they would be added twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tidegate.core.id_ranges import Range
from tidegate.core.ports import Write
from tidegate.core.segment import Segment
from tidegate.node.batch import Batch, build_segments
from tidegate.node.deduplication import Deduplication
from tidegate.node.holding import Holding
from tidegate.node.message_ids import MessageIds


class Arrivals:
    """What comes to one replica by another way than a put."""

    def __init__(
        self,
        holding: Holding,
        ids: MessageIds,
        dedup: Deduplication,
        admit: Callable[[Segment], None],
    ) -> None:
        self._holding = holding
        self._ids = ids
        self._dedup = dedup
        self._admit = admit
        # First ids of segments that are being stored in transactions.
        self.first_ids: set[int] = set()
        # Blocks of ids, each [first, last], under which segments are being transferred here.
        self._coming_over: set[Range] = set()

    def without(self, segments: list[Segment], under_way: set[int]) -> list[Segment]:
        """Return those of `segments`, as read from the store, that are not announced."""
        if not under_way and not self._coming_over:
            return segments
        return [
            segment
            for segment in segments
            if segment.first_id not in under_way and not self._comes_over(segment)
        ]

    def _comes_over(self, segment: Segment) -> bool:
        return any(first <= segment.first_id <= last for first, last in self._coming_over)

    # In transactions

    def take_ids(self, count: int) -> int:
        """Take ids for a segment that a transaction stores, and return the first."""
        first_id = self._ids.take(count)
        self.first_ids.add(first_id)
        return first_id

    def prepare(self, batch: Batch) -> list[Write]:
        """Make the segments of a batch that a transaction stores, and announce them."""
        holding = self._holding
        packet = batch.packet
        now = holding.clock.wall()
        if packet.attributes is not None or packet.delays_s or packet.ttls_s:
            batch.stamp(now)
        batch.skip(self._dedup.duplicates(packet.attributes, set()))
        writes: list[Write] = []
        try:
            for builder in build_segments([batch]):
                first_id = self.take_ids(len(builder.lengths))
                segment = builder.build(holding.info.queue_id, first_id, now)
                writes.append(builder.write(segment, holding.epoch))
                self._dedup.under_way.update(writes[-1].dedup_ids or ())
                builder.release()
        except BaseException:
            for write in writes:
                self.not_coming(write.segment.first_id, write.dedup_ids or ())
            raise
        return writes

    def not_coming(self, first_id: int, dedup_ids: Iterable[str] = ()) -> None:
        """Withdraw the announcement of a segment that will not be stored."""
        self.first_ids.discard(first_id)
        self._dedup.settled(dedup_ids)

    def came(self, segment: Segment, dedup_ids: list[str] | None = None) -> None:
        """Admit a segment that a transaction has stored."""
        holding = self._holding
        self.first_ids.discard(segment.first_id)
        if dedup_ids:
            self._dedup.stored.add(dedup_ids, holding.clock.monotonic())
            self._dedup.settled(dedup_ids)
        if not holding.fenced:  # Otherwise the new owner reads it from the store
            holding.meters.put.add(segment.open)
            if holding.watch is not None:
                holding.watch.stored(segment, None, holding.clock.monotonic())
            self._admit(segment)

    # Transfers from another replica

    def expect(self, count: int) -> Range:
        """Reserve `count` ids, returned as [first, last], for segments to be transferred here."""
        first_id = self._ids.take(count)
        block = (first_id, first_id + count - 1)
        self._coming_over.add(block)
        return block

    def came_over(self, block: Range, segments: Sequence[Segment]) -> None:
        """Admit the segments that were transferred under `block`, and close the block."""
        self._coming_over.discard(block)
        holding = self._holding
        if holding.fenced:
            return  # The new owner reads them from the store
        # The dedup window counts from the put, not from the transfer.
        wall, ages_s = holding.clock.wall(), dict[str, float]()
        for segment in segments:
            age_s = max(wall - segment.arrived_at, 0.0)
            for each in segment.attributes or ():
                if each is not None and each.dedup_id:
                    ages_s[each.dedup_id] = min(age_s, ages_s.get(each.dedup_id, age_s))
        self._dedup.stored.load(ages_s, holding.clock.monotonic())
        for segment in segments:
            holding.meters.taken_over.add(segment.open)
            if holding.watch is not None:
                holding.watch.stored(segment, None, holding.clock.monotonic())
            self._admit(segment)

    # Splitting

    def on_its_way(self, first_id: int) -> None:
        """Announce a segment that is split off from one of this queue."""
        self.first_ids.add(first_id)

    def came_apart(self, segment: Segment) -> None:
        """Admit a segment that was split off from one of this queue."""
        self.first_ids.discard(segment.first_id)
        if not self._holding.fenced:
            self._admit(segment)
