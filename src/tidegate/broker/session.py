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
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from tidegate.access.scram import ServerLogin
from tidegate.core.errors import InternalError, ModeForbids, NotOwner, TidegateError
from tidegate.core.model import ClientInfo, Mode
from tidegate.core.users import User
from tidegate.node.admission import Place
from tidegate.node.catalogue_verbs import CATALOGUE_VERBS
from tidegate.node.guard import STRANGER, Guard
from tidegate.node.limits import Limits
from tidegate.node.peer import Peer
from tidegate.node.queue_verbs import QUEUE_VERBS
from tidegate.node.relay import Relay
from tidegate.node.replica import Replica
from tidegate.node.routes import Routes
from tidegate.node.ties import Ties
from tidegate.wire.connection import Received, State
from tidegate.wire.frames import Frame
from tidegate.wire.packet import Request
from tidegate.wire.packets.prefetch import PrefetchChanged
from tidegate.wire.packets.run import Run
from tidegate.wire.packets.subscriptions import ConsumerEnded, Deliver

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# Requests of one session that may wait for the store or for a route. At this number the session
# stops reading, or a client could fill the node's memory with tasks.
PENDING_MAX = 256


class Session(Peer):
    """One client's session; replicas deliver messages to it as a `DeliveryTarget`."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.client_id = 0
        self.client_name = ""
        self.mode = Mode.READ_ONLY
        # Address of the client, its user and its rights.
        self.address = ""
        self.place: Place | None = None
        self.guard: Guard = STRANGER
        self.is_node = False
        self.login: ServerLogin | None = None
        self.login_account: User | None = None
        self._ephemeral = False
        self._pending = 0
        self.ties = Ties()
        self.routes = Routes()
        # Queue id -> packets that wait until the queue's owner or name is known.
        self._gates: dict[int, list[tuple[Any, Frame]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def limits(self) -> Limits:
        return self.node.limits

    # Transport

    def meet(self, peer: tuple[Any, ...] | None) -> None:
        """Note the client's address, and whether that address needs no login."""
        self.connected_at = self.last_heard = self.node.clock.monotonic()
        self.address = str(peer[0]) if peer else ""
        self._judge()

    def _judge(self) -> None:
        """Set the rights that the client's address has without a login, by the users of now."""
        self.guard = self.node.accounts.guard_at(self.address)
        self._wire.login_required = self.guard is STRANGER

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.place is not None:
            # The TLS listener has admitted it already. The first user may have been created during
            # the handshake, and then the address is no longer trusted.
            self._judge()
            return
        self.meet(transport.get_extra_info("peername"))
        if not self.node.sessions.admit(self):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.close()
        self.node.sessions.forget(self)
        self.ties.cut(self)
        self.routes.close()
        for task in self._tasks:
            task.cancel()
        if self._ephemeral and self.client_id:
            self.node.sessions.forget_client(self.client_id)
        self.node.topics.connection_ended(self.ties.queues)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.routes.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.routes.resume_reading()
        for replica in self.ties.replicas:
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
        self.guard = STRANGER
        self._wire.login_required = True

    def logged_in(self, guard: Guard) -> None:
        """Set the rights of the user that has just logged in.

        Raises `LimitReached` if that user has too many connections.
        """
        assert self.place is not None
        self.node.admission.log_in(self.place, guard.user, is_node=guard.is_node)
        self.guard = guard
        self.is_node = guard.is_node

    def become(self, client: ClientInfo, *, ephemeral: bool = False) -> None:
        """Set the client that this connection speaks for.

        `ephemeral` clients have no name and are deleted some time after the connection has ended.
        """
        if self._ephemeral and self.client_id and self.client_id != client.client_id:
            self.node.sessions.forget_client(self.client_id)
        self.client_id = client.client_id
        self.client_name = client.name
        self.mode = client.mode
        self._ephemeral = ephemeral
        if self.place is not None:
            self.node.admission.identify(self.place)

    def takes_along(self, queue_id: int) -> None:
        """Delete the queue when this connection ends."""
        self.ties.queues.add(queue_id)
        if self._wire.state is State.CLOSED:
            # The connection ended while the queue was being created.
            self.node.topics.connection_ended({queue_id})

    # Requests

    def _handle(self, event: Received) -> None:
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

    async def _guarded(self, packet: Request, event: Received) -> None:
        """Look up the queue names that `packet` refers to, check the rights, then handle it."""
        await self.node.names.admit(self.guard, packet)
        waiting = CATALOGUE_VERBS[type(packet)](self, packet, event)
        if waiting is not None:
            await waiting

    def _is_allowed(self, packet: Request, frame: Frame) -> bool:
        """Check the rights of a packet whose queue names are cached; send the error if any."""
        try:
            self.guard.check(packet, self.node.names.known)
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
            if not self.guard.is_everything:
                await self.node.names.learn(queue_id)
                # Before the queue is located: the answer must not reveal a queue that the user may
                # not see.
                waiting = self._gates[queue_id]
                waiting[:] = [each for each in waiting if self._is_allowed(*each)]
            if self._gates[queue_id]:
                found = await self.node.ownership.route(queue_id)
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
            elif not self.guard.is_everything and not self._is_allowed(packet, frame):
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
            waiting = QUEUE_VERBS[type(packet)](self, replica, packet, frame)
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
