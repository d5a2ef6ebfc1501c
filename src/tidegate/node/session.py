"""One client's connection to a node: packets in, verbs at replicas, answers out.

Packets about a queue go to the replica if this node owns it, else they are relayed to the
owner as they are. While it is being found out who that is, packets of that queue wait in
line, so a client's order holds. Everything else is the catalogue's, and may take its time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from tidegate.access.scram import ServerLogin
from tidegate.core.errors import (
    InternalError,
    ModeForbids,
    NotOwner,
    TidegateError,
    UnexpectedPacket,
)
from tidegate.core.model import ClientInfo, Mode
from tidegate.core.users import User
from tidegate.node.admission import Place
from tidegate.node.catalogue_verbs import CATALOGUE_VERBS
from tidegate.node.consumer import Reader
from tidegate.node.cycle import RequestCycle
from tidegate.node.guard import STRANGER, Guard
from tidegate.node.limits import Limits
from tidegate.node.queue_verbs import QUEUE_VERBS
from tidegate.node.relay import Relay
from tidegate.node.replica import Replica
from tidegate.wire import packets as w
from tidegate.wire.connection import FRAME_BYTES_MAX, Connection, Received, Refused, State
from tidegate.wire.frames import Frame

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# Requests of one connection that may wait for the catalogue or for a route; then it is not read.
PENDING_MAX = 256
# Packets of one connection that are handled before others have their turn.
PACKETS_PER_TURN = 500
# A socket with more than this unsent gets no more deliveries.
UNSENT_BYTES_MAX = 4 * 1024 * 1024
# How long a peer has to read why it is hung up on.
_GOODBYE_S = 1.0

_READS = (w.ReadMessage, w.ReadResponse)


class Session(asyncio.Protocol):
    """Protocol of one accepted connection; also the outlet that replicas deliver to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client_id = 0
        self.client_name = ""
        self.mode = Mode.READ_ONLY
        self.last_heard = 0.0
        self.connected_at = 0.0
        self.cycle = RequestCycle(
            node.phases, None if node.recording is None else node.recording.requests
        )
        # Where the peer is, who it is, and what it may do.
        self.address = ""
        self.place: Place | None = None
        self.guard: Guard = STRANGER
        self.is_node = False
        self.login: ServerLogin | None = None
        self.login_account: User | None = None
        # Since when the peer reads nothing of what waits for it; None: nothing waits.
        self._stalled_at: float | None = None
        self._unsent_bytes = 0
        self._wire = Connection(
            server=True,
            # Whatever the limit on messages: one that is too large is refused with a sentence.
            frame_bytes_max=FRAME_BYTES_MAX,
            frame_before_login_bytes=node.limits.frame_before_login_bytes,
        )
        self._transport: asyncio.Transport | None = None
        self._ephemeral = False
        self._paused = False
        self._pending = 0
        # Bytes that came, for whatever made us read on, while a turn was over and more was to be
        # handled: they follow it. None: nothing waits for the next turn.
        self._behind: list[bytes] | None = None
        # By packet id, so that a reader and its callbacks do not hold each other.
        self._readers: dict[int, tuple[Reader, Replica]] = {}
        self._replicas: dict[int, Replica] = {}
        self._relays: dict[str, Relay] = {}
        self._routes: dict[int, Relay] = {}
        # Queue → packets that wait until it is known who serves it.
        self._gates: dict[int, list[tuple[Any, Frame]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Queues that are deleted when this connection ends.
        self._queues_taken_along: set[int] = set()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def limits(self) -> Limits:
        return self.node.limits

    @property
    def state(self) -> State:
        return self._wire.state

    @property
    def identified(self) -> bool:
        return self._wire.state is State.IDENTIFIED

    # The socket

    def meet(self, peer: tuple[Any, ...] | None) -> None:
        """Look who is there, by where it comes from."""
        self.connected_at = self.last_heard = self.node.clock.monotonic()
        self.address = str(peer[0]) if peer else ""
        self._judge()

    def _judge(self) -> None:
        """Whether the peer is trusted for where it is, by what is known now."""
        self.guard = self.node.accounts.guard_at(self.address)
        self._wire.login_required = self.guard is STRANGER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        if self.place is not None:
            # It was let in at the doorstep; the first user may have been made while it waited.
            self._judge()
            return
        self.meet(transport.get_extra_info("peername"))
        if not self.node.admit(self):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.close()
        self.node.forget_session(self)
        for reader, replica in self._readers.values():
            replica.dispatch.drop_reader(reader)
        for replica in set(self._replicas.values()):
            replica.dispatch.forget_outlet(self)
        for relay in list(self._relays.values()):
            relay.close()
        for task in self._tasks:
            task.cancel()
        if self._ephemeral and self.client_id:
            self.node.forget_client(self.client_id)
        self.node.topics.connection_ended(self._queues_taken_along)

    def pause_writing(self) -> None:
        self._paused = True
        self._stalled_at = self.node.clock.monotonic()
        self._unsent_bytes = 1 << 62
        # Who does not read our answers may ask nothing more.
        self.pause_reading()
        for relay in self._relays.values():
            relay.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._stalled_at = None
        self.resume_reading()
        for relay in self._relays.values():
            relay.resume_reading()
        for replica in set(self._replicas.values()):
            replica.dispatch.dispatch()

    def stalled_s(self, now: float) -> float | None:
        """How long the peer has read nothing; None: there is nothing that it should have read."""
        if self._stalled_at is None or self._transport is None:
            return None
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._unsent_bytes:
            # It reads, however slowly.
            self._unsent_bytes, self._stalled_at = unsent, now
        return now - self._stalled_at

    def data_received(self, data: bytes) -> None:
        self.last_heard = self.node.clock.monotonic()
        if self._behind is not None:
            self._behind.append(data)
            return
        self._take_in(self._wire.receive(data))

    def _take_in(self, events: Iterator[Received | Refused]) -> None:
        """Handle packets, and after a good many let others have their turn."""
        node = self.node
        cycle = self.cycle
        started = node.clock.monotonic()
        try:
            for count, event in enumerate(events, 1):
                node.packets_in += 1
                cycle.asked(started, node.clock.monotonic())
                if isinstance(event, Refused):
                    cycle.verb = None
                    self.fail(event.packet_id, event.error)
                    continue
                cycle.verb = type(event.packet)
                self._handle(event)
                cycle.handled(type(event.packet) in _READS)
                if count == PACKETS_PER_TURN:
                    self.pause_reading()
                    self._behind = []
                    asyncio.get_running_loop().call_soon(self._go_on, events)
                    return
                started = node.clock.monotonic()
        except TidegateError as error:
            # No frame can be trusted any more: say why, and hang up on this one alone.
            self.fail(0, error)
            self.close()
        if node.is_flooded:
            # What it sends now stays in its socket until the store has caught up.
            self.pause_reading()
            node.resume_when_dry(self)

    def _go_on(self, events: Iterator[Received | Refused]) -> None:
        behind, self._behind = self._behind or [], None
        if self._transport is None or self._transport.is_closing():
            # Whoever is hung up on, since it may no longer ask, is not served the rest either.
            return
        self.resume_reading()
        self._take_in(chain(events, *map(self._wire.receive, behind)))

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            # Silence was our doing, not the client's.
            self.last_heard = self.node.clock.monotonic()
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    # Out

    def send(
        self, packet: w.Packet, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.node.packets_out += 1
        pieces = self._wire.send(packet, packet_id, bodies)
        if len(pieces) == 1:
            transport.write(pieces[0])
        else:
            transport.writelines(pieces)

    def answer(
        self, packet: w.Answer, packet_id: int, bodies: list[memoryview | bytes] | None = None
    ) -> None:
        started = self.node.clock.monotonic()
        self.send(packet, packet_id, bodies)
        self.cycle.answered(started, self.node.clock.monotonic())

    def fail(self, packet_id: int, error: TidegateError) -> None:
        self.answer(w.Error(code=error.code, text=str(error)), packet_id)

    def pass_on(self, pieces: list[memoryview | bytes]) -> None:
        """An answer of another node, as it came."""
        if self._transport is not None and not self._transport.is_closing():
            self.node.packets_out += 1
            self._transport.writelines(pieces)

    def can_take(self) -> bool:
        return not self._paused

    def deliver(self, consumer: int, runs: list[w.Run], bodies: list[memoryview | bytes]) -> None:
        self.send(w.Deliver(consumer=consumer, runs=runs), 0, bodies)

    def consumer_ended(self, consumer: int, error: TidegateError) -> None:
        self.send(w.ConsumerEnded(consumer=consumer, code=error.code, text=str(error)), 0)

    def prefetch_changed(self, consumer: int, prefetch: int) -> None:
        self.send(w.PrefetchChanged(consumer=consumer, prefetch=prefetch), 0)

    def end(self, error: TidegateError, packet_id: int = 0) -> None:
        """Say why, and hang up, whether or not the peer listens."""
        self.fail(packet_id, error)
        self.hang_up()

    def hang_up(self) -> None:
        self.close()
        # What a peer does not read would keep the connection open, with all that it holds.
        asyncio.get_running_loop().call_later(_GOODBYE_S, self.abort)

    # For the verbs

    def forgo_trust(self) -> None:
        """The peer wants to be somebody: wherever it is, it is nobody until it has proved it."""
        self.guard = STRANGER
        self._wire.login_required = True

    def logged_in(self, guard: Guard) -> None:
        """The peer has proved who it is; LimitReached when that user has too many connections."""
        assert self.place is not None
        self.node.admission.log_in(self.place, guard.user, is_node=guard.is_node)
        self.guard = guard
        self.is_node = guard.is_node

    def become(self, client: ClientInfo, *, ephemeral: bool = False) -> None:
        """From here on the connection speaks for this client."""
        if self._ephemeral and self.client_id and self.client_id != client.client_id:
            self.node.forget_client(self.client_id)
        self.client_id = client.client_id
        self.client_name = client.name
        self.mode = client.mode
        self._ephemeral = ephemeral
        if self.place is not None:
            self.node.admission.identify(self.place)

    def uses(self, replica: Replica) -> None:
        """The replica must hear when this connection ends."""
        self._replicas[replica.info.queue_id] = replica

    def takes_along(self, queue_id: int) -> None:
        """A queue that goes with this connection."""
        self._queues_taken_along.add(queue_id)
        if self._wire.state is State.CLOSED:
            # It ended while the queue was being made.
            self.node.topics.connection_ended({queue_id})

    def remember_reader(self, packet_id: int, reader: Reader, replica: Replica) -> None:
        """Its connection's end is the reader's end."""
        if packet_id in self._readers:
            raise UnexpectedPacket(f"packet {packet_id} is waiting for its answer already")
        self._readers[packet_id] = (reader, replica)
        self.uses(replica)

    def reader(self, packet_id: int) -> Reader | None:
        """The read that waits under this packet id."""
        found = self._readers.get(packet_id)
        return None if found is None else found[0]

    def forget_reader(self, packet_id: int) -> None:
        self._readers.pop(packet_id, None)

    # In

    def _handle(self, event: Received) -> None:
        packet = cast("w.Request", event.packet)
        if packet.mode > self.mode and not packet.before_identification:
            self.fail(
                event.packet_id,
                ModeForbids(
                    f"{type(packet).__name__} needs mode {packet.mode.name.lower()}, this client "
                    f"is {self.mode.name.lower()}"
                ),
            )
            return
        if type(packet) in QUEUE_VERBS:
            self._to_queue(packet, event.frame)
            return
        if packet.right is not None and not self.guard.is_everything:
            if not self.node.names.knows(packet):
                self._later(self._guarded(packet, event), event.packet_id)
                return
            if not self._is_allowed(packet, event.frame):
                return
        try:
            waiting = CATALOGUE_VERBS[type(packet)](self, packet, event)
        except TidegateError as error:
            self.fail(event.packet_id, error)
            return
        if waiting is not None:
            self._later(waiting, event.packet_id)

    async def _guarded(self, packet: w.Request, event: Received) -> None:
        """A request about queues whose names have to be looked up first."""
        await self.node.names.admit(self.guard, packet)
        waiting = CATALOGUE_VERBS[type(packet)](self, packet, event)
        if waiting is not None:
            await waiting

    def _is_allowed(self, packet: w.Request, frame: Frame) -> bool:
        """The same for a queue whose name is known; who may not is told so."""
        try:
            self.guard.check(packet, self.node.names.known)
        except TidegateError as error:
            self.fail(frame.packet_id, error)
            return False
        return True

    def _later(self, work: Awaitable[None], packet_id: int) -> None:
        """Run what has to wait for the store, beside what follows."""
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
                work.close()  # the connection may have ended before it began

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(over)

    # Packets about a queue

    def _to_queue(self, packet: Any, frame: Frame) -> None:
        queue_id: int = packet.queue_id
        gate = self._gates.get(queue_id)
        if gate is not None:
            gate.append((packet, frame))
            return
        if not self.guard.is_everything:
            if not self.node.names.knows(packet):
                self._wait_at_gate(queue_id, packet, frame)
                return
            if not self._is_allowed(packet, frame):
                return
        replica = self.node.replicas.get(queue_id)
        if replica is not None:
            self._at_replica(replica, packet, frame)
            return
        relay = self._routes.get(queue_id)
        if relay is not None and relay.alive:
            self._forward(relay, packet, frame)
            return
        self._wait_at_gate(queue_id, packet, frame)

    def _wait_at_gate(self, queue_id: int, packet: Any, frame: Frame) -> None:
        self._gates[queue_id] = [(packet, frame)]
        self._later(self._open_gate(queue_id), frame.packet_id)

    async def _open_gate(self, queue_id: int) -> None:
        """Find out who serves the queue, then let through what waits, in order."""
        error: TidegateError | None = None
        replica: Replica | None = None
        relay: Relay | None = None
        try:
            if not self.guard.is_everything:
                await self.node.names.learn(queue_id)
                # Before it is routed: who may not see a queue must not hear how it is.
                waiting = self._gates[queue_id]
                waiting[:] = [each for each in waiting if self._is_allowed(*each)]
            if self._gates[queue_id]:
                found = await self.node.ownership.route(queue_id)
                if isinstance(found, Replica):
                    replica = found
                elif self.is_node:
                    # Whoever relays to us must look again. Passed on once more, a subscription
                    # might come back to the very node that relays it, where acknowledgements and
                    # its end, which need no relay there, would find nobody of its number.
                    raise NotOwner(f"queue {queue_id} has moved: ask again")
                else:
                    relay = self._routes[queue_id] = await self._relay_to(found)
        except TidegateError as failure:
            error = failure
        for packet, frame in self._gates.pop(queue_id):
            if error is not None:
                self.fail(frame.packet_id, error)
            elif not self.guard.is_everything and not self._is_allowed(packet, frame):
                continue  # it came while the others waited
            elif replica is not None:
                self._at_replica(replica, packet, frame)
            elif relay is not None:
                self._forward(relay, packet, frame)

    def _at_replica(self, replica: Replica, packet: Any, frame: Frame) -> None:
        if replica.fenced:
            self.fail(frame.packet_id, NotOwner(f"queue {replica.info.name!r} has moved"))
            return
        try:
            waiting = QUEUE_VERBS[type(packet)](self, replica, packet, frame)
        except TidegateError as error:
            self.fail(frame.packet_id, error)
            return
        if waiting is not None:
            self._later(waiting, frame.packet_id)

    # Queues of other nodes

    def relay_for(self, queue_id: int) -> Relay | None:
        """The way to the owner of a queue that this connection has used, if it still holds."""
        relay = self._routes.get(queue_id)
        return relay if relay is not None and relay.alive else None

    def forward(self, relay: Relay, packet: w.Request, frame: Frame) -> None:
        """Let the node behind that relay answer."""
        self._forward(relay, packet, frame)

    def _forward(self, relay: Relay, packet: Any, frame: Frame) -> None:
        self.cycle.unanswered()
        relay.forward(packet, frame)

    async def forward_to(self, address: str, packet: w.Request, frame: Frame) -> None:
        """Let another node answer."""
        self._forward(await self._relay_to(address), packet, frame)

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
