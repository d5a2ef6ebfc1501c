"""A queue replica that this node owns: the way of a message between two sockets.

    put → waiting batches → (commit) → deliver, confirm → settle → (commit) → gone

The index of what is ready lies in memory (queueing), the truth in the store. Everything here
runs between two turns of the event loop; only the writer and the tail reader wait for the
store. A replica whose epoch is refused by the store, or whose lease has run out, is fenced:
it tells everyone and is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from tidegate.core.budget import Budget
from tidegate.core.crash import crash_point
from tidegate.core.errors import (
    LimitReached,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NotOwner,
    QueueNotExisting,
    StaleEpoch,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import Order, QueueInfo
from tidegate.core.ports import Broadcast, Clock, Settlement, Store, Write
from tidegate.core.segment import Segment
from tidegate.node.batch import Batch, SegmentBuilder, build_segments
from tidegate.node.consumer import Consumer, Outlet, Reader
from tidegate.node.limits import Limits
from tidegate.node.marks import ProducerMarks
from tidegate.queueing.lease import Lease
from tidegate.queueing.lifecycle import Event
from tidegate.queueing.queue import Queue
from tidegate.queueing.span import Span
from tidegate.storage.writer import Settler, Writer
from tidegate.telemetry.meters import QueueMeters
from tidegate.telemetry.numbers import ConsumerNumbers, QueueNumbers, durations
from tidegate.wire.packets import Run

log = logging.getLogger(__name__)

ID_BLOCK = 1_000_000
# Messages in one commit: bounds the time that a confirm waits for its neighbours.
COMMIT_COUNT_MAX = 20_000
COMMIT_BYTES_MAX = 8 * 1024 * 1024
# A head shorter than this is filled up from the tail, in chunks of the same size.
HEAD_BYTES_LOW = 4 * 1024 * 1024
TAIL_CHUNK_SEGMENTS = 4000
DELIVERY_COUNT_MAX = 2000
DELIVERY_BYTES_MAX = 1024 * 1024


class Replica:
    """One owned queue."""

    def __init__(
        self,
        queue_info: QueueInfo,
        epoch: int,
        *,
        store: Store,
        writer: Writer,
        settler: Settler,
        budget: Budget,
        limits: Limits,
        clock: Clock,
        may_deliver: Callable[[], bool],
        on_fenced: Callable[[Replica], None],
    ) -> None:
        self.info = queue_info
        self.epoch = epoch
        self.queue = Queue(budget)
        self.meters = QueueMeters()
        self.fenced = False
        self._store = store
        self._writer = writer
        self._settler = settler
        self._budget = budget
        self._limits = limits
        self._clock = clock
        self._may_deliver = may_deliver
        self._on_fenced = on_fenced
        # Ids are handed out of a block that the store has reserved for this epoch.
        self._next_id = 0
        self._ids_end = 0
        self._reserving: asyncio.Task[None] | None = None
        self._marks = ProducerMarks()
        self._waiting: deque[Batch] = deque()
        self._under_way: dict[Write, SegmentBuilder] = {}
        self._accepted: dict[tuple[int, int], list[Batch]] = {}
        self._settlement: Settlement | None = None
        self._settle_waiters: list[Callable[[], None]] = []
        self._waiters_under_way: list[Callable[[], None]] = []
        self._consumers: deque[Consumer] = deque()
        self._holders: dict[tuple[Outlet, int], Consumer] = {}
        self._readers: dict[Reader, None] = {}
        self._readers_of: dict[int, dict[Reader, None]] = {}
        self._tail_task: asyncio.Task[None] | None = None
        self._tail_checked: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Coming and going

    async def load(self) -> None:
        """Learn what the store holds. Nothing is read yet but counts and marks."""
        await self._reserve_ids()
        if not self.info.durable:
            return
        self._marks = ProducerMarks(
            await self._store.marks(self.info.queue_id), self._clock.monotonic()
        )
        for lane in await self._store.lanes(self.info.queue_id):
            self.queue.tail_lane(lane.priority, lane.addressed).expect_tail(
                lane.first_id, lane.last_id, lane.count, lane.payload_bytes
            )
        self._fill_head()

    async def _reserve_ids(self) -> None:
        end = await self._store.reserve_ids(self.info.queue_id, self.epoch, ID_BLOCK)
        if end is None:
            self.fence(StaleEpoch(f"queue {self.info.name!r} has a new owner"))
            return
        if self._next_id + ID_BLOCK < end or self._ids_end + ID_BLOCK != end:
            self._next_id = end - ID_BLOCK
        self._ids_end = end

    def _reserve_more(self) -> None:
        if self._reserving is None or self._reserving.done():

            async def reserve() -> None:
                backoff_s = 0.05
                while not self.fenced:
                    try:
                        await self._reserve_ids()
                        break
                    except TidegateError as failure:
                        log.warning("no ids for %s yet: %s", self.info.name, failure)
                        await asyncio.sleep(backoff_s)
                        backoff_s = min(backoff_s * 2, 1.0)
                if self._waiting:
                    self._writer.wants(self)

            self._reserving = asyncio.create_task(reserve(), name="reserve-ids")

    def fence(self, error: TidegateError) -> None:
        """We no longer own the queue: refuse what waits, end who listens, forget."""
        if self.fenced:
            return
        self.fenced = True
        for batch in self._waiting:
            batch.refused(error)
        self._waiting.clear()
        for reader in list(self._readers):
            self._drop_reader(reader)
            reader.miss(error)
        for consumer in self._consumers:
            consumer.book.clear()
            consumer.outlet.consumer_ended(consumer.consumer, error)
        self._consumers.clear()
        self._holders.clear()
        for waiter in self._settle_waiters:
            waiter()
        self._settle_waiters.clear()
        self.queue.forget()
        for task in (self._tail_task, self._reserving, *self._tasks):
            if task is not None:
                task.cancel()
        self._on_fenced(self)

    async def quiesce(self) -> None:
        """Before handing over: end consumers, then let everything accepted reach the disk."""
        error = NotOwner(f"queue {self.info.name!r} is moving to another node")
        for consumer in list(self._consumers):
            self.unsubscribe(consumer.outlet, consumer.consumer)
            consumer.outlet.consumer_ended(consumer.consumer, error)
        for reader in list(self._readers):
            self._drop_reader(reader)
            reader.miss(error)
        while self._waiting or self._under_way:
            await asyncio.sleep(0.002)
        while self._settlement is not None:
            self._settler.wants(self, urgent=True)
            await asyncio.sleep(0.002)

    # In: put

    def put(self, batch: Batch) -> None:
        """Accept a batch; it is confirmed once it is on disk."""
        if self.fenced:
            batch.refused(NotOwner(f"queue {self.info.name!r} has moved"))
            return
        packet = batch.packet
        key = (packet.producer, packet.batch)
        if self._marks.has(*key):
            batch.confirm_duplicate()
            return
        accepted = self._accepted.get(key)
        if accepted is not None:
            # The same batch is on its way to the disk: share its fate.
            accepted.append(batch)
            return
        if not self.info.durable and not self._budget.has_room_for(len(batch.body)):
            self.meters.refused.add(len(packet.lengths))
            batch.refused(
                LimitReached(
                    f"the node's memory ({self._limits.memory_bytes} bytes) is full and queue "
                    f"{self.info.name!r} is transient: consume, or declare it durable"
                )
            )
            return
        self._accepted[key] = [batch]
        self._waiting.append(batch)
        self._writer.wants(self)

    def collect_writes(self) -> list[Write]:
        """The segments of the next commit, for the writer."""
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
        now = self._clock.wall()
        writes = []
        for builder in build_segments(taken):
            segment = builder.build(self.info.queue_id, self._next_id, now)
            self._next_id += segment.count
            write = builder.write(segment, self.epoch)
            self._under_way[write] = builder
            writes.append(write)
        if self.info.durable:
            return writes
        for write in writes:
            self.written(write, True)
        return []

    def written(self, write: Write, stored: bool) -> None:
        """A segment is on disk: deliver and confirm it."""
        builder = self._under_way.pop(write)
        if not stored or self.fenced:
            self._refuse(builder, StaleEpoch(f"queue {self.info.name!r} has a new owner"))
            if not stored:
                self.fence(StaleEpoch(f"queue {self.info.name!r} has a new owner"))
            return
        now = self._clock.monotonic()
        # Consumers first: what they do with it takes longer than hearing that it is stored.
        self.meters.put.add(write.segment.count)
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
            self._refuse(self._under_way.pop(write), error)

    def _refuse(self, builder: SegmentBuilder, error: TidegateError) -> None:
        for batch in builder.release():
            self.meters.refused.add(len(batch.packet.lengths))
            for twin in self._accepted.pop((batch.packet.producer, batch.packet.batch), ()):
                twin.refused(error)

    def prepare_broadcast(self) -> int:
        """An id for a message that is stored together with others elsewhere."""
        if self._next_id >= self._ids_end:
            self._reserve_more()
            raise Unavailable("out of message ids for a moment, try again")
        self._next_id += 1
        return self._next_id - 1

    def knows(self, producer: int, batch: int) -> bool:
        return self._marks.has(producer, batch)

    def broadcast_stored(self, broadcast: Broadcast, message_id: int) -> None:
        """A message that was stored in several queues at once has come to this one."""
        self._marks.add(broadcast.producer, broadcast.batch, self._clock.monotonic())
        self.meters.put.add(1)
        self._admit(
            Segment(
                queue_id=self.info.queue_id,
                first_id=message_id,
                priority=broadcast.priority,
                arrived_at=broadcast.arrived_at,
                lengths=[len(broadcast.payload)],
                payload=broadcast.payload,
                senders=[broadcast.sender],
                receivers=None if broadcast.receiver is None else [broadcast.receiver],
                contexts=None if broadcast.context is None else [broadcast.context],
                attributes=None if broadcast.attributes is None else [broadcast.attributes],
            )
        )

    def _admit(self, segment: Segment) -> None:
        keep = (
            not self.info.durable
            or self._budget.has_room_for(segment.cost_bytes)
            or self.queue.resident_bytes < self._head_bytes_least()
        )
        if self.queue.add(segment, keep=keep):
            self._serve(segment.receivers)
        elif not self.queue.head_count:
            self._fill_head()

    def _head_bytes_least(self) -> int:
        """What a queue may keep in memory however full the node is."""
        return min(HEAD_BYTES_LOW // 4, self._limits.memory_bytes // 64)

    # The tail

    def _fill_head(self) -> None:
        """Read the next part of a tail, before its turn."""
        if self._tail_task is not None or self.fenced:
            return
        for lane, addressed in self.queue.tail_wanted(HEAD_BYTES_LOW):
            short = lane.head_bytes < self._head_bytes_least()
            if self._budget.has_room_for(HEAD_BYTES_LOW) or (short and not addressed):
                self._tail_task = asyncio.create_task(
                    self._read_tail(lane.priority, addressed), name="read-tail"
                )
                return

    async def _read_tail(self, priority: int, addressed: bool) -> None:
        lane = self.queue.tail_lane(priority, addressed)
        room = self._budget.has_room_for(HEAD_BYTES_LOW)
        try:
            segments = await self._store.read_lane(
                self.info.queue_id,
                priority,
                addressed,
                lane.tail_from,
                lane.tail_last,
                TAIL_CHUNK_SEGMENTS if room else TAIL_CHUNK_SEGMENTS // 8,
                HEAD_BYTES_LOW if room else HEAD_BYTES_LOW // 8,
            )
        except TidegateError as failure:
            log.warning("cannot read the tail of %s yet: %s", self.info.name, failure)
            await asyncio.sleep(0.2)
        else:
            if not segments:
                # Nothing is there where we counted something: it was purged meanwhile.
                lane.forget_tail()
            elif lane.tail_count:
                self.queue.bring_back(segments)
        finally:
            self._tail_task = None
        if not self.fenced:
            self._serve(None)
            self._fill_head()

    async def _pull(self, reader: Reader, client_id: int) -> None:
        """Look in the store for what a selective read wants, then try once more."""
        try:
            tails = [lane for lane, _ in self.queue.tail_wanted(1 << 62)]
            if tails:
                match = reader.match
                segments = await self._store.find_segments(
                    self.info.queue_id,
                    min(lane.tail_from for lane in tails),
                    client_id,
                    None if match is None else match.sender,
                    None if match is None else match.context,
                    16,
                )
                self.queue.bring_back(segments, pulled=True)
        except TidegateError as failure:
            log.warning("cannot search the tail of %s: %s", self.info.name, failure)
        if self.fenced or not self._try_reader(reader):
            self._park_or_miss(reader, reader.timer is None)

    # Out: readers

    def read(self, reader: Reader, wait_s: float) -> None:
        """One message for a reader: now, or when it comes, or a miss."""
        if self._try_reader(reader):
            return
        if wait_s > 0:
            self._readers[reader] = None
            self._readers_of.setdefault(reader.client_id, {})[reader] = None
            reader.timer = asyncio.get_running_loop().call_later(wait_s, self._miss, reader)
        if self.queue.tail_count:
            # What it wants may be beyond memory.
            task = asyncio.create_task(self._pull(reader, reader.client_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif wait_s <= 0:
            self._miss(reader)

    def _park_or_miss(self, reader: Reader, at_once: bool) -> None:
        if at_once:
            self._miss(reader)

    def _miss(self, reader: Reader) -> None:
        self._drop_reader(reader)
        if len(self.queue) == 0:
            reader.miss(NoMessagesInQueue(f"queue {self.info.name!r} is empty"))
        else:
            reader.miss(
                NoMessagesRetrieved(f"queue {self.info.name!r} holds no message that matches")
            )

    def _drop_reader(self, reader: Reader) -> None:
        if reader.timer is not None:
            reader.timer.cancel()
        self._readers.pop(reader, None)
        mine = self._readers_of.get(reader.client_id)
        if mine is not None:
            mine.pop(reader, None)
            if not mine:
                del self._readers_of[reader.client_id]

    def forget_reader(self, reader: Reader) -> None:
        """Its connection is gone."""
        self._drop_reader(reader)

    def _try_reader(self, reader: Reader) -> bool:
        if not self._may_deliver():
            return False
        if reader.match is None:
            spans = self.queue.take(1, reader.client_id, reader.order)
            span = spans[0] if spans else None
        else:
            span = self.queue.take_match(reader.match, reader.client_id, reader.order)
        if span is None:
            return False
        self._drop_reader(reader)
        holder = reader.book_for()
        lease_s = reader.lease_s
        lease = holder.book.grant(span, self._clock.monotonic(), lease_s or 0.0)
        run = self._run(lease)
        body = span.segment.body(span.low, span.high)
        if lease_s is None:
            # Reading removes (Telesto): returned is acknowledged.
            self._settle(holder, [(lease.tag, lease.tag)])
        reader.answer(run, body)
        self._fill_head()
        return True

    # Out: consumers

    def subscribe(
        self, outlet: Outlet, consumer: int, prefetch: int, order: Order, automatic: bool
    ) -> None:
        subscriber = Consumer(outlet, consumer, prefetch, order, automatic)
        self._consumers.append(subscriber)
        self._holders[outlet, consumer] = subscriber
        self._dispatch()
        if self.queue.tail_count:
            self._look_for(outlet.client_id)

    def _look_for(self, client_id: int) -> None:
        """Addressed messages of this client may lie beyond memory."""

        async def pull() -> None:
            try:
                tails = [lane for lane, addressed in self.queue.tail_wanted(1 << 62) if addressed]
                while tails and not self.fenced:
                    segments = await self._store.find_segments(
                        self.info.queue_id,
                        max(
                            min(lane.tail_from for lane in tails),
                            self._tail_checked.get(client_id, 0),
                        ),
                        client_id,
                        None,
                        None,
                        16,
                    )
                    if not segments:
                        break
                    self._tail_checked[client_id] = segments[-1].last_id + 1
                    self.queue.bring_back(segments, pulled=True)
                    self._dispatch()
            except TidegateError as failure:
                log.warning("cannot search the tail of %s: %s", self.info.name, failure)

        task = asyncio.create_task(pull())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def holder(self, outlet: Outlet, consumer: int) -> Consumer | None:
        return self._holders.get((outlet, consumer))

    def reading_holder(self, outlet: Outlet) -> Consumer:
        """Who holds what a connection has read under lease: its consumer 0."""
        holder = self._holders.get((outlet, 0))
        if holder is None:
            holder = Consumer(outlet, 0, 0, Order.OLDEST, automatic=False)
            self._holders[outlet, 0] = holder
        return holder

    def unsubscribe(self, outlet: Outlet, consumer: int) -> bool:
        """End a subscription; what it holds goes back, flagged."""
        holder = self._holders.pop((outlet, consumer), None)
        if holder is None:
            return False
        if consumer:
            self._consumers.remove(holder)
        self._give_back(holder.book.clear(), Event.CONSUMER_GONE)
        return True

    def forget_outlet(self, outlet: Outlet) -> None:
        """A connection is gone."""
        for held_by, consumer in [key for key in self._holders if key[0] is outlet]:
            self.unsubscribe(held_by, consumer)

    def set_prefetch(self, holder: Consumer, prefetch: int) -> None:
        holder.prefetch = prefetch
        self._dispatch()

    def consumers_of(self, client_id: int) -> list[Consumer]:
        return [c for c in self._consumers if c.outlet.client_id == client_id]

    def _serve(self, receivers: list[int] | None) -> None:
        """Something became ready: for these receivers, or for anyone."""
        if self._readers:
            if receivers is None:
                for reader in list(self._readers):
                    if not self.queue.head_count:
                        break
                    self._try_reader(reader)
            else:
                for receiver in set(receivers):
                    for reader in list(self._readers_of.get(receiver, ())):
                        if not self._try_reader(reader) and reader.match is None:
                            break
        if self._consumers:
            self._dispatch()

    def dispatch(self) -> None:
        """A socket can take more again."""
        self._dispatch()

    def _dispatch(self) -> None:
        """Share what is ready over those who have credit, in turns."""
        queue = self.queue
        consumers = self._consumers
        if not self._may_deliver():
            return
        idle = 0
        while queue.head_count and idle < len(consumers):
            consumer = consumers[0]
            consumers.rotate(-1)
            credit = consumer.credit()
            if credit <= 0:
                idle += 1
                continue
            share = -(-queue.head_count // len(consumers))
            spans = queue.take(
                min(credit, share, DELIVERY_COUNT_MAX), consumer.outlet.client_id, consumer.order
            )
            if not spans:
                idle += 1
                continue
            idle = 0
            self._deliver(consumer, spans)
        self._fill_head()

    def _deliver(self, consumer: Consumer, spans: list[Span]) -> None:
        now = self._clock.monotonic()
        runs: list[Run] = []
        bodies: list[memoryview | bytes] = []
        body_bytes = count = 0
        for span in spans:
            lease = consumer.book.grant(span, now, self._limits.delivery_lease_s)
            body = span.segment.body(span.low, span.high)
            if runs and body_bytes + len(body) > DELIVERY_BYTES_MAX:
                consumer.outlet.deliver(consumer.consumer, runs, bodies)
                runs, bodies, body_bytes = [], [], 0
            runs.append(self._run(lease))
            bodies.append(body)
            body_bytes += len(body)
            count += len(span)
        consumer.outlet.deliver(consumer.consumer, runs, bodies)
        consumer.meters.delivered.add(count)
        if consumer.automatic:
            self._settle(consumer, [(1, lease.last_tag)])

    def _run(self, lease: Lease) -> Run:
        """A leased span as it travels."""
        span = lease.span
        segment = span.segment
        low, high = span.low, span.high
        whole = len(span) == segment.count

        def cut(column):  # type: ignore[no-untyped-def]
            return column if column is None or whole or len(column) == 1 else column[low:high]

        attempts = segment.attempts
        deliveries = [1]
        if attempts is not None:
            deliveries = [attempts.get(offset, 0) + 1 for offset in range(low, high)]
        self.meters.delivered.add(high - low)
        if segment.reloaded or attempts is not None:
            self.meters.redelivered.add(high - low)
        else:
            self.meters.wait.add(max(self._clock.wall() - segment.arrived_at, 0.0), high - low)
        return Run(
            tag=lease.tag,
            message_id=segment.first_id + low,
            lengths=segment.lengths if whole else segment.lengths[low:high],
            senders=cut(segment.senders),
            priority=segment.priority,
            arrived_at=segment.arrived_at,
            receivers=cut(segment.receivers),
            contexts=None if segment.contexts is None else segment.contexts[low:high],
            attributes=None if segment.attributes is None else segment.attributes[low:high],
            redelivered=segment.reloaded,
            deliveries=deliveries,
        )

    # Back: settle, return, extend

    def settle(
        self,
        holder: Consumer,
        ranges: list[tuple[int, int]],
        confirm: Callable[[int], None] | None,
    ) -> None:
        """Acknowledge; `confirm` is called with the number of lost ones once it is on disk."""
        lost = self._settle(holder, ranges)
        if confirm is not None:
            if self._settlement is None:
                confirm(lost)
            else:
                self._settle_waiters.append(lambda: confirm(lost))
                self._settler.wants(self, urgent=True)
        self._dispatch()

    def _settle(self, holder: Consumer, ranges: list[tuple[int, int]]) -> int:
        now = self._clock.monotonic()
        lost = 0
        for first, last in ranges:
            leases = holder.book.take(first, last)
            held = 0
            for lease in leases:
                held += len(lease.span)
                self.meters.service.add(now - lease.granted_at, len(lease.span))
                holder.meters.service.add(now - lease.granted_at, len(lease.span))
                self._done(lease.span, self.queue.done(lease.span))
            self.meters.acked.add(held)
            holder.meters.acked.add(held)
            lost += last - first + 1 - held
        return lost

    def _done(self, span: Span, finished: bool) -> None:
        """Note for the next commit what is done."""
        if not self.info.durable:
            return
        settlement = self._settlement
        if settlement is None:
            settlement = self._settlement = Settlement(self.info.queue_id, self.epoch)
            self._settler.wants(self)
        first_id = span.segment.first_id
        if finished:
            settlement.finished.append(first_id)
            settlement.partly.pop(first_id, None)
        else:
            settlement.partly.setdefault(first_id, []).append((span.low, span.high))

    def collect_settlement(self) -> tuple[Settlement, bool] | None:
        settlement, self._settlement = self._settlement, None
        if settlement is None:
            return None
        self._waiters_under_way, self._settle_waiters = self._settle_waiters, []
        return settlement, bool(self._waiters_under_way)

    def settled(self, settlement: Settlement, stored: bool) -> None:
        waiters, self._waiters_under_way = self._waiters_under_way, []
        if not stored:
            self.fence(StaleEpoch(f"queue {self.info.name!r} has a new owner"))
        # Refused is an answer too: whoever waits sees that we are fenced.
        for waiter in waiters:
            waiter()

    def give_back(self, holder: Consumer, ranges: list[tuple[int, int]]) -> int:
        """Return messages to the queue; how many were no longer held."""
        lost = 0
        leases: list[Lease] = []
        for first, last in ranges:
            taken = holder.book.take(first, last)
            lost += last - first + 1 - sum(len(lease.span) for lease in taken)
            leases += taken
        self._give_back(leases, Event.RETURNED)
        return lost

    def _give_back(self, leases: list[Lease], event: Event) -> None:
        if not leases or self.fenced:
            return
        self.queue.put_back([lease.span for lease in leases], event)
        self.meters.returned.add(sum(len(lease.span) for lease in leases))
        self._serve(None)
        for receiver in list(self._readers_of):
            self._serve([receiver])

    def extend(
        self, holder: Consumer, ranges: list[tuple[int, int]] | None, lease_s: float | None
    ) -> int:
        """Lengthen leases; how many of the tags were no longer held."""
        deadline = self._clock.monotonic() + (lease_s or self._limits.delivery_lease_s)
        held = holder.book.extend(ranges, deadline)
        return 0 if ranges is None else sum(b - a + 1 for a, b in ranges) - held

    # Once in a while

    def tick(self) -> None:
        """Lapsed leases go back; rates are taken."""
        now = self._clock.monotonic()
        for holder in list(self._holders.values()):
            late = holder.book.lapsed(now)
            if late:
                self._give_back(late, Event.LEASE_EXPIRED)
        if self._consumers:
            self._dispatch()
        else:
            self._fill_head()

    def forget_producers(self, before: float) -> None:
        self._marks.forget(before)

    def tick_rates(self, now: float) -> None:
        self.meters.tick(now)
        for consumer in self._consumers:
            consumer.meters.tick(now)

    # Whole-queue operations

    async def purge(self) -> int:
        """Drop what waits; what consumers hold stays theirs."""
        dropped, count = self.queue.purge()
        kept = {write.segment.first_id for write in self._under_way}
        for span in dropped:
            if span.segment.open:
                kept.add(span.segment.first_id)
                self._done(span, False)
        for holder in self._holders.values():
            kept.update(lease.span.segment.first_id for lease in holder.book)
        if self.info.durable and not await self._store.purge(
            self.info.queue_id, self.epoch, sorted(kept)
        ):
            self.fence(StaleEpoch(f"queue {self.info.name!r} has a new owner"))
            raise StaleEpoch(f"queue {self.info.name!r} has a new owner")
        return count

    def deleted(self) -> None:
        self.fence(QueueNotExisting(f"queue {self.info.name!r} was deleted"))

    async def browse(self, limit: int) -> list[Span]:
        """Messages that wait, oldest first, from memory and then from the store."""
        spans = self.queue.browse(limit)
        left = limit - sum(map(len, spans))
        for lane, addressed in self.queue.tail_wanted(1 << 62):
            if left <= 0:
                break
            segments = await self._store.read_lane(
                self.info.queue_id,
                lane.priority,
                addressed,
                lane.tail_from,
                lane.tail_last,
                left,
                HEAD_BYTES_LOW,
            )
            for segment in segments:
                for low, high in segment.open_ranges():
                    if left > 0 and segment.first_id not in lane.pulled:
                        high = min(high, low + left)
                        spans += Queue.looked_at(segment, low, high)
                        left -= high - low
        return spans

    @staticmethod
    def browsed(span: Span) -> Run:
        """A span that somebody looks at; no tag, since nothing is handed out."""
        segment, low, high = span.segment, span.low, span.high

        def cut(column):  # type: ignore[no-untyped-def]
            return column if column is None or len(column) == 1 else column[low:high]

        attempts = segment.attempts or {}
        return Run(
            tag=0,
            message_id=segment.first_id + low,
            lengths=segment.lengths[low:high],
            senders=cut(segment.senders),
            priority=segment.priority,
            arrived_at=segment.arrived_at,
            receivers=cut(segment.receivers),
            contexts=None if segment.contexts is None else segment.contexts[low:high],
            attributes=None if segment.attributes is None else segment.attributes[low:high],
            redelivered=segment.reloaded,
            deliveries=[attempts.get(offset, 0) for offset in range(low, high)],
        )

    def numbers(self) -> QueueNumbers:
        meters = self.meters
        oldest = self.queue.oldest()
        return QueueNumbers(
            queue_id=self.info.queue_id,
            name=self.info.name,
            durable=self.info.durable,
            epoch=self.epoch,
            waiting=len(self.queue),
            waiting_in_store=self.queue.tail_count,
            unacknowledged=sum(h.book.outstanding for h in self._holders.values()),
            oldest_age_s=max(self._clock.wall() - oldest.arrived_at, 0.0) if oldest else 0.0,
            resident_bytes=self.queue.resident_bytes,
            put=meters.put.total,
            delivered=meters.delivered.total,
            acked=meters.acked.total,
            returned=meters.returned.total,
            redelivered=meters.redelivered.total,
            refused=meters.refused.total,
            put_per_s=meters.put.per_s,
            delivered_per_s=meters.delivered.per_s,
            acked_per_s=meters.acked.per_s,
            readers_waiting=len(self._readers),
            wait=durations(meters.wait),
            service=durations(meters.service),
            consumers=[
                ConsumerNumbers(
                    consumer=c.consumer,
                    client_id=c.outlet.client_id,
                    client_name=c.outlet.client_name,
                    prefetch=c.prefetch,
                    unacknowledged=c.book.outstanding,
                    delivered=c.meters.delivered.total,
                    acked=c.meters.acked.total,
                    delivered_per_s=c.meters.delivered.per_s,
                    acked_per_s=c.meters.acked.per_s,
                    automatic=c.automatic,
                    service=durations(c.meters.service),
                )
                for c in self._consumers
            ],
        )
