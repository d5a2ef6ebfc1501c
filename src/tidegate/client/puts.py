"""How a client puts: through a producer for each queue and topic, and in transactions.

A plain queue has a `Producer`, a logical queue has a `ReplicaRouter`, and a topic has a
`TopicProducer`. The first look-up of the queue decides which one is needed. When a plain queue
becomes a logical queue, the `ProducerPool` replaces its producer.

A `ProducerHandle` is a producer that the application opens itself. A `Transaction` sends its puts
together with acknowledgements in one request.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Unpack

from tidegate.client import tracing
from tidegate.client.connection import TRANSIENT_ERRORS, ClusterConnection
from tidegate.client.directory import QueueDirectory
from tidegate.client.message import (
    DEFAULT_MESSAGE_OPTIONS,
    Message,
    MessageOptions,
    PutOptions,
    check_text,
    checked_options,
    checked_payload,
)
from tidegate.client.producer import Producer, TopicProducer, fill_columns
from tidegate.client.replica_producer import ReplicaRouter
from tidegate.core.errors import InvalidValue, IoFailure, TidegateError, TooLarge
from tidegate.core.model import PRIORITY_DEFAULT
from tidegate.protocol.connection import MESSAGE_BYTES_MAX
from tidegate.protocol.messages import (
    Acknowledged,
    PutMessageResponse,
    PutMessages,
    Transact,
    TransactResponse,
)

if TYPE_CHECKING:
    from tidegate.client.client import Client

QueueProducer = Producer | ReplicaRouter


class ProducerPool:
    """The producers of one client."""

    def __init__(self, connection: ClusterConnection, queues: QueueDirectory) -> None:
        self._connection = connection
        self._queues = queues
        # By the name of the queue. `Client.put` reads this directly.
        self.by_queue: dict[str, QueueProducer] = {}
        self._by_topic: dict[str, TopicProducer] = {}
        # Producers that were opened with `client.producer(...)`.
        self._opened: list[QueueProducer] = []
        # Replaced producers that still wait for confirmations.
        self._replaced: list[QueueProducer] = []

    def get(self, queue: str) -> QueueProducer:
        """Return the producer of a queue; raise the reason if putting is useless now."""
        producer = self.by_queue.get(queue)
        if producer is not None and self._connection.outage is None:
            return producer
        self._check_name(queue, "queue")
        queue_id = self._queues.ids.get(queue)
        if queue_id is not None and queue_id in self._queues.logical_ids:
            return self._add_router(queue, queue_id)
        plain = self.by_queue[queue] = self._new_producer(queue)
        plain.queue_id = queue_id
        return plain

    def topic(self, topic: str) -> TopicProducer:
        """Return the producer of a topic; raise the reason if publishing is useless now."""
        producer = self._by_topic.get(topic)
        if producer is None or self._connection.outage is not None:
            self._check_name(topic, "topic")
            producer = self._by_topic[topic] = TopicProducer(
                self._connection, self._queues, self, topic
            )
        return producer

    def _check_name(self, name: str, kind: str) -> None:
        if self._connection.outage is not None:
            raise self._connection.outage
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"a {kind} is named by a string that is not empty, not {name!r}")
        check_text(name)
        self._connection.identity()  # raises if the client is not open

    def _new_producer(self, queue: str) -> Producer:
        return Producer(self._connection, self._queues, self, queue)

    def _add_router(self, queue: str, queue_id: int) -> ReplicaRouter:
        router = ReplicaRouter(self._connection, self._queues, self, queue, queue_id)
        self.by_queue[queue] = router
        return router

    # Producers of their own

    async def open(self, queue: str, member: int, wanted: int | None) -> QueueProducer:
        """Make a producer that is used by one `ProducerHandle` only."""
        info = await self._queues.find(queue)
        if info.elastic:
            router = ReplicaRouter(
                self._connection,
                self._queues,
                self,
                queue,
                info.queue_id,
                member=member,
                wanted=wanted,
            )
            self._opened.append(router)
            await router.ready()
            return router
        plain = self._new_producer(queue)
        plain.queue_id = info.queue_id
        self._opened.append(plain)
        return plain

    def close(self, producer: QueueProducer) -> None:
        self._opened.remove(producer)

    # Queues that change

    def replace_by_router(self, producer: Producer, queue_id: int) -> None:
        """Replace the producer of a queue that has become a logical queue.

        The messages that the old producer has not sent go to the new one.
        """
        router = self.by_queue.get(producer.queue)
        if not isinstance(router, ReplicaRouter):
            router = self._add_router(producer.queue, queue_id)
        router.take_from(producer)

    async def find_logical_queues(self) -> None:
        """Check whether plain queues that this client puts to have become logical queues."""
        for queue, producer in list(self.by_queue.items()):
            if not isinstance(producer, Producer) or producer.queue_id is None:
                continue
            if not producer.was_used():
                continue
            info = await self._queues.find(queue)
            if info.elastic and self.by_queue.get(queue) is producer:
                producer.route_to_replicas(info.queue_id)

    def drop(self, producer: QueueProducer) -> None:
        """Drop the producer of a queue, so that the next put looks the queue's id up again.

        The queue may have been deleted and created again under the same name.
        """
        name = producer.queue
        if isinstance(producer, ReplicaRouter):
            if self.by_queue.get(name) is producer:
                del self.by_queue[name]
            self._queues.forget(name)
            self._keep_until_answered(producer)
        elif not producer.unconfirmed and self._by_topic.get(name) is producer:
            del self._by_topic[name]
        elif not producer.unconfirmed and self.by_queue.get(name) is producer:
            del self.by_queue[name]
            self._queues.forget(name)

    def forget(self, queue: str) -> None:
        """Forget the producer of a queue that was deleted and created again."""
        self.by_queue.pop(queue, None)

    def forget_id(self, queue_id: int) -> None:
        """Forget the producer of a queue that was deleted."""
        for name, producer in list(self.by_queue.items()):
            if producer.queue_id == queue_id:
                del self.by_queue[name]

    def _keep_until_answered(self, producer: QueueProducer) -> None:
        self._replaced = [each for each in self._replaced if each.unconfirmed]
        if producer.unconfirmed and producer not in self._replaced:
            self._replaced.append(producer)

    # All producers

    def _all(self) -> list[QueueProducer]:
        current = [*self.by_queue.values(), *self._by_topic.values(), *self._opened]
        return [*current, *self._replaced]

    def flush(self) -> None:
        """Send everything that waits, after a reconnect."""
        for producer in self._all():
            producer.flush()

    def fail(self, error: TidegateError) -> None:
        """Fail all unconfirmed messages with `error`."""
        for producer in self._all():
            producer.fail(error)


# The public producer of a queue, opened with `client.producer(...)`.
#
# It corresponds to the cluster connection factory of the replicated-queues paper. Under the scaling
# policy "clients" it is assigned to one replica. Under other policies its messages go to all
# replicas by their shares.


class ProducerHandle:
    """A producer of one queue; use it with `async with`.

    It counts as a client of a logical queue from the start of the block to its end. The end of the
    block waits until all its messages are confirmed.
    """

    def __init__(self, pool: ProducerPool, queue: str, member: int, *, wanted: int | None) -> None:
        self._pool = pool
        self.queue = queue
        self._member = member
        self._wanted = wanted
        self._producer: Producer | ReplicaRouter | None = None
        self._unconfirmed: set[asyncio.Future[int]] = set()

    async def __aenter__(self) -> ProducerHandle:
        self._producer = await self._pool.open(self.queue, self._member, self._wanted)
        return self

    async def __aexit__(self, *_: object) -> None:
        producer = self._opened()
        self._producer = None
        while self._unconfirmed:
            await asyncio.wait(set(self._unconfirmed))
        self._pool.close(producer)
        if isinstance(producer, ReplicaRouter):
            await producer.close()

    def _opened(self) -> Producer | ReplicaRouter:
        if self._producer is None:
            raise InvalidValue("the producer is not open: use `async with mq.producer(queue)`")
        return self._producer

    @property
    def replica(self) -> int | None:
        """The number of its replica; `None` if it has no replica of its own."""
        producer = self._opened()
        place = producer.membership.place if isinstance(producer, ReplicaRouter) else None
        return None if place is None else place.number

    @property
    def address(self) -> str | None:
        """The address of the node that serves its replica; `None` if there is none."""
        producer = self._opened()
        place = producer.membership.place if isinstance(producer, ReplicaRouter) else None
        return None if place is None else place.address

    def put(self, payload: bytes, **options: Unpack[PutOptions]) -> asyncio.Future[int]:
        """Put a message, and return a future of its id.

        The future is done once the message is on disk. Options and errors are those of
        `Client.put`.
        """
        producer = self._opened()
        payload = checked_payload(payload)
        special = checked_options(options) if options else DEFAULT_MESSAGE_OPTIONS
        future = (
            producer.add(payload)
            if special == DEFAULT_MESSAGE_OPTIONS
            else producer.add_with_options(payload, special)
        )
        self._unconfirmed.add(future)
        future.add_done_callback(self._unconfirmed.discard)
        return future

    async def put_many(
        self, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages in few batches; return their ids once all are on disk."""
        chosen = [checked_payload(payload) for payload in payloads]
        checked_options({"priority": priority})
        if not chosen:
            return []
        answers = await self._opened().add_many(chosen, priority)
        return [message_id for ids in answers for message_id in ids]


