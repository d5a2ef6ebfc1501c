"""Single reads (`get`) and request/reply.

A read is a request with a lease, so the node takes a message back if its answer never arrives. A
read of a logical queue asks the replicas one after the other, the client's assigned replica first.
If all are empty, it waits at all of them at once.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, cast

from tidegate.client import tracing
from tidegate.client.connection import TRANSIENT_ERRORS, ClusterConnection, Response, Transport
from tidegate.client.membership import QueueMembership
from tidegate.client.message import Message, ReturnOptions, split_payloads
from tidegate.client.options import (
    DEFAULT_MESSAGE_OPTIONS,
    PutOptions,
    check_seconds,
    check_text,
    checked_options,
    checked_payload,
)
from tidegate.client.producer import Producer, TopicProducer
from tidegate.client.replica_producer import ReplicaRouter
from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    LeaseLost,
    NoMessagesInQueue,
    NoMessagesRetrieved,
    NoReply,
    NotOwner,
    QueueNotExisting,
    TidegateError,
)
from tidegate.core.model import PRIORITY_DEFAULT, ClientInfo, ClientMode, Order, QueueInfo
from tidegate.core.topology import Topology
from tidegate.protocol.catalogue import (
    FindClient,
    FindClientResponse,
    GetQueueId,
    GetQueueIdResponse,
    GetQueueName,
    GetQueueNameResponse,
)
from tidegate.protocol.cluster import GetTopology, GetTopologyResponse
from tidegate.protocol.connection import MESSAGE_BYTES_MAX
from tidegate.protocol.messages import (
    Extend,
    PutToQueues,
    PutToQueuesResponse,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ReadResponseResponse,
    Return,
    Settle,
    SettleResponse,
    Withdraw,
)
from tidegate.protocol.packet import Packet, Request

if TYPE_CHECKING:
    from tidegate.client.client import Client


# Base of the client: access to the connection, and ids by name.


MODES = {
    "read-only": ClientMode.READ_ONLY,
    "read-write": ClientMode.READ_WRITE,
    "admin": ClientMode.ADMIN,
}
ORDERS = {"oldest": Order.OLDEST, "priority": Order.PRIORITY}
ModeName = Literal["read-only", "read-write", "admin"]
OrderName = Literal["oldest", "priority"]


class Calls:
    """Calls over the reconnecting connection, with caches of queue and client ids."""

    def __init__(self, lifeline: ClusterConnection) -> None:
        self._connection = lifeline
        self._queue_ids: dict[str, int] = {}
        # Ids of logical queues among the queues above.
        self._elastic_ids: set[int] = set()
        self._client_ids: dict[str, int] = {}
        # Memberships of this client's producers and consumers in logical queues.
        self._memberships: list[QueueMembership] = []

    @property
    def link(self) -> Transport | None:
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

    async def ask(self, packet: Request) -> Response:
        """Send a repeatable request until an answer comes."""
        return await self._connection.request(packet)

    def add_membership(self, membership: QueueMembership) -> None:
        self._memberships.append(membership)

    def drop_membership(self, membership: QueueMembership | None) -> None:
        if membership in self._memberships:
            self._memberships.remove(membership)

    # Identity

    @property
    def info(self) -> ClientInfo:
        """The client's registration at the nodes; `InvalidValue` before it is opened."""
        if self._connection.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")
        return self._connection.info

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

    # Queues

    async def queue_id(self, queue: str | int) -> int:
        if isinstance(queue, int):
            return queue
        known = self._queue_ids.get(queue)
        if known is None:
            known = (await self.queue(queue)).queue_id
        return known

    async def queue(self, queue: str | int) -> QueueInfo:
        """Return a queue by name or id; raise `QueueNotExisting` if there is none."""
        if isinstance(queue, int):
            packet = (await self._connection.request(GetQueueName(queue))).packet
            assert isinstance(packet, GetQueueNameResponse)
            return self.note_queue(packet.queue)
        packet = (await self._connection.request(GetQueueId(queue))).packet
        assert isinstance(packet, GetQueueIdResponse)
        return self.note_queue(packet.queue)

    def note_queue(self, info: QueueInfo) -> QueueInfo:
        """Cache the id of a queue, and whether it is a logical queue."""
        self._queue_ids[info.name] = info.queue_id
        if info.elastic:
            self._elastic_ids.add(info.queue_id)
        else:
            self._elastic_ids.discard(info.queue_id)
        return info

    def is_elastic(self, queue_id: int) -> bool:
        """Return whether a queue that was looked up is a logical queue."""
        return queue_id in self._elastic_ids

    def forget_queue_id(self, queue: str) -> None:
        self._queue_ids.pop(queue, None)


