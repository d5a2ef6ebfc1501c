"""The node's side of one connection: decode, authorize, route, answer.

Theory of operation

`SessionTransport` decodes packets and calls `Session._handle` for each, in order. Every packet is
first checked against the client's mode and fails with `ModeForbids` if the mode does not allow it.
It then takes one of two paths:

- A packet about one queue (`QUEUE_HANDLERS`) goes to the replica if this node owns the queue.
  Otherwise it goes unchanged through a relay to the owner.
- Every other packet goes to a function of `CATALOGUE_HANDLERS`. If the user's rights depend on a
  queue name that is not cached, the session first reads the name.

A handler either answers at once or returns an awaitable. `_later` runs the awaitable as a task, so
that the following packets do not wait. At `PENDING_MAX` such tasks the session stops reading until
half of them are done.

Gates keep the order of packets. If the owner or the name of a queue is not known, the first packet
of that queue opens a gate. All later packets of the same queue wait behind it until `_open_gate`
has found the owner. Packets of other queues do not wait.

Rights are checked before a queue is located, since the answer must not reveal a queue that the user
may not see. Packets that arrive at the gate meanwhile are checked before they pass.

Failures:

- An error of a handler is the answer to its packet. Any other exception is logged and answered as
  `InternalError`.
- A packet for a fenced replica fails with `NotOwner`; the client asks again.
- A packet that another node has relayed is never relayed again. It fails with `NotOwner`, and the
  other node locates the queue again.
- When the connection ends, its tasks are cancelled. `SessionResources` drops its pending reads and
  returns the messages that its consumers hold. Temporary queues of the connection are deleted.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from tidegate.broker.access import UNAUTHENTICATED, Authorizer
from tidegate.broker.dispatch import DeliveryTarget, PendingRead
from tidegate.broker.handlers.catalogue import CATALOGUE_HANDLERS
from tidegate.broker.handlers.messages import QUEUE_HANDLERS
from tidegate.broker.relay import Relay, Relays
from tidegate.broker.replica import Replica
from tidegate.core.errors import (
    InternalError,
    ModeForbids,
    NotOwner,
    TidegateError,
    UnexpectedPacket,
)
from tidegate.core.model import ClientInfo, ClientMode, User
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.connection import (
    FRAME_BYTES_MAX,
    Frame,
    ProtocolConnection,
    ProtocolState,
    ReceivedPacket,
    RejectedPacket,
)
from tidegate.protocol.messages import (
    ConsumerEnded,
    Deliver,
    PrefetchChanged,
    ReadMessage,
    ReadResponse,
)
from tidegate.protocol.packet import Answer, Error, Packet, Request, Run
from tidegate.protocol.scram import ServerLogin

if TYPE_CHECKING:
    from tidegate.broker.access import Accounts, QueueNames
    from tidegate.broker.context import NodeContext
    from tidegate.broker.dead_letters import DeadLetterMover
    from tidegate.broker.listener import ConnectionSlot, ConnectionSlots, Sessions
    from tidegate.broker.ownership import Ownership
    from tidegate.broker.recording import NodeRecorder, RequestSamples
    from tidegate.broker.relay import NodeClients
    from tidegate.broker.replication import LogicalQueues
    from tidegate.broker.stats import NodeStatsCollector
    from tidegate.broker.transactions import Publishing, Topics, Transactions
    from tidegate.broker.transfer import SegmentTransfer
    from tidegate.telemetry.meters import Histogram, PhaseMeters


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a node that sessions and their handlers call.

    A session answers all packets, so it calls most parts. It takes them together. Every other part
    takes only those that it calls.
    """

    context: NodeContext
    accounts: Accounts
    admission: ConnectionSlots
    aliases: LogicalQueues
    dead_letters: DeadLetterMover
    exchange: SegmentTransfer
    names: QueueNames
    node_clients: NodeClients
    ownership: Ownership
    publishing: Publishing
    recording: NodeRecorder | None
    sessions: Sessions
    stats: NodeStatsCollector
    topics: Topics
    transactions: Transactions


