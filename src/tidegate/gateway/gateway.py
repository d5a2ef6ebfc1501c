"""The HTTP reverse proxy: `Gateway(servers=…)`, start it, change its servers, stop it.

Theory of operation
-------------------

    client ─ client_connection ─ request_reader ─▶ exchange ─▶ server_connection ─ server
                     ▲                                │                │
                     └────────── forwarding ◀─────────┴─ response_reader

- A `ClientConnection` reads requests from one client and has at most one `ProxiedRequest` at a
  time.
- A `ProxiedRequest` is one request and its attempts: it gets a server, sends the request, passes
  the
  response on, and decides what happens on a failure.
- `GatewayState` is shared by all connections: limits, admission, the choice of a server, the queue
  of waiting requests, and counters.
- `Servers` holds the servers with their health. A `ServerConnection` has one request at a time and
  is kept for the next one.

Everything runs in one event loop, and parsing is sans-IO (request_reader, response_reader).

Nothing sets a timer of its own. A sweep checks all deadlines four times a second: for 5,000 idle
connections this costs less than as many timers. A paused client after a rejection is the exception.

Backpressure: a client is not read while its server accepts no more data, and a server is not read
while its client accepts no more. Every buffer has a limit (gateway.py).

The set of servers may change at any time. A removed server drains: it gets no new requests, may
finish those it has, and is cut off after a timeout.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from hmac import compare_digest
from itertools import count
from random import Random
from time import monotonic, time
from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue
from tidegate.gateway.client_connection import ClientConnection, WaitQueue
from tidegate.gateway.exchange import TrustedPeers
from tidegate.gateway.http1 import Refusal, StickySessions
from tidegate.gateway.servers import (
    HealthCheck,
    Server,
    ServerAddress,
    ServerConnection,
    Servers,
    check_forever,
    checked_addresses,
)
from tidegate.laws.http.balancing import EjectionSettings, Policy, balancing_policy
from tidegate.telemetry.meters import Histogram
from tidegate.telemetry.recorder import HttpRequestSamples

if TYPE_CHECKING:
    from tidegate.gateway.exchange import ProxiedRequest
    from tidegate.gateway.http1 import RequestHead


logger = logging.getLogger(__name__)

_SWEEP_S = 0.25
_SWEEPS_PER_MEASURE = 4
_BACKLOG = 1024


class Gateway:
    """Balances HTTP requests over servers, which may change while it runs."""

    def __init__(
        self,
        servers: Iterable[ServerAddress] = (),
        policy: str | Policy = "better-of-two",
        limits: GatewayLimits | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        sessions: StickySessions | None = None,
        health: HealthCheck | None = None,
        ejection: EjectionSettings | None = None,
        trusted_peers: Sequence[str] = (),
        probe_mark: bytes = b"",
        random: Random | None = None,
    ) -> None:
        self._addresses = checked_addresses(servers)
        self._policy = (
            balancing_policy(policy, random or Random()) if isinstance(policy, str) else policy
        )
        self._limits = limits or GatewayLimits()
        self._host = host
        self._port = port
        self._sessions = sessions
        self._health = health
        self._trusted = TrustedPeers(trusted_peers)
        self._probe_mark = probe_mark
        self._servers = Servers(
            ejection or EjectionSettings(),
            checked=health is not None,
            in_flight_per_server_max=self._limits.in_flight_per_server_max,
        )
        self._front: GatewayState | None = None
        self._listener: asyncio.Server | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._leaving: dict[str, asyncio.Task[int]] = {}

    async def __aenter__(self) -> Gateway:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop(timeout_s=0.0)

    @property
    def address(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def port(self) -> int:
        if self._listener is None:
            raise InvalidValue("the gateway has no port before start()")
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def started(self) -> bool:
        return self._front is not None

    @property
    def servers(self) -> Sequence[Server]:
        """The current servers with their meters; do not change them."""
        return tuple(self._servers)

    @property
    def in_flight(self) -> int:
        """The number of requests in hand, without the leader's probe."""
        if self._front is None:
            return 0
        return sum(not one.is_probe for one in self._front.in_flight)

    @property
    def waiting(self) -> int:
        """The number of requests in flight that wait for a server."""
        return len(self._front.waiting) if self._front is not None else 0

    @property
    def unanswered(self) -> list[tuple[float, int]]:
        """Requests without a byte of a response, as pairs of seconds waited and their number."""
        return self._front.unanswered(monotonic()) if self._front is not None else []

    @property
    def accepted(self) -> int:
        """Requests received so far, with any result."""
        return self._front.accepted if self._front is not None else 0

    @property
    def answered(self) -> int:
        """Complete responses of servers that were sent to clients."""
        return self._front.answered if self._front is not None else 0

    @property
    def classes(self) -> Sequence[int]:
        """These responses by the first digit of their status; the index is the digit."""
        return tuple(self._front.classes) if self._front is not None else (0,) * 6

    @property
    def broken_off(self) -> int:
        """Responses that a server did not complete."""
        return self._front.broken_off if self._front is not None else 0

    def record_requests(self, samples: HttpRequestSamples | None) -> None:
        """Record a sample of single requests from now on; None ends it.

        Raises `InvalidValue` before `start`.
        """
        if self._front is None:
            raise InvalidValue("the gateway records nothing before start()")
        self._front.request_samples = samples

    @property
    def response_time(self) -> Histogram:
        """The durations of these responses as clients see them, with waiting and retries."""
        return self._front.response_time if self._front is not None else Histogram()

    @property
    def connections(self) -> int:
        return len(self._front.clients) if self._front is not None else 0

    @property
    def refusals(self) -> dict[int, int]:
        """Responses made by the gateway itself, by status."""
        return dict(self._front.refusals) if self._front is not None else {}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        token = secrets.token_hex(8).encode()
        front = GatewayState(
            self._limits,
            self._servers,
            self._policy,
            self._sessions,
            self._trusted,
            token,
            self._probe_mark,
        )
        self._listener = await loop.create_server(
            lambda: ClientConnection(front), self._host, self._port, backlog=_BACKLOG
        )
        self._front = front
        for address in self._addresses:
            self._put(address)
        self._upkeep = loop.create_task(self._keep_up(front))

    async def stop(self, timeout_s: float = 30.0) -> int:
        """Accept nothing new, wait for the requests in hand, then close.

        Return the number of connections that were cut off after `timeout_s` seconds.
        """
        front, listener = self._front, self._listener
        if front is None or listener is None:
            return 0
        front.stopping = True
        listener.close()
        for client in tuple(front.clients):
            client.close_if_idle()
        try:
            async with asyncio.timeout(timeout_s):
                await front.wait_empty()
        except TimeoutError:
            pass
        cut_off = len(front.clients)
        for client in tuple(front.clients):
            client.abort()
        await front.wait_empty()
        tasks = [self._upkeep, *self._checks.values(), *self._leaving.values()]
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(one for one in tasks if one), return_exceptions=True)
        for server in self._servers:
            server.close_idle()
        self._checks.clear()
        self._leaving.clear()
        self._front = self._listener = None
        return cut_off

    # Servers

    def set_servers(self, servers: Iterable[ServerAddress], *, timeout_s: float = 30.0) -> None:
        """Use exactly these servers; others drain for up to `timeout_s` seconds, then go."""
        wanted = {one.name: one for one in checked_addresses(servers)}
        for address in wanted.values():
            self._put(address)
        for server in self._servers:
            if server.name not in wanted and server.name not in self._leaving:
                remove = self.remove(server.name, timeout_s=timeout_s)
                # Set it at once: the task may run only later, and would get requests until then.
                server.draining = True
                self._leaving[server.name] = asyncio.get_running_loop().create_task(remove)
        self._servers.refresh()
        if self._front is not None:
            self._front.seat_all(monotonic())

    def set_in_flight_max(self, in_flight_max: int) -> None:
        """Set the limit of requests in hand, with waiting ones; others are rejected at once.

        Raises `InvalidValue` for a negative limit, or before `start`.
        """
        if in_flight_max < 0:
            raise InvalidValue(f"in_flight_max is {in_flight_max}; it must be 0 or above")
        if self._front is None:
            raise InvalidValue("the gateway is not started: GatewayLimits(in_flight_max=…) says it")
        self._front.in_flight_max = in_flight_max

    def set_weight(self, name: str, weight: float) -> None:
        """Change a server's weight.

        0 makes it a spare: it gets no new requests while another server is healthy, but its
        sessions continue.
        """
        server = self._servers.named(name)
        server.address = replace(server.address, weight=weight)
        self._servers.refresh()

    def report_free_memory(self, name: str, free_memory_bytes: float) -> None:
        """Set a server's free memory, which the availability index uses."""
        self._servers.named(name).free_memory_bytes = free_memory_bytes

    async def drain(self, name: str, *, sessions_s: float = 0.0, timeout_s: float = 30.0) -> int:
        """Send nothing new to a server and wait for its requests; return how many were cut off.

        For `sessions_s` seconds its sessions still go there; then they move to another server.
        """
        server = self._servers.named(name)
        server.draining = True
        server.sessions_until = until = monotonic() + sessions_s
        self._servers.refresh()
        if sessions_s > 0.0:
            await asyncio.sleep(sessions_s)
            if server.sessions_until == until:
                # The event loop's timer may end a millisecond before the clock reaches `until`. A
                # session that came within this time would be cut off at once.
                server.sessions_until = 0.0
        try:
            async with asyncio.timeout(timeout_s):
                await server.wait_idle()
        except TimeoutError:
            pass
        if not server.draining:
            # It was added again in the meantime.
            return 0
        cut_off = server.outstanding
        for connection in tuple(server.active):
            connection.cut_off()
        server.close_idle()
        return cut_off

    async def remove(self, name: str, *, sessions_s: float = 0.0, timeout_s: float = 30.0) -> int:
        """Drain a server and remove it; return how many requests were cut off."""
        cut_off = await self.drain(name, sessions_s=sessions_s, timeout_s=timeout_s)
        server = self._servers.get(name)
        if server is not None and server.draining:
            self._forget(name)
        return cut_off

    def _put(self, address: ServerAddress) -> None:
        leaving = self._leaving.pop(address.name, None)
        if leaving is not None:
            leaving.cancel()
        server = self._servers.put(address)
        if self._sessions is not None:
            self._sessions.know(address.name)
        if self._health is not None and address.name not in self._checks:
            task = check_forever(self._health, self._servers, server)
            self._checks[address.name] = asyncio.get_running_loop().create_task(task)

    def _forget(self, name: str) -> None:
        self._servers.remove(name)
        self._leaving.pop(name, None)
        check = self._checks.pop(name, None)
        if check is not None:
            check.cancel()
        if self._sessions is not None:
            self._sessions.remove(name)

    async def _keep_up(self, front: GatewayState) -> None:
        sweeps = 0
        while True:
            await asyncio.sleep(_SWEEP_S)
            sweeps += 1
            try:
                self._keep_up_once(front, monotonic(), measures=sweeps % _SWEEPS_PER_MEASURE == 0)
            except Exception:
                # Keep running: without sweeps no timeout would end and no ejected server would
                # return.
                logger.exception("the upkeep of a gateway has failed; it goes on")

    def _keep_up_once(self, front: GatewayState, now: float, *, measures: bool) -> None:
        front.sweep(now)
        self._servers.tick(now)
        if measures:
            self._servers.measure(now)


