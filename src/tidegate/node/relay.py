"""A client's second connection, from the node it chose to the node that owns a queue.

Frames pass unread in both directions: packet ids and consumer numbers are the client's own,
so nothing is translated. One relay per session and owner, so nothing is mixed up either. It logs
in as a node, which knows the store's secret, and says for which user it speaks: the owner asks
for that user's rights, as if the client had come there itself. When it breaks, every request under
way gets an answer and every subscription an end; the client then asks again, and the question is
routed anew.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from tidegate.access.scram import ClientLogin
from tidegate.client.address import parse_url
from tidegate.core.errors import NotOwner, StaleEpoch, TidegateError, Unavailable, from_code
from tidegate.node.accounts import NODE_USER
from tidegate.wire import packets as w
from tidegate.wire.connection import Connection, Received, relayed
from tidegate.wire.frames import Frame

if TYPE_CHECKING:
    from tidegate.node.session import Session

_MOVED = (NotOwner.code, StaleEpoch.code)
_CONNECT_S = 3.0


class Relay(asyncio.Protocol):
    """The upstream half."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wire = Connection(server=False)
        self._transport: asyncio.Transport | None = None
        # The answer to the one question of the introduction that is open.
        self._introduction: asyncio.Future[w.Packet] | None = None
        self._asked: set[int] = set()
        self._consumers: set[int] = set()
        self.alive = False

    @classmethod
    async def open(cls, address: str, session: Session) -> Relay:
        """Connect to the owner in the client's name."""
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
            # The client is gone, or the owner refuses it: nobody else would hang up.
            relay.close()
            raise
        relay.alive = True
        return relay

    async def _introduce(self) -> None:
        """Log in as a node, then speak for the client and its user."""
        session = self._session
        login = ClientLogin(NODE_USER, session.node.accounts.node_password)
        challenge = await self._ask(w.Authenticate(login.first()))
        assert isinstance(challenge, w.AuthenticateResponse)
        proof = await asyncio.to_thread(login.proof, challenge.message)
        signature = await self._ask(w.Prove(proof))
        assert isinstance(signature, w.ProveResponse)
        login.check(signature.message)
        if not session.guard.is_node:
            await self._ask(w.ActFor(session.guard.user))
        await self._ask(w.IdentifyClient(client_id=session.client_id))

    async def _ask(self, packet: w.Request) -> w.Packet:
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
        session.relay_ended(self)
        for packet_id in self._asked:
            session.send(w.Error(code=gone.code, text=str(gone)), packet_id)
        for consumer in self._consumers:
            session.consumer_ended(consumer, gone)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up on a node that may never read what we have sent."""
        if self._transport is not None:
            self._transport.abort()

    # Neither side may send more than the other reads.

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
        # An ack that asks for no confirmation is the one request without an answer.
        if not isinstance(packet, w.Settle) or packet.confirm:
            self._asked.add(frame.packet_id)
        if isinstance(packet, w.Subscribe):
            self._consumers.add(packet.consumer)
        elif isinstance(packet, w.Unsubscribe):
            self._consumers.discard(packet.consumer)
        self._write(relayed(frame))

    def data_received(self, data: bytes) -> None:
        try:
            for event in self._wire.receive(data):
                if isinstance(event, Received):
                    self._answer(event)
        except TidegateError:
            self.close()

    def _answer(self, event: Received) -> None:
        packet = event.packet
        if self._introduction is not None and not self._introduction.done():
            if isinstance(packet, w.Error):
                self._introduction.set_exception(from_code(packet.code, packet.text))
            else:
                self._introduction.set_result(packet)
            return
        self._asked.discard(event.packet_id)
        if isinstance(packet, w.Error | w.ConsumerEnded) and packet.code in _MOVED:
            self._session.forget_routes(self)
        if isinstance(packet, w.ConsumerEnded):
            self._consumers.discard(packet.consumer)
        self._session.pass_on(relayed(event.frame))
