"""The public asynchronous client.

Theory of operation. A `Client` has one `ClusterConnection`, which reconnects by itself. All other
parts of the client use it:

- `QueueDirectory` knows the ids of queues and which of them are logical queues. Producers, the
  reader and subscriptions share it.
- `ProducerPool` holds a producer for each queue or topic that the application puts to. A plain
  queue has a `Producer`, a logical queue has a `ReplicaRouter`, and a topic has a `TopicProducer`.
- `SubscriptionSet` holds the open subscriptions. Each `Subscription` has one or more
  `RemoteConsumer`s. Every consumer has a number that is unique on this connection. The node names
  that number in each delivery.
- Each producer or subscription of a logical queue has a `QueueMembership`.
- `TemporaryQueues` holds the queues that the node deletes when a transport ends.

When the transport fails, the connection tries all nodes of the URL in turn. The first node that
answers gets the same client identity where possible. Then the client subscribes again, joins its
logical queues again, creates its temporary queues again, and resends unconfirmed batches. A batch
keeps its number, so the node stores a resent batch only once. A request that is safe to repeat is
sent again. A request that is not safe to repeat and has no answer raises `IoFailure`.

After `reconnect_s` without a node, all pending and new calls fail with `Unavailable`. The
connection keeps trying, and calls succeed again as soon as a node answers.

The calls that create, inspect and change queues need only the connection and the directory. They
are the base class `AdministrativeCalls`.

All methods run in the event loop in which the client was opened. No method is thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Literal, Unpack

from tidegate.client import tracing
from tidegate.client.address import (
    Credentials,
    find_credentials,
    parse_address,
    verifying_context,
)
from tidegate.client.catalogue import AdministrativeCalls, TemporaryQueues
from tidegate.client.connection import ClusterConnection, Transport
from tidegate.client.directory import QueueDirectory
from tidegate.client.message import (
    DEFAULT_MESSAGE_OPTIONS,
    Message,
    PutOptions,
    check_count,
    check_seconds,
    checked_options,
    checked_payload,
)
from tidegate.client.puts import ProducerHandle, ProducerPool, Transaction
from tidegate.client.reads import READ_LEASE_S, Reader, ReadRequest
from tidegate.client.subscription import Subscription, SubscriptionSet
from tidegate.core.errors import (
    InvalidValue,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NoReply,
    TidegateError,
    Unavailable,
)
from tidegate.core.model import PRIORITY_DEFAULT, ClientInfo, ClientMode, Order, QueuePolicy
from tidegate.core.topology import REPLICA_MARK
from tidegate.protocol.catalogue import DeleteClient, DeleteQueue, FindClient, FindClientResponse
from tidegate.protocol.connection import MESSAGE_BYTES_MAX
from tidegate.protocol.messages import (
    ConsumerEnded,
    Deliver,
    PrefetchChanged,
    PutToQueues,
    PutToQueuesResponse,
)
from tidegate.protocol.packet import Packet, Ping

MODES = {
    "read-only": ClientMode.READ_ONLY,
    "read-write": ClientMode.READ_WRITE,
    "admin": ClientMode.ADMIN,
}
ORDERS = {"oldest": Order.OLDEST, "priority": Order.PRIORITY}
ModeName = Literal["read-only", "read-write", "admin"]
OrderName = Literal["oldest", "priority"]

# How long `close` waits for messages of `put_soon`, in seconds.
_FLUSH_S = 5.0
_REFRESH_S = 10.0


class Client(AdministrativeCalls):
    """The asynchronous client. Open one with `async with tidegate.connect(url) as mq`.

    All methods must be called in the event loop that opened the client. Calls wait up to
    `reconnect_s` seconds for a connection, then raise `Unavailable`.
    """

    engine_name = "tidegate"

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        client_id: int | None = None,
        mode: ModeName = "read-write",
        reconnect_s: float = 60.0,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if mode not in MODES:
            raise InvalidValue(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        address = parse_address(url)
        connection = ClusterConnection(
            address.nodes,
            credentials=credentials or find_credentials(address.user, address.password, None),
            tls=tls or (verifying_context() if address.tls else None),
            name=name,
            client_id=client_id,
            mode=MODES[mode],
            reconnect_s=reconnect_s,
            listener=self,
        )
        queues = QueueDirectory(connection)
        self._producers = ProducerPool(connection, queues)
        self._subscriptions = SubscriptionSet()
        self._reader = Reader(connection, queues)
        super().__init__(
            connection,
            queues,
            TemporaryQueues(connection, queues, self._producers, self._subscriptions),
        )
        self._client_ids: dict[str, int] = {}
        # Puts of `put_soon` without an answer, and the errors of others.
        self._soon: set[asyncio.Future[int]] = set()
        self._soon_failures: list[BaseException] = []
        # Wrap the instance's method only if the application traces, so that untraced puts cost
        # nothing extra.
        if (traced_put := tracing.traced_put(self.put)) is not None:
            self.put = traced_put  # type: ignore[method-assign,assignment]
        if (traced := tracing.traced_put(self.publish, answers_id=False)) is not None:
            self.publish = traced  # type: ignore[method-assign,assignment]

    # Opening and closing

    async def open(self) -> Client:
        await self._connection.open()
        self._connection.spawn(self._refresh_plain_queues())
        return self

    async def _refresh_plain_queues(self) -> None:
        """Check regularly whether plain queues with a producer have become logical queues."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            with contextlib.suppress(TidegateError):
                await self._producers.find_logical_queues()

    async def close(self) -> None:
        """Wait up to 5 seconds for messages of `put_soon`, then disconnect.

        Unconfirmed puts fail with `Unavailable`. A second call does nothing.
        """
        if self._connection.closed:
            return
        if self.transport is not None and self.transport.alive:
            with contextlib.suppress(TimeoutError, TidegateError):
                await asyncio.wait_for(self.flush(), _FLUSH_S)
        self._producers.fail(Unavailable("the client was closed"))
        await self._connection.close()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # Events of the connection

    def on_push(self, packet: Packet, body: memoryview) -> None:
        if isinstance(packet, Deliver):
            consumer = self._subscriptions.consumers.get(packet.consumer)
            if consumer is not None:
                consumer.delivered(packet, body)
        elif isinstance(packet, ConsumerEnded | PrefetchChanged):
            self._subscriptions.on_push(packet)
        else:
            self._queues.on_push(packet)

    def on_resumed(self) -> None:
        self._subscriptions.resubscribe(self._temporary_queues)
        self._temporary_queues.resume()
        self._producers.flush()

    def on_outage(self, error: TidegateError) -> None:
        self._producers.fail(error)
        self._subscriptions.fail(error)

    @property
    def transport(self) -> Transport | None:
        """The current transport; `None` while disconnected."""
        return self._connection.transport

    @property
    def reconnect_s(self) -> float:
        """Seconds for which calls wait for a connection."""
        return self._connection.reconnect_s

    @property
    def outage(self) -> TidegateError | None:
        """The error with which calls fail at once; `None` in normal operation.

        It is set when the client is closed, has had no node for `reconnect_s` seconds, or was
        rejected by a node.
        """
        return self._connection.outage

    @property
    def generation(self) -> int:
        """The number of the current connection; it grows by one with every reconnect."""
        return self._connection.generation

    async def connected(self) -> Transport:
        """Return the current transport, and wait for one if necessary."""
        return await self._connection.connected()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task that is cancelled when the client closes."""
        return self._connection.spawn(work)

    # Identity

    @property
    def info(self) -> ClientInfo:
        """The client's registration at the nodes; `InvalidValue` before it is opened."""
        return self._connection.identity()

    @property
    def client_id(self) -> int:
        return self.info.client_id

    @property
    def client_name(self) -> str:
        return self.info.name

    @property
    def mode(self) -> str:
        return {mode: name for name, mode in MODES.items()}[self.info.mode]

    async def _client_id(self, client: str | int) -> int:
        if isinstance(client, int):
            return client
        known = self._client_ids.get(client)
        if known is None:
            packet = (await self._connection.request(FindClient(client))).packet
            assert isinstance(packet, FindClientResponse)
            known = self._client_ids[client] = packet.client_id
        return known

    async def client_id_of(self, name: str) -> int:
        """Return the id of a client by name.

        A name that no client has yet is reserved. Messages to its id wait for the client that
        registers under this name.
        """
        return await self._client_id(name)

    async def ping(self) -> float:
        """Return the round-trip time to the connected node, in seconds."""
        transport = await self.connected()
        started = time.perf_counter()
        await transport.request(Ping())
        return time.perf_counter() - started

    async def delete_client(self, client: str | int | None = None) -> None:
        """Delete a registered client.

        Args:
            client: the id or name of the client. `None` means this client. Another client needs
                admin mode.

        Raises:
            ClientNotExisting: no client has that id or name.
            IoFailure: the connection broke before the answer came; the client may have been
                deleted.
        """
        target = self.client_id if client is None else await self._client_id(client)
        await self._connection.request(DeleteClient(target), repeatable=False)

    # Queues

    async def delete_queue(self, queue: str | int) -> None:
        """Delete a queue and its messages; raise `QueueNotExisting` if there is none."""
        queue_id = await self._queues.id_of(queue)
        await self._connection.request(DeleteQueue(queue_id), repeatable=False)
        self._queues.forget_id(queue_id)
        self._producers.forget_id(queue_id)

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """Do nothing, since nodes store the policies of queues; `set_policy` changes one.

        The method exists because workers call it on every engine.
        """

    # Putting

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> asyncio.Future[int]:
        """Put a message, and return a future of its id.

        Await the future: it is done once the message is on disk. If the future is not awaited, the
        message is sent all the same.

        Args:
            queue: the name of the queue.
            payload: the message body, as bytes.
            options: see `PutOptions`.

        Returns:
            A future of the message id. Id 0 means that the message is stored but its id is not
            known here: it was stored before the connection broke, or by an earlier put with the
            same dedup id.

        Raises:
            InvalidValue, TypeError, TooLarge: a bad argument; raised at the call.
            Unavailable: the client is closed or has been without a node for too long; raised at the
                call.

        The future fails with `QueueNotExisting`, `Forbidden`, `LimitReached` or another
        `TidegateError` if the message was not stored. `IoFailure` means that it is not known
        whether it was stored.
        """
        producer = self._producers.by_queue.get(queue)
        if producer is None or self._connection.outage is not None:
            producer = self._producers.get(queue)
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = checked_payload(payload)
        if not options:
            return producer.add(payload)
        special = checked_options(options)
        return (
            producer.add(payload)
            if special == DEFAULT_MESSAGE_OPTIONS
            else producer.add_with_options(payload, special)
        )

    def put_soon(
        self, queue: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Put a message without awaiting it; `flush()` waits for it and raises its error."""
        future = self.put(queue, payload, **options)
        self._soon.add(future)
        future.add_done_callback(self._soon_done)
        return future

    def _soon_done(self, future: asyncio.Future[int]) -> None:
        self._soon.discard(future)
        if not future.cancelled() and (failure := future.exception()) is not None:
            self._soon_failures.append(failure)

    async def flush(self) -> None:
        """Wait until every message of `put_soon` is confirmed, and raise the first error."""
        while self._soon:
            await asyncio.wait(set(self._soon))
        if self._soon_failures:
            failures, self._soon_failures = self._soon_failures, []
            raise failures[0]

    async def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages in as few batches as possible; return their ids once all are on disk.

        Faster than single puts. All messages have the same priority and no other options. If one
        batch fails, the call raises, and the messages of other batches may be stored. A bad
        argument raises before anything is sent.
        """
        chosen = [
            payload
            if type(payload) is bytes and len(payload) <= MESSAGE_BYTES_MAX
            else checked_payload(payload)
            for payload in payloads
        ]
        if not chosen:
            return []
        checked_options({"priority": priority})
        producer = self._producers.get(queue)
        ids: list[int] = []
        with tracing.publishing(queue, count=len(chosen)):
            for answer in await producer.add_many(chosen, priority):
                ids += answer
        return ids

    async def put_each(self, queue: str, messages: Iterable[tuple[bytes, PutOptions]]) -> list[int]:
        """Put many messages, each with its own options; return their ids once all are on disk."""
        puts = [self.put(queue, payload, **options) for payload, options in messages]
        return await asyncio.gather(*puts)

    async def put_to(
        self,
        queues: Iterable[str | int],
        payload: bytes,
        *,
        partial: bool = False,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> list[str]:
        """Put one message into several queues, in one transaction; return the names of the queues.

        Args:
            queues: names or ids; duplicates count once.
            partial: `False` stores the message in all queues or in none. `True` stores it in the
                queues that accept it.

        The other arguments are the options of `put` with the same names.

        Raises:
            InvalidValue: no queue is given.
            TidegateError: without `partial`, any queue cannot be looked up or refuses the message.
        """
        if isinstance(queues, str):
            raise InvalidValue(f"put_to takes a list of queues: [{queues!r}]")
        names = list(dict.fromkeys(queues))
        if not names:
            raise InvalidValue("name at least one queue")
        options: PutOptions = {
            "receiver": receiver,
            "context": context,
            "priority": priority,
            "content_type": content_type,
            "headers": headers,
        }
        checked_options(options)
        by_id: dict[int, str] = {}
        for name in names:
            try:
                by_id[await self._queues.id_of(name)] = str(name)
            except TidegateError:
                if not partial:
                    raise
        if not by_id:
            return []
        with tracing.publishing(", ".join(by_id.values()), headers) as options["headers"]:
            packet = PutToQueues(
                list(by_id),
                # A producer id of its own, so that the node recognises a resend and nothing else.
                secrets.randbits(62) + 1,
                1,
                priority,
                partial,
                receiver,
                context,
                checked_options(options).attributes,
            )
            # The batch number stays the same, so the request may be repeated.
            answered = await self._connection.request(packet, [checked_payload(payload)])
        assert isinstance(answered.packet, PutToQueuesResponse)
        return [by_id[queue_id] for queue_id in answered.packet.queue_ids]

    def publish(
        self, topic: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Publish a message to all matching subscriptions, and return a future.

        Await the future: it is done once the message is on disk in all of them. Its result is the
        number of subscriptions. The options and errors are those of `put`.
        """
        producer = self._producers.topic(topic)
        payload = checked_payload(payload)
        special = checked_options(options)
        return (
            producer.add(payload)
            if special == DEFAULT_MESSAGE_OPTIONS
            else producer.add_with_options(payload, special)
        )

    async def publish_many(
        self, topic: str, payloads: Iterable[bytes], **options: Unpack[PutOptions]
    ) -> list[int]:
        """Publish many messages with the same options; return each one's subscription count."""
        return await asyncio.gather(
            *(self.publish(topic, payload, **options) for payload in payloads)
        )

    def producer(self, queue: str, *, replica: int | None = None) -> ProducerHandle:
        """Return a producer of its own for a queue: `async with mq.producer("orders") as orders`.

        Under the scaling policy "clients", a producer of a logical queue is assigned to one
        replica, and `replica` is the preferred one. Under the other policies its messages go to all
        replicas.
        """
        number = self._subscriptions.next_number()
        return ProducerHandle(self._producers, queue, number, wanted=replica)

    def transaction(self) -> Transaction:
        """Return a transaction, in which puts and acknowledgements succeed or fail together.

        Use it as `async with mq.transaction() as tx:`, and call its methods `put` and `ack` inside.
        The transaction commits at the end of the block. If the block raises, nothing is sent.
        """
        return Transaction(self, self._connection.reconnect_s)

    # Reading and consuming

    async def get(
        self,
        queue: str | int,
        *,
        order: OrderName = "oldest",
        sender: int | str | None = None,
        context: int | None = None,
        wait: float = 0.0,
        lease: float | None = None,
    ) -> Message:
        """Take one message: at once, or when one arrives within `wait` seconds.

        Args:
            order: "oldest" by arrival, "priority" strictly by priority.
            sender: only messages from this client, by id or name.
            context: only the reply with this context, addressed to this client.
            wait: seconds to wait; 0 returns at once.
            lease: seconds for which the caller holds the message and must settle it. `None`
                acknowledges the message on arrival.

        Without a lease the acknowledgement is not confirmed, so the message may come again if the
        connection breaks at that moment. If the call is cancelled, a message that arrives
        afterwards is returned to the queue.

        Raises:
            NoMessagesInQueue: the queue is empty.
            NoMessagesRetrieved: the queue is paused, or no message matches.
            QueueNotExisting: no queue has that name or id.
        """
        if order not in ORDERS:
            raise InvalidValue(f"order is one of {', '.join(ORDERS)}, not {order!r}")
        check_seconds("wait", wait, at_least=0.0)
        if lease is not None:
            check_seconds("lease", lease, at_least=0.001)
        # A known id needs no call.
        queue_id = self._queues.ids.get(queue) or await self._queues.id_of(queue)
        sender_id = None if sender is None else await self._client_id(sender)
        lease_ms = int((READ_LEASE_S if lease is None else lease) * 1e3)
        request = ReadRequest(ORDERS[order], sender_id, context, lease_ms)
        return await self._reader.read(queue, queue_id, request, wait, is_held=lease is not None)

    async def request(
        self,
        queue: str,
        payload: bytes,
        *,
        receiver: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        timeout: float = 30.0,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Message:
        """Put a request and return its reply, which the other side sends with `reply()`.

        `receiver` is the id of the client that may read the request; `None` means any. The other
        options are those of `put`.

        Raises:
            NoReply: no reply came within `timeout` seconds. The request is still in the queue or
                being handled.
        """
        check_seconds("timeout", timeout, at_least=0.0)
        context = secrets.randbits(62)
        await self.put(
            queue,
            payload,
            receiver=receiver,
            context=context,
            priority=priority,
            content_type=content_type,
            headers=headers,
        )
        try:
            return await self.get(queue, context=context, wait=timeout)
        except (NoMessagesInQueue, NoMessagesRetrieved):
            raise NoReply(f"no reply in queue {queue!r} within {timeout:g} s") from None

    def reply(
        self,
        message: Message,
        payload: bytes,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> asyncio.Future[int]:
        """Send a reply to a request, into the same queue, addressed to the request's sender.

        Return a future as `put` does. A message without a context is no request and raises
        `InvalidValue`.
        """
        if message.context is None:
            raise InvalidValue("this message asks for no reply: it has no context")
        return self.put(
            message.queue,
            payload,
            receiver=message.sender,
            context=message.context,
            priority=message.priority,
            content_type=content_type,
            headers=headers,
        )

    def subscribe(
        self,
        queue: str | int,
        *,
        prefetch: int = 200,
        ack: Literal["explicit", "automatic"] = "explicit",
        order: OrderName = "priority",
        replica: int | None = None,
    ) -> Subscription:
        """Return a subscription, to which the node pushes messages.

        Use it with `async with`, then iterate. A subscription of a logical queue is assigned to a
        replica; `subscription.replica` is its number.

        Args:
            queue: name or id.
            prefetch: the most unacknowledged messages at a time, at least 1.
            ack: "explicit" means that the application settles each message. "automatic" means that
                the node considers a message acknowledged when it sends it, so a crash loses it.
            order: "priority" takes messages by priority and waiting time, "oldest" by arrival.
            replica: the preferred replica of a logical queue. The node may choose another one.

        If `replica` is `None` and the environment variable TIDEGATE_REPLICA names a replica of this
        queue, such as `orders#2`, the subscription uses only that replica.

        Raises `InvalidValue` for an invalid argument. An unknown queue raises `QueueNotExisting`
        when the subscription is entered.
        """
        if ack not in ("explicit", "automatic"):
            raise InvalidValue(f"ack is explicit or automatic, not {ack!r}")
        if order not in ORDERS:
            raise InvalidValue(f"order is one of {', '.join(ORDERS)}, not {order!r}")
        check_count("prefetch", prefetch)
        bound_to = bound_replica(str(queue)) if replica is None else None
        return Subscription(
            self._connection,
            self._queues,
            self._subscriptions,
            queue,
            prefetch,
            ORDERS[order],
            ack == "automatic",
            wanted=bound_to or replica,
            is_bound=bound_to is not None,
        )

    async def consume(
        self,
        queue: str,
        handler: Callable[[Message], Awaitable[Any]],
        *,
        prefetch: int = 200,
    ) -> None:
        """Call `handler` for each message of a queue until cancelled.

        A message is acknowledged when the handler returns, and returned to the queue as failed when
        the handler raises. Messages are handled one at a time.
        """
        async with self.subscribe(queue, prefetch=prefetch) as subscription:
            await subscription.run(handler)


# The replica to which this process is bound.
#
# A machine starts workers beside the replica they serve, with this environment variable:
#
#     TIDEGATE_REPLICA=orders#2


REPLICA_VARIABLE = "TIDEGATE_REPLICA"


def bound_replica(queue: str) -> int | None:
    """Return the replica number that the environment names for `queue`; `None` if none."""
    name = os.environ.get(REPLICA_VARIABLE, "")
    if not name:
        return None
    logical, mark, number = name.rpartition(REPLICA_MARK)
    if not mark or not logical or not number.isdigit():
        raise InvalidValue(f"{REPLICA_VARIABLE}={name!r} names no replica, such as orders#2")
    return int(number) if logical == queue else None
