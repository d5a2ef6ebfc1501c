"""Connections to other nodes: relays, which carry a session's packets, and clients of the node.

A `Relay` is the connection over which a node forwards packets to the owner of a queue. Each session
has its own relay to each owner. Packet ids and consumer numbers are therefore those of the client,
and frames pass in both directions unchanged.

The relay logs in as a node, with the secret that all nodes read from the store. It then names the
user for which it speaks, and the owner checks that user's rights.

When the relay ends, each request that has no answer yet fails with `IoFailure`: whether the owner
handled it is not known. Each subscription ends with `Unavailable`. Members of logical queues are
told to join again. The client then repeats what it needs, and the session locates the owner again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any, cast

from tidegate.broker.access import NODE_USER
from tidegate.client.address import Credentials, parse_address, parse_url, verifying_context
from tidegate.client.client import Client
from tidegate.client.connection import Response
from tidegate.core.errors import (
    IoFailure,
    NotOwner,
    StaleEpoch,
    TidegateError,
    Unavailable,
    from_code,
)
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.topology import MemberRole
from tidegate.protocol.catalogue import (
    ActFor,
    Authenticate,
    AuthenticateResponse,
    IdentifyClient,
    Prove,
    ProveResponse,
)
from tidegate.protocol.cluster import Join, JoinAgain, Leave, SetOwner
from tidegate.protocol.connection import Frame, ProtocolConnection, ReceivedPacket, relayed
from tidegate.protocol.messages import ConsumerEnded, Settle, Subscribe, Unsubscribe
from tidegate.protocol.packet import Error, Packet, Request
from tidegate.protocol.scram import ClientLogin
from tidegate.telemetry.stats import NodeStats

if TYPE_CHECKING:
    from tidegate.broker.access import Accounts
    from tidegate.broker.session import Session

_MOVED = (NotOwner.code, StaleEpoch.code)
_CONNECT_S = 3.0


class Relay(asyncio.Protocol):
    """The connection from this node to the owner, for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wire = ProtocolConnection(server=False)
        self._transport: asyncio.Transport | None = None
        # The answer to the login request that is pending; None: no request is.
        self._introduction: asyncio.Future[Packet] | None = None
        self._asked: set[int] = set()
        self._consumers: set[int] = set()
        # Logical queues that the client has joined through this relay, and as which members.
        self._joined: dict[int, set[tuple[MemberRole, int]]] = {}
        self.alive = False

    @classmethod
    async def open(cls, address: str, session: Session) -> Relay:
        """Connect to the node at `address` and log in for the session's client.

        Raises `Unavailable` if the node cannot be reached within 3 s.
        """
        host, port = parse_url(address)[0]
        relay = cls(session)
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: relay, host, port, ssl=session.parts.node_clients.tls_to(address)
                )
                await relay._introduce()
        except (OSError, TimeoutError) as failure:
            relay.close()
            raise Unavailable(f"the node at {address} cannot be reached: {failure}") from None
        except BaseException:
            # The client is gone or the owner refused it. No other code would close the connection.
            relay.close()
            raise
        relay.alive = True
        return relay

    async def _introduce(self) -> None:
        """Log in as a node, then name the user and the client."""
        session = self._session
        login = ClientLogin(NODE_USER, session.parts.accounts.node_password)
        challenge = await self._ask(Authenticate(login.first()))
        assert isinstance(challenge, AuthenticateResponse)
        proof = await asyncio.to_thread(login.proof, challenge.message)
        signature = await self._ask(Prove(proof))
        assert isinstance(signature, ProveResponse)
        login.check(signature.message)
        if not session.authorizer.is_node:
            await self._ask(ActFor(session.authorizer.user))
        await self._ask(IdentifyClient(client_id=session.client_id))

    async def _ask(self, packet: Request) -> Packet:
        if self._transport is None or self._transport.is_closing():
            raise Unavailable("the node that owns the queue hung up: ask again")
        self._introduction = asyncio.get_running_loop().create_future()
        self._write(self._wire.send(packet, 1 << 31))
        try:
            return await self._introduction
        finally:
            self._introduction = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        gone = Unavailable("the node that owns the queue went away: ask again")
        if self._introduction is not None and not self._introduction.done():
            self._introduction.set_exception(gone)
        session = self._session
        session.routes.on_ended(self)
        # Not `Unavailable`: the owner may have handled the request, so it must not be repeated.
        unknown = IoFailure("the node that owns the queue went away; the outcome is not known")
        for packet_id in self._asked:
            session.send(Error(code=unknown.code, text=str(unknown)), packet_id)
        for consumer in self._consumers:
            session.consumer_ended(consumer, gone)
        for queue_id in self._joined:
            session.send(JoinAgain(queue_id), 0)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection to a node that may never read what was sent."""
        if self._transport is not None:
            self._transport.abort()

    # Back-pressure: neither side may send more than the other one reads.

    def pause_writing(self) -> None:
        self._session.pause_reading()

    def resume_writing(self) -> None:
        self._session.resume_reading()

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _write(self, pieces: list[memoryview | bytes]) -> None:
        if self._transport is not None:
            self._transport.writelines(pieces)

    def forward(self, packet: Any, frame: Frame) -> None:
        # An acknowledgement without `confirm` is the only request that gets no answer.
        if not isinstance(packet, Settle) or packet.confirm:
            self._asked.add(frame.packet_id)
        if isinstance(packet, Subscribe):
            self._consumers.add(packet.consumer)
        elif isinstance(packet, Unsubscribe):
            self._consumers.discard(packet.consumer)
        elif isinstance(packet, Join):
            self._joined.setdefault(packet.queue_id, set()).add((packet.role, packet.member))
        elif isinstance(packet, Leave):
            self._leave(packet)
        self._write(relayed(frame))

    def _leave(self, packet: Leave) -> None:
        members = self._joined.get(packet.queue_id, set())
        members.discard((packet.role, packet.member))
        if not members:
            self._joined.pop(packet.queue_id, None)

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._wire.receive(data):
                if isinstance(event, ReceivedPacket):
                    self._answer(event)
        except TidegateError:
            self.close()

    def _answer(self, event: ReceivedPacket) -> None:
        packet = event.packet
        if self._introduction is not None and not self._introduction.done():
            if isinstance(packet, Error):
                self._introduction.set_exception(from_code(packet.code, packet.text))
            else:
                self._introduction.set_result(packet)
            return
        self._asked.discard(event.packet_id)
        if isinstance(packet, Error | ConsumerEnded) and packet.code in _MOVED:
            self._session.routes.remove(self)
        if isinstance(packet, ConsumerEnded):
            self._consumers.discard(packet.consumer)
        elif isinstance(packet, JoinAgain):
            self._joined.pop(packet.queue_id, None)
            self._session.routes.remove(self)
        self._session.pass_on(relayed(event.frame))


# The relays of one session: one for each other node.
#
# `Relays` does not keep a reference to the session. The session can then be freed without the
# garbage collector when its connection ends.


class Relays:
    """The relays of a session, by the address of the node and by queue."""

    __slots__ = ("_relays", "by_queue")

    def __init__(self) -> None:
        self._relays: dict[str, Relay] = {}
        # The relay used last for each queue; it may have ended since.
        self.by_queue: dict[int, Relay] = {}

    def to(self, queue_id: int) -> Relay | None:
        """Return the relay to the owner of a queue that the session has used; None if it ended."""
        relay = self.by_queue.get(queue_id)
        return relay if relay is not None and relay.alive else None

    async def relay_to(self, address: str, session: Session) -> Relay:
        """Return the relay to the node at `address`, opening it in the name of `session`."""
        relay = self._relays.get(address)
        if relay is None or not relay.alive:
            relay = await Relay.open(address, session)
            known = self._relays.get(address)
            if known is not None and known.alive:
                # Another queue of the same owner was faster. Keep one relay, or the other would
                # never be closed.
                relay.close()
                return known
            self._relays[address] = relay
        return relay

    @property
    def is_relaying(self) -> bool:
        return bool(self._relays)

    def keep_to(self, addresses: set[str]) -> None:
        """Abort the relays to all nodes but `addresses`.

        The other nodes are dead, and a paused one does not close its connection.
        """
        for address, relay in list(self._relays.items()):
            if address not in addresses:
                relay.abort()

    def on_ended(self, relay: Relay) -> None:
        self._relays = {a: r for a, r in self._relays.items() if r is not relay}
        self.remove(relay)

    def remove(self, relay: Relay) -> None:
        """Locate all queues of this relay again: the other node no longer owns one of them."""
        self.by_queue = {q: r for q, r in self.by_queue.items() if r is not relay}

    def pause_reading(self) -> None:
        for relay in self._relays.values():
            relay.pause_reading()

    def resume_reading(self) -> None:
        for relay in self._relays.values():
            relay.resume_reading()

    def close(self) -> None:
        for relay in list(self._relays.values()):
            relay.close()


# Client connections from this node to the other nodes.
#
# A connection is opened once, however many callers ask for it. The opening continues when a caller
# times out, so that the next caller finds it open. On a slow machine a login may take longer than
# any caller waits for an answer.


_ANSWER_TIMEOUT_S = 2.0
_HAND_OVER_S = 5.0


class NodeClients:
    """Connections to other nodes, opened on first use and reused while they are alive.

    Every call logs in as a node. A call raises `Unavailable` if the other node does not answer in
    time.
    """

    def __init__(self, accounts: Accounts, tls: ssl.SSLContext | None) -> None:
        self._accounts = accounts
        # Verifies the certificates of other nodes; None: this node uses no TLS.
        self._tls = tls
        self._clients: dict[str, Client] = {}
        self._opening: dict[str, asyncio.Task[Client]] = {}
        self._closed = False

    def tls_to(self, address: str) -> ssl.SSLContext | None:
        """Return the TLS context for a connection to `address`; None if that node uses no TLS."""
        if not parse_address(address).tls:
            return None
        return self._tls or verifying_context()

    async def _client(self, address: str) -> Client:
        client = self._clients.get(address)
        if client is not None and client.transport is not None and client.transport.alive:
            return client
        if self._closed:
            raise Unavailable("this node is going away")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open(address))
            opening.add_done_callback(lambda done: self._opened(address, done))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and task is not None and not task.cancelling():
                # `close` has cancelled the opening, not this caller.
                raise Unavailable("this node is going away") from None
            raise

    async def _open(self, address: str) -> Client:
        before = self._clients.pop(address, None)
        if before is not None:
            await before.close()
        tls = self.tls_to(address)
        login = Credentials(NODE_USER, self._accounts.node_password)
        client = Client(
            address, mode="admin", reconnect_s=_ANSWER_TIMEOUT_S, credentials=login, tls=tls
        )
        await client.open()
        self._clients[address] = client
        return client

    def _opened(self, address: str, opening: asyncio.Task[Client]) -> None:
        del self._opening[address]
        if not opening.cancelled():
            # The callers may be gone.
            opening.exception()

    async def ask_for(self, address: str, queue_id: int, member_id: int) -> None:
        """Ask the queue's owner to transfer the queue to node `member_id`."""
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                client = await self._client(address)
                link = await client.connected()
                await link.request(SetOwner(queue_id, member_id))
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not let go of the queue") from None

    async def delete_queue(self, address: str, queue_id: int) -> None:
        """Ask the queue's owner to delete it."""
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                await (await self._client(address)).delete_queue(queue_id)
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not answer") from None

    async def request(self, address: str, request: Request, within_s: float) -> Packet:
        """Send a request to a node, which may be this one, and return the answer."""
        return (await self.request_with_body(address, request, within_s)).packet

    async def request_with_body(self, address: str, request: Request, within_s: float) -> Response:
        """Send a request to a node and return the answer with its body."""
        try:
            async with asyncio.timeout(within_s):
                link = await (await self._client(address)).connected()
                return await link.request(request)
        except TimeoutError:
            raise Unavailable(f"the node at {address} does not answer") from None

    async def numbers(
        self,
        addresses: list[str],
        queue_id: int | None,
        steps: int | None,
        with_durations: bool = True,
    ) -> list[NodeStats]:
        """Return the stats of all nodes that answer in time.

        With `queue_id`, only the stats of that queue and of its replicas. `steps` is the number of
        control steps of each consumer; None: no consumers.
        """

        async def ask(address: str) -> list[NodeStats]:
            try:
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    client = await self._client(address)
                    nodes = (await client.node_stats(steps=steps, durations=with_durations)).nodes
            except (TidegateError, TimeoutError):
                return []
            for node in nodes:
                node.queues = [q for q in node.queues if queue_id in (None, q.queue_id, q.alias_id)]
            return nodes

        answers = await asyncio.gather(*map(ask, addresses))
        return [node for nodes in answers for node in nodes]

    async def close(self) -> None:
        self._closed = True
        await cancel_and_wait(self._opening.values())
        for client in self._clients.values():
            with contextlib.suppress(TidegateError):
                await client.close()
        self._clients.clear()
