"""A TCP proxy that injects network faults between a client and a server.

Theory of operation

The proxy accepts connections from clients and opens one connection to the server for each of them.
A `_Link` is such a pair. It has two `_End`s (the sockets) and two `_Direction`s (requests and
answers). Each direction has a queue of pieces and one timer.

One mode holds for all links:

    passes    forwards bytes in both directions, each `delay_s` after it arrived
    frozen    keeps both connections open and forwards nothing, as a half-open connection does
    deaf      forwards requests and discards answers, so that every result is unknown to the client

`cut()` is not a mode: it resets all connections at once, and the proxy accepts new ones.

Invariants:

- Each direction keeps the order of its bytes, also when the delay becomes shorter meanwhile.
- A delay does not limit the throughput. Each piece has its own due time, and the timer delivers
  all pieces that are due in one write.
- A frozen proxy forwards nothing, not even the end of a stream. It forwards what arrived meanwhile
  when the mode changes.
- A sender feels back pressure when the receiver is slow, when the proxy is frozen, and when
  `IN_FLIGHT_BYTES_MAX` bytes are on their way.
- The end of a stream is forwarded in order after its last byte. A link ends when both directions
  have ended.

If the proxy cannot connect to the server, it resets the client's connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator
from typing import Literal, Self, cast
from urllib.parse import urlsplit

import msgspec

from tidegate_lab.loadgen.processes import Child, answer

Mode = Literal["passes", "frozen", "deaf"]

# The most bytes on their way in one direction; beyond it the proxy stops reading from the sender.
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
# epoll rounds timeouts up to whole milliseconds. Aiming half a millisecond early is right on
# average.
TIMER_ERROR_S = 0.0005


class TcpProxy:
    """A proxy that listens on a free port in front of one server; use it with `async with`."""

    def __init__(self, target: str, delay_s: float = 0.0, *, host: str = "127.0.0.1") -> None:
        """Prepare a proxy in front of `target`.

        `target` is a URL of any scheme with host and port, or host:port of a node. `host` is the
        address to listen on; an event loop with a simulated network has other addresses.
        `ValueError` means that the target has no host or no port, or that the delay is out of
        range.
        """
        self._target = target if "://" in target else f"tidegate://{target}"
        parts = urlsplit(self._target)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"{target!r} names no host and port to connect to")
        self._host, self._port = parts.hostname, parts.port
        self._own_host = host
        self._delay_s = _checked(delay_s)
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
        """The target's URL with the proxy's host and port instead of its own."""
        parts = urlsplit(self._target)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}{self._own_host}:{self.port}").geturl()

    @property
    def delay_s(self) -> float:
        """The seconds by which the proxy delays bytes in each direction."""
        return self._delay_s

    @property
    def mode(self) -> Mode:
        return self._mode

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, self._own_host, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        links = list(self._links)
        self.cut()
        # The loop closes aborted transports in its next iterations; without this wait it could
        # end with sockets open.
        await asyncio.gather(*(link.ended.wait() for link in links))

    def set_mode(self, mode: Mode) -> None:
        """Set the mode of all links, and forward the bytes that a frozen proxy has held."""
        self._mode = mode
        for link in list(self._links):
            link.go_on()

    def set_delay(self, delay_s: float) -> None:
        """Set the delay for bytes that arrive from now on; earlier bytes keep their due times."""
        self._delay_s = _checked(delay_s)

    def cut(self) -> None:
        """Reset every connection and continue to accept new ones."""
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
    """A client's connection and the connection to the server that the proxy opened for it."""

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
        """Remove the link when both of its ends are closed."""
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
        # A cast instead of an assertion: uvloop's transports do not inherit from the class.
        self.transport = cast(asyncio.Transport, transport)
        self._link.came(self)
        self._goes_by.go_on()

    def data_received(self, data: bytes) -> None:
        self._comes_by.take(data)

    def eof_received(self) -> bool:
        self._comes_by.take(b"")
        # True keeps the transport open: answers on their way to this end must still be delivered.
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
        """Close the transport after all written bytes have been sent."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.transport is None or self.gone:
            return
        own = self.transport.get_extra_info("socket")
        # Linger 0 makes the kernel send a reset instead of a normal end of the stream.
        if own is not None:
            with contextlib.suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _Direction:
    """The bytes on their way from one end to the other; an empty piece is the end of the stream."""

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
        # True when the end of the stream was delivered, or when the receiving end is closed.
        self.is_over = False

    def take(self, data: bytes) -> None:
        if self._ended:
            return
        self._ended = not data
        now = asyncio.get_running_loop().time()
        # Not before earlier bytes: the delay may have become shorter since they arrived.
        self._last_due = max(now + self._proxy.delay_s, self._last_due)
        self._on_the_way.append((self._last_due, data))
        self._in_flight_bytes += len(data)
        if self._timer is None:
            self._deliver()
        self._let_the_source_wait()

    def go_on(self) -> None:
        """Deliver and read again as the current mode and receiver allow."""
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
        """Discard all bytes because the receiving end is closed."""
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
        """Forward the end of the stream, and close both ends if the other direction is over too."""
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
        """Pause or resume reading from the sender, so that back pressure passes through."""
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


# The fault-injecting TCP proxy as a child process, controlled over its standard input.
#
# A proxy in the event loop of the client or the server would add the time for which that loop is
# busy to the delay. `proxy_at` therefore starts the proxy in a process of its own. The parent
# writes one `ProxyCommand` a line and reads one answer for each.


ANSWER_TIMEOUT_S = 20.0


class ProxyCommand(msgspec.Struct, frozen=True):
    """A change of the proxy; `None` leaves a value as it is."""

    delay_s: float | None = None
    mode: Mode | None = None
    cut: bool = False


class ProxyProcess:
    """A proxy in a child process; each call returns after the proxy has applied the change."""

    def __init__(self, child: Child, url: str) -> None:
        self._child = child
        self.url = url

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def set_delay(self, delay_s: float) -> None:
        self._order(ProxyCommand(delay_s=delay_s))

    def set_mode(self, mode: Mode) -> None:
        self._order(ProxyCommand(mode=mode))

    def cut(self) -> None:
        self._order(ProxyCommand(cut=True))

    def _order(self, order: ProxyCommand) -> None:
        self._child.say(order)
        self._child.hear(bool, ANSWER_TIMEOUT_S)


@contextlib.contextmanager
def proxy_at(target: str, delay_s: float = 0.0) -> Iterator[ProxyProcess]:
    """Run a proxy in front of `target` in a child process until the block ends."""
    with Child("tidegate_lab.faults.proxy", [target, str(delay_s)]) as child:
        yield ProxyProcess(child, child.hear(str, ANSWER_TIMEOUT_S))


async def _serve(target: str, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with TcpProxy(target, delay_s) as proxy:
        answer(proxy.url)
        while line := await orders.readline():
            order = msgspec.json.decode(line, type=ProxyCommand)
            if order.delay_s is not None:
                proxy.set_delay(order.delay_s)
            if order.mode is not None:
                proxy.set_mode(order.mode)
            if order.cut:
                proxy.cut()
            answer(True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
