"""One client's connection to a node: packets in, calls on replicas, answers out.

Packets about a queue go to the replica if this node owns it, else they are relayed to the
owner as they are. While it is being found out who that is, packets of that queue wait in
line, so a client's order holds. Everything else is the catalogue's, and may take its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tidegate.core.errors import (
    ClientNameNotUnique,
    ClientNotExisting,
    InternalError,
    InvalidValue,
    LeaseLost,
    ModeForbids,
    NoActiveQueues,
    NoQueues,
    QueueNameNotUnique,
    QueueNotExisting,
    RequiredParameterMissing,
    TidegateError,
    TooLarge,
    UnexpectedPacket,
    UniqueConstraint,
)
from tidegate.core.model import PRIORITY_HIGHEST, PRIORITY_LOWEST, Attributes, Mode, QueueInfo
from tidegate.node.batch import Batch
from tidegate.node.consumer import Reader
from tidegate.node.cycle import RequestCycle
from tidegate.node.relay import Relay
from tidegate.node.replica import Replica
from tidegate.queueing.queue import Match
from tidegate.wire import packets as w
from tidegate.wire.connection import FRAME_BYTES_MAX, Connection, Received, Refused, State
from tidegate.wire.frames import Frame

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# Requests of one connection that may wait for the catalogue or for a route.
PENDING_MAX = 10_000
# A socket with more than this unsent gets no more deliveries.
UNSENT_BYTES_MAX = 4 * 1024 * 1024


class Session(asyncio.Protocol):
    """Protocol of one accepted connection; also the outlet that replicas deliver to."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._wire = Connection(
            server=True,
            frame_bytes_max=FRAME_BYTES_MAX
            - (16 << 20)
            + node.limits.message_bytes_max,
            frame_before_login_bytes=node.limits.frame_before_login_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self.client_id = 0
        self.client_name = ""
        self.mode = Mode.READ_ONLY
        self._ephemeral = False
        self._paused = False
        self._pending = 0
        # By packet id, so that a reader and its callbacks do not hold each other.
        self._readers: dict[int, tuple[Reader, Replica]] = {}
        self._replicas: dict[int, Replica] = {}
        self._relays: dict[str, Relay] = {}
        self._routes: dict[int, Relay] = {}
        # Queue → packets that wait until it is known who serves it.
        self._gates: dict[int, list[tuple[Any, Frame]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.last_heard = 0.0
        self._cycle = RequestCycle(node.phases)

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.last_heard = self._node.clock.monotonic()
        if not self._node.admit(self):
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.close()
        self._node.forget_session(self)
        for reader, replica in self._readers.values():
            replica.forget_reader(reader)
        for replica in set(self._replicas.values()):
            replica.forget_outlet(self)
        for relay in list(self._relays.values()):
            relay.close()
        for task in self._tasks:
            task.cancel()
        if self._ephemeral and self.client_id:
            self._node.forget_client(self.client_id)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        for replica in set(self._replicas.values()):
            replica.dispatch()

    def data_received(self, data: bytes) -> None:
        node = self._node
        cycle = self._cycle
        started = node.clock.monotonic()
        self.last_heard = started
        try:
            for event in self._wire.receive(data):
                node.packets_in += 1
                cycle.asked(started, node.clock.monotonic())
                if isinstance(event, Refused):
                    self._fail(event.packet_id, event.error)
                    continue
                self._handle(event)
                cycle.handled(type(event.packet) in _READS)
                started = node.clock.monotonic()
        except TidegateError as error:
            # No frame can be trusted any more: say why, and hang up on this one alone.
            self._fail(0, error)
            self.close()

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    @property
    def identified(self) -> bool:
        return self._wire.state is State.IDENTIFIED

    # Out

    def send(
        self, packet: w.Packet, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._node.packets_out += 1
        pieces = self._wire.send(packet, packet_id, bodies)
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)

    def _answer(
        self, packet: w.Answer, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        started = self._node.clock.monotonic()
        self.send(packet, packet_id, bodies)
        self._cycle.answered(started, self._node.clock.monotonic())

    def _fail(self, packet_id: int, error: TidegateError) -> None:
        self._answer(w.Error(code=error.code, text=str(error)), packet_id)

    def pass_on(self, pieces: list[memoryview | bytes]) -> None:
        """An answer of another node, as it came."""
        if self._transport is not None and not self._transport.is_closing():
            self._node.packets_out += 1
            self._transport.writelines(pieces)

    def can_take(self) -> bool:
        return not self._paused

    def deliver(self, consumer: int, runs: list[w.Run], bodies: list[memoryview | bytes]) -> None:
        self.send(w.Deliver(consumer=consumer, runs=runs), 0, bodies)

    def consumer_ended(self, consumer: int, error: TidegateError) -> None:
        self.send(w.ConsumerEnded(consumer=consumer, code=error.code, text=str(error)), 0)

    def prefetch_changed(self, consumer: int, prefetch: int) -> None:
        self.send(w.PrefetchChanged(consumer=consumer, prefetch=prefetch), 0)

    # In

    def _handle(self, event: Received) -> None:
        packet = event.packet
        assert isinstance(packet, w.Request)
        if packet.mode > self.mode and not packet.before_identification:
            self._fail(
                event.packet_id,
                ModeForbids(
                    f"{type(packet).__name__} needs mode {packet.mode.name.lower()}, this client "
                    f"is {self.mode.name.lower()}"
                ),
            )
            return
        by_queue = _BY_QUEUE.get(type(packet))
        if by_queue is not None:
            self._to_queue(packet, event.frame)
            return
        try:
            answer = _BY_CATALOGUE[type(packet)](self, packet, event)
        except TidegateError as error:
            self._fail(event.packet_id, error)
            return
        if answer is not None:
            self._later(answer, event.packet_id)

    def _later(self, work: Awaitable[None], packet_id: int) -> None:
        """Run what has to wait for the store, beside what follows."""
        if self._pending >= PENDING_MAX:
            self._fail(packet_id, UnexpectedPacket("too many requests wait on this connection"))
            return
        self._pending += 1

        async def run() -> None:
            try:
                await work
            except TidegateError as error:
                self._fail(packet_id, error)
            except Exception:
                log.exception("a request failed")
                self._fail(packet_id, InternalError("the node's log says more"))
            finally:
                self._pending -= 1

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Packets about a queue

    def _to_queue(self, packet: Any, frame: Frame) -> None:
        queue_id: int = packet.queue_id
        gate = self._gates.get(queue_id)
        if gate is not None:
            gate.append((packet, frame))
            return
        replica = self._node.replicas.get(queue_id)
        if replica is not None:
            self._at_replica(replica, packet, frame)
            return
        relay = self._routes.get(queue_id)
        if relay is not None and relay.alive:
            self._cycle.unanswered()
            relay.forward(packet, frame)
            return
        self._gates[queue_id] = [(packet, frame)]
        self._later(self._open_gate(queue_id), frame.packet_id)

    async def _open_gate(self, queue_id: int) -> None:
        error: TidegateError | None = None
        replica: Replica | None = None
        relay: Relay | None = None
        try:
            found = await self._node.route(queue_id)
            if isinstance(found, Replica):
                replica = found
            else:
                relay = self._routes[queue_id] = await self._relay_to(found)
        except TidegateError as failure:
            error = failure
        for packet, frame in self._gates.pop(queue_id):
            if error is not None:
                self._fail(frame.packet_id, error)
            elif replica is not None:
                self._at_replica(replica, packet, frame)
            elif relay is not None:
                self._cycle.unanswered()
                relay.forward(packet, frame)

    async def _relay_to(self, address: str) -> Relay:
        relay = self._relays.get(address)
        if relay is None or not relay.alive:
            relay = await Relay.open(address, self)
            known = self._relays.get(address)
            if known is not None and known.alive:
                # Another queue of the same owner was quicker: one relay, or one is never closed.
                relay.close()
                return known
            self._relays[address] = relay
        return relay

    @property
    def is_relaying(self) -> bool:
        return bool(self._relays)

    def keep_relays_to(self, addresses: set[str]) -> None:
        """End the relays to all other nodes: those are dead, and a paused one never says so."""
        for address, relay in list(self._relays.items()):
            if address not in addresses:
                relay.abort()

    def relay_ended(self, relay: Relay) -> None:
        self._relays = {a: r for a, r in self._relays.items() if r is not relay}
        self.forget_routes(relay)

    def forget_routes(self, relay: Relay) -> None:
        """The other node no longer serves what we thought."""
        self._routes = {q: r for q, r in self._routes.items() if r is not relay}

    def _at_replica(self, replica: Replica, packet: Any, frame: Frame) -> None:
        try:
            answer = _BY_QUEUE[type(packet)](self, replica, packet, frame)
        except TidegateError as error:
            self._fail(frame.packet_id, error)
            return
        if answer is not None:
            self._later(answer, frame.packet_id)

    def _put(self, replica: Replica, packet: w.PutMessages, frame: Frame) -> None:
        self._check_put(packet, len(frame.body))
        packet_id = frame.packet_id

        def confirmed(first_id: int, ids: list[int] | None, stored_at: float) -> None:
            self._cycle.ready_at = stored_at
            self._answer(w.PutMessageResponse(first_id, ids), packet_id)

        batch = Batch(
            packet,
            _kept(frame.body),
            self.client_id,
            confirmed,
            lambda error: self._fail(packet_id, error),
        )
        replica.put(batch)

    def _check_put(self, packet: w.PutMessages, body_bytes: int) -> None:
        lengths = packet.lengths
        count = len(lengths)
        if not count:
            raise RequiredParameterMissing("a batch needs at least one message")
        if min(lengths) < 0 or sum(lengths) != body_bytes:
            raise InvalidValue(f"lengths add up to {sum(lengths)}, the body has {body_bytes} bytes")
        if max(lengths) > self._node.limits.message_bytes_max:
            raise TooLarge(
                f"a message of {max(lengths)} bytes exceeds the limit of "
                f"{self._node.limits.message_bytes_max}"
            )
        if packet.batch < 1:
            raise InvalidValue("batches of a producer count up from 1")
        for column in (packet.priorities, packet.receivers):
            if column is not None and len(column) not in (1, count):
                raise InvalidValue(f"a column has {len(column)} entries for {count} messages")
        for column in (packet.contexts, packet.attributes):
            if column is not None and len(column) != count:
                raise InvalidValue(f"a column has {len(column)} entries for {count} messages")
        self._check_priority(min(packet.priorities), max(packet.priorities))
        for attributes in packet.attributes or ():
            self._check_attributes(attributes)
        _check_integers(packet.producer, packet.batch, packet.receivers, packet.contexts)

    @staticmethod
    def _check_priority(lowest: int, highest: int) -> None:
        if lowest < PRIORITY_LOWEST or highest > PRIORITY_HIGHEST:
            raise InvalidValue(
                f"priority runs from {PRIORITY_LOWEST} (lowest) to {PRIORITY_HIGHEST}, not "
                f"{lowest if lowest < PRIORITY_LOWEST else highest}"
            )

    def _check_attributes(self, attributes: Attributes | None) -> None:
        if attributes is None:
            return
        headers = attributes.headers or {}
        size = sum(len(key) + len(value) for key, value in headers.items())
        limits = self._node.limits
        if len(headers) > limits.header_count_max or size > limits.header_bytes_max:
            raise TooLarge(
                f"headers are limited to {limits.header_count_max} and "
                f"{limits.header_bytes_max} characters in all"
            )
        if "\x00" in (attributes.content_type or "") or any(
            "\x00" in text for pair in headers.items() for text in pair
        ):
            raise InvalidValue("headers and content types cannot hold NUL characters")

    def _read_message(self, replica: Replica, packet: w.ReadMessage, frame: Frame) -> None:
        match = None if packet.sender is None else Match(sender=packet.sender)
        self._read(replica, packet, frame.packet_id, packet.order, match, w.ReadMessageResponse)

    def _read_response(self, replica: Replica, packet: w.ReadResponse, frame: Frame) -> None:
        match = Match(context=packet.context, asker=self.client_id)
        order = w.Order.OLDEST
        self._read(replica, packet, frame.packet_id, order, match, w.ReadResponseResponse)

    def _read(
        self,
        replica: Replica,
        packet: w.ReadMessage | w.ReadResponse,
        packet_id: int,
        order: w.Order,
        match: Match | None,
        response: type[w.ReadMessageResponse | w.ReadResponseResponse],
    ) -> None:
        if packet_id in self._readers:
            raise UnexpectedPacket(f"packet {packet_id} is waiting for its answer already")

        def answer(run: w.Run, body: memoryview) -> None:
            self._readers.pop(packet_id, None)
            self._answer(response(run), packet_id, [body] if len(body) else None)

        def miss(error: TidegateError) -> None:
            self._readers.pop(packet_id, None)
            self._fail(packet_id, error)

        reader = Reader(
            self.client_id,
            order,
            match,
            None if packet.lease_ms is None else packet.lease_ms / 1e3,
            answer,
            miss,
            lambda: replica.reading_holder(self),
        )
        self._readers[packet_id] = (reader, replica)
        self._replicas[replica.info.queue_id] = replica
        replica.read(reader, packet.wait_ms / 1e3)

    def _subscribe(self, replica: Replica, packet: w.Subscribe, frame: Frame) -> None:
        limits = self._node.limits
        if packet.consumer < 1:
            raise InvalidValue("consumers are numbered from 1")
        _check_prefetch(packet.prefetch, limits.prefetch_max)
        if replica.holder(self, packet.consumer) is not None:
            raise UniqueConstraint(f"consumer {packet.consumer} exists on this connection")
        self._replicas[replica.info.queue_id] = replica
        self._answer(
            w.SubscribeResponse(lease_ms=int(limits.delivery_lease_s * 1e3)), frame.packet_id
        )
        replica.subscribe(self, packet.consumer, packet.prefetch, packet.order, packet.automatic)

    def _unsubscribe(self, replica: Replica, packet: w.Unsubscribe, frame: Frame) -> None:
        if packet.consumer == 0 or not replica.unsubscribe(self, packet.consumer):
            raise InvalidValue(f"no consumer {packet.consumer} on this connection")
        self._answer(w.Success(), frame.packet_id)

    def _settle(self, replica: Replica, packet: w.Settle, frame: Frame) -> None:
        if not packet.confirm:
            self._cycle.unanswered()
        holder = replica.holder(self, packet.consumer)
        if holder is None:
            if packet.confirm:
                raise LeaseLost("the subscription has ended, and its messages went back")
            return

        def confirm(lost: int) -> None:
            if replica.fenced:
                self._fail(frame.packet_id, LeaseLost("the queue has moved to another node"))
            else:
                self._answer(w.SettleResponse(lost), frame.packet_id)

        replica.settle(holder, packet.ranges, confirm if packet.confirm else None)

    def _return(self, replica: Replica, packet: w.Return, frame: Frame) -> None:
        holder = replica.holder(self, packet.consumer)
        if holder is None:
            raise LeaseLost("the subscription has ended, and its messages went back")
        self._answer(w.SettleResponse(replica.give_back(holder, packet.ranges)), frame.packet_id)

    def _extend(self, replica: Replica, packet: w.Extend, frame: Frame) -> None:
        holder = replica.holder(self, packet.consumer)
        if holder is None:
            raise LeaseLost("the subscription has ended, and its messages went back")
        lease_s = None if packet.lease_ms is None else packet.lease_ms / 1e3
        lost = replica.extend(holder, packet.ranges, lease_s)
        self._answer(w.SettleResponse(lost), frame.packet_id)

    def _set_prefetch(self, replica: Replica, packet: w.SetPrefetch, frame: Frame) -> None:
        _check_prefetch(packet.prefetch, self._node.limits.prefetch_max)
        holder = replica.holder(self, packet.consumer)
        if holder is None or packet.consumer == 0:
            raise InvalidValue(f"no consumer {packet.consumer} on this connection")
        self._answer(w.Success(), frame.packet_id)
        replica.set_prefetch(holder, packet.prefetch)

    def _set_consumer_prefetch(
        self, replica: Replica, packet: w.SetConsumerPrefetch, frame: Frame
    ) -> None:
        _check_prefetch(packet.prefetch, self._node.limits.prefetch_max)
        found = [
            consumer
            for consumer in replica.consumers_of(packet.client_id)
            if consumer.consumer == packet.consumer
        ]
        if not found:
            raise InvalidValue(f"client {packet.client_id} has no consumer {packet.consumer} here")
        for consumer in found:
            consumer.outlet.prefetch_changed(consumer.consumer, packet.prefetch)
            replica.set_prefetch(consumer, packet.prefetch)
        self._answer(w.Success(), frame.packet_id)

    async def _browse(self, replica: Replica, packet: w.GetMessages, frame: Frame) -> None:
        if packet.limit < 1:
            raise InvalidValue("limit must be at least 1")
        runs: list[w.Run] = []
        bodies: list[memoryview | bytes] = []
        room = FRAME_BYTES_MAX // 2
        for span in await replica.browse(min(packet.limit, 10_000)):
            body = span.segment.body(span.low, span.high)
            room -= len(body)
            if room < 0 and runs:
                break
            runs.append(replica.browsed(span))
            bodies.append(body)
        self._answer(w.GetMessagesResponse(runs), frame.packet_id, bodies)

    async def _purge(self, replica: Replica, packet: w.PurgeQueue, frame: Frame) -> None:
        self._answer(w.PurgeQueueResponse(await replica.purge()), frame.packet_id)

    async def _delete_queue(self, replica: Replica, packet: w.DeleteQueue, frame: Frame) -> None:
        await self._node.delete_queue(replica)
        self._answer(w.Success(), frame.packet_id)

    async def _set_owner(self, replica: Replica, packet: w.SetOwner, frame: Frame) -> None:
        await self._node.hand_over(replica, packet.member_id)
        self._answer(w.Success(), frame.packet_id)

    # Packets about everything else

    def _ping(self, packet: w.Ping, event: Received) -> None:
        self._answer(w.Pong(), event.packet_id)

    def _become(self, client: w.ClientInfo, ephemeral: bool = False) -> None:
        if self._ephemeral and self.client_id and self.client_id != client.client_id:
            self._node.forget_client(self.client_id)
        self.client_id = client.client_id
        self.client_name = client.name
        self.mode = client.mode
        self._ephemeral = ephemeral

    async def _register(self, packet: w.RegisterClient, event: Received) -> None:
        name = self._checked_name(packet.name)
        client = await self._node.store.register_client(name, packet.mode_wanted)
        if client is None:
            raise ClientNameNotUnique(f"a client named {name!r} exists: identify, or choose a name")
        self._become(client, packet.ephemeral)
        self._answer(w.RegisterClientResponse(client), event.packet_id)

    async def _identify(self, packet: w.IdentifyClient, event: Received) -> None:
        if packet.client_id is None and packet.name is None:
            raise RequiredParameterMissing("identify by client_id or by name")
        if packet.client_id is not None:
            _check_integers(packet.client_id)
        client = await self._node.store.find_client(packet.client_id, packet.name)
        if client is None:
            raise ClientNotExisting(
                f"no client {packet.name!r}" if packet.name else f"no client {packet.client_id}"
            )
        self._become(client)
        self._answer(w.IdentifyClientResponse(client), event.packet_id)

    async def _delete_client(self, packet: w.DeleteClient, event: Received) -> None:
        if packet.client_id != self.client_id and self.mode is not Mode.ADMIN:
            raise ModeForbids("only an admin deletes other clients")
        _check_integers(packet.client_id)
        if not await self._node.store.delete_client(packet.client_id):
            raise ClientNotExisting(f"no client {packet.client_id}")
        self._answer(w.Success(), event.packet_id)

    async def _find_client(self, packet: w.FindClient, event: Received) -> None:
        client_id = await self._node.store.reserve_client(self._checked_name(packet.name))
        self._answer(w.FindClientResponse(client_id), event.packet_id)

    def _checked_name(self, name: str) -> str:
        if not name or not name.strip():
            raise RequiredParameterMissing("a name must not be empty")
        if len(name) > self._node.limits.name_bytes_max:
            raise TooLarge(f"a name has at most {self._node.limits.name_bytes_max} characters")
        if any(ord(c) < 32 or ord(c) == 127 for c in name):
            raise InvalidValue("a name cannot hold control characters")
        return name

    async def _create_queue(self, packet: w.CreateQueue, event: Received) -> None:
        name = self._checked_name(packet.name)
        queue = await self._node.store.create_queue(name, packet.durable)
        if queue is None:
            raise QueueNameNotUnique(f"a queue named {name!r} exists")
        await self._node.route(queue.queue_id)
        self._answer(w.CreateQueueResponse(queue), event.packet_id)

    async def _queue_by_name(self, packet: w.GetQueueId, event: Received) -> None:
        queue = await self._node.store.find_queue(None, packet.name)
        if queue is None:
            raise QueueNotExisting(f"no queue named {packet.name!r}: create it first")
        self._answer(w.GetQueueIdResponse(queue), event.packet_id)

    async def _queue_by_id(self, packet: w.GetQueueName, event: Received) -> None:
        _check_integers(packet.queue_id)
        queue = await self._node.store.find_queue(packet.queue_id, None)
        if queue is None:
            raise QueueNotExisting(f"no queue {packet.queue_id}")
        self._answer(w.GetQueueNameResponse(queue), event.packet_id)

    async def _queues(self, packet: w.GetQueues, event: Received) -> None:
        queues = await self._node.store.list_queues()
        if not queues:
            raise NoQueues("there are no queues yet")
        self._answer(w.GetQueuesResponse(queues), event.packet_id)

    async def _active_queues(self, packet: w.GetActiveQueues, event: Received) -> None:
        stored = await self._node.store.active_queues(self.client_id)
        active: dict[int, QueueInfo] = {queue.queue_id: queue for queue in stored}
        # What is ours is known better, and transient queues only here.
        for queue_id, replica in self._node.replicas.items():
            active.pop(queue_id, None)
            if replica.queue.has_for(self.client_id):
                active[queue_id] = replica.info
        if not active:
            raise NoActiveQueues("no queue holds a message for this client")
        queues = sorted(active.values(), key=lambda queue: queue.name)
        self._answer(w.GetActiveQueuesResponse(queues), event.packet_id)

    async def _put_to_queues(self, packet: w.PutToQueues, event: Received) -> None:
        self._check_priority(packet.priority, packet.priority)
        self._check_attributes(packet.attributes)
        _check_integers(packet.producer, packet.batch, [packet.receiver], [packet.context])
        if not packet.queue_ids:
            raise RequiredParameterMissing("name at least one queue")
        if len(event.body) > self._node.limits.message_bytes_max:
            raise TooLarge(f"a message of {len(event.body)} bytes exceeds the limit")
        took = await self._node.broadcasts.put(packet, bytes(event.body), self.client_id)
        self._answer(w.PutToQueuesResponse(took), event.packet_id)

    async def _stats(self, packet: w.Stats, event: Received) -> None:
        numbers = await self._node.numbers(packet.queue_id, packet.cluster)
        self._answer(w.StatsResponse(), event.packet_id, [msgspec.json.encode(numbers)])

    async def _members(self, packet: w.GetMembers, event: Received) -> None:
        members = [
            w.Member(m.member_id, m.name, m.address, m.alive, m.queues)
            for m in await self._node.store.members()
        ]
        self._answer(w.GetMembersResponse(members), event.packet_id)


def _kept(body: bytes | bytearray | memoryview) -> bytes | memoryview:
    """A body to keep: as it is when it fills its buffer, else copied out to free the rest."""
    if isinstance(body, memoryview) and 2 * len(body) >= len(body.obj):
        return body
    return bytes(body)


def _check_prefetch(prefetch: int, most: int) -> None:
    if not 1 <= prefetch <= most:
        raise InvalidValue(f"prefetch runs from 1 to {most}, not {prefetch}")


def _check_integers(*values: int | list[int] | list[int | None] | None) -> None:
    """The store keeps 4-byte receivers and 8-byte contexts; say so instead of failing there."""
    for value in values:
        for number in value if isinstance(value, list) else [value]:
            if number is not None and not -(2**63) <= number < 2**63:
                raise InvalidValue(f"{number} does not fit in 64 bits")


_READS = (w.ReadMessage, w.ReadResponse)

_QueueHandler = Callable[[Session, Replica, Any, Frame], Awaitable[None] | None]
_BY_QUEUE: dict[type[w.Packet], _QueueHandler] = {
    w.PutMessages: Session._put,
    w.ReadMessage: Session._read_message,
    w.ReadResponse: Session._read_response,
    w.Subscribe: Session._subscribe,
    w.Unsubscribe: Session._unsubscribe,
    w.Settle: Session._settle,
    w.Return: Session._return,
    w.Extend: Session._extend,
    w.SetPrefetch: Session._set_prefetch,
    w.SetConsumerPrefetch: Session._set_consumer_prefetch,
    w.GetMessages: Session._browse,
    w.PurgeQueue: Session._purge,
    w.DeleteQueue: Session._delete_queue,
    w.SetOwner: Session._set_owner,
}
_Handler = Callable[[Session, Any, Received], Awaitable[None] | None]
_BY_CATALOGUE: dict[type[w.Packet], _Handler] = {
    w.Ping: Session._ping,
    w.RegisterClient: Session._register,
    w.IdentifyClient: Session._identify,
    w.DeleteClient: Session._delete_client,
    w.FindClient: Session._find_client,
    w.CreateQueue: Session._create_queue,
    w.GetQueueId: Session._queue_by_name,
    w.GetQueueName: Session._queue_by_id,
    w.GetQueues: Session._queues,
    w.GetActiveQueues: Session._active_queues,
    w.PutToQueues: Session._put_to_queues,
    w.Stats: Session._stats,
    w.GetMembers: Session._members,
}
