"""The way in: batches wait, are written together, and are confirmed once they are on disk.

A batch that comes twice is stored once: what is stored is remembered by producer and number,
what is on its way shares the fate of its twin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tidegate.core.crash import crash_point
from tidegate.core.errors import (
    IoFailure,
    LimitReached,
    NotHome,
    NotOwner,
    TidegateError,
    Unavailable,
)
from tidegate.core.ports import Write
from tidegate.core.segment import Segment
from tidegate.node.arrivals import Arrivals
from tidegate.node.batch import Batch, SegmentBuilder, build_segments
from tidegate.node.deduplication import Deduplication
from tidegate.node.holding import Holding
from tidegate.node.marks import ProducerMarks
from tidegate.node.message_ids import IDS_LOW, MessageIds
from tidegate.node.put_homes import PutHomes
from tidegate.node.room import Room
from tidegate.storage.writer import Writer

# Messages in one commit: bounds the time that a confirm waits for its neighbours.
COMMIT_COUNT_MAX = 20_000
COMMIT_BYTES_MAX = 8 * 1024 * 1024
# Who has put within this time is there.
_OF_LATE_S = 5.0


class Intake:
    """Puts of one replica; a source of writes."""

    def __init__(self, holding: Holding, writer: Writer, admit: Callable[[Segment], None]) -> None:
        self._holding = holding
        self._writer = writer
        self._admit = admit
        self.room = Room(holding)
        self.ids = MessageIds(holding, self._go_on)
        self.dedup = Deduplication(holding, self._go_on)
        self.arrivals = Arrivals(holding, self.ids, self.dedup, admit)
        self._marks = ProducerMarks()
        self._waiting: deque[Batch] = deque()
        self._under_way: dict[Write, SegmentBuilder] = {}
        self._closed = False
        # Of a replica: producers, and when each has put last.
        self._heard: dict[int, float] = {}
        # Every batch that is waiting or under way, with its twins.
        self._accepted: dict[tuple[int, int], list[Batch]] = {}
        self.homes = PutHomes(holding, self._accepted, self.ids, self.dedup)
        # Whether what waits does so for a limit of the queue's policy.
        self._at_limit = False
        # The last batch of a producer that was refused for good: nobody need wait for it.
        self._given_up: dict[int, int] = {}

    @property
    def busy(self) -> bool:
        """Whether something accepted is not on disk yet."""
        return bool(self._waiting or self._under_way)

    def first_ids_under_way(self) -> set[int]:
        """Of all that is being stored, by us or by somebody else."""
        return {write.segment.first_id for write in self._under_way} | self.arrivals.first_ids

    def without_under_way(self, segments: list[Segment]) -> list[Segment]:
        """Of segments that were read from the store, those of which the queue was told."""
        return self.arrivals.without(segments, self.first_ids_under_way())

    async def load(self) -> None:
        """Reserve ids, and learn which batches are stored."""
        await self.ids.reserve()
        holding = self._holding
        if holding.info.durable:
            self._marks = ProducerMarks(
                await holding.store.marks(holding.info.queue_id), holding.clock.monotonic()
            )
            if not holding.info.alias_id:
                # Of a replica: once it knows of what it is the home, and nobody else stores ids.
                await self.dedup.learn()

    def put(self, batch: Batch) -> None:
        """Accept a batch; it is confirmed once it is on disk."""
        holding = self._holding
        if holding.fenced or self._closed:
            batch.refused(NotOwner(f"queue {holding.info.title} has moved"))
            return
        if holding.producers is not None:
            holding.producers.add(batch.packet.producer)
        if holding.info.alias_id:
            self._heard[batch.packet.producer] = holding.clock.monotonic()
        key = (batch.packet.producer, batch.packet.batch)
        if self._marks.has(*key):
            batch.confirm_duplicate()
            return
        accepted = self._accepted.get(key)
        if accepted is not None:
            accepted.append(batch)
            return
        after = batch.packet.after
        if after is not None and not self._knows(batch.packet.producer, after):
            batch.refused(Unavailable(f"batch {after} has to come first: send both again"))
            return
        if holding.homes is not None and self.homes.are_elsewhere(batch):
            # Its home has moved, and the producer does not know: it asks, and sends again.
            batch.refused(NotHome(f"what has its home elsewhere cannot go to {holding.info.title}"))
            return
        too_much = self.room.why_refused(batch, self._waiting, self._under_way, self._at_limit)
        if too_much is not None:
            holding.meters.refused.add(len(batch.packet.lengths))
            self._given_up[batch.packet.producer] = batch.packet.batch
            batch.refused(LimitReached(too_much))
            return
        packet = batch.packet
        if packet.attributes is not None or packet.delays_s or packet.ttls_s:
            batch.stamp(holding.clock.wall())
        self._accepted[key] = [batch]
        self._waiting.append(batch)
        holding.budget.waiting_bytes += len(batch.body)
        self._writer.wants(self)

    def made_room(self) -> None:
        """Messages have left: what waits for a limit may go on."""
        if self._at_limit:
            self._at_limit = False
            self._writer.wants(self)

    def _go_on(self) -> None:
        """What it waited for is there, or decided."""
        if self._waiting and not self._holding.fenced:
            self._writer.wants(self)

    def _knows(self, producer: int, number: int) -> bool:
        return (
            (producer, number) in self._accepted
            or self._marks.has(producer, number)
            or self._given_up.get(producer) == number
        )

    def producers_of_late(self) -> int:
        """How many have put within the last seconds; counted for replicas only."""
        since = self._holding.clock.monotonic() - _OF_LATE_S
        self._heard = {each: at for each, at in self._heard.items() if at > since}
        return len(self._heard)

    # For the writer

    def collect_writes(self) -> list[Write]:
        """The segments of the next commit."""
        ids = self.ids
        taken: list[Batch] = []
        count = body_bytes = 0
        while self._waiting and count < COMMIT_COUNT_MAX and body_bytes < COMMIT_BYTES_MAX:
            batch = self._waiting[0]
            if self.room.must_wait(count, body_bytes, batch, self._under_way):
                self._at_limit = True
                if self._closed:
                    self._refuse_at_limit()
                break
            if count + len(batch.packet.lengths) > ids.end - ids.next_id:
                ids.reserve_more()
                break
            if batch.packet.attributes is not None:
                if not self._deduplicate(batch):
                    break
                if batch.is_stored:
                    continue
            taken.append(self._waiting.popleft())
            count += len(batch.packet.lengths)
            body_bytes += len(batch.body)
        if not taken:
            return []
        if self._waiting and not self._at_limit:
            self._writer.wants(self)
        if ids.end - ids.next_id - count < IDS_LOW:
            ids.reserve_more()
        holding = self._holding
        now = holding.clock.wall()
        writes = []
        for builder in build_segments(taken):
            segment = builder.build(holding.info.queue_id, ids.next_id, now)
            ids.next_id += segment.count
            write = builder.write(segment, holding.epoch)
            self._under_way[write] = builder
            writes.append(write)
        if holding.info.durable:
            return writes
        for write in writes:
            self.written(write, True)
        return []

    def _deduplicate(self, batch: Batch) -> bool:
        """Leave out what is stored already; False while an id of it is on its way.

        Then its fate is known after the commit, and not sooner.
        """
        dedup_ids = batch.dedup_ids()
        if not dedup_ids:
            return True
        if not self.dedup.under_way.isdisjoint(dedup_ids):
            return False
        holding = self._holding
        batch.skip(self.dedup.duplicates(batch.packet.attributes, set()))
        if batch.is_stored:
            self._waiting.popleft()
            holding.budget.waiting_bytes -= len(batch.body)
            for twin in self._accepted.pop((batch.packet.producer, batch.packet.batch), ()):
                twin.confirm_duplicate()
        else:
            # Only what is written: nobody would tell of the fate of the others.
            self.dedup.under_way.update(batch.dedup_ids())
            lengths = batch.packet.lengths
            holding.budget.waiting_bytes -= sum(lengths[index] for index in batch.skipped)
        return True

    def written(self, write: Write, stored: bool | None) -> None:
        """A segment is on disk: deliver and confirm it."""
        holding = self._holding
        builder = self._under_way.pop(write)
        if write.dedup_ids:
            self.dedup.under_way.difference_update(write.dedup_ids)
            if stored:
                self.dedup.stored.add(write.dedup_ids, holding.clock.monotonic())
                self._writer.wants(self)  # who waited for its fate
        holding.budget.waiting_bytes -= write.segment.payload_bytes
        if not stored or holding.fenced:
            if stored is False:
                self._refuse(builder, holding.taken_over())
            else:
                # Perhaps by us, but fenced since: the new owner knows when the batch comes again.
                unknown = IoFailure(f"queue {holding.info.title} has a new owner: ask there")
                self._refuse(builder, unknown)
            if not stored:
                holding.fence(holding.taken_over())
            return
        now = holding.clock.monotonic()
        # Consumers first: what they do with it takes longer than hearing that it is stored.
        holding.meters.put.add(write.segment.count)
        watch = holding.watch
        if watch is not None:
            watch.stored(write.segment, builder, now)
        self._admit(write.segment)
        crash_point("after-deliver-before-confirm")
        for batch in builder.release():
            batch.stored_at = now
            if batch.part_stored():
                key = (batch.packet.producer, batch.packet.batch)
                self._marks.add(*key, now)
                for twin in self._accepted.pop(key, ()):
                    if twin is batch:
                        batch.confirm()
                    else:
                        twin.confirm_duplicate()
                if batch.watched is not None and watch is not None:
                    watch.confirmed(batch, holding.clock.monotonic())
        crash_point("after-confirm")

    def refused(self, writes: Sequence[Write], error: TidegateError) -> None:
        """None of these is stored."""
        for write in writes:
            self.dedup.under_way.difference_update(write.dedup_ids or ())
            self._holding.budget.waiting_bytes -= write.segment.payload_bytes
            self._refuse(self._under_way.pop(write), error)
        if self._waiting:
            self._writer.wants(self)

    def _refuse(self, builder: SegmentBuilder, error: TidegateError) -> None:
        for batch in builder.release():
            self._refuse_batch(batch, error)

    def _refuse_batch(self, batch: Batch, error: TidegateError) -> None:
        for twin in self._accepted.pop((batch.packet.producer, batch.packet.batch), ()):
            self._holding.meters.refused.add(len(twin.packet.lengths))
            twin.refused(error)

    def close(self) -> None:
        """Accept nothing more: the queue is about to leave."""
        self._closed = True
        if self._at_limit:
            self._refuse_at_limit()

    def _refuse_at_limit(self) -> None:
        """They would wait for room that is made elsewhere."""
        self._refuse_waiting(NotOwner(f"queue {self._holding.info.title} is moving"))

    def fenced(self, error: TidegateError) -> None:
        """What waits will not be written here; what is under way learns its fate from the store."""
        self._refuse_waiting(error)
        self.ids.fenced()

    def _refuse_waiting(self, error: TidegateError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._holding.budget.waiting_bytes -= len(batch.body)
            self._refuse_batch(batch, error)

    def forget_producers(self, before: float) -> None:
        self._marks.forget(before)
        self._given_up.clear()
        self.dedup.forget()

    def knows(self, producer: int, batch: int) -> bool:
        """Whether that batch is stored."""
        return self._marks.has(producer, batch)

    def remember(self, producer: int, batch: int) -> None:
        """That batch is stored."""
        self._marks.add(producer, batch, self._holding.clock.monotonic())
