"""What applications use: one connection to Tidegate that heals itself.

Calls wait for a connection; when it breaks, the client connects again (to any node the URL
names), identifies as before, subscribes again, and resends what was not confirmed. A call
whose outcome is unknown and that is not safe to repeat raises IoFailure.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial as bound
from itertools import count
from typing import Any, Literal, NamedTuple, Unpack

import msgspec

from tidegate.client import tracing
from tidegate.client.address import parse_address
from tidegate.client.checks import (
    check_count,
    checked_payload,
)
from tidegate.client.credentials import Credentials, find_credentials
from tidegate.client.guests import Guests
from tidegate.client.lifeline import NOT_YET, Lifeline
from tidegate.client.link import Link
from tidegate.client.message import Message, batches_of
from tidegate.client.options import (
    PLAIN,
    PutOptions,
    check_seconds,
    check_text,
    checked_options,
)
from tidegate.client.outbox import Outbox
from tidegate.client.reading import ReadHolder
from tidegate.client.subscription import Subscription
from tidegate.client.tls import verifying_context
from tidegate.client.topic_outbox import TopicOutbox
from tidegate.client.transaction import Transaction
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    NoActiveQueues,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NoQueues,
    NoReply,
    QueueNameNotUnique,
    TidegateError,
    TopicNameNotUnique,
    Unavailable,
)
from tidegate.core.model import (
    PRIORITY_DEFAULT,
    ClientInfo,
    Mode,
    Order,
    QueueInfo,
    QueuePolicy,
)
from tidegate.core.topic import Filter, TopicInfo, check_filter
from tidegate.telemetry.numbers import ClusterNumbers
from tidegate.wire import packets as w
from tidegate.wire.connection import MESSAGE_BYTES_MAX

MODES = {"read-only": Mode.READ_ONLY, "read-write": Mode.READ_WRITE, "admin": Mode.ADMIN}
ORDERS = {"oldest": Order.OLDEST, "priority": Order.PRIORITY}
ModeName = Literal["read-only", "read-write", "admin"]
OrderName = Literal["oldest", "priority"]

# How long closing waits for what was put soon.
_FLUSH_S = 5.0
# A read that acknowledges is a lease until it has arrived.
READ_LEASE_S = 30.0


class WaitingIds(NamedTuple):
    """Messages that wait, as ranges [first, last] of ids."""

    ranges: list[tuple[int, int]]
    # Every id that was given out so far is below this one.
    below_id: int


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
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if mode not in MODES:
            raise InvalidValue(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        address = parse_address(url)
        self._lifeline = Lifeline(
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
        self._guests = Guests(self, self._lifeline)
        self._consumers = count(1)
        self._outboxes: dict[str, Outbox] = {}
        self._topic_outboxes: dict[str, TopicOutbox] = {}
        self._queue_ids: dict[str, int] = {}
        self._client_ids: dict[str, int] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._soon: set[asyncio.Future[int]] = set()
        self._soon_failures: list[BaseException] = []
        # Here and not in `put`: puts that nobody traces know nothing of it.
        if (traced_put := tracing.traced_put(self.put)) is not None:
            self.put = traced_put  # type: ignore[method-assign,assignment]
        if (traced := tracing.traced_put(self.publish, answers_id=False)) is not None:
            self.publish = traced  # type: ignore[method-assign,assignment]

    # Life

    async def open(self) -> Client:
        await self._lifeline.open()
        return self

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

    @property
    def link(self) -> Link | None:
        """The present connection, if there is one."""
        return self._lifeline.link

    @property
    def reconnect_s(self) -> float:
        """How long calls wait for a connection."""
        return self._lifeline.reconnect_s

    async def connected(self) -> Link:
        """The connection, when there is one."""
        return await self._lifeline.connected()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something for as long as the client lives."""
        return self._lifeline.spawn(work)

    def _resumed(self) -> None:
        for subscription in self._subscriptions.values():
            if subscription.queue not in self._guests:
                subscription.resubscribe()
        self._guests.resume()
        for outbox in self._all_outboxes():
            outbox.flush()

    def _all_outboxes(self) -> list[Outbox]:
        return [*self._outboxes.values(), *self._topic_outboxes.values()]

    def _gave_up(self, error: TidegateError) -> None:
        for outbox in self._all_outboxes():
            outbox.fail(error)
        for subscription in list(self._subscriptions.values()):
            subscription.fail(error)

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

    # Who we are

    @property
    def info(self) -> ClientInfo:
        """Who we are to the nodes."""
        if self._lifeline.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        return self._lifeline.info

    @property
    def client_id(self) -> int:
        return self.info.client_id

    @property
    def client_name(self) -> str:
        return self.info.name

    @property
    def mode(self) -> str:
        return {mode: name for name, mode in MODES.items()}[self.info.mode]

    async def ping(self) -> float:
        """The round trip to the node, in seconds."""
        link = await self.connected()
        started = time.perf_counter()
        await link.ask(w.Ping())
        return time.perf_counter() - started

    async def delete_client(self, client: str | int | None = None) -> None:
        """Delete a client: this one, or as admin another."""
        target = self.client_id if client is None else await self._client_id(client)
        await self._lifeline.ask(w.DeleteClient(target), repeatable=False)

    async def _client_id(self, client: str | int) -> int:
        if isinstance(client, int):
            return client
        known = self._client_ids.get(client)
        if known is None:
            packet = (await self._lifeline.ask(w.FindClient(client))).packet
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
        self,
        name: str,
        *,
        durable: bool = True,
        exist_ok: bool = False,
        policy: QueuePolicy | None = None,
    ) -> QueueInfo:
        """Create a queue. A transient one (`durable=False`) lives in memory only."""
        packet = w.CreateQueue(name, durable, policy or QueuePolicy())
        try:
            answered = await self._lifeline.ask(packet, repeatable=exist_ok)
        except QueueNameNotUnique:
            if not exist_ok:
                raise
            return await self.queue(name)
        assert isinstance(answered.packet, w.CreateQueueResponse)
        self._queue_ids[name] = answered.packet.queue.queue_id
        return answered.packet.queue

    async def delete_queue(self, queue: str | int) -> None:
        """Delete a queue and everything in it."""
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(w.DeleteQueue(queue_id), repeatable=False)
        self._forget_queue(queue_id)

    def _forget_queue(self, queue_id: int) -> None:
        self._queue_ids = {n: q for n, q in self._queue_ids.items() if q != queue_id}
        self._outboxes = {n: o for n, o in self._outboxes.items() if o.queue_id != queue_id}

    async def queue(self, queue: str | int) -> QueueInfo:
        """Find a queue by name or id."""
        if isinstance(queue, int):
            packet = (await self._lifeline.ask(w.GetQueueName(queue))).packet
            assert isinstance(packet, w.GetQueueNameResponse)
            return packet.queue
        packet = (await self._lifeline.ask(w.GetQueueId(queue))).packet
        assert isinstance(packet, w.GetQueueIdResponse)
        self._queue_ids[queue] = packet.queue.queue_id
        return packet.queue

    async def queues(self) -> list[QueueInfo]:
        """All queues; an empty list when there are none."""
        try:
            packet = (await self._lifeline.ask(w.GetQueues())).packet
        except NoQueues:
            return []
        assert isinstance(packet, w.GetQueuesResponse)
        return packet.queues

    async def active_queues(self) -> list[QueueInfo]:
        """Queues that hold a message for this client."""
        try:
            packet = (await self._lifeline.ask(w.GetActiveQueues())).packet
        except NoActiveQueues:
            return []
        assert isinstance(packet, w.GetActiveQueuesResponse)
        return packet.queues

    async def set_policy(self, queue: str | int, **changes: Any) -> QueuePolicy:
        """Change fields of a queue's `QueuePolicy`; the others stay as they are."""
        info = await self.queue(queue)
        try:
            policy = msgspec.structs.replace(info.policy, **changes)
            # Travels as data: what has the wrong type is found here, not over there.
            policy = msgspec.convert(msgspec.to_builtins(policy), QueuePolicy)
        except TypeError as failure:
            known = ", ".join(QueuePolicy.__struct_fields__)
            raise InvalidValue(f"{failure}; a policy has {known}") from None
        except msgspec.ValidationError as failure:
            raise InvalidValue(f"a policy's {failure}") from None
        await self._lifeline.ask(w.SetPolicy(info.queue_id, policy))
        return policy

    async def pause(self, queue: str | int) -> None:
        """Deliver nothing from a queue until it is resumed; puts go on."""
        await self.set_policy(queue, paused=True)

    async def resume(self, queue: str | int) -> None:
        await self.set_policy(queue, paused=False)

    async def redrive(
        self,
        queue: str | int,
        *,
        to: str | None = None,
        message_ids: Iterable[int] | None = None,
        reason: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Send dead letters back to where they died, or to another queue; how many went."""
        packet = w.Redrive(
            await self.queue_id(queue),
            to,
            None if message_ids is None else list(message_ids),
            reason,
            limit,
        )
        answered = await self._lifeline.ask(packet, repeatable=False)
        assert isinstance(answered.packet, w.RedriveResponse)
        return answered.packet.count

    async def browse(
        self,
        queue: str | int,
        *,
        limit: int = 100,
        first_id: int = 0,
        last_id: int | None = None,
    ) -> list[Message]:
        """Look at waiting messages without taking them: the first, or those with these ids.

        They come in order of their ids. Fewer than `limit` say that there were no more.
        """
        check_count("limit", limit)
        queue_id = await self.queue_id(queue)
        holder = ReadHolder(self._lifeline, str(queue), 0)
        found: list[Message] = []
        while True:
            packet = w.GetMessages(queue_id, limit - len(found), first_id, last_id)
            answered = await self._lifeline.ask(packet)
            page = answered.packet
            assert isinstance(page, w.GetMessagesResponse)
            batches = batches_of(page.runs, answered.body, holder, self._lifeline.generation)
            found += [message for batch in batches for message in batch]
            if page.more_from is None or len(found) >= limit:
                return found
            first_id = page.more_from

    async def waiting_ids(
        self, queue: str | int, *, limit: int, last_id: int | None = None
    ) -> WaitingIds:
        """Which messages for anyone wait, the lowest ids first; of a paused queue none.

        There may be more than are listed, even within the limit; there are none if none is.
        """
        check_count("limit", limit)
        packet = w.GetWaitingIds(await self.queue_id(queue), limit, last_id)
        answered = await self._lifeline.ask(packet)
        assert isinstance(answered.packet, w.GetWaitingIdsResponse)
        return WaitingIds(answered.packet.ranges, answered.packet.below_id)

    async def ack_ids(self, queue: str | int, ranges: Iterable[tuple[int, int]]) -> int:
        """Acknowledge waiting messages by their ids, each range [first, last]; how many there were.

        For who has browsed and processed them. What a consumer holds stays with it.
        """
        packet = w.AcknowledgeIds(await self.queue_id(queue), list(ranges))
        # Ids are not given out twice: those of a lost answer are simply no longer there.
        answered = await self._lifeline.ask(packet)
        assert isinstance(answered.packet, w.AcknowledgeIdsResponse)
        return answered.packet.count

    async def purge(self, queue: str | int) -> int:
        """Drop every waiting message; how many there were."""
        packet = (await self._lifeline.ask(w.PurgeQueue(await self.queue_id(queue)))).packet
        assert isinstance(packet, w.PurgeQueueResponse)
        return packet.count

    # Putting

    def put(self, queue: str, payload: bytes, **options: Unpack[PutOptions]) -> asyncio.Future[int]:
        """Put a message. Await it: it returns the message's id once the message is on disk.

        The options are those of `PutOptions`. An id of 0 says that the message is stored, and its
        id not known here: it was before the connection broke, or under the same dedup id.
        """
        outbox = self._outboxes.get(queue)
        if outbox is None or self._lifeline.outage is not None:
            outbox = self._new_outbox(queue)
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = checked_payload(payload)
        if not options:
            return outbox.add(payload)
        special = checked_options(options)
        return outbox.add(payload) if special == PLAIN else outbox.add_special(payload, special)

    def put_soon(
        self, queue: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Put without waiting; `flush()` waits for all, and raises what went wrong."""
        future = self.put(queue, payload, **options)
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
        chosen = [
            payload if type(payload) is bytes else checked_payload(payload) for payload in payloads
        ]
        if not chosen:
            return []
        checked_options({"priority": priority})
        outbox = self._outboxes.get(queue)
        if outbox is None or self._lifeline.outage is not None:
            outbox = self._new_outbox(queue)
        ids: list[int] = []
        with tracing.publishing(queue, count=len(chosen)):
            for answer in await outbox.add_many(chosen, priority):
                ids += answer
        return ids

    async def put_each(self, queue: str, messages: Iterable[tuple[bytes, PutOptions]]) -> list[int]:
        """Put many messages, each with options of its own; their ids once all are on disk."""
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
        """Put one message into several queues: all or none, or with `partial` those that can.

        The names of the queues that took it.
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
                by_id[await self.queue_id(name)] = str(name)
            except TidegateError:
                if not partial:
                    raise
        if not by_id:
            return []
        with tracing.publishing(", ".join(by_id.values()), headers) as options["headers"]:
            packet = w.PutToQueues(
                list(by_id),
                # A producer of its own: resends are recognised, and nothing else is taken for one.
                secrets.randbits(62) + 1,
                1,
                priority,
                partial,
                receiver,
                context,
                checked_options(options).attributes,
            )
            # The same batch number each time, so repeating it is safe.
            answered = await self._lifeline.ask(packet, [checked_payload(payload)])
        assert isinstance(answered.packet, w.PutToQueuesResponse)
        return [by_id[queue_id] for queue_id in answered.packet.queue_ids]

    def transaction(self) -> Transaction:
        """Puts and acknowledgements across queues that are done together, or not at all.

        `async with mq.transaction() as tx:`, and in it `tx.put(queue, payload)` and
        `tx.ack(message)`; they are done when the block ends without an exception.
        """
        return Transaction(self, self._lifeline.reconnect_s)

    # Topics

    async def create_topic(self, name: str, *, exist_ok: bool = False) -> TopicInfo:
        """Create a topic: what is published to it goes to every subscription that matches."""
        try:
            answered = await self._lifeline.ask(w.CreateTopic(name), repeatable=exist_ok)
        except TopicNameNotUnique:
            if not exist_ok:
                raise
            return next(topic for topic in await self.topics() if topic.name == name)
        assert isinstance(answered.packet, w.CreateTopicResponse)
        return answered.packet.topic

    async def delete_topic(self, name: str) -> None:
        """Delete a topic; the queues of its subscriptions stay."""
        await self._lifeline.ask(w.DeleteTopic(name), repeatable=False)

    async def topics(self) -> list[TopicInfo]:
        """All topics, with their subscriptions."""
        packet = (await self._lifeline.ask(w.GetTopics())).packet
        assert isinstance(packet, w.GetTopicsResponse)
        return packet.topics

    async def subscribe_to(
        self,
        topic: str,
        queue: str,
        *,
        filter: Filter | None = None,  # noqa: A002
        durable: bool = True,
    ) -> QueueInfo:
        """Let a queue have what is published to a topic from now on; it is made if need be.

        `filter` names headers that must match, as in `{"region": "eu", "kind": ["a", "b"]}`. With
        `durable=False` the queue must be new, and is deleted when this connection ends.
        """
        check_filter(filter)
        packet = w.SubscribeTopic(topic, queue, filter, durable)
        if durable:
            answered = await self._lifeline.ask(packet)
            assert isinstance(answered.packet, w.SubscribeTopicResponse)
            info = answered.packet.queue
        else:
            info = await self._guests.add(packet)
        self._queue_ids[queue] = info.queue_id
        return info

    def on_guest_back(self, queue: QueueInfo) -> None:
        """A queue that went with our former connection was made anew."""
        self._queue_ids[queue.name] = queue.queue_id
        self._outboxes.pop(queue.name, None)
        for subscription in self._subscriptions.values():
            if subscription.queue == queue.name:
                subscription.resubscribe(queue.queue_id)

    def on_guest_lost(self, queue: str, error: TidegateError) -> None:
        """It was not, and will not be."""
        self._guests.forget(queue)
        for subscription in self._subscriptions.values():
            if subscription.queue == queue:
                subscription.fail(error)

    async def unsubscribe_from(self, topic: str, queue: str) -> None:
        """End a subscription; the queue stays, with what is in it."""
        self._guests.forget(queue)
        await self._lifeline.ask(w.UnsubscribeTopic(topic, queue), repeatable=False)

    def publish(
        self, topic: str, payload: bytes, **options: Unpack[PutOptions]
    ) -> asyncio.Future[int]:
        """Put once, for every subscription that matches. Await it: it is on disk in all of them.

        The options are those of `put`; it returns how many subscriptions got it.
        """
        outbox = self._topic_outbox(topic)
        payload = checked_payload(payload)
        special = checked_options(options)
        return outbox.add(payload) if special == PLAIN else outbox.add_special(payload, special)

    async def publish_many(
        self, topic: str, payloads: Iterable[bytes], **options: Unpack[PutOptions]
    ) -> list[int]:
        """Publish many with the same options; how many subscriptions got each."""
        return await asyncio.gather(
            *(self.publish(topic, payload, **options) for payload in payloads)
        )

    def _topic_outbox(self, topic: str) -> TopicOutbox:
        outbox = self._topic_outboxes.get(topic)
        if outbox is None or self._lifeline.outage is not None:
            self._check_name(topic, "topic")
            outbox = self._topic_outboxes[topic] = TopicOutbox(self, topic)
        return outbox

    def _new_outbox(self, queue: str) -> Outbox:
        self._check_name(queue, "queue")
        outbox = self._outboxes[queue] = Outbox(self, queue)
        outbox.queue_id = self._queue_ids.get(queue)
        return outbox

    def _check_name(self, name: str, kind: str) -> None:
        if self._lifeline.outage is not None:
            raise self._lifeline.outage
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"a {kind} is named by a string that is not empty, not {name!r}")
        check_text(name)
        if self._lifeline.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")

    def forget_queue_id(self, queue: str) -> None:
        self._queue_ids.pop(queue, None)

    def forget_outbox(self, outbox: Outbox, error: TidegateError) -> None:
        """A queue may have been deleted and made anew: look its id up again next time."""
        if not outbox.unconfirmed and self._topic_outboxes.get(outbox.queue) is outbox:
            del self._topic_outboxes[outbox.queue]
        elif not outbox.unconfirmed and self._outboxes.get(outbox.queue) is outbox:
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

        It is thereby acknowledged, unless a `lease` in seconds is asked for. What arrives for a
        call that was cancelled meanwhile goes back to the queue.
        """
        if order not in ORDERS:
            raise InvalidValue(f"order is one of {', '.join(ORDERS)}, not {order!r}")
        check_seconds("wait", wait, at_least=0.0)
        if lease is not None:
            check_seconds("lease", lease, at_least=0.001)
        queue_id = await self.queue_id(queue)
        lease_ms = int((READ_LEASE_S if lease is None else lease) * 1e3)
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
                answered = await link.ask(packet, abandoned=bound(_give_back, link, queue_id))
                break
            except (*NOT_YET, IoFailure):
                # It was under lease, so whatever was on its way to us goes back.
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(0.02)
        run = answered.packet.run  # type: ignore[attr-defined]
        holder = ReadHolder(self._lifeline, str(queue), queue_id)
        if lease is None:
            link.post(w.Settle(queue_id, 0, [(run.tag, run.tag)]))
            run.tag = 0
        return batches_of([run], answered.body, holder, self._lifeline.generation)[0][0]

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
        check_count("prefetch", prefetch)
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
        answered = await self._lifeline.ask(w.Stats(queue_id))
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def node_stats(self) -> ClusterNumbers:
        """Live numbers of the node we are connected to."""
        answered = await self._lifeline.ask(w.Stats(None, cluster=False))
        return msgspec.json.decode(answered.body, type=ClusterNumbers)

    async def members(self) -> list[w.Member]:
        """The nodes of the cluster."""
        packet = (await self._lifeline.ask(w.GetMembers())).packet
        assert isinstance(packet, w.GetMembersResponse)
        return packet.members

    async def set_consumer_prefetch(
        self, queue: str | int, client_id: int, consumer: int, prefetch: int
    ) -> None:
        """As admin: set anyone's prefetch."""
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(w.SetConsumerPrefetch(queue_id, client_id, consumer, prefetch))

    async def set_owner(self, queue: str | int, member_id: int) -> None:
        """As admin: move a queue to another node."""
        await self._lifeline.ask(w.SetOwner(await self.queue_id(queue), member_id))


def _give_back(link: Link, queue_id: int, packet_id: int, answer: w.Packet | None) -> None:
    """Nobody waits for this read any more: withdraw it, and return what came all the same."""
    if answer is None:
        link.submit(w.Withdraw(queue_id, packet_id), None, lambda answer, body: None)
        return
    assert isinstance(answer, w.ReadMessageResponse | w.ReadResponseResponse)
    tag = answer.run.tag
    link.submit(w.Return(queue_id, 0, [(tag, tag)]), None, lambda answer, body: None)