# Resolution, in seconds, of the waiting times of unanswered requests; shorter waits are not shown.
_WAITED_STEP_S = 0.25


class GatewayState:
    """Admits connections and requests, and chooses servers for them."""

    def __init__(
        self,
        limits: GatewayLimits,
        servers: Servers,
        policy: Policy,
        sessions: StickySessions | None,
        trusted: TrustedPeers,
        token: bytes,
        probe_mark: bytes = b"",
    ) -> None:
        self.limits = limits
        self.servers = servers
        self.policy = policy
        self.sessions = sessions
        self.trusted = trusted
        # Identifies this gateway in the field LoadBalanced.
        self.token = token
        # Identifies the leader's probes, which are not counted; empty if there are none.
        self._probe_mark = probe_mark
        self.loop = asyncio.get_running_loop()
        self.stopping = False
        self.clients: set[ClientConnection] = set()
        self.in_flight: set[ProxiedRequest] = set()
        # Equal to the limit of the settings until it is changed.
        self.in_flight_max = limits.in_flight_max
        self.waiting: WaitQueue[ProxiedRequest] = WaitQueue(limits.waiting_max)
        # Requests received, complete responses sent, and the time of each as the client saw it:
        # from the end of its head to the end of the response, with waiting and retries.
        self.accepted = 0
        self.answered = 0
        self.response_time = Histogram()
        # These responses by the first digit of their status, and responses that a server did not
        # complete.
        self.classes = [0] * 6
        self.broken_off = 0
        # Where single requests are recorded; None if they are not.
        self.request_samples: HttpRequestSamples | None = None
        # Responses made by the gateway itself, by status.
        self.refusals: dict[int, int] = {}
        # Servers that may have room for waiting requests, and whether `room_at` is running.
        self._with_room: list[Server] = []
        self._seating = False
        self._names = count()
        self._all_left: asyncio.Future[None] | None = None

    # Clients

    def welcome(self, client: ClientConnection) -> bool:
        """Register a connection; return whether there is room for it."""
        client.name = str(next(self._names))
        self.clients.add(client)
        return len(self.clients) <= self.limits.connections_max

    def goodbye(self, client: ClientConnection) -> None:
        self.clients.discard(client)
        if self._all_left is not None and not self.clients and not self._all_left.done():
            self._all_left.set_result(None)

    async def wait_empty(self) -> None:
        """Wait until the last client has disconnected."""
        if self.clients:
            self._all_left = self.loop.create_future()
            await self._all_left

    def sweep(self, now: float) -> None:
        """Check all connections whose time has come; call it a few times a second."""
        for client in tuple(self.clients):
            if now >= client.look_at:
                try:
                    client.expired(now)
                except Exception:
                    # It would fail again in each sweep, and connections after it would never be
                    # checked.
                    logger.exception("a client's connection cannot be seen to, and is ended")
                    client.abort()
        self.seat_all(now)
        for server in self.servers:
            server.close_idle(now - self.limits.pool_idle_s)

    # Requests

    def is_probe(self, head: RequestHead) -> bool:
        """Return whether the request is the leader's probe."""
        # Most requests have no such field, so this check is enough for them.
        if not head.probe_mark or not self._probe_mark:
            return False
        return compare_digest(head.probe_mark, self._probe_mark)

    def admit(self, exchange: ProxiedRequest) -> Refusal | None:
        """Count a request and admit it; return the rejection if there are too many, else None."""
        if not exchange.is_probe:
            self.accepted += 1
        if len(self.in_flight) >= self.in_flight_max:
            return self.shed("too many requests")
        self.in_flight.add(exchange)
        return None

    def remove(self, exchange: ProxiedRequest) -> None:
        self.in_flight.discard(exchange)

    def unanswered(self, now: float) -> list[tuple[float, int]]:
        """Count requests without a byte of a response by their waiting time, rounded down."""
        counts = Counter(
            int((now - since) / _WAITED_STEP_S)
            for one in self.in_flight
            if not one.is_probe and (since := one.unanswered_since) is not None
        )
        return [(steps * _WAITED_STEP_S, counts[steps]) for steps in sorted(counts) if steps]

    def shed(self, why: str) -> Refusal:
        return Refusal(
            503, f"{why}; try again", retry_after_s=self.limits.retry_after_s, close=False
        )

    def turn_away(self) -> Refusal:
        """Count and return the rejection of a connection beyond the limit.

        It counts for the request on this connection, which is never read.
        """
        self.accepted += 1
        refusal = self.shed("too many connections")
        self.count_refusal(refusal)
        return refusal

    def count_refusal(self, refusal: Refusal) -> None:
        self.refusals[refusal.status] = self.refusals.get(refusal.status, 0) + 1

    def elect(self, exchange: ProxiedRequest, client: ClientConnection) -> Server | None:
        """Return the session's server, or one that the policy chooses.

        None means that all suitable servers are full and the request waits; `ProxiedRequest.take`
        is called later. Raises `Refusal` if no server is healthy or the queue is full.
        """
        session = self._session_of(exchange)
        if session is not None:
            if session.outstanding < session.most:
                return session
            # Moving the session because of a short peak would lose it for good.
            self._queue(exchange, session.name, "the session's server is busy")
            return None
        well = self.servers.elected_from(exchange.tried)
        candidates = [one for one in well if one.outstanding < one.most]
        if not candidates:
            if not well:
                raise self.shed("no server is well")
            self._queue(exchange, None, "all servers are busy")
            return None
        host = exchange.head.host
        chosen = self.policy.choose(candidates, client.name, host.decode() if host else "")
        self.keep_session(exchange, chosen)
        return chosen

    def _session_of(self, exchange: ProxiedRequest) -> Server | None:
        if self.sessions is None:
            return None
        exchange.sticky_to = self.sessions.server(exchange.head.cookies, time())
        exchange.set_cookie = None
        server = self.servers.get(exchange.sticky_to)
        if server is None or server.name in exchange.tried:
            return None
        return server if server.takes_sessions(monotonic()) else None

    def keep_session(self, exchange: ProxiedRequest, server: Server) -> None:
        """Set the cookie that keeps the session on this server."""
        if self.sessions is not None and exchange.sticky_to != server.name:
            exchange.set_cookie = self.sessions.cookie(server.name, time())

    # Waiting requests

    def _queue(self, exchange: ProxiedRequest, server: str | None, why: str) -> None:
        if self.waiting.full:
            raise self.shed(why)
        self.waiting.put(exchange, server)

    def room_at(self, server: Server) -> None:
        """Give the free places of a server to waiting requests, the longest waiting first.

        Called when a server has finished a request or has been added, before any new request.
        """
        if not self.waiting:
            return
        self._with_room.append(server)
        if self._seating:
            # A started request may end at once and free its place: loop here instead of recursing.
            return
        self._seating = True
        try:
            while self._with_room:
                self._seat(self._with_room.pop())
        finally:
            self._seating = False

    def _seat(self, server: Server) -> None:
        while server.outstanding < server.most:
            is_open = server in self.servers.elected_from()
            if not is_open and not server.takes_sessions(monotonic()):
                return
            exchange = self.waiting.first_for(server.name, only_sessions=not is_open)
            if exchange is None:
                return
            self.waiting.leave(exchange)
            self.keep_session(exchange, server)
            exchange.take(server)

    def seat_all(self, now: float) -> None:
        """Give free places to waiting requests after servers have changed.

        Requests that wait for a server which no longer takes their session choose another one.
        """
        for name in self.waiting.waited_for():
            server = self.servers.get(name)
            if server is None or not server.takes_sessions(now):
                for exchange in self.waiting.line(name):
                    self.waiting.leave(exchange)
                    exchange.elect_anew()
        for server in self.servers:
            self.room_at(server)

    # Servers

    async def connect(self, server: Server) -> ServerConnection:
        """Open a new connection; raise `OSError` if this fails."""
        address = server.address
        async with asyncio.timeout(self.limits.connect_timeout_s):
            _, connection = await self.loop.create_connection(
                lambda: ServerConnection(server, address, self.limits.header_bytes_max),
                address.host,
                address.port,
            )
        return connection

    def refused(self, server: Server, why: str) -> None:
        self.servers.refused(server, why)

    def failed(self, server: Server, why: str) -> None:
        self.servers.failed(server, why)


