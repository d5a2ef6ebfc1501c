"""What applications use: one connection to Tidegate that heals itself.

Calls wait for a connection; when it breaks, the client connects again (to any node the URL
names), identifies as before, subscribes again, and resends what was not confirmed. A call
whose outcome is unknown and that is not safe to repeat raises IoFailure.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Literal

from tidegate.client import tracing
from tidegate.client.address import parse_address
from tidegate.client.bound_replica import bound_replica
from tidegate.client.calls import MODES, ORDERS, ModeName, OrderName
from tidegate.client.catalogue import CatalogueCalls
from tidegate.client.checks import check_count
from tidegate.client.credentials import Credentials, find_credentials
from tidegate.client.guests import Guests
from tidegate.client.leg import Leg
from tidegate.client.lifeline import Lifeline
from tidegate.client.logical_queues import LogicalQueueCalls
from tidegate.client.message import Message
from tidegate.client.reads import ReadCalls
from tidegate.client.subscription import Subscription
from tidegate.client.tls import verifying_context
from tidegate.client.topic_calls import TopicCalls
from tidegate.client.transaction import Transaction
from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueueInfo, QueuePolicy
from tidegate.wire.packet import Packet, Ping
from tidegate.wire.packets.clients import DeleteClient
from tidegate.wire.packets.membership import JoinAgain, Migrated
from tidegate.wire.packets.prefetch import PrefetchChanged
from tidegate.wire.packets.subscriptions import ConsumerEnded, Deliver
from tidegate.wire.packets.topologies import TopologyChanged

# How long closing waits for what was put soon.
_FLUSH_S = 5.0
_LOOK_AGAIN_S = 10.0


class Client(CatalogueCalls, TopicCalls, ReadCalls, LogicalQueueCalls):
    """The asynchronous API. Get one from `async with tidegate.connect(url) as mq`."""

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
        lifeline = Lifeline(
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
        self._guests = Guests(self, lifeline)
        self._consumers = count(1)
        self._subscriptions: list[Subscription] = []
        # By the number under which the node delivers.
        self._legs: dict[int, Leg] = {}
        # Here and not in `put`: puts that nobody traces know nothing of it.
        if (traced_put := tracing.traced_put(self.put)) is not None:
            self.put = traced_put  # type: ignore[method-assign,assignment]
        if (traced := tracing.traced_put(self.publish, answers_id=False)) is not None:
            self.publish = traced  # type: ignore[method-assign,assignment]

    # Life

    async def open(self) -> Client:
        await self._lifeline.open()
        self.spawn(self._look_around())
        return self

    async def _look_around(self) -> None:
        """Once in a while, see whether queues that we put to have become logical ones."""
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            with contextlib.suppress(TidegateError):
                await self.look_again()

    async def close(self) -> None:
        """Send what waits, then hang up."""
        if self._lifeline.closed:
            return
        if self.link is not None and self.link.alive:
            with contextlib.suppress(TimeoutError, TidegateError):
                await asyncio.wait_for(self.flush(), _FLUSH_S)
        gone = Unavailable("the client was closed")
        for outbox in self._all_outboxes():
            outbox.fail(gone)
        await self._lifeline.close()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _resumed(self) -> None:
        for subscription in self._subscriptions:
            if subscription.queue not in self._guests:
                subscription.resubscribe()
        self._guests.resume()
        for outbox in self._all_outboxes():
            outbox.flush()

    def _gave_up(self, error: TidegateError) -> None:
        for outbox in self._all_outboxes():
            outbox.fail(error)
        for subscription in list(self._subscriptions):
            subscription.fail(error)

    def _pushed(self, packet: Packet, body: memoryview) -> None:
        if isinstance(packet, Deliver):
            leg = self._legs.get(packet.consumer)
            if leg is not None:
                leg.delivered(packet, body)
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
            leg = self._legs.get(packet.consumer)
            if leg is not None:
                leg.ended(packet)
        elif isinstance(packet, PrefetchChanged):
            leg = self._legs.get(packet.consumer)
            if leg is not None:
                leg.prefetch_changed(packet.prefetch, packet.lasting)

    # Who we are

    async def ping(self) -> float:
        """The round trip to the node, in seconds."""
        link = await self.connected()
        started = time.perf_counter()
        await link.ask(Ping())
        return time.perf_counter() - started

    async def delete_client(self, client: str | int | None = None) -> None:
        """Delete a client: this one, or as admin another."""
        target = self.client_id if client is None else await self._client_id(client)
        await self._lifeline.ask(DeleteClient(target), repeatable=False)

    def _forget_queue(self, queue_id: int) -> None:
        super()._forget_queue(queue_id)
        self._outboxes = {n: o for n, o in self._outboxes.items() if o.queue_id != queue_id}

    def transaction(self) -> Transaction:
        """Puts and acknowledgements across queues that are done together, or not at all.

        `async with mq.transaction() as tx:`, and in it `tx.put(queue, payload)` and
        `tx.ack(message)`; they are done when the block ends without an exception.
        """
        return Transaction(self, self._lifeline.reconnect_s)

    def adopt_policy(self, queue: str, policy: QueuePolicy | None) -> None:
        """Nothing: nodes keep the policies of their queues, `set_policy` changes them."""

    # Queues that come and go with the connection

    def on_guest_back(self, queue: QueueInfo) -> None:
        """A queue that went with our former connection was made anew."""
        self.note_queue(queue)
        self._outboxes.pop(queue.name, None)
        for subscription in self._subscriptions:
            if subscription.queue == queue.name:
                subscription.resubscribe(queue.queue_id)

    def on_guest_lost(self, queue: str, error: TidegateError) -> None:
        """It was not, and will not be."""
        self._guests.forget(queue)
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
        """Have messages pushed, at most `prefetch` of them unacknowledged.

        Of a logical queue it is elected onto a replica, and says which; `replica` is a wish. A
        process with TIDEGATE_REPLICA=orders#2 in its environment is at that one, or nowhere.
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
        """Call `handler` for each message until cancelled.

        Acknowledged when it returns, given back when it raises.
        """
        async with self.subscribe(queue, prefetch=prefetch) as subscription:
            await subscription.run(handler)

    def add_subscription(self, subscription: Subscription) -> None:
        self._subscriptions.append(subscription)

    def drop_subscription(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)

    def next_consumer(self) -> int:
        """A number that nothing else on this connection has."""
        return next(self._consumers)

    def add_leg(self, leg: Leg) -> None:
        self._legs[leg.consumer] = leg

    def has_leg(self, consumer: int) -> bool:
        return consumer in self._legs

    def drop_leg(self, leg: Leg) -> None:
        if self._legs.get(leg.consumer) is leg:
            del self._legs[leg.consumer]
