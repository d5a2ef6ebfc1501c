"""The put path: batches wait, are committed together, and are then confirmed.

Theory of operation

The actors are a session, which calls `put` with a batch; the `Writer`, which calls
`collect_writes`, `written` and `refused`; and the replica, which adds committed segments to the
queue (`ReplicaListener.admit`). All calls run in the event loop.

A batch passes these states:

1. Waiting. `put` has accepted it and asked the writer to call back.
2. Under way. `collect_writes` has given its messages ids and put them into segments, which share
   one commit with other batches and other queues.
3. Stored. `written(True)` makes the segments ready for consumers, then confirms the batch. A batch
   that spans several segments is confirmed after the last one.

Or it is refused. The error tells the client whether to send it again.

A batch is stored once, even if a client sends it twice. Producer id and batch number identify it.
`ProducerMarks` remembers stored batches, also in the store. A batch that equals a waiting one
becomes its twin and shares its result.

Dedup ids work for single messages. Ids that are under way block later batches with the same id
until their result is known (`_deduplicate`). Messages whose id was stored within the window are
left out.

A queue limit with the overflow policy `slow` keeps batches waiting, and `on_space_freed` resumes
them. Other limits refuse in `put`.

Failures:

- The store does not answer: the writer finds out whether the commit was stored and calls `written`
  or `refused` then. Batches wait.
- The epoch is refused: `written(False)` fails the batch with `StaleEpoch` and fences the replica.
- It is unknown whether a segment was stored under an old epoch: `written(None)` fails the batch
  with `IoFailure`. The client sends it again, and the new owner knows whether it has it.
- The node runs out of reserved ids: batches wait until `MessageIds` has reserved more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from tidegate.broker.batch import Batch, SegmentBuilder, build_segments
from tidegate.broker.deduplication import Deduplication, ProducerMarks
from tidegate.core.errors import (
    IoFailure,
    LimitReached,
    NotHome,
    NotOwner,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import IdRange, Overflow
from tidegate.core.runtime import crash_point
from tidegate.core.segment import Segment
from tidegate.core.store import Write
from tidegate.core.topology import ASSIGNMENT_SLOTS, assignment_slot
from tidegate.storage.writer import Writer

if TYPE_CHECKING:
    from tidegate.broker.context import ReplicaContext


# Messages in one commit. More would make the first batch of a commit wait too long for its
# confirmation.
COMMIT_COUNT_MAX = 20_000
COMMIT_BYTES_MAX = 8 * 1024 * 1024
# A producer counts as active for this time after its last put.
_OF_LATE_S = 5.0


class Intake:
    """The puts of one replica; a `WriteSource` of the writer."""

    def __init__(self, context: ReplicaContext, writer: Writer) -> None:
        self._context = context
        self._writer = writer
        self.limits = QueueLimits(context)
        self.ids = MessageIds(context, self._resume)
        self.dedup = Deduplication(context, self._resume)
        self.arrivals = IncomingTransfers(context, self.ids, self.dedup)
        self._marks = ProducerMarks()
        self._waiting: deque[Batch] = deque()
        self._under_way: dict[Write, SegmentBuilder] = {}
        self._closed = False
        # Of a replica of a logical queue: producer -> time of its last put.
        self._heard: dict[int, float] = {}
        # Every batch that is waiting or under way, with its twins.
        self._accepted: dict[tuple[int, int], list[Batch]] = {}
        self.assignments = PutAssignments(context, self._accepted, self.ids, self.dedup)
        # Whether the first waiting batch waits for a limit of the queue's policy.
        self._at_limit = False
        # Producer -> its last batch that was refused for good; later batches need not wait for it.
        self._given_up: dict[int, int] = {}

    @property
    def busy(self) -> bool:
        """Return whether something accepted is not on disk yet."""
        return bool(self._waiting or self._under_way)

    def first_ids_under_way(self) -> set[int]:
        """Return the first ids of all segments that are being stored, by this part or another."""
        return {write.segment.first_id for write in self._under_way} | self.arrivals.first_ids

    def without_under_way(self, segments: list[Segment]) -> list[Segment]:
        """Return those of `segments`, as read from the store, that were admitted to the queue.

        The others will be admitted by their writer. Adding them now would add them twice.
        """
        return self.arrivals.without(segments, self.first_ids_under_way())

    async def load(self) -> None:
        """Reserve ids, and read which batches and dedup ids are stored."""
        await self.ids.reserve()
        context = self._context
        if context.info.durable:
            self._marks = ProducerMarks(
                await context.store.marks(context.info.queue_id), context.clock.monotonic()
            )
            if not context.info.alias_id:
                # A replica reads its dedup ids once it knows its assigned slots and no other
                # replica stores such ids. See `LogicalQueues`.
                await self.dedup.learn()

    def put(self, batch: Batch) -> None:
        """Accept a batch, or answer it at once.

        The first case that applies decides:

        - The replica is fenced or closed: `NotOwner`.
        - The batch is stored: confirmed as a duplicate.
        - The same batch is waiting or under way: shares its result.
        - The batch `after` which it must come is not known: `Unavailable`; both are sent again.
        - A message is assigned to another replica: `NotHome`; the producer reads the topology
          again.
        - A limit of the node or the queue is reached (`QueueLimits.why_refused`): `LimitReached`.
        - Otherwise it waits for the next commit and is confirmed once it is on disk.
        """
        context = self._context
        if context.fenced or self._closed:
            batch.refused(NotOwner(f"queue {context.info.title} has moved"))
            return
        if context.producers is not None:
            context.producers.add(batch.packet.producer)
        if context.info.alias_id:
            self._heard[batch.packet.producer] = context.clock.monotonic()
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
        if context.assignments is not None and self.assignments.are_elsewhere(batch):
            # The slot has moved, and the producer has an old topology. It reads the new one and
            # sends the messages to the assigned replica.
            batch.refused(NotHome(f"what has its home elsewhere cannot go to {context.info.title}"))
            return
        too_much = self.limits.why_refused(batch, self._waiting, self._under_way, self._at_limit)
        if too_much is not None:
            context.meters.refused.add(len(batch.packet.lengths))
            self._given_up[batch.packet.producer] = batch.packet.batch
            batch.refused(LimitReached(too_much))
            return
        packet = batch.packet
        if packet.attributes is not None or packet.delays_s or packet.ttls_s:
            batch.stamp(context.clock.wall())
        self._accepted[key] = [batch]
        self._waiting.append(batch)
        context.budget.waiting_bytes += len(batch.body)
        self._writer.schedule(self)

    def on_space_freed(self) -> None:
        """Resume batches that wait for a queue limit; called when messages have left."""
        if self._at_limit:
            self._at_limit = False
            self._writer.schedule(self)

    def _resume(self) -> None:
        """Resume waiting batches: new ids were reserved, or the result of a dedup id is known."""
        if self._waiting and not self._context.fenced:
            self._writer.schedule(self)

    def _knows(self, producer: int, number: int) -> bool:
        return (
            (producer, number) in self._accepted
            or self._marks.has(producer, number)
            or self._given_up.get(producer) == number
        )

    def producers_of_late(self) -> int:
        """Return how many producers have put within the last 5 s; counted for replicas only."""
        since = self._context.clock.monotonic() - _OF_LATE_S
        self._heard = {each: at for each, at in self._heard.items() if at > since}
        return len(self._heard)

    # Called by the writer

    def collect_writes(self) -> list[Write]:
        """Return the segments of the next commit.

        Those of a transient queue are admitted at once, and the result is empty.
        """
        ids = self.ids
        taken: list[Batch] = []
        count = body_bytes = 0
        while self._waiting and count < COMMIT_COUNT_MAX and body_bytes < COMMIT_BYTES_MAX:
            batch = self._waiting[0]
            if self.limits.must_wait(count, body_bytes, batch, self._under_way):
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
            self._writer.schedule(self)
        if ids.end - ids.next_id - count < IDS_LOW:
            ids.reserve_more()
        context = self._context
        now = context.clock.wall()
        writes = []
        for builder in build_segments(taken):
            segment = builder.build(context.info.queue_id, ids.next_id, now)
            ids.next_id += segment.count
            write = builder.write(segment, context.epoch)
            self._under_way[write] = builder
            writes.append(write)
        if context.info.durable:
            return writes
        for write in writes:
            self.written(write, True)
        return []

    def _deduplicate(self, batch: Batch) -> bool:
        """Leave out messages of `batch` whose dedup ids are stored.

        Returns False while one of its dedup ids is under way: only the end of that commit shows
        whether the id is stored.
        """
        dedup_ids = batch.dedup_ids()
        if not dedup_ids:
            return True
        if not self.dedup.under_way.isdisjoint(dedup_ids):
            return False
        context = self._context
        batch.skip(self.dedup.duplicates(batch.packet.attributes, set()))
        if batch.is_stored:
            self._waiting.popleft()
            context.budget.stop_waiting(len(batch.body))
            for twin in self._accepted.pop((batch.packet.producer, batch.packet.batch), ()):
                twin.confirm_duplicate()
        else:
            # Only ids that will be written: the result of the others would never be reported.
            self.dedup.under_way.update(batch.dedup_ids())
            lengths = batch.packet.lengths
            context.budget.stop_waiting(sum(lengths[index] for index in batch.skipped))
        return True

    def written(self, write: Write, stored: bool | None) -> None:
        """Handle the result of one segment: admit and confirm it, or fail its batches.

        `stored` is False if the epoch was refused, and None if it was refused but the segment may
        have been stored before.
        """
        context = self._context
        builder = self._under_way.pop(write)
        if write.dedup_ids:
            self.dedup.under_way.difference_update(write.dedup_ids)
            if stored:
                self.dedup.stored.add(write.dedup_ids, context.clock.monotonic())
                self._writer.schedule(self)  # Resume batches that waited for this result
        context.budget.stop_waiting(write.segment.payload_bytes)
        if not stored or context.fenced:
            if stored is False:
                self._refuse(builder, context.taken_over())
            else:
                # The new owner knows whether it has the batch when the client sends it again.
                unknown = IoFailure(f"queue {context.info.title} has a new owner: ask there")
                self._refuse(builder, unknown)
            if not stored:
                context.listener.fence(context.taken_over())
            return
        now = context.clock.monotonic()
        # Consumers first: their work takes longer than the producer's confirmation.
        context.meters.put.add(write.segment.count)
        watch = context.watch
        if watch is not None:
            watch.stored(write.segment, builder, now)
        context.listener.admit(write.segment)
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
                    watch.confirmed(batch, context.clock.monotonic())
        crash_point("after-confirm")

    def refused(self, writes: Sequence[Write], error: TidegateError) -> None:
        """Fail the batches of segments that the store has refused; none of them is stored."""
        for write in writes:
            self.dedup.under_way.difference_update(write.dedup_ids or ())
            self._context.budget.stop_waiting(write.segment.payload_bytes)
            self._refuse(self._under_way.pop(write), error)
        if self._waiting:
            self._writer.schedule(self)

    def _refuse(self, builder: SegmentBuilder, error: TidegateError) -> None:
        for batch in builder.release():
            self._refuse_batch(batch, error)

    def _refuse_batch(self, batch: Batch, error: TidegateError) -> None:
        for twin in self._accepted.pop((batch.packet.producer, batch.packet.batch), ()):
            self._context.meters.refused.add(len(twin.packet.lengths))
            twin.refused(error)

    def close(self) -> None:
        """Accept no more puts, since the queue is about to leave this node."""
        self._closed = True
        if self._at_limit:
            self._refuse_at_limit()

    def _refuse_at_limit(self) -> None:
        """Refuse what waits for room: room may now be made at another node."""
        self._refuse_waiting(NotOwner(f"queue {self._context.info.title} is moving"))

    def fenced(self, error: TidegateError) -> None:
        """Refuse waiting batches; batches under way get their result from the writer."""
        self._refuse_waiting(error)
        self.ids.fenced()

    def _refuse_waiting(self, error: TidegateError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            self._context.budget.stop_waiting(len(batch.body))
            self._refuse_batch(batch, error)

    def forget_producers(self, before: float) -> None:
        self._marks.expire(before)
        self._given_up.clear()
        self.dedup.expire()

    def is_stored(self, producer: int, batch: int) -> bool:
        """Return whether the batch is stored."""
        return self._marks.has(producer, batch)

    def remember(self, producer: int, batch: int) -> None:
        """Note that the batch is stored."""
        self._marks.add(producer, batch, self._context.clock.monotonic())


# Limits of a queue by its policy. An empty queue takes any single batch.


# Bytes that may wait for room at a queue that is at its limit; more is refused.
HELD_BYTES_MAX = 64 * 1024 * 1024


class QueueLimits:
    """Checks puts to one replica against the node's memory and the queue's policy."""

    __slots__ = ("_context",)

    def __init__(self, context: ReplicaContext) -> None:
        self._context = context

    def why_refused(
        self, batch: Batch, waiting: Collection[Batch], under_way: Collection[Write], at_limit: bool
    ) -> str | None:
        """Return why the batch must be refused for good, or None if it may wait for a commit.

        `waiting` and `under_way` are before it. `at_limit` tells whether the queue is at its limit.
        """
        context = self._context
        if not context.info.durable and not context.budget.has_room_for(len(batch.body)):
            return (
                f"the node's memory ({context.limits.memory_bytes} bytes) is full and queue "
                f"{context.info.title} is transient: consume, or declare it durable"
            )
        policy = context.policy
        if policy.length_max is None and policy.bytes_max is None:
            return None
        if policy.overflow is Overflow.REFUSE:
            count = sum(len(each.packet.lengths) for each in waiting)
            body_bytes = sum(len(each.body) for each in waiting)
            segments = [write.segment for write in under_way]
            count += sum(segment.count for segment in segments)
            body_bytes += sum(segment.payload_bytes for segment in segments)
            if not self._has(count + len(batch.packet.lengths), body_bytes + len(batch.body)):
                return self._is_full()
        elif at_limit and sum(len(each.body) for each in waiting) > HELD_BYTES_MAX:
            title = context.info.title
            return f"queue {title} is full, and so is the line before it: await each put"
        return None

    def must_wait(
        self, count: int, body_bytes: int, batch: Batch, under_way: Collection[Write]
    ) -> bool:
        """Return whether a `slow` queue limit holds the batch back.

        `count` and `body_bytes` are already in the same commit.
        """
        policy = self._context.policy
        if policy.length_max is None and policy.bytes_max is None:
            return False
        if policy.overflow is not Overflow.SLOW:
            return False
        count += sum(write.segment.count for write in under_way)
        if not count and not len(self._context.queue):
            return False
        body_bytes += sum(write.segment.payload_bytes for write in under_way)
        return not self._has(count + len(batch.packet.lengths), body_bytes + len(batch.body))

    def has_room_for(self, count: int, body_bytes: int) -> bool:
        """Return whether the limits allow messages that a transaction or transfer stores.

        Raises `LimitReached` if the policy refuses instead of waiting.
        """
        context = self._context
        policy = context.policy
        if (policy.length_max is None and policy.bytes_max is None) or not len(context.queue):
            return True
        if policy.overflow is Overflow.DROP or self._has(count, body_bytes):
            return True
        if policy.overflow is Overflow.REFUSE:
            context.meters.refused.add(count)
            raise LimitReached(self._is_full())
        return False

    def _has(self, count: int, body_bytes: int) -> bool:
        """Return whether so many messages and bytes fit within the limits."""
        policy, queue = self._context.policy, self._context.queue
        if policy.length_max is not None and len(queue) + count > policy.length_max:
            return False
        return policy.bytes_max is None or queue.waiting_bytes + body_bytes <= policy.bytes_max

    def _is_full(self) -> str:
        """Return the text of the error for a full queue."""
        policy = self._context.policy
        limits = " and ".join(
            text
            for limit, text in (
                (policy.length_max, f"{policy.length_max} messages"),
                (policy.bytes_max, f"{policy.bytes_max} bytes"),
            )
            if limit is not None
        )
        info = self._context.info
        each = " for each replica" if info.alias_id else ""
        return f"queue {info.title} is full ({limits}{each}): consume, or raise its limit"


# The message ids of a replica, taken from blocks that the store reserves for its epoch.
#
# The next block is reserved when half of one is used, long before it is needed.


log = logging.getLogger(__name__)

ID_BLOCK = 1_000_000
# Reserve the next block when fewer ids are left than this.
IDS_LOW = ID_BLOCK // 2


class MessageIds:
    """Reserved ids of one replica: those from `next_id` to `end - 1` are left."""

    __slots__ = ("_came", "_context", "_reserving", "end", "next_id")

    def __init__(self, context: ReplicaContext, came: Callable[[], None]) -> None:
        self._context = context
        # Called when more ids were reserved.
        self._came = came
        self._reserving: asyncio.Task[None] | None = None
        self.next_id = 0
        self.end = 0

    def next_ids(self, count: int) -> int:
        """Take `count` ids and return the first.

        Raises `Unavailable` if so few are left that the next block has to be awaited.
        """
        if self.end - self.next_id < count:
            self.reserve_more()
            raise Unavailable("out of message ids for a moment, try again")
        first_id = self.next_id
        self.next_id += count
        if self.end - self.next_id < IDS_LOW:
            self.reserve_more()
        return first_id

    async def reserve(self) -> None:
        context = self._context
        end = await context.store.reserve_ids(context.info.queue_id, context.epoch, ID_BLOCK)
        if end is None:
            context.listener.fence(context.taken_over())
            return
        if self.end + ID_BLOCK != end:
            # Another owner has reserved a block in between, or this is the first one. The rest of
            # the old block is skipped, so that ids keep growing.
            self.next_id = end - ID_BLOCK
        self.end = end

    def reserve_more(self) -> None:
        if self._reserving is None or self._reserving.done():
            self._reserving = asyncio.create_task(self._reserve_until_done(), name="reserve-ids")

    async def _reserve_until_done(self) -> None:
        backoff_s = 0.05
        while not self._context.fenced:
            try:
                await self.reserve()
                break
            except TidegateError as failure:
                log.warning("no ids for %s yet: %s", self._context.info.name, failure)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, 1.0)
        self._came()

    def fenced(self) -> None:
        if self._reserving is not None:
            self._reserving.cancel()


# Segments that another part of the system stores in a queue of this node.
#
# They come from transactions, from transfers between replicas, or from splitting a segment. Each is
# announced before it is stored and admitted after it is on disk. In between, segments read from the
# store are filtered with `without`, or they would be added twice.


class IncomingTransfers:
    """What comes to one replica by another way than a put."""

    def __init__(self, context: ReplicaContext, ids: MessageIds, dedup: Deduplication) -> None:
        self._context = context
        self._ids = ids
        self._dedup = dedup
        # First ids of segments that are being stored in transactions.
        self.first_ids: set[int] = set()
        # Blocks of ids, each [first, last], under which segments are being transferred here.
        self._coming_over: set[IdRange] = set()

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
        first_id = self._ids.next_ids(count)
        self.first_ids.add(first_id)
        return first_id

    def prepare(self, batch: Batch) -> list[Write]:
        """Make the segments of a batch that a transaction stores, and announce them."""
        context = self._context
        packet = batch.packet
        now = context.clock.wall()
        if packet.attributes is not None or packet.delays_s or packet.ttls_s:
            batch.stamp(now)
        batch.skip(self._dedup.duplicates(packet.attributes, set()))
        writes: list[Write] = []
        try:
            for builder in build_segments([batch]):
                first_id = self.take_ids(len(builder.lengths))
                segment = builder.build(context.info.queue_id, first_id, now)
                writes.append(builder.write(segment, context.epoch))
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

    def on_stored(self, segment: Segment, dedup_ids: list[str] | None = None) -> None:
        """Admit a segment that a transaction has stored."""
        context = self._context
        self.first_ids.discard(segment.first_id)
        if dedup_ids:
            self._dedup.stored.add(dedup_ids, context.clock.monotonic())
            self._dedup.settled(dedup_ids)
        if not context.fenced:  # Otherwise the new owner reads it from the store
            context.meters.put.add(segment.open)
            if context.watch is not None:
                context.watch.stored(segment, None, context.clock.monotonic())
            context.listener.admit(segment)

    # Transfers from another replica

    def expect(self, count: int) -> IdRange:
        """Reserve `count` ids, returned as [first, last], for segments to be transferred here."""
        first_id = self._ids.next_ids(count)
        block = (first_id, first_id + count - 1)
        self._coming_over.add(block)
        return block

    def came_over(self, block: IdRange, segments: Sequence[Segment]) -> None:
        """Admit the segments that were transferred under `block`, and close the block."""
        self._coming_over.discard(block)
        context = self._context
        if context.fenced:
            return  # The new owner reads them from the store
        # The dedup window counts from the put, not from the transfer.
        wall, ages_s = context.clock.wall(), dict[str, float]()
        for segment in segments:
            age_s = max(wall - segment.arrived_at, 0.0)
            for each in segment.attributes or ():
                if each is not None and each.dedup_id:
                    ages_s[each.dedup_id] = min(age_s, ages_s.get(each.dedup_id, age_s))
        self._dedup.stored.load(ages_s, context.clock.monotonic())
        for segment in segments:
            context.meters.taken_over.add(segment.open)
            if context.watch is not None:
                context.watch.stored(segment, None, context.clock.monotonic())
            context.listener.admit(segment)

    # Splitting

    def on_its_way(self, first_id: int) -> None:
        """Announce a segment that is split off from one of this queue."""
        self.first_ids.add(first_id)

    def came_apart(self, segment: Segment) -> None:
        """Admit a segment that was split off from one of this queue."""
        self.first_ids.discard(segment.first_id)
        if not self._context.fenced:
            self._context.listener.admit(segment)


# Which assignment slots the waiting puts of a replica belong to.


class PutAssignments:
    """Slots of all batches of one replica that are accepted and not on disk yet."""

    __slots__ = ("_accepted", "_context", "_dedup", "_ids", "_put_before", "_put_before_id")

    def __init__(
        self,
        context: ReplicaContext,
        accepted: dict[tuple[int, int], list[Batch]],
        ids: MessageIds,
        dedup: Deduplication,
    ) -> None:
        self._context = context
        self._accepted = accepted
        self._ids = ids
        self._dedup = dedup
        # Of a logical queue: batches accepted before its slots changed last, and the id behind
        # them.
        self._put_before: set[tuple[int, int]] = set()
        self._put_before_id: int | None = None

    def are_elsewhere(self, batch: Batch) -> bool:
        """Return whether a message of the batch is assigned to another replica."""
        homes, number = self._context.assignments, self._context.info.number
        if not number:
            # With slots assigned, a logical queue itself takes no message that has a group or a
            # dedup id. Without, it takes everything.
            return bool(homes) and batch.has_order_or_dedup_id
        keys = batch.home_keys()
        return bool(keys) and (
            not homes or any(homes[assignment_slot(key)] != number for key in keys)
        )

    def changed(self) -> None:
        """Note that the slots of the logical queue have changed.

        From now on replicas store what has a group or a dedup id.
        """
        self._put_before = set(self._accepted)
        self._put_before_id = None

    def ordered_below(self) -> int | None:
        """Return the id below which messages were put before the slots changed last.

        None if some of these have no id yet. Messages with higher ids come from transactions and
        topics.
        """
        if self._put_before_id is None:
            self._put_before &= self._accepted.keys()
            if self._put_before:
                return None
            self._put_before_id = self._ids.next_id
        return self._put_before_id

    def taken(self) -> set[int]:
        """Return the slots of which the replica accepts puts."""
        homes, number = self._context.assignments, self._context.info.number
        if number:
            return {index for index, home in enumerate(homes or ()) if home == number}
        return set() if homes else set(range(ASSIGNMENT_SLOTS))

    def held(self) -> set[int]:
        """Return the slots of puts that are not stored yet, and of remembered dedup ids."""
        held = self.accepted()
        if self._context.spans_stores:
            # Dedup ids are known within one store. Another store would store the same id again.
            self._dedup.expire()
            held |= {assignment_slot(key) for key in self._dedup.stored}
        return held

    def accepted(self) -> set[int]:
        """Return the slots of puts that are not stored yet."""
        batches = [batch for twins in self._accepted.values() for batch in twins]
        keys = {key for batch in batches for key in batch.home_keys()}
        return {assignment_slot(key) for key in (*keys, *self._dedup.under_way)}