# Times the phases of requests of a client that sends one at a time (Telesto's table 5.3).
#
#     last answer sent -> wait for client -> arrived -> parse -> parsed
#         -> wait for the store, or for a message -> ready -> respond -> answer sent
#
# A cycle runs from the end of one answer to the end of the next. It is cut at three instants, so
# the phases add up to the total. Requests that overlap with others have no such cycle and are not
# counted.


class RequestCycle:
    """Times the request that is being handled on one connection."""

    __slots__ = (
        "_answered_at",
        "_counts",
        "_phases",
        "_requests",
        "_unanswered",
        "_waited",
        "arrived_at",
        "parsed_at",
        "ready_at",
        "verb",
    )

    def __init__(self, phases: PhaseMeters, requests: RequestSamples | None = None) -> None:
        self._phases = phases
        # Collects single requests for the lake; None: not recorded.
        self._requests = requests
        # Type of the packet that is being handled.
        self.verb: type | None = None
        self._unanswered = 0
        self._counts = False
        self._answered_at = 0.0
        # When the last packet arrived, and when it was parsed.
        self.arrived_at = 0.0
        self.parsed_at = 0.0
        self._waited: Histogram | None = None
        # When the awaited commit or message was there; 0: when the answer began.
        self.ready_at = 0.0

    def asked(self, arrived_at: float, parsed_at: float) -> None:
        self._unanswered += 1
        self._counts = self._unanswered == 1 and self._answered_at > 0.0
        self.arrived_at = arrived_at
        self.parsed_at = parsed_at
        if self._counts:
            self._waited = None
            self.ready_at = 0.0

    def handled(self, reads: bool) -> None:
        """Note that the handler has returned; if there is no answer yet, it waits for something."""
        if self._counts:
            self._waited = self._phases.wait_message if reads else self._phases.store

    def unanswered(self) -> None:
        """Note that the request gets no answer, or gets it from another node."""
        self._unanswered -= 1
        self._counts = False

    def answered(self, began_at: float, ended_at: float) -> None:
        # Errors may answer packets that need no answer, and bytes that are no request.
        self._unanswered = max(self._unanswered - 1, 0)
        if self._counts:
            self._counts = False
            phases = self._phases
            phases.wait_client.add(self.arrived_at - self._answered_at)
            phases.parse.add(self.parsed_at - self.arrived_at)
            ready_at = self.parsed_at
            if self._waited is not None:
                ready_at = self.ready_at or began_at
                self._waited.add(ready_at - self.parsed_at)
            phases.respond.add(ended_at - ready_at)
            phases.total.add(ended_at - self._answered_at)
            requests = self._requests
            if requests is not None:
                requests.skip -= 1
                if requests.skip <= 0:
                    requests.take(
                        self.verb,
                        (self._answered_at, self.arrived_at, self.parsed_at, ready_at, ended_at),
                        for_message=self._waited is phases.wait_message,
                    )
        self._answered_at = ended_at


# The transport of a session: bytes to packets, with back-pressure in both directions.
#
# After 500 packets of one connection the event loop handles other connections first. A connection
# whose client does not read its answers is not read, and gets no deliveries.


# Packets of one connection that are handled before other connections get their turn.
PACKETS_PER_TURN = 500
# Unsent bytes above which a connection is not read and gets no deliveries.
UNSENT_BYTES_MAX = 4 * 1024 * 1024
# How long a client may take to read the reason before the connection is cut.
_CLOSE_S = 1.0

_READS = (ReadMessage, ReadResponse)


