"""A TCP proxy that misbehaves on request: the cable between a client and a server.

    passes    bytes go both ways, each `delay_s` after it came
    frozen    half open: both connections stay, nothing passes, nobody is told
    deaf      requests pass, answers are swallowed: the outcome of everything is unknown
    cut()     all connections are reset at once

What is held while frozen is delivered when the link thaws, as a real cable would.

A delay is the time that a byte takes, not a limit of how many pass: whatever has come is put in
line with the moment at which it is due, and one timer for each direction delivers all that is due
together. Bytes keep their order when the delay is changed under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from typing import Literal, Self, cast
from urllib.parse import urlsplit

Mode = Literal["passes", "frozen", "deaf"]

# So much may be on its way in one direction; beyond it the sender is made to wait.
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
# epoll counts in whole milliseconds and rounds up. Aiming half of one early is right on average.
TIMER_ERROR_S = 0.0005


class TcpProxy:
    """Listens on a free loopback port in front of a server; use with `async with`."""

    def __init__(self, target: str, delay_s: float = 0.0, host: str = "127.0.0.1") -> None:
        """`target` is a URL with host and port, of any scheme, or host:port of a node.

        `host` is where the proxy listens.
        """
        self._target = target if "://" in target else f"tidegate://{target}"
        parts = urlsplit(self._target)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"{target!r} names no host and port to connect to")
        self._host, self._port = parts.hostname, parts.port
        self._delay_s = _checked(delay_s)
        self._listens_at = host
        self._mode: Mode = "passes"
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self.connections = 0
        self.bytes_swallowed = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """The target's URL, with this proxy's host and port in it."""
        parts = urlsplit(self._target)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{self._listens_at}:{self.port}").geturl()

    @property
    def delay_s(self) -> float:
        """How much later bytes arrive, each way."""
        return self._delay_s

    @property
    def mode(self) -> Mode:
        return self._mode

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self._listens_at, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        links = list(self._links)
        self.cut()
        # Aborted connections are gone with the loop's next turns; nothing is left behind.
        await asyncio.gather(*(link.ended.wait() for link in links))

    def set_mode(self, mode: Mode) -> None:
        self._mode = mode
        for link in list(self._links):
            link.go_on()

    def set_delay(self, delay_s: float) -> None:
        """For what comes from now on; what is on its way keeps its moment."""
        self._delay_s = _checked(delay_s)

    def cut(self) -> None:
        """Reset every connection; new ones are accepted."""
        for link in list(self._links):
            link.cut()

    def _accept(self) -> asyncio.Protocol:
        self.connections += 1
        link = _Link(self)
        self._links.add(link)
        return link.client

    async def _connect(self, link: _Link) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: link.server, self._host, self._port)
        except OSError:
            link.cut()

    def _forget(self, link: _Link) -> None:
        self._links.discard(link)


class _Link:
    """One client's connection and the one that we made for it."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy = proxy
        self.requests = _Direction(proxy, is_answer=False)
        self.answers = _Direction(proxy, is_answer=True)
        self.client = _End(self, comes_by=self.requests, goes_by=self.answers)
        self.server = _End(self, comes_by=self.answers, goes_by=self.requests)
        self.ended = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._was_cut = False

    def came(self, end: _End) -> None:
        if self._was_cut:
            end.reset()
        elif end is self.client:
            self._connecting = asyncio.get_running_loop().create_task(self.proxy._connect(self))

    def left(self) -> None:
        """An end is gone; with the last one, the link is."""
        if self.client.gone and (self.server.gone or self.server.transport is None):
            self.requests.stop()
            self.answers.stop()
            if self._connecting is not None:
                self._connecting.cancel()
            self.proxy._forget(self)
            self.ended.set()

    def go_on(self) -> None:
        self.requests.go_on()
        self.answers.go_on()

    def cut(self) -> None:
        self._was_cut = True
        self.client.reset()
        self.server.reset()


