"""The state that all connections of one gateway share: limits, servers, sessions, clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from hmac import compare_digest
from itertools import count
from time import monotonic, time
from typing import TYPE_CHECKING

from tidegate.gateway.forwarding import TrustedPeers
from tidegate.gateway.limits import GatewayLimits
from tidegate.gateway.refusal import Refusal
from tidegate.gateway.server import Server
from tidegate.gateway.server_connection import ServerConnection
from tidegate.gateway.servers import Servers
from tidegate.gateway.sticky_session import StickySessions
from tidegate.gateway.wait_queue import WaitQueue
from tidegate.laws.balancing import Policy
from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.http_requests import HttpRequestSamples

if TYPE_CHECKING:
    from tidegate.gateway.client_connection import ClientConnection
    from tidegate.gateway.exchange import Exchange
    from tidegate.gateway.request_head import RequestHead

logger = logging.getLogger(__name__)

# Resolution, in seconds, of the waiting times of unanswered requests; shorter waits are not shown.
_WAITED_STEP_S = 0.25


class Front:
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
        self.in_flight: set[Exchange] = set()
        # Equal to the limit of the settings until it is changed.
        self.in_flight_max = limits.in_flight_max
        self.waiting: WaitQueue[Exchange] = WaitQueue(limits.waiting_max)
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

    def admit(self, exchange: Exchange) -> Refusal | None:
        """Count a request and admit it; return the rejection if there are too many, else None."""
        if not exchange.is_probe:
            self.accepted += 1
        if len(self.in_flight) >= self.in_flight_max:
            return self.shed("too many requests")
        self.in_flight.add(exchange)
        return None

    def leave(self, exchange: Exchange) -> None:
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

    def elect(self, exchange: Exchange, client: ClientConnection) -> Server | None:
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

    def _session_of(self, exchange: Exchange) -> Server | None:
        if self.sessions is None:
            return None
        exchange.sticky_to = self.sessions.server(exchange.head.cookies, time())
        exchange.set_cookie = None
        server = self.servers.get(exchange.sticky_to)
        if server is None or server.name in exchange.tried:
            return None
        return server if server.takes_sessions(monotonic()) else None

    def keep_session(self, exchange: Exchange, server: Server) -> None:
        """Set the cookie that keeps the session on this server."""
        if self.sessions is not None and exchange.sticky_to != server.name:
            exchange.set_cookie = self.sessions.cookie(server.name, time())

    # Waiting requests

    def _queue(self, exchange: Exchange, server: str | None, why: str) -> None:
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
