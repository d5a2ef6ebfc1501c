"""The way in: batches wait, are written together, and are confirmed once they are on disk.

A batch that comes twice is stored once: what is stored is remembered by producer and number,
what is on its way shares the fate of its twin.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from tidegate.core.crash import crash_point
from tidegate.core.errors import LimitReached, NotOwner, TidegateError, Unavailable
from tidegate.core.ports import Write
from tidegate.core.segment import Segment
from tidegate.node.batch import Batch, SegmentBuilder, build_segments
from tidegate.node.holding import Holding
from tidegate.node.marks import ProducerMarks
from tidegate.storage.writer import Writer

log = logging.getLogger(__name__)

ID_BLOCK = 1_000_000
# Messages in one commit: bounds the time that a confirm waits for its neighbours.
COMMIT_COUNT_MAX = 20_000
COMMIT_BYTES_MAX = 8 * 1024 * 1024


class Intake:
    """Puts of one replica; a source of writes."""

    def __init__(self, holding: Holding, writer: Writer, admit: Callable[[Segment], None]) -> None:
        self._holding = holding
        self._writer = writer
        self._admit = admit
        # Ids are handed out of a block that the store has reserved for this epoch.
        self._next_id = 0
        self._ids_end = 0
        self._reserving: asyncio.Task[None] | None = None
        self._marks = ProducerMarks()
        self._waiting: deque[Batch] = deque()
        self._under_way: dict[Write, SegmentBuilder] = {}
        # First ids of what is being stored together with changes of other queues.
        self._joint_ids: set[int] = set()
        self._closed = False
        # Every batch that is waiting or under way, with its twins.
        self._accepted: dict[tuple[int, int], list[Batch]] = {}
        # The last batch of a producer that was refused for good: nobody need wait for it.
        self._given_up: dict[int, int] = {}

    @property
    def busy(self) -> bool:
        """Whether something accepted is not on disk yet."""
        return bool(self._waiting or self._under_way)

    def first_ids_under_way(self) -> set[int]:
        return {write.segment.first_id for write in self._under_way} | self._joint_ids

    @property
    def ids_given_below(self) -> int:
        """Every id that was given out is below this one."""
        return self._next_id

    async def load(self) -> None:
        """Reserve ids, and learn which batches are stored."""
        await self._reserve_ids()
        holding = self._holding
        if holding.info.durable:
            self._marks = ProducerMarks(
                await holding.store.marks(holding.info.queue_id), holding.clock.monotonic()
            )

    def put(self, batch: Batch) -> None:
        """Accept a batch; it is confirmed once it is on disk."""
        holding = self._holding
        if holding.fenced or self._closed:
            batch.refused(NotOwner(f"queue {holding.info.name!r} has moved"))
            return
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
        if not holding.info.durable and not holding.budget.has_room_for(len(batch.body)):
            holding.meters.refused.add(len(batch.packet.lengths))
            self._given_up[batch.packet.producer] = batch.packet.batch
            batch.refused(
                LimitReached(
                    f"the node's memory ({holding.limits.memory_bytes} bytes) is full and queue "
                    f"{holding.info.name!r} is transient: consume, or declare it durable"
                )
            )
            return
        self._accepted[key] = [batch]
        self._waiting.append(batch)
        holding.budget.waiting_bytes += len(batch.body)
        self._writer.wants(self)

    def _knows(self, producer: int, number: int) -> bool:
        return (
            (producer, number) in self._accepted
            or self._marks.has(producer, number)
            or self._given_up.get(producer) == number
        )

    # For the writer

    def collect_writes(self) -> list[Write]:
        """The segments of the next commit."""
        taken: list[Batch] = []
        count = body_bytes = 0
        while self._waiting and count < COMMIT_COUNT_MAX and body_bytes < COMMIT_BYTES_MAX:
            batch = self._waiting[0]
            if count + len(batch.packet.lengths) > self._ids_end - self._next_id:
                self._reserve_more()
                break
            taken.append(self._waiting.popleft())
            count += len(batch.packet.lengths)
            body_bytes += len(batch.body)
        if not taken:
            return []
        if self._waiting:
            self._writer.wants(self)
        if self._ids_end - self._next_id - count < ID_BLOCK // 2:
            self._reserve_more()
        holding = self._holding
        now = holding.clock.wall()
        writes = []
        for builder in build_segments(taken):
            segment = builder.build(holding.info.queue_id, self._next_id, now)
            self._next_id += segment.count
            write = builder.write(segment, holding.epoch)
            self._under_way[write] = builder
            writes.append(write)
        if holding.info.durable:
            return writes
        for write in writes:
            self.written(write, True)
        return []

    def written(self, write: Write, stored: bool) -> None:
        """A segment is on disk: deliver and confirm it."""
        holding = self._holding
        builder = self._under_way.pop(write)
        holding.budget.waiting_bytes -= write.segment.payload_bytes
        if not stored or holding.fenced:
            # Stored by us but fenced since: the new owner knows the batch when it comes again.
            self._refuse(builder, holding.taken_over())
            if not stored:
                holding.fence(holding.taken_over())
            return
        now = holding.clock.monotonic()
        # Consumers first: what they do with it takes longer than hearing that it is stored.
        holding.meters.put.add(write.segment.count)
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
        crash_point("after-confirm")

    def refused(self, writes: Sequence[Write], error: TidegateError) -> None:
        """None of these is stored."""
        for write in writes:
            self._holding.budget.waiting_bytes -= write.segment.payload_bytes
            self._refuse(self._under_way.pop(write), error)

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

    def fenced(self, error: TidegateError) -> None:
        """What waits will not be written here; what is under way learns its fate from the store."""
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._holding.budget.waiting_bytes -= len(batch.body)
            self._refuse_batch(batch, error)
        if self._reserving is not None:
            self._reserving.cancel()

    def forget_producers(self, before: float) -> None:
        self._marks.forget(before)
        self._given_up.clear()

    # Ids

    async def _reserve_ids(self) -> None:
        holding = self._holding
        end = await holding.store.reserve_ids(holding.info.queue_id, holding.epoch, ID_BLOCK)
        if end is None:
            holding.fence(holding.taken_over())
            return
        if self._ids_end + ID_BLOCK != end:
            # Somebody else reserved in between: what is left of our block is skipped.
            self._next_id = end - ID_BLOCK
        self._ids_end = end

    def _reserve_more(self) -> None:
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.create_task(self._reserve_until_done(), name="reserve-ids")

    async def _reserve_until_done(self) -> None:
        backoff_s = 0.05
        while not self._holding.fenced:
            try:
                await self._reserve_ids()
                break
            except TidegateError as failure:
                log.warning("no ids for %s yet: %s", self._holding.info.name, failure)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, 1.0)
        if self._waiting:
            self._writer.wants(self)

    # Messages that are stored together with changes of other queues

    def reserve(self, count: int) -> int:
        """The first of `count` ids; they are under way until `joint_stored` or `joint_refused`."""
        if count > self._ids_end - self._next_id:
            self._reserve_more()
            raise Unavailable("out of message ids for a moment, try again")
        first_id = self._next_id
        self._next_id += count
        self._joint_ids.add(first_id)
        if self._ids_end - self._next_id < ID_BLOCK // 2:
            self._reserve_more()
        return first_id

    def prepare(self, batch: Batch) -> list[Write]:
        """The segments of a batch, under way from here on."""
        holding = self._holding
        now = holding.clock.wall()
        writes: list[Write] = []
        try:
            for builder in build_segments([batch]):
                first_id = self.reserve(len(builder.lengths))
                segment = builder.build(holding.info.queue_id, first_id, now)
                writes.append(builder.write(segment, holding.epoch))
                builder.release()
        except BaseException:
            for write in writes:
                self.joint_refused(write.segment.first_id)
            raise
        return writes

    def joint_refused(self, first_id: int) -> None:
        """The messages from that id will not come."""
        self._joint_ids.discard(first_id)

    def joint_stored(self, segment: Segment, producer: int, batch: int) -> None:
        """They have come; `segment` is what this queue has of them."""
        holding = self._holding
        self._joint_ids.discard(segment.first_id)
        if holding.fenced:
            return  # the new owner finds them in the store
        self._marks.add(producer, batch, holding.clock.monotonic())
        holding.meters.put.add(segment.open)
        self._admit(segment)

    def knows(self, producer: int, batch: int) -> bool:
        """Whether that batch is stored."""
        return self._marks.has(producer, batch)
