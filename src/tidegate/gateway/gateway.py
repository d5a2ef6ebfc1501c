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
while its client accepts no more. Every buffer has a limit (limits.py).

The set of servers may change at any time. A removed server drains: it gets no new requests, may
finish those it has, and is cut off after a timeout.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random
from time import monotonic

from tidegate.core.errors import InvalidValue
from tidegate.gateway.client_connection import ClientConnection
from tidegate.gateway.forwarding import TrustedPeers
from tidegate.gateway.front import Front
from tidegate.gateway.health import HealthCheck, check_forever
from tidegate.gateway.limits import GatewayLimits
from tidegate.gateway.server import Server, ServerAddress
from tidegate.gateway.servers import Servers, addresses
from tidegate.gateway.sticky_session import StickySessions
from tidegate.laws.balancing import Policy, policy_of
from tidegate.laws.ejection import EjectionSettings
from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.http_requests import HttpRequestSamples

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
        self._addresses = addresses(servers)
        self._policy = policy_of(policy, random or Random()) if isinstance(policy, str) else policy
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
        self._front: Front | None = None
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
        front = Front(
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
        wanted = {one.name: one for one in addresses(servers)}
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
            self._sessions.forget(name)

    async def _keep_up(self, front: Front) -> None:
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

    def _keep_up_once(self, front: Front, now: float, *, measures: bool) -> None:
        front.sweep(now)
        self._servers.tick(now)
        if measures:
            self._servers.measure(now)