class _End(asyncio.Protocol):
    """One of the two sockets of a link."""

    def __init__(self, link: _Link, comes_by: _Direction, goes_by: _Direction) -> None:
        self._link = link
        self._comes_by, self._goes_by = comes_by, goes_by
        self.transport: asyncio.Transport | None = None
        self.gone = False
        comes_by.source = self
        goes_by.sink = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not asserted: uvloop's transports have the methods and not the class.
        self.transport = cast(asyncio.Transport, transport)
        self._link.came(self)
        self._goes_by.go_on()

    def data_received(self, data: bytes) -> None:
        self._comes_by.take(data)

    def eof_received(self) -> bool:
        self._comes_by.take(b"")
        # Answers that are still on their way to this end are delivered before it is closed.
        return True

    def pause_writing(self) -> None:
        self._goes_by.hold()

    def resume_writing(self) -> None:
        self._goes_by.release()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        self._comes_by.take(b"")
        self._goes_by.stop()
        self._link.left()

    def goes_on_after(self, ended: _Direction) -> bool:
        other = self._comes_by if ended is self._goes_by else self._goes_by
        return not other.is_over

    def close(self) -> None:
        """When what was written has gone out."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.transport is None or self.gone:
            return
        # Linger 0: a reset, as when the other machine is gone, not a polite end.
        if (connected := self.transport.get_extra_info("socket")) is not None:
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _Direction:
    """Bytes on their way from one end to the other, in order; an empty piece is the end."""

    source: _End
    sink: _End

    def __init__(self, proxy: TcpProxy, *, is_answer: bool) -> None:
        self._proxy = proxy
        self._is_answer = is_answer
        self._on_the_way: deque[tuple[float, bytes]] = deque()
        self._in_flight_bytes = 0
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._sink_is_full = False
        self._source_waits = False
        self._ended = False
        # Its end has been delivered, or there is nobody to deliver it to.
        self.is_over = False

    def take(self, data: bytes) -> None:
        if self._ended:
            return
        self._ended = not data
        now = asyncio.get_running_loop().time()
        # Never before what came earlier, though the delay was shortened since.
        self._last_due = max(now + self._proxy.delay_s, self._last_due)
        self._on_the_way.append((self._last_due, data))
        self._in_flight_bytes += len(data)
        if self._timer is None:
            self._deliver()
        self._let_the_source_wait()

    def go_on(self) -> None:
        """Something changed: the mode, or there is somebody to write to."""
        if self._timer is None:
            self._deliver()
        self._let_the_source_wait()

    def hold(self) -> None:
        self._sink_is_full = True
        self._let_the_source_wait()

    def release(self) -> None:
        self._sink_is_full = False
        self.go_on()

    def stop(self) -> None:
        """Nobody is there to write to."""
        self._ended = self.is_over = True
        self._on_the_way.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _deliver(self) -> None:
        self._timer = None
        transport = self.sink.transport
        if transport is None or self._is_blocked:
            return
        loop = asyncio.get_running_loop()
        due_until = loop.time() + TIMER_ERROR_S
        due: list[bytes] = []
        while self._on_the_way and self._on_the_way[0][0] <= due_until:
            data = self._on_the_way.popleft()[1]
            self._in_flight_bytes -= len(data)
            due.append(data)
        at_end = bool(due) and not due[-1]
        if self._is_answer and self._proxy.mode == "deaf":
            self._proxy.bytes_swallowed += sum(map(len, due))
        elif due:
            transport.write(b"".join(due) if len(due) > 1 else due[0])
        if at_end:
            self._end_at(transport)
        elif self._on_the_way:
            self._timer = loop.call_at(self._on_the_way[0][0] - TIMER_ERROR_S, self._timer_fired)

    def _end_at(self, transport: asyncio.Transport) -> None:
        """Half of the link has ended, as TCP lets it; the link has when the other half has."""
        self.is_over = True
        if self.sink.goes_on_after(self):
            if transport.can_write_eof() and not transport.is_closing():
                transport.write_eof()
        else:
            self.source.close()
            self.sink.close()

    def _timer_fired(self) -> None:
        self._deliver()
        self._let_the_source_wait()

    @property
    def _is_blocked(self) -> bool:
        return self._sink_is_full or self._proxy.mode == "frozen"

    def _let_the_source_wait(self) -> None:
        """Back pressure: a sender feels a full or frozen cable as it would without us."""
        transport = self.source.transport
        wait = self._is_blocked or self._in_flight_bytes > IN_FLIGHT_BYTES_MAX
        if transport is None or transport.is_closing() or wait == self._source_waits:
            return
        self._source_waits = wait
        (transport.pause_reading if wait else transport.resume_reading)()


def _checked(delay_s: float) -> float:
    if not 0.0 <= delay_s <= 60.0:
        raise ValueError(f"a delay of {delay_s} s: from 0 to 60 s can be added")
    return delay_s
