"""The public asynchronous client.

Theory of operation. A `Client` has one `ClusterConnection`, which reconnects by itself. All other
parts of the client use it:

- Each queue or topic that the application puts to has a producer. A plain queue has a `Producer`, a
  logical queue has a `ReplicaRouter`, and a topic has a `TopicProducer`.
- Each `Subscription` has one or more `RemoteConsumer`s. Every consumer has a number that is unique
  on this connection. The node names that number in each delivery.
- Each producer or subscription of a logical queue has a `QueueMembership`.
- `TemporaryQueues` holds the queues that the node deletes when a transport ends.

When the transport fails, the connection tries all nodes of the URL in turn. The first node that
answers gets the same client identity where possible. Then the client subscribes again, joins its
logical queues again, creates its temporary queues again, and resends unconfirmed batches. A batch
keeps its number, so the node stores a resent batch only once. A request that is safe to repeat is
sent again. A request that is not safe to repeat and has no answer raises `IoFailure`.

After `reconnect_s` without a node, all pending and new calls fail with `Unavailable`. The
connection keeps trying, and calls succeed again as soon as a node answers.

All methods run in the event loop in which the client was opened. No method is thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Literal

from tidegate.client import tracing
from tidegate.client.address import Credentials, find_credentials, parse_address, verifying_context
from tidegate.client.catalogue import CatalogueCalls, LogicalQueueCalls, TemporaryQueues, TopicCalls
from tidegate.client.connection import ClusterConnection
from tidegate.client.consumer import RemoteConsumer
from tidegate.client.message import Message
from tidegate.client.options import check_count
from tidegate.client.reads import MODES, ORDERS, ModeName, OrderName, ReadCalls
from tidegate.client.subscription import Subscription
from tidegate.client.transaction import Transaction
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueueInfo, QueuePolicy
from tidegate.core.topology import REPLICA_MARK
from tidegate.protocol.catalogue import DeleteClient
from tidegate.protocol.cluster import JoinAgain, Migrated, TopologyChanged
from tidegate.protocol.messages import ConsumerEnded, Deliver, PrefetchChanged
from tidegate.protocol.packet import Packet, Ping

# How long `close` waits for messages of `put_soon`, in seconds.
_FLUSH_S = 5.0
_REFRESH_S = 10.0


class Client(CatalogueCalls, TopicCalls, ReadCalls, LogicalQueueCalls):
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
        lifeline = ClusterConnection(
            address.nodes,
            credentials=credentials or find_credentials(address.user, address.password, None),
            tls=tls or (verifying_context() if address.tls else None),
            name=name,
            client_id=client_id,
            mode=MODES[mode],
            reconnect_s=reconnect_s,
            on_push=self._pushed,
            on_resumed=self._resumed,
            on_gave_up=self._gave_up,
        )
        super().__init__(lifeline)
        self._temporary_queues = TemporaryQueues(self, lifeline)
        self._consumers = count(1)
        self._subscriptions: list[Subscription] = []
        # By consumer number, which every delivery names.
        self._legs: dict[int, RemoteConsumer] = {}
        # Wrap the instance's method only if the application traces, so that untraced puts cost
        # nothing extra.
        if (traced_put := tracing.traced_put(self.put)) is not None:
            self.put = traced_put  # type: ignore[method-assign,assignment]
        if (traced := tracing.traced_put(self.publish, answers_id=False)) is not None:
            self.publish = traced  # type: ignore[method-assign,assignment]

    # Opening and closing

    async def open(self) -> Client:
        await self._connection.open()
        self.spawn(self._refresh_plain_queues())
        return self

    async def _refresh_plain_queues(self) -> None:
        """Check regularly whether plain queues with a producer have become logical queues."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            with contextlib.suppress(TidegateError):
                await self.refresh_plain_queues()

    async def close(self) -> None:
        """Wait up to 5 seconds for messages of `put_soon`, then disconnect.

        Unconfirmed puts fail with `Unavailable`. A second call does nothing.
        """
        if self._connection.closed:
            return
        if self.link is not None and self.link.alive:
            with contextlib.suppress(TimeoutError, TidegateError):
                await asyncio.wait_for(self.flush(), _FLUSH_S)
        gone = Unavailable("the client was closed")
        for outbox in self._all_outboxes():
            outbox.fail(gone)
        await self._connection.close()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _resumed(self) -> None:
        for subscription in self._subscriptions:
            if subscription.queue not in self._temporary_queues:
                subscription.resubscribe()
        self._temporary_queues.resume()
        for outbox in self._all_outboxes():
            outbox.flush()

    def _gave_up(self, error: TidegateError) -> None:
        for outbox in self._all_outboxes():
            outbox.fail(error)
        for subscription in list(self._subscriptions):
            subscription.fail(error)

    def _pushed(self, packet: Packet, body: memoryview) -> None:
        if isinstance(packet, Deliver):
            consumer = self._legs.get(packet.consumer)
            if consumer is not None:
                consumer.delivered(packet, body)
        elif isinstance(packet, TopologyChanged):
            for membership in list(self._memberships):
                if membership.queue_id == packet.topology.queue_id:
                    membership.learn(packet.topology)
        elif isinstance(packet, Migrated):
            for membership in list(self._memberships):
                if membership.is_meant(packet):
                    membership.moved(packet.replica_id)
        elif isinstance(packet, JoinAgain):
            for membership in list(self._memberships):
                if membership.queue_id == packet.queue_id:
                    membership.join_again()
        elif isinstance(packet, ConsumerEnded):
            consumer = self._legs.get(packet.consumer)
            if consumer is not None:
                consumer.on_ended(packet)
        elif isinstance(packet, PrefetchChanged):
            consumer = self._legs.get(packet.consumer)
            if consumer is not None:
                consumer.prefetch_changed(packet.prefetch, packet.lasting)

    # Identity

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

    def _forget_queue(self, queue_id: int) -> None:
        super()._forget_queue(queue_id)
        self._outboxes = {n: o for n, o in self._outboxes.items() if o.queue_id != queue_id}

    def transaction(self) -> Transaction:
        """Return a transaction, in which puts and acknowledgements succeed or fail together.

        Use it as `async with mq.transaction() as tx:` and call `tx.put(queue, payload)` and
        `tx.ack(message)` inside. The transaction commits at the end of the block. If the block
        raises, nothing is sent.
        """
        return Transaction(self, self._connection.reconnect_s)

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """Do nothing, since nodes store the policies of queues; `set_policy` changes one.

        The method exists because workers call it on every engine.
        """

    # Temporary queues

    def on_guest_back(self, queue: QueueInfo) -> None:
        """Subscribe again to a temporary queue that was created again after a reconnect."""
        self.note_queue(queue)
        self._outboxes.pop(queue.name, None)
        for subscription in self._subscriptions:
            if subscription.queue == queue.name:
                subscription.resubscribe(queue.queue_id)

    def on_temporary_queue_lost(self, queue: str, error: TidegateError) -> None:
        """Fail the subscriptions of a temporary queue that could not be created again."""
        self._temporary_queues.remove(queue)
        for subscription in self._subscriptions:
            if subscription.queue == queue:
                subscription.fail(error)

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
            self,
            queue,
            self.next_consumer(),
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

    def add_subscription(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)

    def drop_subscription(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def next_consumer(self) -> int:
        """Return a consumer number that is not used on this connection."""
        return next(self._consumers)

    def add_leg(self, consumer: RemoteConsumer) -> None:
        self._legs[consumer.consumer] = consumer

    def has_leg(self, consumer: int) -> bool:
        return consumer in self._legs

    def drop_leg(self, consumer: RemoteConsumer) -> None:
        if self._legs.get(consumer.consumer) is consumer:
            del self._legs[consumer.consumer]


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
