"""Connections in memory: what one side writes, the other reads in the next turn of the event loop.

They behave like sockets, as far as a protocol can observe. Bytes arrive in order and in pieces. A
side that does not read makes the other pause its writing. A close arrives after the last byte, an
abort at once. So nodes and clients run unchanged, and no port is used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

# No real host has this suffix (RFC 6761 reserves "test").
DOMAIN = ".tidegate.test"
FIRST_PORT = 7411
LOOPBACK = "127.0.0.1"
# As much as asyncio reads from a socket at once, so that frames arrive in pieces here, too.
READ_BYTES_MAX = 256 * 1024

Bytes = bytes | bytearray | memoryview


class ConnectionSide(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: asyncio.BaseProtocol, **extra: Any
    ) -> None:
        super().__init__(extra)
        self._loop = loop
        self._protocol: Any = protocol
        self.other: ConnectionSide
        # Called with everything that is written on this side.
        self.tap: Callable[[bytes], None] | None = None
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._inbox_ended = False
        self._reading = True
        self._read_scheduled = False
        self._write_paused = False
        self._high = 64 * 1024
        self._low = self._high // 4
        self._closing = False

    # Writing

    def write(self, data: Bytes) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Bytes]) -> None:
        # Copy the data, since payloads are views of the node's memory.
        data = b"".join(list_of_data)
        if self._closing or not data:
            return
        if self.tap is not None:
            self.tap(data)
        self.other._arrive(data)
        if not self._write_paused and self.other._inbox_bytes > self._high:
            self._write_paused = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.other._inbox_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 4 * low if low is not None else 64 * 1024
        self._low = low if low is not None else self._high // 4

    def _has_been_read(self) -> None:
        if self._write_paused and self.other._inbox_bytes <= self._low:
            self._write_paused = False
            self._protocol.resume_writing()

    # Reading

    def _arrive(self, data: bytes) -> None:
        if self._closing:
            return
        self._inbox.append(data)
        self._inbox_bytes += len(data)
        self._schedule_read()

    def _schedule_read(self) -> None:
        if self._reading and not self._read_scheduled and not self._closing:
            self._read_scheduled = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_scheduled = False
        if self._closing or not self._reading:
            return
        if not self._inbox:
            if self._inbox_ended and not self._protocol.eof_received():
                self.close()
            return
        data = b"".join(self._inbox)
        self._inbox.clear()
        if len(data) > READ_BYTES_MAX:
            self._inbox.append(data[READ_BYTES_MAX:])
            data = data[:READ_BYTES_MAX]
        self._inbox_bytes -= len(data)
        self._protocol.data_received(data)
        self.other._has_been_read()
        if self._inbox or self._inbox_ended:
            self._schedule_read()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._inbox or self._inbox_ended:
            self._schedule_read()

    # Closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end(None)
        self.other._inbox_ended = True
        self.other._schedule_read()

    def abort(self) -> None:
        self._end(None)
        self.other._end(ConnectionResetError("the other side has aborted the connection"))

    def _end(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._inbox.clear()
        self._inbox_bytes = 0
        self._loop.call_soon(self._protocol.connection_lost, error)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol


class ListenAddress:
    """A listening socket, reduced to its address."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class Listener:
    """A server that only the test's own event loop can reach."""

    def __init__(
        self,
        network: InMemoryNetwork,
        port: int,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._network = network
        self._protocol_factory = protocol_factory
        # A loopback address, since no other machine can connect.
        self.sockets = (ListenAddress(LOOPBACK, port),)
        # Called for each connection; returns callbacks for the bytes that the client and the server
        # write.
        self.taps: Callable[[], tuple[Callable[[bytes], None], Callable[[bytes], None]]] | None
        self.taps = None

    def accept(
        self, client: asyncio.BaseProtocol, loop: asyncio.AbstractEventLoop
    ) -> ConnectionSide:
        """Connect a client's protocol to a new server protocol; return the client's side."""
        name, nowhere = self.sockets[0].getsockname(), (LOOPBACK, 0)
        server = self._protocol_factory()
        here = ConnectionSide(loop, server, peername=nowhere, sockname=name)
        there = ConnectionSide(loop, client, peername=name, sockname=nowhere)
        here.other, there.other = there, here
        if self.taps is not None:
            there.tap, here.tap = self.taps()
        server.connection_made(here)
        client.connection_made(there)
        return there

    async def start_serving(self) -> None:
        """Do nothing, since the listener serves from the start."""

    def close(self) -> None:
        self._network.remove(self)

    def is_serving(self) -> bool:
        return self in self._network.listeners.values()

    async def wait_closed(self) -> None:
        """Do nothing, since the protocols close their connections themselves."""


class InMemoryNetwork:
    """The listeners of one event loop, by address."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.listeners: dict[tuple[str, int], Listener] = {}

    def is_ours(self, host: object) -> bool:
        return isinstance(host, str) and host.endswith(DOMAIN)

    def listen(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> Listener:
        if not port:
            port = FIRST_PORT
            while (host, port) in self.listeners:
                port += 1
        if (host, port) in self.listeners:
            raise OSError(f"somebody listens on {host}:{port} already")
        listener = self.listeners[host, port] = Listener(self, port, protocol_factory)
        return listener

    def remove(self, listener: Listener) -> None:
        self.listeners = {at: each for at, each in self.listeners.items() if each is not listener}

    def connect(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[ConnectionSide, asyncio.BaseProtocol]:
        listener = self.listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"no broker of this test listens on {host}:{port}")
        protocol = protocol_factory()
        return listener.accept(protocol, self._loop), protocol
