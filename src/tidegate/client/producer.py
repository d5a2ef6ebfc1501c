"""Puts to one queue, gathered into batches.

Theory of operation. A `Producer` collects the messages that the application puts to one queue. The
first put in a turn of the event loop schedules a flush at its end. So all puts of one turn share a
batch. At most `in_flight_max` batches wait for their answers at a time. More messages gather
meanwhile, which makes batches larger under load.

A message is in one of three places: gathered (no batch yet), in a batch in flight, or in a batch
that waits to be sent again. Batches are sent in the order of their numbers, before new messages.

Each batch has a number, which with the producer's random id identifies it at the node. It keeps the
number until its result is known. If the transport breaks, the batch is sent again under the same
number, and the node stores it once.

The answer to a batch decides:

- stored: the futures of its messages get their ids.
- `IoFailure`: it is not known whether it is stored; send the same batch again.
- `NotHome`: the queue has become a logical queue and has not stored it; look the queue up.
- `QueueNotExisting`: the queue may have been created again; look its id up once, then fail.
- another `RetryLater`: not stored; send it again after a delay, for up to `reconnect_s` seconds.
- `LimitReached` and all other errors: fail the futures.

If the look-up shows a logical queue, the producer first waits for the answers to what it has sent.
Then the `ProducerPool` replaces it by a `ReplicaRouter`, which takes over the rest. Waiting keeps
the order: a new message must not be stored before one whose answer is pending.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.client.message import DEFAULT_MESSAGE_OPTIONS, MessageOptions
from tidegate.core.errors import (
    IoFailure,
    LimitReached,
    NotHome,
    QueueNotExisting,
    RetryLater,
    TidegateError,
)
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.protocol.catalogue import Publish, PublishResponse
from tidegate.protocol.messages import PutMessageResponse, PutMessages
from tidegate.protocol.packet import Packet

if TYPE_CHECKING:
    from tidegate.client.connection import ClusterConnection
    from tidegate.client.directory import QueueDirectory
    from tidegate.client.puts import ProducerPool


BATCH_COUNT_MAX = 500
BATCH_BYTES_MAX = 256 * 1024
# `put_many` waits for all of its messages anyway, so larger batches only save work.
MANY_COUNT_MAX = 2000
MANY_BYTES_MAX = 512 * 1024
IN_FLIGHT_MAX = 8


class Producer:
    """Collects and sends the messages to one queue."""

    __slots__ = (
        "_batch",
        "_batch_seen",
        "_connection",
        "_futures",
        "_in_flight",
        "_logical_id",
        "_loop",
        "_payloads",
        "_pool",
        "_producer",
        "_queues",
        "_resend",
        "_resolving",
        "_scheduled",
        "_special",
        "queue",
        "queue_id",
    )

    in_flight_max = IN_FLIGHT_MAX

    def __init__(
        self, connection: ClusterConnection, queues: QueueDirectory, pool: ProducerPool, queue: str
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self.queue = queue
        self.queue_id: int | None = None
        # Random, so that nodes recognise resends. Of this object, since it counts its batches from
        # 1.
        self._producer = secrets.randbits(62) + 1
        self._payloads: deque[bytes] = deque()
        self._futures: deque[asyncio.Future[int]] = deque()
        # Options of the gathered messages, by position. `None` means that all have default options.
        self._special: deque[MessageOptions] | None = None
        self._batch = 0
        self._batch_seen = 0
        self._in_flight: dict[int, OutgoingBatch] = {}
        self._resend: deque[OutgoingBatch] = deque()
        self._scheduled = False
        self._resolving = False
        # The id of the logical queue, once the queue has become one; a `ReplicaRouter` takes over
        # then.
        self._logical_id: int | None = None

    def add(self, payload: bytes) -> asyncio.Future[int]:
        """Add a message with default options; return the future of its id."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._payloads.append(payload)
        self._futures.append(future)
        if self._special is not None:
            self._special.append(DEFAULT_MESSAGE_OPTIONS)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    def add_with_options(self, payload: bytes, special: MessageOptions) -> asyncio.Future[int]:
        """Add a message with options of its own; return the future of its id."""
        if self._special is None:
            self._special = deque([DEFAULT_MESSAGE_OPTIONS] * len(self._payloads))
        future = self.add(payload)
        self._special[-1] = special
        return future

    def add_pending(self, unsent: PendingMessages) -> None:
        """Add messages that another producer had gathered, and send them if possible."""
        if unsent.special is not None or self._special is not None:
            if self._special is None:
                self._special = deque([DEFAULT_MESSAGE_OPTIONS] * len(self._payloads))
            self._special.extend(unsent.special or [DEFAULT_MESSAGE_OPTIONS] * len(unsent.payloads))
        self._payloads.extend(unsent.payloads)
        self._futures.extend(unsent.futures)
        self.flush()

    def take_pending(self) -> PendingMessages:
        """Remove and return the messages that are in no batch yet."""
        special = None if self._special is None else list(self._special)
        unsent = PendingMessages(list(self._payloads), list(self._futures), special)
        self._payloads.clear()
        self._futures.clear()
        self._special = None
        return unsent

    def take_refused(self, *, of_one_each: bool = False) -> list[OutgoingBatch]:
        """Remove and return the batches that are certainly not stored.

        With `of_one_each`, leave batches of `put_many`, which have a single future and cannot be
        split.
        """
        kept: deque[OutgoingBatch] = deque()
        refused: list[OutgoingBatch] = []
        for batch in self._resend:
            is_whole = isinstance(batch.futures, asyncio.Future)
            (kept if batch.is_unknown or (of_one_each and is_whole) else refused).append(batch)
        self._resend = kept
        return refused

    def add_batch(self, batch: OutgoingBatch) -> None:
        """Send a batch that another producer was refused, under a number of this producer."""
        self._batch += 1
        batch.packet.producer, batch.packet.batch = self._producer, self._batch
        if self.queue_id is not None:
            batch.packet.queue_id = self.queue_id
        self._resend.append(batch)
        self.flush()

    async def add_many(self, payloads: list[bytes], priority: int) -> list[list[int]]:
        """Send many messages in batches of their own; return the ids of each batch.

        There is one future per batch and not per message, which makes large puts cheaper.
        """
        while self.queue_id is None:
            self._found(await self._queues.id_of(self.queue))
            heir = self._pool.get(self.queue)
            if self._logical_id is not None and heir is not self:
                return await heir.add_many(payloads, priority)
        # Messages that were put earlier are sent first.
        while self._payloads:
            self._resend.append(self._next_batch())
        waiting: list[asyncio.Future[list[int]]] = []
        for at in range(0, len(payloads), MANY_COUNT_MAX):
            for chosen in _by_bytes(payloads[at : at + MANY_COUNT_MAX]):
                future: asyncio.Future[list[int]] = self._loop.create_future()
                waiting.append(future)
                self._batch += 1
                packet = PutMessages(
                    self.queue_id,
                    self._producer,
                    self._batch,
                    list(map(len, chosen)),
                    [priority],
                )
                self._resend.append(OutgoingBatch(packet, [b"".join(chosen)], future))
        self.flush()
        return await asyncio.gather(*waiting)

    @property
    def unconfirmed(self) -> int:
        return (
            len(self._payloads)
            + sum(batch.count for batch in self._in_flight.values())
            + sum(batch.count for batch in self._resend)
        )

    def was_used(self) -> bool:
        """Return whether a batch was made since the last call."""
        used, self._batch_seen = self._batch != self._batch_seen, self._batch
        return used

    # Sending

    def _flush(self) -> None:
        self._scheduled = False
        transport = self._connection.transport
        if transport is None or not transport.alive:
            return  # the pool flushes after the reconnect
        if self.queue_id is None:
            if not self._in_flight:
                self._resolve()
            return
        if self._logical_id is not None:
            self._hand_to_router()
            return
        while self._resend and len(self._in_flight) < self.in_flight_max:
            self._send(self._resend.popleft())
        while self._payloads and len(self._in_flight) < self.in_flight_max and not self._resend:
            self._send(self._next_batch())

    def flush(self) -> None:
        if not self._scheduled:
            self._flush()

    def route_to_replicas(self, queue_id: int) -> None:
        """Note that the queue has become a logical queue."""
        self.queue_id = self._logical_id = queue_id
        self.flush()

    def _found(self, queue_id: int) -> None:
        if queue_id in self._queues.logical_ids:
            self.route_to_replicas(queue_id)
        else:
            self.queue_id, self._logical_id = queue_id, None

    def _hand_to_router(self) -> None:
        """Hand over to a `ReplicaRouter` once all sent batches have answers.

        Otherwise a message that is put now might be stored before an earlier one.
        """
        self._send_unknown()
        if not self._in_flight:
            assert self._logical_id is not None
            self._pool.replace_by_router(self, self._logical_id)

    def _send_unknown(self) -> None:
        """Send only batches that may be stored already, to the queue they were sent to.

        The other batches wait, and go to the replicas after that.
        """
        unknown = [batch for batch in self._resend if batch.is_unknown]
        for batch in unknown[: self.in_flight_max - len(self._in_flight)]:
            self._resend.remove(batch)
            self._send(batch)

    def _next_batch(self) -> OutgoingBatch:
        payloads, futures = self._payloads, self._futures
        count = min(len(payloads), BATCH_COUNT_MAX)
        if count == len(payloads):
            chosen, waiting = list(payloads), list(futures)
            payloads.clear()
            futures.clear()
        else:
            chosen = [payloads.popleft() for _ in range(count)]
            waiting = [futures.popleft() for _ in range(count)]
        lengths = list(map(len, chosen))
        if sum(lengths) > BATCH_BYTES_MAX and count > 1:
            # Limit the bytes of a batch: return what does not fit to the front.
            total = keep = 0
            for length in lengths:
                if keep and total + length > BATCH_BYTES_MAX:
                    break
                total += length
                keep += 1
            payloads.extendleft(reversed(chosen[keep:]))
            futures.extendleft(reversed(waiting[keep:]))
            chosen, waiting, lengths = chosen[:keep], waiting[:keep], lengths[:keep]
            count = keep
        assert self.queue_id is not None
        self._batch += 1
        packet = PutMessages(
            self.queue_id, self._producer, self._batch, lengths, [PRIORITY_DEFAULT]
        )
        if self._special is not None:
            special = [self._special.popleft() for _ in range(count)]
            if not self._special:
                self._special = None
            fill_columns(packet, special)
        return OutgoingBatch(packet, [b"".join(chosen)], waiting)

    def _send(self, batch: OutgoingBatch) -> None:
        transport = self._connection.transport
        assert transport is not None
        number = batch.packet.batch
        # Name the latest batch in flight. While a queue changes its owner, the old owner may refuse
        # that batch and the new one accept this one, which would reverse their order.
        batch.packet.after = max((n for n in self._in_flight if n < number), default=None)
        self._in_flight[number] = batch

        def done(answer: Packet | TidegateError, body: memoryview) -> None:
            del self._in_flight[number]
            if isinstance(answer, TidegateError):
                self._failed(batch, answer)
            else:
                self._take_answer(batch, answer)
            if (self._payloads or self._resend) and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._flush)

        batch.packet.queue_id = self.queue_id or batch.packet.queue_id
        transport.submit(self._request(batch), batch.bodies, done)

    def _request(self, batch: OutgoingBatch) -> Packet:
        """Return the request that carries a batch."""
        return batch.packet

    def _take_answer(self, batch: OutgoingBatch, answer: Packet) -> None:
        """Pass the stored ids to the batch."""
        assert isinstance(answer, PutMessageResponse)
        batch.stored(answer.first_id, answer.ids)

    def _failed(self, batch: OutgoingBatch, error: TidegateError) -> None:
        if isinstance(error, IoFailure):
            batch.is_unknown = True
        if isinstance(error, NotHome):
            # The queue has become a logical queue. It has looked for the batch and does not have
            # it.
            batch.is_unknown = False
            self.queue_id = self._logical_id = None
            self._queues.forget(self.queue)
        if isinstance(error, QueueNotExisting) and not batch.looked_up:
            # The queue may have been deleted and created again: look its id up, once per batch.
            batch.looked_up = True
            if batch.packet.queue_id == self.queue_id:
                self.queue_id = None
                self._queues.forget(self.queue)
            self._put_back(batch)
            return
        if batch.failing_since is None:
            batch.failing_since = self._loop.time()
        # A node that answers with errors gets as much time as a missing connection, and no more.
        patience_s = self._loop.time() - batch.failing_since
        if (
            not isinstance(error, RetryLater)
            or isinstance(error, LimitReached)
            or patience_s > self._connection.reconnect_s
        ):
            if batch.is_unknown and patience_s > self._connection.reconnect_s:
                error = IoFailure(f"{error}; whether the message is stored is not known")
            batch.fail(error)
            self._pool.drop(self)
            return
        self._try_later(batch)

    def _try_later(self, batch: OutgoingBatch) -> None:
        """Send a batch again after a delay that grows with its attempts."""
        self._put_back(batch)
        batch.tries += 1
        transport = self._connection.transport
        if transport is not None and transport.alive:
            delay_s = min(0.02 * 2 ** min(batch.tries, 6), 1.0) * random.uniform(0.5, 1.0)
            if not self._scheduled:
                self._scheduled = True
                self._loop.call_later(delay_s, self._flush)

    def _put_back(self, batch: OutgoingBatch) -> None:
        """Insert a batch among those to resend, in the order of batch numbers."""
        at = 0
        while at < len(self._resend) and self._resend[at].packet.batch < batch.packet.batch:
            at += 1
        self._resend.insert(at, batch)

    def fail(self, error: TidegateError) -> None:
        """Fail all unconfirmed messages with `error`."""
        for batch in (*self._in_flight.values(), *self._resend):
            batch.fail(error)
        self._resend.clear()
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        self._payloads.clear()
        self._futures.clear()
        self._special = None

    def _resolve(self) -> None:
        """Look up the queue's id in a task, at most one at a time, then flush."""
        if self._resolving:
            return
        self._resolving = True

        async def resolve() -> None:
            try:
                self._found(await self._queues.id_of(self.queue))
            except TidegateError as error:
                # The request has been retried for `reconnect_s` already, and no other event would
                # flush again.
                self.fail(error)
                self._pool.drop(self)
            finally:
                self._resolving = False
            if self.queue_id is not None:
                self._flush()

        self._connection.spawn(resolve())