# A transaction: the puts and acknowledgements of a block, committed together at its end.
#
# The client gathers everything and sends it as one request. If an exception leaves the block,
# nothing is sent and held messages stay held.
#
# A request whose answer was lost is sent again under the same number. If it contains puts, the node
# knows whether it was committed. Acknowledgements alone leave no record, so their result stays
# unknown, and the transaction raises `IoFailure`.

_BACKOFF_MAX_S = 0.5


class Transaction:
    """A transaction; use it as `async with mq.transaction() as tx`.

    The end of the block commits. It raises `IoFailure` if the result is not known, and `LeaseLost`
    if a message to acknowledge is no longer held.
    """

    def __init__(self, client: Client, patience_s: float) -> None:
        self._client = client
        # For how long the commit is retried, in seconds.
        self._patience_s = patience_s
        # By queue: the position among all puts, the payload and the options.
        self._puts: dict[str, list[tuple[int, bytes, MessageOptions]]] = {}
        self._count = 0
        self._bytes = 0
        self._acked: dict[tuple[int, int, int], Message] = {}
        self._open = False
        # The ids of the puts in their order, after the commit. 0 means not known, as after a
        # resend.
        self.message_ids: list[int] = []

    async def __aenter__(self) -> Transaction:
        self._open = True
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        self._open = False
        if failure is None and (self._puts or self._acked):
            await self._commit()

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> None:
        """Put a message when the block ends; the options are those of `Client.put`.

        The payloads of a transaction are limited to 16 MiB in total; more raises `TooLarge`.
        """
        self._check_open()
        if not isinstance(queue, str) or not queue:
            raise InvalidValue(f"a queue is named by a string that is not empty, not {queue!r}")
        payload = checked_payload(payload)
        self._bytes += len(payload)
        if self._bytes > MESSAGE_BYTES_MAX:
            raise TooLarge(f"a transaction carries at most {MESSAGE_BYTES_MAX} bytes of payload")
        with tracing.publishing(queue, options.get("headers")) as headers:
            if headers:
                options["headers"] = headers
            entry = (self._count, payload, checked_options(options))
        self._puts.setdefault(queue, []).append(entry)
        self._count += 1

    def ack(self, message: Message) -> None:
        """Acknowledge a message when the block ends; it must be held by the same client."""
        self._check_open()
        transport, queue_id, consumer, tag = message.held_under()
        if transport is not self._client.transport:
            raise InvalidValue("this message is held by another client: each has its transactions")
        self._acked[queue_id, consumer, tag] = message

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidValue("the transaction is not open: use `async with mq.transaction()`")

    # Committing

    async def _commit(self) -> None:
        packet, bodies = await self._packet()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        backoff_s = 0.02
        while True:
            transport = await self._client.connected()
            if packet.acks and not packet.resent:
                for message in self._acked.values():
                    message.held_under()  # raises `LeaseLost` if the transport has changed since
            try:
                answered = await transport.request(packet, bodies)
                break
            except (IoFailure, *TRANSIENT_ERRORS) as failure:
                if packet.acks and not packet.puts:
                    raise IoFailure(
                        f"{failure}; whether these acknowledgements count is not known: messages "
                        "for which they do not will come again"
                    ) from None
                if loop.time() > deadline:
                    raise IoFailure(
                        f"{failure}; whether the transaction was done is not known"
                    ) from None
                # After a reconnect the same tags may mean other messages. The node then only
                # answers whether the transaction was committed before.
                packet.resent = bool(packet.acks)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
        assert isinstance(answered.packet, TransactResponse)
        self._note_ids(answered.packet)

    async def _packet(self) -> tuple[Transact, list[memoryview | bytes]]:
        puts = []
        bodies: list[memoryview | bytes] = []
        for queue, entries in self._puts.items():
            payloads = [payload for _, payload, _ in entries]
            put = PutMessages(
                await self._client.queue_id(queue),
                0,
                1,
                list(map(len, payloads)),
                [PRIORITY_DEFAULT],
            )
            fill_columns(put, [special for _, _, special in entries])
            puts.append(put)
            bodies += payloads
        ranges: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for queue_id, consumer, tag in sorted(self._acked):
            mine = ranges.setdefault((queue_id, consumer), [])
            if mine and mine[-1][1] == tag - 1:
                mine[-1] = (mine[-1][0], tag)
            else:
                mine.append((tag, tag))
        acks = [Acknowledged(*whose, tags) for whose, tags in ranges.items()]
        # A producer id of its own, so that the node recognises a resend and nothing else.
        return Transact(secrets.randbits(62) + 1, 1, puts, acks), bodies

    def _note_ids(self, answer: TransactResponse) -> None:
        ids = [0] * self._count
        for entries, put in zip(self._puts.values(), answer.puts, strict=False):
            for (position, _, _), message_id in zip(entries, _ids(put), strict=False):
                ids[position] = message_id
        self.message_ids = ids


def _ids(put: PutMessageResponse) -> Iterator[int]:
    if put.ids is not None:
        yield from put.ids
        return
    message_id = put.first_id
    while True:
        yield message_id
        message_id += 1 if message_id else 0
