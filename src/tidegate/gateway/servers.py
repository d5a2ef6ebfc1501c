"""All servers behind a gateway: choice, ejection, removal.

A spare is a server of weight 0 that does not drain. It gets requests as soon as no server with a
weight is available. The leader would need about a second to notice that and promote the spare.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, cast

from tidegate.core.errors import InvalidValue
from tidegate.core.services import HEALTH_ANSWER_S
from tidegate.gateway.http1 import BadResponse, EndMarker, ResponseHead, ResponseReader
from tidegate.laws.http.balancing import (
    EjectionSettings,
    OutlierEjection,
    ServerSample,
    ServerState,
    availability_index,
)
from tidegate.telemetry.meters import ServerMeters

if TYPE_CHECKING:
    from tidegate.gateway.exchange import ProxiedRequest


# One server behind the gateway: address, health, connections and meters.


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server, and the share of requests it gets."""

    name: str
    host: str
    port: int
    # 0 makes it a spare, which gets no new requests while another server is available.
    weight: float = 1.0
    # Concurrent requests; None means the gateway's limit.
    concurrency: int | None = None
    # It gets no new requests, but for `sessions_s` seconds those of its sessions.
    draining: bool = False
    sessions_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidValue("a server needs a name: sessions are kept by it")
        if not 0 < self.port < 65536:
            raise InvalidValue(f"the port of {self.name} is {self.port}; it must lie in 1–65535")
        if not 0.0 <= self.weight < float("inf"):
            raise InvalidValue(
                f"the weight of {self.name} is {self.weight}; it must be 0 (a spare) or above"
            )
        if self.concurrency is not None and self.concurrency < 1:
            raise InvalidValue(
                f"the concurrency of {self.name} is {self.concurrency}; it must be 1 or above"
            )


