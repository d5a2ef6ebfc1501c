"""The HTTP front door: `Gateway(servers=…)`, start it, change what is behind it, stop it.

    client ─ client_connection ─ request_reader ─▶ exchange ─▶ server_connection ─ server
                     ▲                                │                │
                     └────────── forwarding ◀─────────┴─ response_reader

Everything runs in one event loop. Whatever waits has a moment at which a sweep looks at it, four
times a second: 5 000 idle connections cost less than as many timers.
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
        """As they are now, with their meters; to look at only."""
        return tuple(self._servers)

    @property
    def in_flight(self) -> int:
        """Requests in hand, but for the leader's probe."""
        if self._front is None:
            return 0
        return sum(not one.is_probe for one in self._front.in_flight)

    @property
    def waiting(self) -> int:
        """Of those in flight, how many stand in line for a server."""
        return len(self._front.waiting) if self._front is not None else 0

    @property
    def unanswered(self) -> list[tuple[float, int]]:
        """Of those in flight, whoever has no byte of an answer, by how long it has waited."""
        return self._front.unanswered(monotonic()) if self._front is not None else []

    @property
    def accepted(self) -> int:
        """Requests that have come, whatever became of them."""
        return self._front.accepted if self._front is not None else 0

    @property
    def answered(self) -> int:
        """Whole answers of servers that have gone to clients."""
        return self._front.answered if self._front is not None else 0

    @property
    def classes(self) -> Sequence[int]:
        """Of these answers how many by the first digit of their status."""
        return tuple(self._front.classes) if self._front is not None else (0,) * 6

    @property
    def broken_off(self) -> int:
        """Answers that a server left its client without the end of."""
        return self._front.broken_off if self._front is not None else 0

    def record_requests(self, samples: HttpRequestSamples | None) -> None:
        """Leave some single requests there from now on."""
        if self._front is None:
            raise InvalidValue("the gateway records nothing before start()")
        self._front.request_samples = samples

    @property
    def response_time(self) -> Histogram:
        """Of these answers, as clients see it: waiting and retries included."""
        return self._front.response_time if self._front is not None else Histogram()

    @property
    def connections(self) -> int:
        return len(self._front.clients) if self._front is not None else 0

    @property
    def refusals(self) -> dict[int, int]:
        """How often it has answered by itself, by status."""
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
        """Take nothing new, answer what is here, then go; how many connections were cut off."""
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

    # What is behind it.

    def set_servers(self, servers: Iterable[ServerAddress], *, timeout_s: float = 30.0) -> None:
        """These and no others from now on; who is not among them answers what it has and goes."""
        wanted = {one.name: one for one in addresses(servers)}
        for address in wanted.values():
            self._put(address)
        for server in self._servers:
            if server.name not in wanted and server.name not in self._leaving:
                remove = self.remove(server.name, timeout_s=timeout_s)
                # From this moment, and not from when the task comes to run.
                server.draining = True
                self._leaving[server.name] = asyncio.get_running_loop().create_task(remove)
        self._servers.refresh()
        if self._front is not None:
            self._front.seat_all(monotonic())

    def set_in_flight_max(self, in_flight_max: int) -> None:
        """Requests in hand at most, those in line included; all others are refused at once."""
        if in_flight_max < 0:
            raise InvalidValue(f"in_flight_max is {in_flight_max}; it must be 0 or above")
        if self._front is None:
            raise InvalidValue("the gateway is not started: GatewayLimits(in_flight_max=…) says it")
        self._front.in_flight_max = in_flight_max

    def set_weight(self, name: str, weight: float) -> None:
        """0: a spare, with nothing new while another is well, though sessions that it has go on."""
        server = self._servers.named(name)
        server.address = replace(server.address, weight=weight)
        self._servers.refresh()

    def report_free_memory(self, name: str, free_memory_bytes: float) -> None:
        """For the availability index; nobody sees it from outside."""
        self._servers.named(name).free_memory_bytes = free_memory_bytes

    async def drain(self, name: str, *, sessions_s: float = 0.0, timeout_s: float = 30.0) -> int:
        """Nothing new to it, then wait for what it has; how many were cut off at the end.

        For `sessions_s` its sessions still go there; then they are elected anew.
        """
        server = self._servers.named(name)
        server.draining = True
        server.sessions_until = until = monotonic() + sessions_s
        self._servers.refresh()
        if sessions_s > 0.0:
            await asyncio.sleep(sessions_s)
            if server.sessions_until == until:
                # A timer of the loop may end a millisecond before the clock says so. No session
                # may come in that millisecond: it would be cut off at once.
                server.sessions_until = 0.0
        try:
            async with asyncio.timeout(timeout_s):
                await server.wait_idle()
        except TimeoutError:
            pass
        if not server.draining:
            # It was put back meanwhile.
            return 0
        cut_off = server.outstanding
        for connection in tuple(server.active):
            connection.cut_off()
        server.close_idle()
        return cut_off

    async def remove(self, name: str, *, sessions_s: float = 0.0, timeout_s: float = 30.0) -> int:
        """Drain it, and forget it."""
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
                # Without it no time would ever be up again, and nobody return from an ejection.
                logger.exception("the upkeep of a gateway has failed; it goes on")

    def _keep_up_once(self, front: Front, now: float, *, measures: bool) -> None:
        front.sweep(now)
        self._servers.tick(now)
        if measures:
            self._servers.measure(now)
