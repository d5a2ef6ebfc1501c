"""A connection to a server: one request at a time, and kept for the next one."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, cast

from tidegate.gateway.request_reader import Mark
from tidegate.gateway.response_reader import BadAnswer, ResponseHead, ResponseReader
from tidegate.gateway.server import Server, ServerAddress

if TYPE_CHECKING:
    from tidegate.gateway.exchange import Exchange


class ServerConnection(asyncio.Protocol):
    """Passes the response of one server to the `ProxiedRequest` that waits for it."""

    def __init__(self, server: Server, address: ServerAddress, header_bytes_max: int) -> None:
        self.server = server
        # The address it was made to; the server may have another one by now.
        self.address = address
        self._reader = ResponseReader(header_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._keep_alive = True
        self._tunnel = False
        self.writing_paused = False
        self.idle_since = 0.0
        # Whether it has answered an earlier request.
        self.reused = False
        # Whether any byte of the response has come.
        self.answering = False

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send_head(self, exchange: Exchange, method: bytes, data: bytes) -> None:
        """Start a request: send its head, with the part of its body that is there."""
        assert self._exchange is None
        self._exchange = exchange
        self.answering = False
        self.server.active.add(self)
        self._reader.expect(method)
        self.send(data)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def send_eof(self) -> None:
        if self.usable and self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def release(self, idle_max: int) -> None:
        """End a request: keep the connection for the next one, or close it."""
        self._exchange = None
        self.server.active.discard(self)
        reusable = self._keep_alive and self._reader.complete and not self._tunnel
        # A draining server gets nothing new, so its connections are not kept.
        reusable = reusable and not self.server.draining and self.server.is_at(self.address)
        if reusable and self.usable and len(self.server.idle) < idle_max:
            self.reused = True
            self.idle_since = monotonic()
            self.resume_reading()
            self.server.idle.append(self)
        else:
            self.close()

    def close(self) -> None:
        self._exchange = None
        self.server.active.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def close_tunnel(self, within_s: float) -> None:
        """Close after both sides have ended; unsent bytes have `within_s` seconds to go out."""
        self._exchange = None
        self.server.active.discard(self)
        transport = self._transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                asyncio.get_running_loop().call_later(within_s, transport.abort)

    def become_tunnel(self) -> bytes:
        """Pass bytes unparsed from now on; return the bytes after the switch."""
        self._tunnel = True
        return self._reader.rest

    def pause_reading(self) -> None:
        if self.usable and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.usable and self._transport is not None:
            self._transport.resume_reading()

    # Called by the event loop

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # An unrequested response would be taken for the next client's.
            self.close()
            return
        self.answering = True
        if self._tunnel:
            exchange.tunnel_from_server(data)
            return
        try:
            self._reader.receive(data)
        except BadAnswer as bad:
            self._fail(exchange, f"bad answer: {bad}")
            return
        self._hand_on(exchange)

    def _hand_on(self, exchange: Exchange) -> None:
        events = self._reader.events
        out: list[bytes] = []
        complete = False
        try:
            while events:
                event = events.popleft()
                if isinstance(event, bytes):
                    exchange.answer_part(event, out)
                elif isinstance(event, ResponseHead):
                    if not event.interim:
                        self._keep_alive = event.keep_alive
                    exchange.answer_head(event, out)
                elif isinstance(event, Mark):
                    complete = True
        except BadAnswer as bad:
            self._fail(exchange, f"bad answer: {bad}")
            return
        exchange.answered(out, complete=complete)

    def _fail(self, exchange: Exchange, why: str) -> None:
        self.close()
        exchange.server_failed(why)

    def eof_received(self) -> bool:
        exchange = self._exchange
        if self._tunnel and exchange is not None:
            exchange.tunnel_eof_from_server()
            return True
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        exchange, self._exchange = self._exchange, None
        self.server.active.discard(self)
        if exchange is None:
            if self in self.server.idle:
                self.server.idle.remove(self)
            return
        if self._tunnel:
            exchange.tunnel_over()
        elif error is None and self._reader.end_of_file():
            self._keep_alive = False
            self._hand_on(exchange)
        else:
            exchange.server_failed("the connection was lost")

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self._exchange is not None:
            self._exchange.server_is_full()

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._exchange is not None:
            self._exchange.server_has_room()

    def cut_off(self) -> None:
        """Close it and end its request, because the server is removed."""
        exchange = self._exchange
        self.close()
        if exchange is not None:
            exchange.cut_off()