def _by_bytes(payloads: list[bytes]) -> list[list[bytes]]:
    """Split payloads into groups of at most `MANY_BYTES_MAX` bytes.

    A larger payload is a group of its own.
    """
    if sum(map(len, payloads)) <= MANY_BYTES_MAX:
        return [payloads]
    pieces: list[list[bytes]] = [[]]
    total = 0
    for payload in payloads:
        if pieces[-1] and total + len(payload) > MANY_BYTES_MAX:
            pieces.append([])
            total = 0
        pieces[-1].append(payload)
        total += len(payload)
    return pieces


# A batch of messages on its way to a node, with the futures of its puts.


class OutgoingBatch:
    """A put request with its payloads, and one future per message or one for all.

    It keeps its number until its result is known.
    """

    __slots__ = (
        "bodies",
        "failing_since",
        "full_at",
        "futures",
        "is_unknown",
        "looked_up",
        "packet",
        "tries",
    )

    def __init__(
        self,
        packet: PutMessages,
        bodies: list[bytes | memoryview],
        futures: list[asyncio.Future[int]] | asyncio.Future[list[int]],
    ) -> None:
        self.packet = packet
        self.bodies = bodies
        self.futures = futures
        self.tries = 0
        self.failing_since: float | None = None
        self.looked_up = False
        # Whether it may be stored at the queue it was sent to. Only that queue can tell.
        self.is_unknown = False
        # Ids of replicas that had no room for it.
        self.full_at: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return len(self.packet.lengths)

    def stored(self, first_id: int, ids: list[int] | None) -> None:
        """Set the results of the futures.

        Ids count up from `first_id`, unless `ids` lists them. A `first_id` of 0 means that the ids
        are not known: each result is 0.
        """
        futures = self.futures
        step = 1 if first_id else 0
        if isinstance(futures, asyncio.Future):
            if not futures.done():
                count = self.count
                futures.set_result(list(range(first_id, first_id + count)) if step else [0] * count)
            return
        if ids is not None:
            for future, each_id in zip(futures, ids, strict=False):
                if not future.done():
                    future.set_result(each_id)
            return
        for future in futures:
            if not future.done():
                future.set_result(first_id)
            first_id += step

    def fail(self, error: TidegateError) -> None:
        """Fail the futures with `error`."""
        futures = self.futures
        for future in [futures] if isinstance(futures, asyncio.Future) else futures:
            if not future.done():
                future.set_exception(error)


