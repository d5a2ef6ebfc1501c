"""One server behind the gateway: address, health, connections and meters."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.core.errors import InvalidValue
from tidegate.laws.ejection import Ejection, Standing
from tidegate.telemetry.server_meters import ServerMeters

if TYPE_CHECKING:
    from tidegate.gateway.server_connection import ServerConnection


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

    def __init__(self, address: ServerAddress, ejection: Ejection) -> None:
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
        return not self.draining and self.ejection.standing is not Standing.EJECTED

    def takes_sessions(self, now: float) -> bool:
        """Return whether it continues its own sessions."""
        if self.ejection.standing is Standing.EJECTED:
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
