"""One TCP connection to a node: requests and their answers, pushes, heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import cast

from tidegate.core.errors import IoFailure, TidegateError, Unavailable, from_code
from tidegate.wire import packets as w
from tidegate.wire.connection import Connection, Received


class Answered:
    """What came back."""

    __slots__ = ("body", "packet")

    def __init__(self, packet: w.Packet, body: bytes | memoryview) -> None:
        self.packet = packet
        self.body = body


class Link(asyncio.Protocol):
    """Many requests in flight, each answered once: by the node, or by the connection's end."""

    def __init__(
        self, on_push: Callable[[w.Packet, memoryview], None], on_lost: Callable[[Link], None]
    ) -> None:
        self._wire = Connection(server=False)
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, Callable[[w.Packet | TidegateError, memoryview], None]] = {}
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
        on_push: Callable[[w.Packet, memoryview], None],
        on_lost: Callable[[Link], None],
        timeout_s: float,
    ) -> Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, link = await loop.create_connection(lambda: cls(on_push, on_lost), host, port)
        except (OSError, TimeoutError) as failure:
            raise Unavailable(
                f"nothing answers at {host}:{port} ({failure or 'timed out'}): is a node running "
                "there? `tidegate up` starts one"
            ) from None
        return link

    # The socket

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
                if isinstance(packet, w.Push):
                    self._on_push(packet, event.body)  # type: ignore[arg-type]
                    continue
                done = self._asked.pop(event.packet_id, None)
                if done is not None:
                    if isinstance(packet, w.Error):
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

    # Out

    def post(self, packet: w.Packet, bodies: list[memoryview | bytes] | None = None) -> None:
        """Send what nobody answers."""
        if self.alive and self._transport is not None:
            self._transport.writelines(self._wire.send(packet, next(self._packet_ids), bodies))

    def submit(
        self,
        packet: w.Packet,
        bodies: list[memoryview | bytes] | None,
        done: Callable[[w.Packet | TidegateError, memoryview], None],
    ) -> None:
        """Send a request; `done` gets its answer, or the error."""
        if not self.alive or self._transport is None:
            done(Unavailable("not connected"), memoryview(b""))
            return
        packet_id = next(self._packet_ids)
        self._asked[packet_id] = done
        pieces = self._wire.send(packet, packet_id, bodies)
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    async def ask(
        self, packet: w.Packet, bodies: list[memoryview | bytes] | None = None
    ) -> Answered:
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

        def done(answer: w.Packet | TidegateError, body: memoryview) -> None:
            if future.done():
                return
            if isinstance(answer, TidegateError):
                future.set_exception(answer)
            else:
                future.set_result(Answered(answer, body))

        self.submit(packet, bodies, done)
        return await future