def fill_columns(packet: PutMessages, special: list[MessageOptions]) -> None:
    """Fill the option columns of a put request; leave out columns without a value."""
    receivers, contexts, priorities, attributes, delays_s, ttls_s = map(
        list, zip(*special, strict=True)
    )
    first = priorities[0]
    packet.priorities = [first] if all(p == first for p in priorities) else priorities
    packet.receivers = _unless_empty(receivers)
    packet.contexts = _unless_empty(contexts)
    packet.attributes = _unless_empty(attributes)
    packet.delays_s = _unless_empty(delays_s)
    packet.ttls_s = _unless_empty(ttls_s)


def _unless_empty(column: list[Any]) -> list[Any] | None:
    return None if all(entry is None for entry in column) else column


# Messages that are in no batch, taken from one producer to another.


class PendingMessages(NamedTuple):
    """Columns of messages with their futures."""

    payloads: list[bytes]
    futures: list[asyncio.Future[int]]
    special: list[MessageOptions] | None

    @classmethod
    def of(cls, batch: OutgoingBatch) -> PendingMessages | None:
        """Return the messages of a batch that is not stored; `None` for a batch of `put_many`.

        A batch of `put_many` has one future for all messages, so it cannot be split.
        """
        if isinstance(batch.futures, asyncio.Future):
            return None
        packet, body = batch.packet, memoryview(b"".join(batch.bodies))
        count = batch.count
        ends = list(accumulate(packet.lengths, initial=0))
        nothing = [None] * count
        priorities = packet.priorities
        columns = (
            packet.receivers or nothing,
            packet.contexts or nothing,
            priorities if len(priorities) == count else priorities * count,
            packet.attributes or nothing,
            packet.delays_s or nothing,
            packet.ttls_s or nothing,
        )
        return cls(
            [bytes(body[low:high]) for low, high in pairwise(ends)],
            batch.futures,
            [MessageOptions(*of_one) for of_one in zip(*columns, strict=True)],
        )


# Publications to one topic, gathered into batches as puts to a queue are.


class TopicProducer(Producer):
    """Collects and sends publications to a topic.

    The result of a future is the number of matching subscriptions.
    """

    __slots__ = ()

    # A node stores batches of a topic concurrently, so only one batch in flight keeps their order.
    in_flight_max = 1

    def __init__(
        self, connection: ClusterConnection, queues: QueueDirectory, pool: ProducerPool, topic: str
    ) -> None:
        super().__init__(connection, queues, pool, topic)
        # Publications name their topic, so there is no id to look up.
        self.queue_id = 0

    def _request(self, batch: OutgoingBatch) -> Packet:
        return Publish(self.queue, batch.packet)

    def _take_answer(self, batch: OutgoingBatch, answer: Packet) -> None:
        assert isinstance(answer, PublishResponse)
        futures = batch.futures
        if isinstance(futures, asyncio.Future):
            if not futures.done():
                futures.set_result(answer.counts)
            return
        for future, count in zip(futures, answer.counts, strict=True):
            if not future.done():
                future.set_result(count)