_MAY_BE_0 = frozenset(
    ("body_bytes_max", "pool_idle_max", "replay_bytes_max", "retries_max", "waiting_max")
)


@dataclass(frozen=True)
class GatewayLimits:
    """Sizes, numbers and times that are allowed; times are in seconds."""

    # Request line and fields together, of requests and of responses.
    header_bytes_max: int = 32 * 1024
    # None means unlimited: bodies are streamed and never held as a whole.
    body_bytes_max: int | None = None
    connections_max: int = 10_000
    # More requests are rejected at once with 503. The concurrency of a server
    # (ServerAddress.concurrency), if set, replaces the limit per server.
    in_flight_max: int = 2_000
    in_flight_per_server_max: int = 1_000
    # While all servers are full, this many requests wait for one, for this long; then they get 503
    # too. The default is 0, because a queue only hides the load if nothing reacts to it.
    waiting_max: int = 0
    wait_s: float = 5.0
    retry_after_s: int = 1
    # A client rejected for lack of room is not read for this time, independent of Retry-After.
    # Rejecting is cheap, but a client that retries at once would otherwise use the whole processor.
    refused_pause_s: float = 0.5

    # From the first byte of a request, or the connection, to the end of its fields.
    head_timeout_s: float = 10.0
    # Between two requests of a connection.
    idle_timeout_s: float = 60.0
    # Time for a body, plus one second for each `body_bytes_per_s_min` bytes received.
    body_grace_s: float = 20.0
    body_bytes_per_s_min: int = 500
    # For a client that reads nothing of its response; a slow reader is not cut off.
    send_stall_s: float = 60.0
    # Time to read and discard what the client still sends after the last response.
    linger_s: float = 1.0
    # While both sides may send; when one has ended, `answer_stall_s` counts instead.
    tunnel_idle_s: float = 3600.0

    connect_timeout_s: float = 2.0
    # From the complete request to the head of the response, and between two parts of it.
    answer_timeout_s: float = 60.0
    answer_stall_s: float = 60.0
    # From the request's head to the end of its response, with retries; None means unlimited.
    deadline_s: float | None = None

    # Attempts on other servers, if a repetition does no harm.
    retries_max: int = 2
    # Bytes of a body that are kept for a repetition.
    replay_bytes_max: int = 64 * 1024
    # Shorter than the keep-alive of usual servers (uvicorn: 5 s), so that the gateway closes idle
    # connections. A POST on a connection that the server is just closing could not be repeated.
    pool_idle_s: float = 3.0
    pool_idle_max: int = 256

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.name in ("body_bytes_max", "deadline_s"):
                continue
            may_be_0 = one.name in _MAY_BE_0
            if not (value >= 0 if may_be_0 else value > 0):
                least = "0 or above" if may_be_0 else "above 0"
                raise InvalidValue(f"{one.name} is {value!r}; it must be {least}")
