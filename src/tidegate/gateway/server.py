"""One server behind the gateway: its address, its standing, its connections, its meters."""

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
    """Where a server is, and how much it gets beside the others."""

    name: str
    host: str
    port: int
    # 0: a spare, which gets nothing new while another can be elected.
    weight: float = 1.0
    # Requests at a time; None: as the gateway's limits say.
    concurrency: int | None = None
    # Nothing new; it answers what it has, and for so long what belongs to its sessions.
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
    """What the gateway knows of it; policies see name, weight, outstanding and index."""

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
        # What it has of its address's weight just now; see Servers.refresh.
        self.weight = address.weight
        self.index = 1.0
        # Requests that it has and has not answered.
        self.outstanding = 0
        # How many it may have; see Servers.put.
        self.most = address.concurrency or 1
        self.meters = ServerMeters()
        # Told from outside; None: nobody measures it.
        self.free_memory_bytes: float | None = None
        self.draining = False
        # While it drains, it still serves its sessions until then.
        self.sessions_until = 0.0
        # Connections that wait for a request, the last used last; and those that have one.
        self.idle: list[ServerConnection] = []
        self.active: set[ServerConnection] = set()
        self._idle_waiters: list[asyncio.Future[None]] = []

    @property
    def host_field(self) -> bytes:
        """For a request that names no host."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"{host}:{self.address.port}".encode()

    @property
    def is_spare(self) -> bool:
        return self.address.weight == 0.0

    def is_open(self) -> bool:
        """Whether it may get something new: a spare only where nobody else may."""
        return not self.draining and self.ejection.standing is not Standing.EJECTED

    def takes_sessions(self, now: float) -> bool:
        """Whether it goes on with sessions that are its own."""
        if self.ejection.standing is Standing.EJECTED:
            return False
        return not self.draining or now < self.sessions_until

    def is_at(self, address: ServerAddress) -> bool:
        """Whether it is where a connection was made to; its weight may be another by now."""
        here = self.address
        return address is here or (address.host, address.port) == (here.host, here.port)

    def take_idle(self) -> ServerConnection | None:
        """The connection that was used last: it is the least likely to have gone stale."""
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
        """Until it has no request."""
        if self.outstanding:
            waiter = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(waiter)
            await waiter

    def close_idle(self, before: float = float("inf")) -> None:
        """Hang up on what has waited since before that moment."""
        kept = []
        for connection in self.idle:
            if connection.idle_since < before:
                connection.close()
            else:
                kept.append(connection)
        self.idle = kept
