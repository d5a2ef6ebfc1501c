"""The producers of a client: one for each queue and topic that it puts to.

A plain queue has a `Producer`, a logical queue has a `ReplicaRouter`, and a topic has a
`TopicProducer`. The first look-up of the queue decides which one is needed. When a plain queue
becomes a logical queue, the pool replaces its producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Unpack

from tidegate.client.connection import ClusterConnection
from tidegate.client.directory import QueueDirectory
from tidegate.client.message import (
    DEFAULT_MESSAGE_OPTIONS,
    PutOptions,
    check_text,
    checked_options,
    checked_payload,
)
from tidegate.client.producer import Producer, TopicProducer
from tidegate.client.replica_producer import ReplicaRouter
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.model import PRIORITY_DEFAULT

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