# The put methods of the client.
#
# Each queue has one producer, which sends the messages in batches. A plain queue has a `Producer`,
# a logical queue has a `ReplicaRouter`. The first look-up of the queue decides which one is needed.


class PutCalls(Calls):
    """The part of a client that puts messages."""

    def __init__(self, lifeline: ClusterConnection) -> None:
        super().__init__(lifeline)
        self._outboxes: dict[str, Producer | ReplicaRouter] = {}
        self._topic_outboxes: dict[str, TopicProducer] = {}
        # Producers that were opened with `client.producer(...)`.
        self._producers: list[Producer | ReplicaRouter] = []
        # Replaced producers that still wait for confirmations.
        self._replaced: list[Producer | ReplicaRouter] = []
        self._soon: set[asyncio.Future[int]] = set()
        self._soon_failures: list[BaseException] = []

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
        outbox = self._outboxes.get(queue)
        if outbox is None or self._connection.outage is not None:
            outbox = self.producer_of(queue)
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = checked_payload(payload)
        if not options:
            return outbox.add(payload)
        special = checked_options(options)
        return (
            outbox.add(payload)
            if special == DEFAULT_MESSAGE_OPTIONS
            else outbox.add_with_options(payload, special)
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
        outbox = self.producer_of(queue)
        ids: list[int] = []
        with tracing.publishing(queue, count=len(chosen)):
            for answer in await outbox.add_many(chosen, priority):
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
                by_id[await self.queue_id(name)] = str(name)
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

    # Producers

    def _topic_outbox(self, topic: str) -> TopicProducer:
        outbox = self._topic_outboxes.get(topic)
        if outbox is None or self._connection.outage is not None:
            self._check_name(topic, "topic")
            outbox = self._topic_outboxes[topic] = TopicProducer(self._whole, topic)
        return outbox

    def producer_of(self, queue: str) -> Producer | ReplicaRouter:
        """Return the producer of a queue; raise the reason if putting is useless now."""
        outbox = self._outboxes.get(queue)
        if outbox is not None and self._connection.outage is None:
            return outbox
        self._check_name(queue, "queue")
        queue_id = self._queue_ids.get(queue)
        if queue_id is not None and self.is_elastic(queue_id):
            spread = self._outboxes[queue] = ReplicaRouter(self._whole, queue, queue_id)
            return spread
        plain = self._outboxes[queue] = Producer(self._whole, queue)
        plain.queue_id = queue_id
        return plain

    def spread_over(self, outbox: Producer, queue_id: int) -> ReplicaRouter:
        """Replace the producer of a queue that has become a logical queue, and return the new one.

        The messages that the old producer has not sent go to the new one.
        """
        spread = self._outboxes.get(outbox.queue)
        if not isinstance(spread, ReplicaRouter):
            spread = self._outboxes[outbox.queue] = ReplicaRouter(
                self._whole, outbox.queue, queue_id
            )
        spread.take_from(outbox)
        return spread

    @property
    def _whole(self) -> Client:
        """The client of which this object is a part."""
        return cast("Client", self)

    async def refresh_plain_queues(self) -> None:
        """Check whether plain queues that this client puts to have become logical queues."""
        for queue, outbox in list(self._outboxes.items()):
            if not isinstance(outbox, Producer) or outbox.queue_id is None or not outbox.was_used():
                continue
            info = await self.queue(queue)
            if info.elastic and self._outboxes.get(queue) is outbox:
                outbox.route_to_replicas(info.queue_id)

    def _check_name(self, name: str, kind: str) -> None:
        if self._connection.outage is not None:
            raise self._connection.outage
        if not isinstance(name, str) or not name:
            raise InvalidValue(f"a {kind} is named by a string that is not empty, not {name!r}")
        check_text(name)
        if self._connection.info is None:
            raise InvalidValue("not connected: use `async with tidegate.connect(url) as mq`")

    def forget_outbox(self, outbox: Producer | ReplicaRouter, error: TidegateError) -> None:
        """Drop the producer of a queue, so that the next put looks the queue's id up again.

        The queue may have been deleted and created again under the same name.
        """
        if isinstance(outbox, ReplicaRouter):
            if self._outboxes.get(outbox.queue) is outbox:
                del self._outboxes[outbox.queue]
            self._queue_ids.pop(outbox.queue, None)
            self._keep_until_answered(outbox)
        elif not outbox.unconfirmed and self._topic_outboxes.get(outbox.queue) is outbox:
            del self._topic_outboxes[outbox.queue]
        elif not outbox.unconfirmed and self._outboxes.get(outbox.queue) is outbox:
            del self._outboxes[outbox.queue]
            self._queue_ids.pop(outbox.queue, None)

    def _keep_until_answered(self, outbox: Producer | ReplicaRouter) -> None:
        self._replaced = [each for each in self._replaced if each.unconfirmed]
        if outbox.unconfirmed and outbox not in self._replaced:
            self._replaced.append(outbox)

    def _all_outboxes(self) -> list[Producer | ReplicaRouter]:
        current = [*self._outboxes.values(), *self._topic_outboxes.values(), *self._producers]
        return [*current, *self._replaced]

    def add_producer(self, outbox: Producer | ReplicaRouter) -> None:
        self._producers.append(outbox)

    def drop_producer(self, outbox: Producer | ReplicaRouter) -> None:
        self._producers.remove(outbox)


# The lease of a read that acknowledges: it lasts until the message has arrived and is acknowledged.
READ_LEASE_S = 30.0
# How long a read waits at the replicas before it asks for the topology again, in seconds.
_WAIT_S = 5.0
_RETRY_S = 0.02
# Errors after which a read tries the next replica.
_NOTHING_HERE = (
    *TRANSIENT_ERRORS,
    IoFailure,
    QueueNotExisting,
    NoMessagesInQueue,
    NoMessagesRetrieved,
)
# Makes the read request for a queue id and a wait in milliseconds.
MakePacket = Callable[[int, int], Request]


class ReadResult(NamedTuple):
    """A message that was read, with the transport and queue it came from."""

    link: Transport
    queue_id: int
    answer: Response


class ReadCalls(PutCalls):
    """The part of a client that reads single messages."""

    def __init__(self, lifeline: ClusterConnection) -> None:
        super().__init__(lifeline)
        # As of the latest read, by queue id.
        self._topologies: dict[int, Topology] = {}

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
        queue_id = await self.queue_id(queue)
        sender_id = None if sender is None else await self._client_id(sender)
        lease_ms = int((READ_LEASE_S if lease is None else lease) * 1e3)

        def packet(where: int, wait_ms: int) -> Request:
            if context is not None:
                return ReadResponse(where, context, wait_ms, lease_ms)
            return ReadMessage(where, ORDERS[order], sender_id, wait_ms, lease_ms)

        deadline = asyncio.get_running_loop().time() + wait
        found = None
        while found is None:
            if self.is_elastic(queue_id):
                found = await self._read_replicas(
                    queue_id, packet, deadline, only_home=context is not None
                )
            else:
                found = await self._read_plain(queue_id, packet, deadline)
        run = found.answer.packet.run  # type: ignore[attr-defined]
        holder = ReadSettler(self._connection, str(queue), found.queue_id)
        if lease is None:
            found.link.post(Settle(found.queue_id, 0, [(run.tag, run.tag)]))
            run.tag = 0
        return split_payloads([run], found.answer.body, holder, self._connection.generation)[0][0]

    async def _read_plain(
        self, queue_id: int, packet: MakePacket, deadline: float
    ) -> ReadResult | None:
        """Read from a plain queue; return `None` if it has become a logical queue.

        Consumers cannot read from the alias of a logical queue.
        """
        loop = asyncio.get_running_loop()
        while True:
            transport = await self.connected()
            wait_ms = max(math.ceil((deadline - loop.time()) * 1e3), 0)
            try:
                return await _read(transport, queue_id, packet(queue_id, wait_ms))
            except (*TRANSIENT_ERRORS, IoFailure) as refusal:
                if isinstance(refusal, NotOwner) and (await self.queue(queue_id)).elastic:
                    return None
                # The read has a lease, so the node takes back a message that was on its way here.
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _read_replicas(
        self, queue_id: int, packet: MakePacket, deadline: float, *, only_home: bool
    ) -> ReadResult | None:
        """Read from the first replica that has a message; if none has, wait at all of them.

        The assigned replica comes first. With `only_home`, ask the assigned replica only, which
        holds replies and other messages addressed to this client. Return `None` if the queue has
        become a plain one.
        """
        loop = asyncio.get_running_loop()
        # Start with the cached topology, which is mostly still right. Fetch a new one if no replica
        # has a message.
        topology = self._topologies.get(queue_id)
        is_old = topology is not None
        while True:
            if topology is None:
                try:
                    answered = await self._connection.request(GetTopology(queue_id))
                except InvalidValue:
                    if (await self.queue(queue_id)).elastic:
                        raise
                    return None
                assert isinstance(answered.packet, GetTopologyResponse)
                topology = self._topologies[queue_id] = answered.packet.topology
            home = topology.home_of(self.client_id)
            places = [place.queue_id for place in topology.replicas if place.number == home]
            if not only_home:
                places += [p.queue_id for p in topology.replicas if p.number != home]
            transport = await self.connected()
            nothing: TidegateError = NoMessagesInQueue(f"queue {topology.queue!r} is empty")
            for where in places:
                try:
                    return await _read(transport, where, packet(where, 0))
                except _NOTHING_HERE as refusal:
                    if not isinstance(refusal, NoMessagesInQueue):
                        nothing = refusal
            topology = None
            left_s = deadline - loop.time()
            if is_old:
                is_old = False
                continue
            if left_s <= 0:
                raise nothing
            found = await _read_first(transport, places, packet, min(left_s, _WAIT_S))
            if found is not None:
                return found
            await asyncio.sleep(min(_RETRY_S, left_s))

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


async def _read(transport: Transport, queue_id: int, packet: Request) -> ReadResult:
    return ReadResult(
        transport,
        queue_id,
        await transport.request(packet, abandoned=partial(_give_back, transport, queue_id)),
    )


async def _read_first(
    transport: Transport, places: list[int], packet: MakePacket, wait_s: float
) -> ReadResult | None:
    """Wait at several queues for the first message; return additional messages to their queues.

    Return `None` if no queue has a message within `wait_s` seconds.
    """
    wait_ms = max(math.ceil(wait_s * 1e3), 1)
    reads = {
        asyncio.ensure_future(_read(transport, where, packet(where, wait_ms))) for where in places
    }
    waiting = set(reads)
    found: ReadResult | None = None
    try:
        while waiting and found is None:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for read in done:
                if read.exception() is None:
                    if found is None:
                        found = read.result()
                    else:
                        _return(read.result())
    except asyncio.CancelledError:
        for read in reads:
            if read.done() and not read.cancelled() and read.exception() is None:
                _return(read.result())
        raise
    finally:
        for read in waiting:
            read.cancel()
    return found


def _return(found: ReadResult) -> None:
    """Return a message that was read in excess; it does not count as a failed delivery."""
    run = found.answer.packet.run  # type: ignore[attr-defined]
    found.link.submit(
        Return(found.queue_id, 0, [(run.tag, run.tag)], unstarted=True),
        None,
        lambda answer, body: None,
    )


def _give_back(transport: Transport, queue_id: int, packet_id: int, answer: Packet | None) -> None:
    """Withdraw an abandoned read, or return the message if its answer has come already.

    The message was not handled, so it does not count as a failed delivery.
    """
    if answer is None:
        transport.submit(Withdraw(queue_id, packet_id), None, lambda answer, body: None)
        return
    assert isinstance(answer, ReadMessageResponse | ReadResponseResponse)
    tag = answer.run.tag
    packet = Return(queue_id, 0, [(tag, tag)], unstarted=True)
    transport.submit(packet, None, lambda answer, body: None)


# Settling of messages that were read under a lease; the node assigns them to consumer number 0.


class ReadSettler:
    """Settles messages that were read with a lease."""

    def __init__(self, lifeline: ClusterConnection, queue: str, queue_id: int) -> None:
        self._connection = lifeline
        self.queue = queue
        self._queue_id = queue_id

    def _transport(self, generation: int) -> Transport:
        transport = self._connection.transport
        if generation != self._connection.generation or transport is None or not transport.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        return transport

    def lease_of(self, generation: int) -> tuple[Transport, int, int]:
        """Return transport, queue id and consumer number; raise `LeaseLost` after a reconnect."""
        return self._transport(generation), self._queue_id, 0

    def ack_tag(self, tag: int, generation: int) -> None:
        self._transport(generation).post(Settle(self._queue_id, 0, [(tag, tag)]))

    async def ack_tags(self, first: int, last: int, generation: int) -> None:
        await self._settle(Settle(self._queue_id, 0, [(first, last)], confirm=True), generation)

    async def return_tags(self, first: int, last: int, generation: int, how: ReturnOptions) -> None:
        await self._settle(Return(self._queue_id, 0, [(first, last)], *how), generation)

    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None:
        lease_ms = max(int(lease_s * 1e3), 1)
        await self._settle(Extend(self._queue_id, 0, [(first, last)], lease_ms), generation)

    async def _settle(self, packet: Settle | Return | Extend, generation: int) -> None:
        answered = await self._transport(generation).request(packet)
        assert isinstance(answered.packet, SettleResponse)
        # In a cumulative acknowledgement, `lost` also counts messages that were settled before.
        single = packet.ranges is not None and packet.ranges[0][0] == packet.ranges[0][1]
        if answered.packet.lost and single:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")
