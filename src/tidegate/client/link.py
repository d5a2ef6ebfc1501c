"""One transport to a node: requests with their answers, and pushes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from itertools import count
from typing import cast

from tidegate.core.errors import (
    InvalidValue,
    IoFailure,
    NotAuthenticated,
    TidegateError,
    Unavailable,
    from_code,
)
from tidegate.wire.connection import Connection, Received
from tidegate.wire.packet import Error, Packet, Push

# Ids have 32 bits; nodes that relay requests use the highest bit.
_PACKET_ID_MASK = 0x7FFF_FFFF


class Answered:
    """The answer to a request: a packet and its body."""

    __slots__ = ("body", "packet")

    def __init__(self, packet: Packet, body: bytes | memoryview) -> None:
        self.packet = packet
        self.body = body


class Link(asyncio.Protocol):
    """A TCP or TLS transport with many requests in flight.

    Every request ends exactly once: with the node's answer, or with `IoFailure` when the transport
    closes. Pushes go to `on_push`. `on_lost` is called once, after all requests have ended.
    """

    def __init__(
        self, on_push: Callable[[Packet, memoryview], None], on_lost: Callable[[Link], None]
    ) -> None:
        self._wire = Connection(server=False)
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, Callable[[Packet | TidegateError, memoryview], None]] = {}
        self._packet_ids = count(1)
        self._on_push = on_push
        self._on_lost = on_lost
        self._paused: asyncio.Future[None] | None = None
        self.alive = False
        self.heard_at = 0.0

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        on_push: Callable[[Packet, memoryview], None],
        on_lost: Callable[[Link], None],
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, link = await loop.create_connection(
                    lambda: cls(on_push, on_lost), host, port, ssl=tls
                )
        except ssl.SSLCertVerificationError as failure:
            # A retry would not help. Ignoring the certificate would let an attacker read the
            # connection.
            raise NotAuthenticated(
                f"the certificate of {host}:{port} is not to be trusted "
                f"({failure.verify_message}): name its authority's file with ca_file= or "
                "TIDEGATE_CA_FILE"
            ) from None
        except (UnicodeError, ValueError) as failure:
            raise InvalidValue(f"{host!r} is no host: {failure}") from None
        except ssl.SSLError as failure:
            raise Unavailable(
                f"{host}:{port} does not speak TLS as we do ({failure.reason or failure}): is it "
                "a tidegate:// node?"
            ) from None
        except (OSError, TimeoutError) as failure:
            raise Unavailable(
                f"nothing answers at {host}:{port} ({failure or 'timed out'}): is a node running "
                "there? `tidegate up` starts one"
            ) from None
        return link

    # Callbacks of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=4 * 1024 * 1024)
        self.alive = True
        self.heard_at = asyncio.get_running_loop().time()

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._wire.close()
        self.resume_writing()
        asked, self._asked = self._asked, {}
        lost = IoFailure("the connection to the node was lost; the outcome is not known")
        for done in asked.values():
            done(lost, memoryview(b""))
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._paused = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._paused is not None and not self._paused.done():
            self._paused.set_result(None)
        self._paused = None

    @property
    def writable(self) -> bool:
        return self._paused is None

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        try:
            for event in self._wire.receive(data):
                if not isinstance(event, Received):
                    continue
                packet = event.packet
                if isinstance(packet, Push):
                    self._on_push(packet, event.body)  # type: ignore[arg-type]
                    continue
                done = self._asked.pop(event.packet_id, None)
                if done is not None:
                    if isinstance(packet, Error):
                        done(from_code(packet.code, packet.text), event.body)  # type: ignore[arg-type]
                    else:
                        done(packet, event.body)  # type: ignore[arg-type]
        except TidegateError:
            self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Sending

    def post(self, packet: Packet, bodies: list[memoryview | bytes] | None = None) -> None:
        """Send a packet that has no answer; drop it if the transport is closed."""
        if self.alive and self._transport is not None:
            self._transport.writelines(self._wire.send(packet, self._next_packet_id(), bodies))

    def _next_packet_id(self) -> int:
        return next(self._packet_ids) & _PACKET_ID_MASK

    def submit(
        self,
        packet: Packet,
        bodies: list[memoryview | bytes] | None,
        done: Callable[[Packet | TidegateError, memoryview], None],
    ) -> int:
        """Send a request and return its packet id; `done` receives the answer or an error.

        On a closed transport, `done` receives `Unavailable` at once and the id is 0.
        """
        if not self.alive or self._transport is None:
            done(Unavailable("not connected"), memoryview(b""))
            return 0
        packet_id = self._next_packet_id()
        # Encode first: if encoding raises, no request may stay registered.
        pieces = self._wire.send(packet, packet_id, bodies)
        self._asked[packet_id] = done
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)
        return packet_id

    async def ask(
        self,
        packet: Packet,
        bodies: list[memoryview | bytes] | None = None,
        *,
        abandoned: Callable[[int, Packet | None], None] | None = None,
    ) -> Answered:
        """Send a request and wait for its answer.

        If the caller is cancelled, `abandoned` is called with the packet id and the answer, or with
        the packet id and `None` if no answer has come. In the second case it is called again when
        the answer comes.
        """
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

        def done(answer: Packet | TidegateError, body: memoryview) -> None:
            if future.done():
                if abandoned is not None and not isinstance(answer, TidegateError):
                    abandoned(packet_id, answer)
            elif isinstance(answer, TidegateError):
                future.set_exception(answer)
            else:
                future.set_result(Answered(answer, body))

        packet_id = self.submit(packet, bodies, done)
        try:
            return await future
        except asyncio.CancelledError:
            if abandoned is not None:
                answered = future.done() and not future.cancelled() and not future.exception()
                abandoned(packet_id, future.result().packet if answered else None)
            raise