class SessionTransport(asyncio.Protocol, ABC):
    """One accepted connection; the base class of `Session`."""

    def __init__(self, parts: NodeParts) -> None:
        context, recording = parts.context, parts.recording
        self.parts = parts
        self.context = context
        self._clock = context.clock
        self._meters = context.meters
        self._replicas = parts.ownership.replicas
        self.last_heard = 0.0
        self.connected_at = 0.0
        self.cycle = RequestCycle(
            context.meters.phases, None if recording is None else recording.requests
        )
        # Since when the client has read none of its pending data; None: nothing is pending.
        self._stalled_at: float | None = None
        self._unsent_bytes = 0
        self._wire = ProtocolConnection(
            server=True,
            # Larger than any limit on messages: the node can then refuse a large message with an
            # explanation instead of ending the connection.
            frame_bytes_max=FRAME_BYTES_MAX,
            frame_before_login_bytes=context.limits.frame_before_login_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._paused = False
        # Bytes that arrived while the rest of a turn waits for the event loop; they are handled
        # after it. Reading is paused meanwhile, but another part of the node may resume it. None:
        # no turn waits.
        self._behind: list[bytes] | None = None

    @abstractmethod
    def _handle(self, event: ReceivedPacket) -> None:
        """Handle one packet."""

    @property
    def state(self) -> ProtocolState:
        return self._wire.state

    @property
    def identified(self) -> bool:
        return self._wire.state is ProtocolState.IDENTIFIED

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        self.last_heard = self._clock.monotonic()
        if self._behind is not None:
            self._behind.append(data)
            return
        self._handle_packets(self._wire.receive(data))

    def _handle_packets(self, events: Iterator[ReceivedPacket | RejectedPacket]) -> None:
        """Handle packets; after `PACKETS_PER_TURN`, schedule the rest and return."""
        clock, meters = self._clock, self._meters
        cycle = self.cycle
        started = clock.monotonic()
        try:
            for count, event in enumerate(events, 1):
                meters.packets_in += 1
                cycle.asked(started, clock.monotonic())
                if isinstance(event, RejectedPacket):
                    cycle.verb = None
                    self.fail(event.packet_id, event.error)
                    continue
                cycle.verb = type(event.packet)
                self._handle(event)
                cycle.handled(type(event.packet) in _READS)
                if count == PACKETS_PER_TURN:
                    self.pause_reading()
                    self._behind = []
                    asyncio.get_running_loop().call_soon(self._resume, events)
                    return
                started = clock.monotonic()
        except TidegateError as error:
            # The stream cannot be decoded any further: answer with the reason and close it.
            self.fail(0, error)
            self.close()
        if self.context.budget.is_flooded:
            # Data stays in the socket until the store has caught up.
            self.pause_reading()
            self.parts.sessions.resume_when_dry(self)

    def _resume(self, events: Iterator[ReceivedPacket | RejectedPacket]) -> None:
        behind, self._behind = self._behind or [], None
        if self._transport is None or self._transport.is_closing():
            # A session that is being closed for an error must not have its remaining packets
            # handled.
            return
        self.resume_reading()
        self._handle_packets(chain(events, *map(self._wire.receive, behind)))

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            # The node did not read, so the client's silence proves nothing.
            self.last_heard = self._clock.monotonic()
            self._transport.resume_reading()

    # Sending

    def pause_writing(self) -> None:
        self._paused = True
        self._stalled_at = self._clock.monotonic()
        self._unsent_bytes = 1 << 62
        # A client that does not read its answers must not cause more of them.
        self.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._stalled_at = None
        self.resume_reading()

    def can_take(self) -> bool:
        return not self._paused

    def stalled_s(self, now: float) -> float | None:
        """Return how long the client has read nothing; None if nothing is pending."""
        if self._stalled_at is None or self._transport is None:
            return None
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent_bytes:
            # The client reads, even if slowly.
            self._unsent_bytes, self._stalled_at = unsent, now
        return now - self._stalled_at

    def send(
        self, packet: Packet, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._meters.packets_out += 1
        pieces = self._wire.send(packet, packet_id, bodies)
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)

    def answer(
        self, packet: Answer, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        started = self._clock.monotonic()
        self.send(packet, packet_id, bodies)
        self.cycle.answered(started, self._clock.monotonic())

    def fail(self, packet_id: int, error: TidegateError) -> None:
        self.answer(Error(code=error.code, text=str(error)), packet_id)

    def pass_on(self, pieces: list[memoryview | bytes]) -> None:
        """Send an answer of another node unchanged."""
        if self._transport is not None and not self._transport.is_closing():
            self._meters.packets_out += 1
            self._transport.writelines(pieces)

    # Closing

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def close_with_error(self, error: TidegateError, packet_id: int = 0) -> None:
        """Send the error, then close the connection, even if the client does not read it."""
        self.fail(packet_id, error)
        self.hang_up()

    def hang_up(self) -> None:
        self.close()
        # A client that does not read would keep the connection and its resources open.
        asyncio.get_running_loop().call_later(_CLOSE_S, self.abort)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


# Requests of one session that may wait for the store or for a route. At this number the session
# stops reading, or a client could fill the node's memory with tasks.
PENDING_MAX = 256


class Session(SessionTransport):
    """One client's session; replicas deliver messages to it as a `DeliveryTarget`."""

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts)
        self.client_id = 0
        self.client_name = ""
        self.mode = ClientMode.READ_ONLY
        # Address of the client, its user and its rights.
        self.address = ""
        self.place: ConnectionSlot | None = None
        self.authorizer: Authorizer = UNAUTHENTICATED
        self.is_node = False
        self.login: ServerLogin | None = None
        self.login_account: User | None = None
        self._ephemeral = False
        self._pending = 0
        self.resources = SessionResources()
        self.routes = Relays()
        # Queue id -> packets that wait until the queue's owner or name is known.
        self._gates: dict[int, list[tuple[Any, Frame]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> NodeLimits:
        return self.context.limits

    # Transport

    def on_connected(self, peer: tuple[Any, ...] | None) -> None:
        """Note the client's address, and whether that address needs no login."""
        self.connected_at = self.last_heard = self._clock.monotonic()
        self.address = str(peer[0]) if peer else ""
        self._judge()

    def _judge(self) -> None:
        """Set the rights that the client's address has without a login, by the users of now."""
        self.authorizer = self.parts.accounts.guard_at(self.address)
        self._wire.login_required = self.authorizer is UNAUTHENTICATED

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.place is not None:
            # The TLS listener has admitted it already. The first user may have been created during
            # the handshake, and then the address is no longer trusted.
            self._judge()
            return
        self.on_connected(transport.get_extra_info("peername"))
        if not self.parts.sessions.admit(self):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.close()
        self.parts.sessions.remove(self)
        self.resources.cut(self)
        self.routes.close()
        for task in self._tasks:
            task.cancel()
        if self._ephemeral and self.client_id:
            self.parts.sessions.forget_client(self.client_id)
        self.parts.topics.connection_ended(self.resources.queues)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.routes.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.routes.resume_reading()
        for replica in self.resources.replicas:
            replica.dispatch.dispatch()

    # Deliveries

    def deliver(self, consumer: int, runs: list[Run], bodies: list[memoryview | bytes]) -> None:
        self.send(Deliver(consumer=consumer, runs=runs), 0, bodies)

    def consumer_ended(self, consumer: int, error: TidegateError) -> None:
        self.send(ConsumerEnded(consumer=consumer, code=error.code, text=str(error)), 0)

    def prefetch_changed(self, consumer: int, prefetch: int, lasting: bool = True) -> None:
        self.send(PrefetchChanged(consumer, prefetch, lasting), 0)

    # Called by handlers

    def forgo_trust(self) -> None:
        """Withdraw the trust in a local address: the client has begun a login.

        From here on only a completed login gives it rights.
        """
        self.authorizer = UNAUTHENTICATED
        self._wire.login_required = True

    def logged_in(self, guard: Authorizer) -> None:
        """Set the rights of the user that has just logged in.

        Raises `LimitReached` if that user has too many connections.
        """
        assert self.place is not None
        self.parts.admission.log_in(self.place, guard.user, is_node=guard.is_node)
        self.authorizer = guard
        self.is_node = guard.is_node

    def become(self, client: ClientInfo, *, ephemeral: bool = False) -> None:
        """Set the client that this connection speaks for.

        `ephemeral` clients have no name and are deleted some time after the connection has ended.
        """
        if self._ephemeral and self.client_id and self.client_id != client.client_id:
            self.parts.sessions.forget_client(self.client_id)
        self.client_id = client.client_id
        self.client_name = client.name
        self.mode = client.mode
        self._ephemeral = ephemeral
        if self.place is not None:
            self.parts.admission.identify(self.place)

    def takes_along(self, queue_id: int) -> None:
        """Delete the queue when this connection ends."""
        self.resources.queues.add(queue_id)
        if self._wire.state is ProtocolState.CLOSED:
            # The connection ended while the queue was being created.
            self.parts.topics.connection_ended({queue_id})

    # Requests

    def _handle(self, event: ReceivedPacket) -> None:
        packet = cast("Request", event.packet)
        if packet.mode > self.mode and not packet.before_identification:
            self.fail(
                event.packet_id,
                ModeForbids(
                    f"{type(packet).__name__} needs mode {packet.mode.name.lower()}, this client "
                    f"is {self.mode.name.lower()}"
                ),
            )
            return
        if type(packet) in QUEUE_HANDLERS:
            self._to_queue(packet, event.frame)
            return
        if packet.right is not None and not self.authorizer.is_everything:
            if not self.parts.names.knows(packet):
                self._later(self._guarded(packet, event), event.packet_id)
                return
            if not self._is_allowed(packet, event.frame):
                return
        try:
            waiting = CATALOGUE_HANDLERS[type(packet)](self, packet, event)
        except TidegateError as error:
            self.fail(event.packet_id, error)
            return
        if waiting is not None:
            self._later(waiting, event.packet_id)

    async def _guarded(self, packet: Request, event: ReceivedPacket) -> None:
        """Look up the queue names that `packet` refers to, check the rights, then handle it."""
        await self.parts.names.admit(self.authorizer, packet)
        waiting = CATALOGUE_HANDLERS[type(packet)](self, packet, event)
        if waiting is not None:
            await waiting

    def _is_allowed(self, packet: Request, frame: Frame) -> bool:
        """Check the rights of a packet whose queue names are cached; send the error if any."""
        try:
            self.authorizer.check(packet, self.parts.names.known)
        except TidegateError as error:
            self.fail(frame.packet_id, error)
            return False
        return True

    def _later(self, work: Awaitable[None], packet_id: int) -> None:
        """Run `work` as a task beside the following packets, and answer with its error."""
        self._pending += 1
        if self._pending == PENDING_MAX:
            self.pause_reading()

        async def run() -> None:
            try:
                await work
            except TidegateError as error:
                self.fail(packet_id, error)
            except Exception:
                log.exception("a request failed")
                self.fail(packet_id, InternalError("the node's log says more"))
            finally:
                self._pending -= 1
                if self._pending == PENDING_MAX // 2:
                    self.resume_reading()

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if isinstance(work, Coroutine):
                work.close()  # The connection may have ended before the task began

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(over)

    # Requests about a queue

    def _to_queue(self, packet: Any, frame: Frame) -> None:
        queue_id: int = packet.queue_id
        gate = self._gates.get(queue_id)
        if gate is not None:
            gate.append((packet, frame))
            return
        if not self.authorizer.is_everything:
            if not self.parts.names.knows(packet):
                self._wait_at_gate(queue_id, packet, frame)
                return
            if not self._is_allowed(packet, frame):
                return
        replica = self._replicas.get(queue_id)
        if replica is not None:
            self._at_replica(replica, packet, frame)
            return
        relay = self.routes.by_queue.get(queue_id)
        if relay is not None and relay.alive:
            self.forward(relay, packet, frame)
            return
        self._wait_at_gate(queue_id, packet, frame)

    def _wait_at_gate(self, queue_id: int, packet: Any, frame: Frame) -> None:
        self._gates[queue_id] = [(packet, frame)]
        self._later(self._open_gate(queue_id), frame.packet_id)

    async def _open_gate(self, queue_id: int) -> None:
        """Find the queue's owner, then handle the waiting packets in order."""
        error: TidegateError | None = None
        replica: Replica | None = None
        relay: Relay | None = None
        try:
            if not self.authorizer.is_everything:
                await self.parts.names.learn(queue_id)
                # Before the queue is located: the answer must not reveal a queue that the user may
                # not see.
                waiting = self._gates[queue_id]
                waiting[:] = [each for each in waiting if self._is_allowed(*each)]
            if self._gates[queue_id]:
                found = await self.parts.ownership.route(queue_id)
                if isinstance(found, Replica):
                    replica = found
                elif self.is_node:
                    # The relaying node must locate the queue again. If the packet were relayed once
                    # more, a subscription could return to the node that relays it. That node would
                    # then treat the client's acknowledgements as its own and find no such consumer.
                    raise NotOwner(f"queue {queue_id} has moved: ask again")
                else:
                    relay = await self.routes.relay_to(found, self)
                    self.routes.by_queue[queue_id] = relay
        except TidegateError as failure:
            error = failure
        for packet, frame in self._gates.pop(queue_id):
            if error is not None:
                self.fail(frame.packet_id, error)
            elif not self.authorizer.is_everything and not self._is_allowed(packet, frame):
                continue  # Arrived while the others waited
            elif replica is not None:
                self._at_replica(replica, packet, frame)
            elif relay is not None:
                self.forward(relay, packet, frame)

    def _at_replica(self, replica: Replica, packet: Any, frame: Frame) -> None:
        if replica.fenced:
            self.fail(frame.packet_id, NotOwner(f"queue {replica.info.title} has moved"))
            return
        try:
            waiting = QUEUE_HANDLERS[type(packet)](self, replica, packet, frame)
        except TidegateError as error:
            self.fail(frame.packet_id, error)
            return
        if waiting is not None:
            self._later(waiting, frame.packet_id)

    # Relaying

    def forward(self, relay: Relay, packet: Any, frame: Frame) -> None:
        """Send the packet to another node, which answers it."""
        self.cycle.unanswered()
        relay.forward(packet, frame)

    async def forward_to(self, address: str, packet: Request, frame: Frame) -> None:
        """Send the packet to the node at `address`, opening a relay if needed."""
        self.forward(await self.routes.relay_to(address, self), packet, frame)


# The resources that one session has at this node's replicas.


class SessionResources:
    """Pending reads, used replicas and temporary queues of one session."""

    __slots__ = ("_readers", "_replicas", "queues")

    def __init__(self) -> None:
        # By packet id: a reference to the callbacks would form a cycle with the reader.
        self._readers: dict[int, tuple[PendingRead, Replica]] = {}
        self._replicas: dict[int, Replica] = {}
        # Deleted when the session ends.
        self.queues: set[int] = set()

    def use(self, replica: Replica) -> None:
        """Note that the replica has to be told when the session ends."""
        self._replicas[replica.info.queue_id] = replica

    @property
    def replicas(self) -> set[Replica]:
        return set(self._replicas.values())

    def add_reader(self, packet_id: int, reader: PendingRead, replica: Replica) -> None:
        """Note a pending read, which is dropped when the session ends.

        Raises `UnexpectedPacket` if the packet id is in use.
        """
        if packet_id in self._readers:
            raise UnexpectedPacket(f"packet {packet_id} is waiting for its answer already")
        self._readers[packet_id] = (reader, replica)
        self._replicas[replica.info.queue_id] = replica

    def reader(self, packet_id: int) -> PendingRead | None:
        """Return the pending read of a packet; None if there is none."""
        found = self._readers.get(packet_id)
        return None if found is None else found[0]

    def forget_reader(self, packet_id: int) -> None:
        self._readers.pop(packet_id, None)

    def cut(self, outlet: DeliveryTarget) -> None:
        """Drop the session's reads and return the messages that its consumers hold."""
        for reader, replica in self._readers.values():
            replica.dispatch.readers.drop(reader)
        for replica in self.replicas:
            replica.dispatch.forget_outlet(outlet)