class Server:
    """The state of one server; policies read name, weight, outstanding and index."""

    __slots__ = (
        "_idle_waiters",
        "active",
        "address",
        "draining",
        "ejection",
        "free_memory_bytes",
        "idle",
        "index",
        "meters",
        "most",
        "name",
        "outstanding",
        "sessions_until",
        "weight",
    )

    def __init__(self, address: ServerAddress, ejection: OutlierEjection) -> None:
        self.name = address.name
        self.address = address
        self.ejection = ejection
        # The effective weight now; see `Servers.refresh`.
        self.weight = address.weight
        self.index = 1.0
        # Requests sent to it that are not answered yet.
        self.outstanding = 0
        # Requests it may have at a time; see `Servers.put`.
        self.most = address.concurrency or 1
        self.meters = ServerMeters()
        # Set from outside; None if it is not measured.
        self.free_memory_bytes: float | None = None
        self.draining = False
        # While it drains, it still serves its sessions until then.
        self.sessions_until = 0.0
        # Connections without a request, the most recently used last; and those with one.
        self.idle: list[ServerConnection] = []
        self.active: set[ServerConnection] = set()
        self._idle_waiters: list[asyncio.Future[None]] = []

    @property
    def host_field(self) -> bytes:
        """The Host field for a request that names no host."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"{host}:{self.address.port}".encode()

    @property
    def is_spare(self) -> bool:
        return self.address.weight == 0.0

    def is_open(self) -> bool:
        """Return whether it may get new requests; a spare only if no other server may."""
        return not self.draining and self.ejection.standing is not ServerState.EJECTED

    def takes_sessions(self, now: float) -> bool:
        """Return whether it continues its own sessions."""
        if self.ejection.standing is ServerState.EJECTED:
            return False
        return not self.draining or now < self.sessions_until

    def is_at(self, address: ServerAddress) -> bool:
        """Return whether it still has the address that a connection was made to."""
        here = self.address
        return address is here or (address.host, address.port) == (here.host, here.port)

    def take_idle(self) -> ServerConnection | None:
        """Return the most recently used idle connection; None if there is none.

        It is the least likely to have been closed by the server.
        """
        while self.idle:
            connection = self.idle.pop()
            if not self.is_at(connection.address):
                connection.close()
            elif connection.usable:
                return connection
        return None

    def begin(self) -> None:
        self.outstanding += 1

    def end(self) -> None:
        self.outstanding -= 1
        if not self.outstanding and self._idle_waiters:
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()

    async def wait_idle(self) -> None:
        """Wait until it has no requests."""
        if self.outstanding:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def close_idle(self, before: float = float("inf")) -> None:
        """Close the connections that have been idle since before that time."""
        kept = []
        for connection in self.idle:
            if connection.idle_since < before:
                connection.close()
            else:
                kept.append(connection)
        self.idle = kept


class Servers:
    """The servers of one gateway, by name."""

    def __init__(
        self, settings: EjectionSettings, *, checked: bool, in_flight_per_server_max: int = 1_000
    ) -> None:
        self._settings = settings
        self._most = in_flight_per_server_max
        self._checked = checked
        self._by_name: dict[str, Server] = {}
        self._counted: dict[str, tuple[int, float]] = {}
        # Servers that a policy may choose, and spares for when there are none. Recomputed whenever
        # the state of a server may have changed.
        self.open: list[Server] = []
        self.spares: list[Server] = []

    def __iter__(self) -> Iterator[Server]:
        return iter(tuple(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str | None) -> Server | None:
        return None if name is None else self._by_name.get(name)

    def named(self, name: str) -> Server:
        server = self._by_name.get(name)
        if server is None:
            known = ", ".join(self._by_name) or "none"
            raise InvalidValue(f"no server is called {name!r}; there are {known}")
        return server

    def put(self, address: ServerAddress) -> Server:
        """Add a server, or change its weight, address and limits."""
        server = self._by_name.get(address.name)
        if server is None:
            server = Server(address, OutlierEjection(self._settings, checked=self._checked))
            self._by_name[address.name] = server
            # It starts with the mean index of the others, so it is neither avoided nor preferred.
            known = [one.index for one in self._by_name.values() if one is not server]
            server.index = sum(known) / len(known) if known else 100.0
        else:
            if not server.is_at(address):
                server.close_idle()
                server.ejection = OutlierEjection(self._settings, checked=self._checked)
            server.address = address
        server.draining = address.draining
        if server.draining:
            server.sessions_until = monotonic() + address.sessions_s
            server.close_idle()
        server.most = self._most if address.concurrency is None else address.concurrency
        self.refresh()
        return server

    def remove(self, name: str) -> None:
        server = self._by_name.pop(name, None)
        self._counted.pop(name, None)
        if server is not None:
            server.close_idle()
            self.refresh()

    def refresh(self, now: float | None = None) -> None:
        at = monotonic() if now is None else now
        for one in self._by_name.values():
            # Spares are only chosen among themselves, where all count alike.
            weight = 1.0 if one.is_spare else one.address.weight
            one.weight = weight * one.ejection.share(at)
        well = [one for one in self._by_name.values() if one.is_open()]
        self.open = [one for one in well if not one.is_spare]
        self.spares = [one for one in well if one.is_spare]

    def elected_from(self, tried: Container[str] = ()) -> list[Server]:
        """Return the servers that may get a request which has failed on `tried`; else spares."""
        serving = [one for one in self.open if one.name not in tried]
        return serving or [one for one in self.spares if one.name not in tried]

    def failed(self, server: Server, why: str) -> None:
        """Count a failed request; several in a row eject the server if enough others are left."""
        server.ejection.failed(monotonic(), why, may_eject=self._may_eject())
        self._after(server)

    def _may_eject(self) -> bool:
        ejected = sum(1 for one in self if one.ejection.standing is ServerState.EJECTED)
        return ejected + 1 <= self._settings.share_max * len(self)

    def refused(self, server: Server, why: str) -> None:
        """Eject a server, because nothing listens at its address."""
        server.ejection.refused(monotonic(), why)
        self._after(server)

    def checked(self, server: Server, failure: str | None) -> None:
        """Record the result of an active check; `failure` is None if the server is healthy."""
        if failure is None:
            server.ejection.check_passed(monotonic())
        else:
            server.ejection.check_failed(monotonic(), failure)
        self._after(server)

    def unanswered(self, server: Server, why: str) -> None:
        """Record a check without a response in time.

        Several in a row eject the server if enough others are left.
        """
        server.ejection.check_failed(monotonic(), why, may_eject=self._may_eject())
        self._after(server)

    def _after(self, server: Server) -> None:
        if server.ejection.standing is ServerState.EJECTED:
            server.close_idle()
        self.refresh()

    def tick(self, now: float) -> None:
        """Update ejections and weights; call it a few times a second."""
        for one in self._by_name.values():
            one.ejection.tick(now)
        self.refresh(now)

    def measure(self, now: float) -> None:
        """Update rates and the availability index; call it about once a second."""
        samples: dict[str, ServerSample] = {}
        for one in self._by_name.values():
            one.meters.tick(now)
            samples[one.name] = self._sample(one)
        for name, index in availability_index(samples).items():
            self._by_name[name].index = index

    def _sample(self, server: Server) -> ServerSample:
        """Return the sample of the last second; times and rates of an idle server are unknown."""
        times = server.meters.response_time
        count, sum_s = self._counted.get(server.name, (0, 0.0))
        self._counted[server.name] = (times.count, times.sum_s)
        answered = times.count - count
        if not answered:
            return ServerSample(free_memory_bytes=server.free_memory_bytes)
        return ServerSample(
            response_time_s=(times.sum_s - sum_s) / answered,
            throughput_per_s=server.meters.answered.per_s,
            free_memory_bytes=server.free_memory_bytes,
        )


def checked_addresses(given: Iterable[ServerAddress]) -> list[ServerAddress]:
    """Return the addresses as a list; raise `InvalidValue` if two have the same name."""
    found = list(given)
    names = [one.name for one in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidValue(f"two servers are called {', '.join(sorted(twice))}; names are unique")
    return found


class ServerConnection(asyncio.Protocol):
    """Passes the response of one server to the `ProxiedRequest` that waits for it."""

    def __init__(self, server: Server, address: ServerAddress, header_bytes_max: int) -> None:
        self.server = server
        # The address it was made to; the server may have another one by now.
        self.address = address
        self._reader = ResponseReader(header_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._exchange: ProxiedRequest | None = None
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

    def send_head(self, exchange: ProxiedRequest, method: bytes, data: bytes) -> None:
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
        except BadResponse as bad:
            self._fail(exchange, f"bad answer: {bad}")
            return
        self._hand_on(exchange)

    def _hand_on(self, exchange: ProxiedRequest) -> None:
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
                elif isinstance(event, EndMarker):
                    complete = True
        except BadResponse as bad:
            self._fail(exchange, f"bad answer: {bad}")
            return
        exchange.answered(out, complete=complete)

    def _fail(self, exchange: ProxiedRequest, why: str) -> None:
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


# Active health checks: one loop per server.


@dataclass(frozen=True)
class HealthCheck:
    """The request of a health check, and its interval."""

    # None means that an accepted connection is enough.
    path: str | None = None
    interval_s: float = 1.0
    timeout_s: float = HEALTH_ANSWER_S
    # A response with this status or above is a failure.
    ill_from: int = 400


async def check_forever(check: HealthCheck, servers: Servers, server: Server) -> None:
    while True:
        # A shortage of our own says nothing about the server; requests report it.
        with contextlib.suppress(OSError):
            await _check(check, servers, server)
        await asyncio.sleep(check.interval_s)


async def _check(check: HealthCheck, servers: Servers, server: Server) -> None:
    """Check a server once; raise `OSError` if resources of our own are short."""
    try:
        async with asyncio.timeout(check.timeout_s):
            failure = await _check_once(check, server)
    except TimeoutError:
        servers.unanswered(server, f"no answer to a check within {check.timeout_s:g} s")
    except (OSError, BadResponse) as broken:
        if isinstance(broken, OSError) and is_own_shortage(broken):
            raise
        servers.checked(server, f"check failed: {broken}")
    else:
        servers.checked(server, failure)


async def _check_once(check: HealthCheck, server: Server) -> str | None:
    """Return why the server is not healthy; None if it is."""
    # Use a new connection each time: an old one may work although new ones fail.
    address = server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        if check.path is None:
            return None
        request = "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nUser-Agent: tidegate\r\n\r\n"
        writer.write(request.format(check.path, server.host_field.decode()).encode())
        answer = ResponseReader(header_bytes_max=32 * 1024)
        answer.expect(b"GET")
        while data := await reader.read(65536):
            answer.receive(data)
            for event in answer.events:
                if isinstance(event, ResponseHead) and not event.interim:
                    is_well = event.status < check.ill_from
                    return None if is_well else f"a check was answered {event.status}"
            answer.events.clear()
        return "hung up on a check"
    finally:
        writer.close()


# Connect errors caused by this computer, which say nothing about the server.
#
# Descriptors (of this process, of this computer), local ports and memory may run out on our side.
# If this were taken for a server that does not listen, the gateway would eject all servers at the
# moment of the highest load.


_OWN = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM))


def is_own_shortage(failure: OSError) -> bool:
    return failure.errno in _OWN
