"""A relay: the connection over which a node forwards packets to the owner of a queue.

Each session has its own relay to each owner. Packet ids and consumer numbers are therefore those of
the client, and frames pass in both directions unchanged.

The relay logs in as a node, with the secret that all nodes read from the store. It then names the
user for which it speaks, and the owner checks that user's rights.

When the relay ends, each request that has no answer yet fails with `IoFailure`: whether the owner
handled it is not known. Each subscription ends with `Unavailable`. Members of logical queues are
told to join again. The client then repeats what it needs, and the session locates the owner again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from tidegate.broker.access import NODE_USER
from tidegate.client.address import parse_url
from tidegate.core.errors import (
    IoFailure,
    NotOwner,
    StaleEpoch,
    TidegateError,
    Unavailable,
    from_code,
)
from tidegate.core.topology import MemberRole
from tidegate.protocol.catalogue import (
    ActFor,
    Authenticate,
    AuthenticateResponse,
    IdentifyClient,
    Prove,
    ProveResponse,
)
from tidegate.protocol.cluster import Join, JoinAgain, Leave
from tidegate.protocol.connection import Frame, ProtocolConnection, ReceivedPacket, relayed
from tidegate.protocol.messages import ConsumerEnded, Settle, Subscribe, Unsubscribe
from tidegate.protocol.packet import Error, Packet, Request
from tidegate.protocol.scram import ClientLogin

if TYPE_CHECKING:
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
                    lambda: relay, host, port, ssl=session.node.tls_to(address)
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
        login = ClientLogin(NODE_USER, session.node.accounts.node_password)
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
