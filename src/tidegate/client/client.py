"""What applications use: one connection to Tidegate that heals itself.

Calls wait for a connection; when it breaks, the client connects again (to any node the URL
names), identifies as before, subscribes again, and resends what was not confirmed. A call
whose outcome is unknown and that is not safe to repeat raises IoFailure.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from itertools import count
from typing import Any, Literal

import msgspec

from tidegate.client.address import parse_url
from tidegate.client.link import Answered, Link
from tidegate.client.message import Message, batches_of
from tidegate.client.outbox import Outbox, Special
from tidegate.client.subscription import Subscription
from tidegate.core.errors import (
    ClientNameNotUnique,
    InvalidValue,
    IoFailure,
    LeaseLost,
    NoActiveQueues,
    NoQueues,
    NotOwner,
    QueueNameNotUnique,
    RetryLater,
    StaleEpoch,
    TidegateError,
    TooLarge,
    Unavailable,
)
from tidegate.core.model import (
    PRIORITY_DEFAULT,
    PRIORITY_HIGHEST,
    PRIORITY_LOWEST,
    Attributes,
    ClientInfo,
    Mode,
    Order,
    QueueInfo,
)
from tidegate.telemetry.numbers import ClusterNumbers
from tidegate.wire import packets as w
from tidegate.wire.connection import MESSAGE_BYTES_MAX

MODES = {"read-only": Mode.READ_ONLY, "read-write": Mode.READ_WRITE, "admin": Mode.ADMIN}
ORDERS = {"oldest": Order.OLDEST, "priority": Order.PRIORITY}
ModeName = Literal["read-only", "read-write", "admin"]
OrderName = Literal["oldest", "priority"]

_CONNECT_S = 5.0
_HEARTBEAT_S = 10.0
_NOT_YET = (Unavailable, NotOwner, StaleEpoch)


class Client:
    """The asynchronous API. Get one from `async with tidegate.connect(url) as mq`."""

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        client_id: int | None = None,
        mode: ModeName = "read-write",
        reconnect_s: float = 60.0,
    ) -> None:
        if mode not in MODES:
            raise InvalidValue(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        self._nodes = parse_url(url)
        self._name = name
        self._wanted_id = client_id
        self._mode = MODES[mode]
        self._reconnect_s = reconnect_s
        self.link: Link | None = None
        self.info: ClientInfo | None = None
        self._broadcaster = secrets.randbits(62) + 1
        self._broadcasts = count(1)
        self._consumers = count(1)
        self._outboxes: dict[str, Outbox] = {}
        self._queue_ids: dict[str, int] = {}
        self._client_ids: dict[str, int] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._generation = 0
        self._connected: asyncio.Future[Link] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._heartbeat: asyncio.Task[None] | None = None
        self._soon: set[asyncio.Future[int]] = set()
        self._soon_failures: list[BaseException] = []

    # Life

    async def open(self) -> Client:
        self._connected = asyncio.get_running_loop().create_future()
        failures = []
        for host, port in self._nodes:
            try:
                await self._connect(host, port)
                break
            except Unavailable as failure:
                failures.append(str(failure))
        else:
            raise Unavailable("; ".join(failures))
        self._heartbeat = self.spawn(self._beat())
        return self

    async def close(self) -> None:
        """Send what waits, then hang up."""
        if self._closed:
            return
        if self.link is not None and self.link.alive:
            with contextlib.suppress(TimeoutError, TidegateError):
                await asyncio.wait_for(self.flush(), 5.0)
        self._closed = True
        if self.link is not None:
            self.link.close()
        gone = Unavailable("the client was closed")
        for outbox in list(self._outboxes.values()):
            outbox.fail(gone)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # Let the transport close before the loop may end.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, host: str, port: int) -> None:
        link = await Link.open(host, port, self._pushed, self._lost, _CONNECT_S)
        try:
            self.info = await asyncio.wait_for(self._identify(link), _CONNECT_S)
        except TimeoutError:
            link.abort()
            raise Unavailable(f"the node at {host}:{port} does not answer") from None
        except TidegateError:
            link.abort()
            raise
        self.link = link
        self._generation += 1
        assert self._connected is not None
        if not self._connected.done():
            self._connected.set_result(link)

    async def _identify(self, link: Link) -> ClientInfo:
        """Become who we are: the client of that id or name; a new one if there is none."""
        known = self._wanted_id if self.info is None else self.info.client_id
        if known is not None:
            try:
                return _client_of(await link.ask(w.IdentifyClient(client_id=known)))
            except TidegateError:
                if self._name is not None or self._wanted_id is not None:
                    raise
                # A client without a name of its own went with its connection.
        if self._name is None:
            name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
            return _client_of(await link.ask(w.RegisterClient(name, self._mode, True)))
        try:
            return _client_of(await link.ask(w.RegisterClient(self._name, self._mode)))
        except ClientNameNotUnique:
            client = _client_of(await link.ask(w.IdentifyClient(name=self._name)))
            if client.mode != self._mode:
                raise InvalidValue(
                    f"client {self._name!r} is registered as {client.mode.name.lower()}, not "
                    f"{self._mode.name.lower()}: delete it first, or choose another name"
                ) from None
            return client

    def _lost(self, link: Link) -> None:
        if link is not self.link or self._closed:
            return
        self.link = None
        self._connected = asyncio.get_running_loop().create_future()
        # Nobody may be waiting for it when it fails.
        self._connected.add_done_callback(lambda f: f.cancelled() or f.exception())
        self.spawn(self._reconnect())

    async def _reconnect(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._reconnect_s
        backoff_s = 0.02
        failure: TidegateError = Unavailable("the connection was lost")
        while loop.time() < deadline and not self._closed:
            for host, port in self._nodes:
                try:
                    await self._connect(host, port)
                except RetryLater as error:
                    failure = error
                    continue
                except TidegateError as error:
                    self._gave_up(error)
                    return
                self._resume()
                return
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 2, 1.0)
        self._gave_up(Unavailable(f"no connection for {self._reconnect_s:.0f} seconds: {failure}"))

    def _resume(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.resubscribe()
        for outbox in self._outboxes.values():
            outbox.flush()

    def _gave_up(self, error: TidegateError) -> None:
        assert self._connected is not None
        if not self._connected.done():
            self._connected.set_exception(error)
        for outbox in list(self._outboxes.values()):
            outbox.fail(error)
        for subscription in list(self._subscriptions.values()):
            subscription._fail(error)

    async def connected(self) -> Link:
        """The link, when there is one."""
        if self._closed:
            raise Unavailable("the client is closed")
        link = self.link
        if link is not None and link.alive:
            return link
        if self._connected is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        if self._connected.done() and not self._connected.cancelled():
            self._connected.result()  # raises when we gave up
            await asyncio.sleep(0)
        return await asyncio.shield(self._connected)

    async def _beat(self) -> None:
        """Ping when idle; hang up when nothing was heard for three beats."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            link = self.link
            if link is None or not link.alive:
                continue
            if loop.time() - link.heard_at > 3 * _HEARTBEAT_S:
                link.abort()
                continue
            link.submit(w.Ping(), None, lambda answer, body: None)

    def _pushed(self, packet: w.Packet, body: memoryview) -> None:
        subscription = self._subscriptions.get(packet.consumer)  # type: ignore[attr-defined]
        if subscription is None:
            return
        if isinstance(packet, w.Deliver):
            subscription.delivered(packet, body)
        elif isinstance(packet, w.ConsumerEnded):
            subscription.ended(packet)
        elif isinstance(packet, w.PrefetchChanged):
            subscription.prefetch_changed(packet.prefetch)

    async def _ask(
        self,
        packet: w.Packet,
        bodies: list[memoryview | bytes] | None = None,
        *,
        repeatable: bool = True,
    ) -> Answered:
        """Ask until there is an answer; what must not be repeated is asked once."""
        backoff_s = 0.02
        deadline = asyncio.get_running_loop().time() + self._reconnect_s
        while True:
            link = await self.connected()
            try:
                return await link.ask(packet, bodies)
            except IoFailure:
                if not repeatable:
                    raise
            except _NOT_YET:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, 0.5)

    # Who we are

    def _known(self) -> ClientInfo:
        if self.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        return self.info

    @property
    def client_id(self) -> int:
        return self._known().client_id

    @property
    def client_name(self) -> str:
        return self._known().name

    @property
    def mode(self) -> str:
        return {mode: name for name, mode in MODES.items()}[self._known().mode]

    async def ping(self) -> float:
        """The round trip to the node, in seconds."""
        link = await self.connected()
        started = time.perf_counter()
        await link.ask(w.Ping())
        return time.perf_counter() - started

    async def delete_client(self, client: str | int | None = None) -> None:
        """Delete a client: this one, or as admin another."""
        target = self.client_id if client is None else await self._client_id(client)
        await self._ask(w.DeleteClient(target), repeatable=False)

    async def _client_id(self, client: str | int) -> int:
        if isinstance(client, int):
            return client
        known = self._client_ids.get(client)
        if known is None:
            packet = (await self._ask(w.FindClient(client))).packet
            assert isinstance(packet, w.FindClientResponse)
            known = self._client_ids[client] = packet.client_id
        return known

    async def client_id_of(self, name: str) -> int:
        """The id that goes with a name; a name nobody has yet is reserved for who comes."""
        return await self._client_id(name)

    # Queues

    async def queue_id(self, queue: str | int) -> int:
        if isinstance(queue, int):
            return queue
        known = self._queue_ids.get(queue)
        if known is None:
            known = (await self.queue(queue)).queue_id
        return known

    async def create_queue(
        self, name: str, *, durable: bool = True, exist_ok: bool = False
    ) -> QueueInfo:
        """Create a queue. A transient one (`durable=False`) lives in memory only."""
        try:
            packet = (await self._ask(w.CreateQueue(name, durable), repeatable=exist_ok)).packet
        except QueueNameNotUnique:
            if not exist_ok:
                raise
            return await self.queue(name)
        assert isinstance(packet, w.CreateQueueResponse)
        self._queue_ids[name] = packet.queue.queue_id
        return packet.queue

    async def delete_queue(self, queue: str | int) -> None:
        """Delete a queue and everything in it."""
        queue_id = await self.queue_id(queue)
        await self._ask(w.DeleteQueue(queue_id), repeatable=False)
        self._forget_queue(queue_id)

    def _forget_queue(self, queue_id: int) -> None:
        self._queue_ids = {n: q for n, q in self._queue_ids.items() if q != queue_id}
        self._outboxes = {n: o for n, o in self._outboxes.items() if o.queue_id != queue_id}

    async def queue(self, queue: str | int) -> QueueInfo:
        """Find a queue by name or id."""
        if isinstance(queue, int):
            packet = (await self._ask(w.GetQueueName(queue))).packet
            assert isinstance(packet, w.GetQueueNameResponse)
            return packet.queue
        packet = (await self._ask(w.GetQueueId(queue))).packet
        assert isinstance(packet, w.GetQueueIdResponse)
        self._queue_ids[queue] = packet.queue.queue_id
        return packet.queue

    async def queues(self) -> list[QueueInfo]:
        """All queues; an empty list when there are none."""
        try:
            packet = (await self._ask(w.GetQueues())).packet
        except NoQueues:
            return []
        assert isinstance(packet, w.GetQueuesResponse)
        return packet.queues

    async def active_queues(self) -> list[QueueInfo]:
        """Queues that hold a message for this client."""
        try:
            packet = (await self._ask(w.GetActiveQueues())).packet
        except NoActiveQueues:
            return []
        assert isinstance(packet, w.GetActiveQueuesResponse)
        return packet.queues

    async def browse(self, queue: str | int, *, limit: int = 100) -> list[Message]:
        """Look at waiting messages without taking them."""
        answered = await self._ask(w.GetMessages(await self.queue_id(queue), limit))
        assert isinstance(answered.packet, w.GetMessagesResponse)
        holder = _Reading(self, str(queue), 0)
        batches = batches_of(answered.packet.runs, answered.body, holder, self._generation)
        return [message for batch in batches for message in batch]

    async def purge(self, queue: str | int) -> int:
        """Drop every waiting message; how many there were."""
        packet = (await self._ask(w.PurgeQueue(await self.queue_id(queue)))).packet
        assert isinstance(packet, w.PurgeQueueResponse)
        return packet.count

    # Putting

    def put(
        self,
        queue: str,
        payload: bytes,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> asyncio.Future[int]:
        """Put a message. Await it: it returns the message's id once the message is on disk.

        An id of 0 says that the message was stored before the connection broke, and its id
        is not known here.
        """
        outbox = self._outboxes.get(queue)
        if outbox is None:
            outbox = self._new_outbox(queue)
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = _checked(payload)
        if (
            receiver is None
            and context is None
            and priority == PRIORITY_DEFAULT
            and content_type is None
            and headers is None
        ):
            return outbox.add(payload)
        return outbox.add_special(
            payload, _special(receiver, context, priority, content_type, headers)
        )

    def put_soon(
        self,
        queue: str,
        payload: bytes,
        *,
        receiver: int | None = None,
        context: int | None = None,
        priority: int = PRIORITY_DEFAULT,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> asyncio.Future[int]:
        """Put without waiting; `flush()` waits for all, and raises what went wrong."""
        future = self.put(
            queue,
            payload,
            receiver=receiver,
            context=context,
            priority=priority,
            content_type=content_type,
            headers=headers,
        )
        self._soon.add(future)
        future.add_done_callback(self._soon_done)
        return future

    def _soon_done(self, future: asyncio.Future[int]) -> None:
        self._soon.discard(future)
        if not future.cancelled() and (failure := future.exception()) is not None:
            self._soon_failures.append(failure)

    async def flush(self) -> None:
        """Wait until everything put soon is confirmed."""
        while self._soon:
            await asyncio.wait(set(self._soon))
        if self._soon_failures:
            failures, self._soon_failures = self._soon_failures, []
            raise failures[0]

    async def put_many(
        self, queue: str, payloads: Iterable[bytes], *, priority: int = PRIORITY_DEFAULT
    ) -> list[int]:
        """Put many messages in as few batches as possible; their ids once all are on disk."""
        chosen = [payload if type(payload) is bytes else _checked(payload) for payload in payloads]
        if not chosen:
            return []
        _special(None, None, priority, None, None)
        outbox = self._outboxes.get(queue)
        if outbox is None:
            outbox = self._new_outbox(queue)
        ids: list[int] = []
        for answer in await outbox.add_many(chosen, priority):
            ids += answer
        return ids

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
        """Put one message into several queues: all or none, or with `partial` those that can.

        The names of the queues that took it.
        """
        names = list(dict.fromkeys(queues))
        if not names:
            raise InvalidValue("name at least one queue")
        _, _, _, attributes = _special(receiver, context, priority, content_type, headers)
        by_id: dict[int, str] = {}
        for name in names:
            try:
                by_id[await self.queue_id(name)] = str(name)
            except TidegateError:
                if not partial:
                    raise
        if not by_id:
            return []
        packet = w.PutToQueues(
            list(by_id),
            self._broadcaster,
            next(self._broadcasts),
            priority,
            partial,
            receiver,
            context,
            attributes,
        )
        # The same batch number each time, so repeating it is safe.
        answered = await self._ask(packet, [_checked(payload)])
        assert isinstance(answered.packet, w.PutToQueuesResponse)
        return [by_id[queue_id] for queue_id in answered.packet.queue_ids]

    def _new_outbox(self, queue: str) -> Outbox:
        if self._closed:
            raise Unavailable("the client is closed")
        if not isinstance(queue, str) or not queue:
            raise InvalidValue(f"a queue is named by a string that is not empty, not {queue!r}")
        if self.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        outbox = self._outboxes[queue] = Outbox(self, queue)
        outbox.queue_id = self._queue_ids.get(queue)
        return outbox

    def forget_outbox(self, outbox: Outbox, error: TidegateError) -> None:
        """A queue may have been deleted and made anew: look its id up again next time."""
        if not outbox.unconfirmed and self._outboxes.get(outbox.queue) is outbox:
            del self._outboxes[outbox.queue]
            self._queue_ids.pop(outbox.queue, None)

    # Taking

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
        """Take one message, at once or when one comes within `wait` seconds.

        It is thereby acknowledged, unless a `lease` in seconds is asked for.
        """
        if order not in ORDERS:
            raise InvalidValue(f"order is one of {', '.join(ORDERS)}, not {order!r}")
        if wait < 0 or (lease is not None and lease <= 0):
            raise InvalidValue("wait must not be negative, and a lease must be positive")
        queue_id = await self.queue_id(queue)
        lease_ms = None if lease is None else max(int(lease * 1e3), 1)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            wait_ms = max(int((deadline - loop.time()) * 1e3), 0)
            packet: w.Request
            if context is not None:
                packet = w.ReadResponse(queue_id, context, wait_ms, lease_ms)
            else:
                sender_id = None if sender is None else await self._client_id(sender)
                packet = w.ReadMessage(queue_id, ORDERS[order], sender_id, wait_ms, lease_ms)
            link = await self.connected()
            try:
                answered = await link.ask(packet)
                break
            except (*_NOT_YET, IoFailure):
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.02)
        run = answered.packet.run  # type: ignore[attr-defined]
        holder = _Reading(self, str(queue), queue_id)
        if lease is None:
            run.tag = 0
        return batches_of([run], answered.body, holder, self._generation)[0][0]

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
        """Put a request and wait for its reply, which `reply()` on the other side sends."""
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
        return await self.get(queue, context=context, wait=timeout)

    def reply(
        self,
        message: Message,
        payload: bytes,
        *,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> asyncio.Future[int]:
        """Answer a request, into the queue it came from, for its sender only."""
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
    ) -> Subscription:
        """Have messages pushed, at most `prefetch` of them unacknowledged."""
        if ack not in ("explicit", "automatic"):
            raise InvalidValue(f"ack is explicit or automatic, not {ack!r}")
        if order not in ORDERS:
            raise InvalidValue(f"order is one of {', '.join(ORDERS)}, not {order!r}")
        if not isinstance(prefetch, int) or prefetch < 1:
            raise InvalidValue(f"prefetch must be a whole number from 1, not {prefetch!r}")
        return Subscription(
            self, str(queue), next(self._consumers), prefetch, ORDERS[order], ack == "automatic"
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
        self._subscriptions[subscription.consumer] = subscription

    def drop_subscription(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription.consumer, None)

    # Looking and steering

    async def stats(self, queue: str | int | None = None) -> ClusterNumbers:
        """Live numbers of all nodes, or of one queue."""
        queue_id = None if queue is None else await self.queue_id(queue)
        answered = await self._ask(w.Stats(queue_id))
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def node_stats(self) -> ClusterNumbers:
        """Live numbers of the node we are connected to."""
        answered = await self._ask(w.Stats(None, cluster=False))
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def members(self) -> list[w.Member]:
        """The nodes of the cluster."""
        packet = (await self._ask(w.GetMembers())).packet
        assert isinstance(packet, w.GetMembersResponse)
        return packet.members

    async def set_consumer_prefetch(
        self, queue: str | int, client_id: int, consumer: int, prefetch: int
    ) -> None:
        """As admin: set anyone's prefetch."""
        queue_id = await self.queue_id(queue)
        await self._ask(w.SetConsumerPrefetch(queue_id, client_id, consumer, prefetch))

    async def set_owner(self, queue: str | int, member_id: int) -> None:
        """As admin: move a queue to another node."""
        await self._ask(w.SetOwner(await self.queue_id(queue), member_id))


class _Reading:
    """Holder of messages that were read under a lease: consumer 0 of the connection."""

    def __init__(self, client: Client, queue: str, queue_id: int) -> None:
        self._client = client
        self.queue = queue
        self._queue_id = queue_id

    def _link(self, generation: int) -> Link:
        link = self._client.link
        if generation != self._client._generation or link is None or not link.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        return link

    def ack_tag(self, tag: int, generation: int) -> None:
        self._link(generation).post(w.Settle(self._queue_id, 0, [(tag, tag)]))

    async def ack_tags(self, first: int, last: int, generation: int) -> None:
        await self._settle(w.Settle(self._queue_id, 0, [(first, last)], confirm=True), generation)

    async def nack_tags(self, first: int, last: int, generation: int) -> None:
        await self._settle(w.Return(self._queue_id, 0, [(first, last)]), generation)

    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None:
        lease_ms = max(int(lease_s * 1e3), 1)
        await self._settle(w.Extend(self._queue_id, 0, [(first, last)], lease_ms), generation)

    async def _settle(self, packet: w.Request, generation: int) -> None:
        answered = await self._link(generation).ask(packet)
        assert isinstance(answered.packet, w.SettleResponse)
        if answered.packet.lost:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")


def _client_of(answered: Answered) -> ClientInfo:
    packet = answered.packet
    assert isinstance(packet, w.RegisterClientResponse | w.IdentifyClientResponse)
    return packet.client


def _checked(payload: object) -> bytes:
    if isinstance(payload, str):
        raise TypeError("a payload is bytes: encode the text, as in text.encode()")
    if not isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
    data = bytes(payload)
    if len(data) > MESSAGE_BYTES_MAX:
        raise TooLarge(f"a message of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES_MAX}")
    return data


def _special(
    receiver: int | None,
    context: int | None,
    priority: int,
    content_type: str | None,
    headers: dict[str, str] | None,
) -> Special:
    if not isinstance(priority, int) or not PRIORITY_LOWEST <= priority <= PRIORITY_HIGHEST:
        raise InvalidValue(
            f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not {priority!r}"
        )
    if receiver is not None and not 0 < receiver < 2**31:
        raise InvalidValue(f"a receiver is a client's id, not {receiver!r}")
    if context is not None and not -(2**63) <= context < 2**63:
        raise InvalidValue(f"a context fits in 64 bits, {context!r} does not")
    if headers is not None and not all(
        isinstance(key, str) and isinstance(value, str) for key, value in headers.items()
    ):
        raise InvalidValue("headers map strings to strings")
    attributes = None
    if content_type is not None or headers:
        attributes = Attributes(content_type, headers)
    return receiver, context, priority, attributes
