"""The way in: batches wait, are written together, and are confirmed once they are on disk.

A batch that comes twice is stored once: what is stored is remembered by producer and number,
what is on its way shares the fate of its twin.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from tidegate.core.crash import crash_point
from tidegate.core.errors import LimitReached, NotOwner, TidegateError, Unavailable
from tidegate.core.model import Attributes, Overflow
from tidegate.core.ports import Write
from tidegate.core.segment import Segment
from tidegate.node.batch import Batch, SegmentBuilder, build_segments
from tidegate.node.dedup import DedupWindow
from tidegate.node.holding import Holding
from tidegate.node.marks import ProducerMarks
from tidegate.storage.writer import Writer

log = logging.getLogger(__name__)

ID_BLOCK = 1_000_000
# Messages in one commit: bounds the time that a confirm waits for its neighbours.
COMMIT_COUNT_MAX = 20_000
COMMIT_BYTES_MAX = 8 * 1024 * 1024
# What may wait for room in a queue that is at its limit; more is refused.
HELD_BYTES_MAX = 64 * 1024 * 1024


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
        self._dedup = DedupWindow()
        # Dedup ids on their way to the disk.
        self._dedup_under_way: set[str] = set()
        # Whether what waits does so for a limit of the queue's policy.
        self._at_limit = False
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
            ages_s = await holding.store.dedup_ids(
                holding.info.queue_id, holding.policy.dedup_window_s
            )
            self._dedup.load(ages_s, holding.clock.monotonic())

    def put(self, batch: Batch) -> None:
        """Accept a batch; it is confirmed once it is on disk."""
        holding = self._holding
        if holding.fenced or self._closed:
            batch.refused(NotOwner(f"queue {holding.info.name!r} has moved"))
            return
        if holding.producers is not None:
            holding.producers.add(batch.packet.producer)
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
        too_much = self._too_much(batch)
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

    def _too_much(self, batch: Batch) -> str | None:
        """Why the batch is refused for good."""
        holding = self._holding
        name = holding.info.name
        if not holding.info.durable and not holding.budget.has_room_for(len(batch.body)):
            return (
                f"the node's memory ({holding.limits.memory_bytes} bytes) is full and queue "
                f"{name!r} is transient: consume, or declare it durable"
            )
        policy = holding.policy
        if policy.length_max is None and policy.bytes_max is None:
            return None
        if policy.overflow is Overflow.REFUSE:
            count = sum(len(waiting.packet.lengths) for waiting in self._waiting)
            body_bytes = sum(len(waiting.body) for waiting in self._waiting)
            under_way = [write.segment for write in self._under_way]
            count += sum(segment.count for segment in under_way)
            body_bytes += sum(segment.payload_bytes for segment in under_way)
            if not self._has_room(count + len(batch.packet.lengths), body_bytes + len(batch.body)):
                return self._is_full()
        elif self._at_limit and sum(len(w.body) for w in self._waiting) > HELD_BYTES_MAX:
            return f"queue {name!r} is full, and so is the line before it: await each put"
        return None

    def _is_full(self) -> str:
        """The sentence for who is refused."""
        policy = self._holding.policy
        limits = " and ".join(
            text
            for limit, text in (
                (policy.length_max, f"{policy.length_max} messages"),
                (policy.bytes_max, f"{policy.bytes_max} bytes"),
            )
            if limit is not None
        )
        name = self._holding.info.name
        return f"queue {name!r} is full ({limits}): consume, or raise its limit"

    def _has_room(self, count: int, body_bytes: int) -> bool:
        """Whether so much more fits within the policy's limits."""
        policy, queue = self._holding.policy, self._holding.queue
        if policy.length_max is not None and len(queue) + count > policy.length_max:
            return False
        return policy.bytes_max is None or queue.waiting_bytes + body_bytes <= policy.bytes_max

    def made_room(self) -> None:
        """Messages have left: what waits for a limit may go on."""
        if self._at_limit:
            self._at_limit = False
            self._writer.wants(self)

    def _must_wait(self, count: int, body_bytes: int, batch: Batch) -> bool:
        """Whether the queue's limit holds the batch back; alone in an empty queue it never does."""
        policy = self._holding.policy
        if policy.length_max is None and policy.bytes_max is None:
            return False
        if policy.overflow is not Overflow.SLOW:
            return False
        count += sum(write.segment.count for write in self._under_way)
        if not count and not len(self._holding.queue):
            return False
        body_bytes += sum(write.segment.payload_bytes for write in self._under_way)
        return not self._has_room(count + len(batch.packet.lengths), body_bytes + len(batch.body))

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
            if self._must_wait(count, body_bytes, batch):
                self._at_limit = True
                if self._closed:
                    self._refuse_at_limit()
                break
            if count + len(batch.packet.lengths) > self._ids_end - self._next_id:
                self._reserve_more()
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

    def _deduplicate(self, batch: Batch) -> bool:
        """Leave out what is stored already; False while an id of it is on its way.

        Then its fate is known after the commit, and not sooner.
        """
        dedup_ids = batch.dedup_ids()
        if not dedup_ids:
            return True
        if not self._dedup_under_way.isdisjoint(dedup_ids):
            return False
        holding = self._holding
        batch.skip(self.duplicates(batch.packet.attributes, set()))
        if batch.is_stored:
            self._waiting.popleft()
            holding.budget.waiting_bytes -= len(batch.body)
            for twin in self._accepted.pop((batch.packet.producer, batch.packet.batch), ()):
                twin.confirm_duplicate()
        else:
            # Only what is written: nobody would tell of the fate of the others.
            self._dedup_under_way.update(batch.dedup_ids())
            lengths = batch.packet.lengths
            holding.budget.waiting_bytes -= sum(lengths[index] for index in batch.skipped)
        return True

    def written(self, write: Write, stored: bool) -> None:
        """A segment is on disk: deliver and confirm it."""
        holding = self._holding
        builder = self._under_way.pop(write)
        if write.dedup_ids:
            self._dedup_under_way.difference_update(write.dedup_ids)
            if stored:
                self._dedup.add(write.dedup_ids, holding.clock.monotonic())
                self._writer.wants(self)  # who waited for its fate
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
            self._dedup_under_way.difference_update(write.dedup_ids or ())
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
        self._refuse_waiting(NotOwner(f"queue {self._holding.info.name!r} is moving"))

    def fenced(self, error: TidegateError) -> None:
        """What waits will not be written here; what is under way learns its fate from the store."""
        self._refuse_waiting(error)
        if self._reserving is not None:
            self._reserving.cancel()

    def _refuse_waiting(self, error: TidegateError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._holding.budget.waiting_bytes -= len(batch.body)
            self._refuse_batch(batch, error)

    def forget_producers(self, before: float) -> None:
        self._marks.forget(before)
        self._given_up.clear()
        holding = self._holding
        self._dedup.forget(holding.clock.monotonic(), holding.policy.dedup_window_s)

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

    def take_ids(self, count: int) -> int:
        """The first of so many ids for a segment that is stored by somebody else."""
        if self._ids_end - self._next_id < count:
            self._reserve_more()
            raise Unavailable("out of message ids for a moment, try again")
        first_id = self._next_id
        self._next_id += count
        self._joint_ids.add(first_id)
        if self._ids_end - self._next_id < ID_BLOCK // 2:
            self._reserve_more()
        return first_id

    def not_coming(self, first_id: int, dedup_ids: Iterable[str] = ()) -> None:
        """The segment with that id will not be stored."""
        self._joint_ids.discard(first_id)
        self._dedup_settled(dedup_ids)

    def came(self, segment: Segment, dedup_ids: list[str] | None = None) -> None:
        """A segment of ours was stored by somebody else."""
        holding = self._holding
        self._joint_ids.discard(segment.first_id)
        if dedup_ids:
            self._dedup.add(dedup_ids, holding.clock.monotonic())
            self._dedup_settled(dedup_ids)
        if not holding.fenced:  # else the new owner finds it in the store
            holding.meters.put.add(segment.open)
            if holding.watch is not None:
                holding.watch.stored(segment, None, holding.clock.monotonic())
            self._admit(segment)

    def _dedup_settled(self, dedup_ids: Iterable[str]) -> None:
        self._dedup_under_way.difference_update(dedup_ids)
        if self._waiting and not self._holding.fenced:
            self._writer.wants(self)  # who waited for their fate

    def prepare(self, batch: Batch) -> list[Write]:
        """The segments of a batch that somebody else stores, all on their way from here on."""
        holding = self._holding
        packet = batch.packet
        now = holding.clock.wall()
        if packet.attributes is not None or packet.delays_s or packet.ttls_s:
            batch.stamp(now)
        batch.skip(self.duplicates(packet.attributes, set()))
        writes: list[Write] = []
        try:
            for builder in build_segments([batch]):
                first_id = self.take_ids(len(builder.lengths))
                segment = builder.build(holding.info.queue_id, first_id, now)
                writes.append(builder.write(segment, holding.epoch))
                self._dedup_under_way.update(writes[-1].dedup_ids or ())
                builder.release()
        except BaseException:
            for write in writes:
                self.not_coming(write.segment.first_id, write.dedup_ids or ())
            raise
        return writes

    def duplicates(
        self, attributes: Sequence[Attributes | None] | None, seen: set[str]
    ) -> set[int]:
        """The offsets of messages whose dedup ids are stored, or were seen before in this line.

        Unavailable while one is on its way: its fate is not known yet.
        """
        holding = self._holding
        monotonic, window_s = holding.clock.monotonic(), holding.policy.dedup_window_s
        found: set[int] = set()
        for offset, each in enumerate(attributes or ()):
            dedup_id = None if each is None else each.dedup_id
            if dedup_id is None:
                continue
            if dedup_id in self._dedup_under_way:
                raise Unavailable(f"a message with dedup id {dedup_id!r} is on its way: try again")
            if dedup_id in seen or self._dedup.has(dedup_id, monotonic, window_s):
                found.add(offset)
            seen.add(dedup_id)
        holding.meters.deduplicated.add(len(found))
        return found

    def on_their_way(self, dedup_ids: Iterable[str]) -> None:
        """Who comes with the same ids waits until the fate of these is known."""
        self._dedup_under_way.update(dedup_ids)

    def room_for(self, count: int, body_bytes: int) -> bool:
        """Whether the queue's limits let in so much that somebody else stores.

        LimitReached: they never will, by the queue's policy. Alone in an empty queue it always may.
        """
        holding = self._holding
        policy = holding.policy
        if (policy.length_max is None and policy.bytes_max is None) or not len(holding.queue):
            return True
        if policy.overflow is Overflow.DROP or self._has_room(count, body_bytes):
            return True
        if policy.overflow is Overflow.REFUSE:
            holding.meters.refused.add(count)
            raise LimitReached(self._is_full())
        return False

    def knows(self, producer: int, batch: int) -> bool:
        """Whether that batch is stored."""
        return self._marks.has(producer, batch)

    def remember(self, producer: int, batch: int) -> None:
        """That batch is stored."""
        self._marks.add(producer, batch, self._holding.clock.monotonic())
