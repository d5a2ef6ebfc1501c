"""The put path: batches wait, are committed together, and are then confirmed.

Theory of operation

The actors are a session, which calls `put` with a batch; the `Writer`, which calls
`collect_writes`, `written` and `refused`; and the queue, which gets committed segments through
`admit`. All calls run in the event loop.

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

A queue limit with the overflow policy `slow` keeps batches waiting, and `made_room` resumes them.
Other limits refuse in `put`.

Failures:

- The store does not answer: the writer finds out whether the commit was stored and calls `written`
  or `refused` then. Batches wait.
- The epoch is refused: `written(False)` fails the batch with `StaleEpoch` and fences the replica.
- It is unknown whether a segment was stored under an old epoch: `written(None)` fails the batch
  with `IoFailure`. The client sends it again, and the new owner knows whether it has it.
- The node runs out of reserved ids: batches wait until `MessageIds` has reserved more.
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

# Messages in one commit. More would make the first batch of a commit wait too long for its
# confirmation.
COMMIT_COUNT_MAX = 20_000
COMMIT_BYTES_MAX = 8 * 1024 * 1024
# A producer counts as active for this time after its last put.
_OF_LATE_S = 5.0


class Intake:
    """The puts of one replica; a `WriteSource` of the writer."""

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
        # Of a replica of a logical queue: producer -> time of its last put.
        self._heard: dict[int, float] = {}
        # Every batch that is waiting or under way, with its twins.
        self._accepted: dict[tuple[int, int], list[Batch]] = {}
        self.homes = PutHomes(holding, self._accepted, self.ids, self.dedup)
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
        holding = self._holding
        if holding.info.durable:
            self._marks = ProducerMarks(
                await holding.store.marks(holding.info.queue_id), holding.clock.monotonic()
            )
            if not holding.info.alias_id:
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
            # The slot has moved, and the producer has an old topology. It reads the new one and
            # sends the messages to the assigned replica.
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
        """Resume batches that wait for a queue limit; called when messages have left."""
        if self._at_limit:
            self._at_limit = False
            self._writer.wants(self)

    def _go_on(self) -> None:
        """Resume waiting batches: new ids were reserved, or the result of a dedup id is known."""
        if self._waiting and not self._holding.fenced:
            self._writer.wants(self)

    def _knows(self, producer: int, number: int) -> bool:
        return (
            (producer, number) in self._accepted
            or self._marks.has(producer, number)
            or self._given_up.get(producer) == number
        )

    def producers_of_late(self) -> int:
        """Return how many producers have put within the last 5 s; counted for replicas only."""
        since = self._holding.clock.monotonic() - _OF_LATE_S
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
        """Leave out messages of `batch` whose dedup ids are stored.

        Returns False while one of its dedup ids is under way: only the end of that commit shows
        whether the id is stored.
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
            # Only ids that will be written: the result of the others would never be reported.
            self.dedup.under_way.update(batch.dedup_ids())
            lengths = batch.packet.lengths
            holding.budget.waiting_bytes -= sum(lengths[index] for index in batch.skipped)
        return True

    def written(self, write: Write, stored: bool | None) -> None:
        """Handle the result of one segment: admit and confirm it, or fail its batches.

        `stored` is False if the epoch was refused, and None if it was refused but the segment may
        have been stored before.
        """
        holding = self._holding
        builder = self._under_way.pop(write)
        if write.dedup_ids:
            self.dedup.under_way.difference_update(write.dedup_ids)
            if stored:
                self.dedup.stored.add(write.dedup_ids, holding.clock.monotonic())
                self._writer.wants(self)  # Resume batches that waited for this result
        holding.budget.waiting_bytes -= write.segment.payload_bytes
        if not stored or holding.fenced:
            if stored is False:
                self._refuse(builder, holding.taken_over())
            else:
                # The new owner knows whether it has the batch when the client sends it again.
                unknown = IoFailure(f"queue {holding.info.title} has a new owner: ask there")
                self._refuse(builder, unknown)
            if not stored:
                holding.fence(holding.taken_over())
            return
        now = holding.clock.monotonic()
        # Consumers first: their work takes longer than the producer's confirmation.
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
        """Fail the batches of segments that the store has refused; none of them is stored."""
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
        """Accept no more puts, since the queue is about to leave this node."""
        self._closed = True
        if self._at_limit:
            self._refuse_at_limit()

    def _refuse_at_limit(self) -> None:
        """Refuse what waits for room: room may now be made at another node."""
        self._refuse_waiting(NotOwner(f"queue {self._holding.info.title} is moving"))

    def fenced(self, error: TidegateError) -> None:
        """Refuse waiting batches; batches under way get their result from the writer."""
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
        """Return whether the batch is stored."""
        return self._marks.has(producer, batch)

    def remember(self, producer: int, batch: int) -> None:
        """Note that the batch is stored."""
        self._marks.add(producer, batch, self._holding.clock.monotonic())
