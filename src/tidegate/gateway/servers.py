"""All servers behind a gateway: choice, ejection, removal.

A spare is a server of weight 0 that does not drain. It gets requests as soon as no server with a
weight is available. The leader would need about a second to notice that and promote the spare.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from time import monotonic

from tidegate.core.errors import InvalidValue
from tidegate.gateway.server import Server, ServerAddress
from tidegate.laws.availability_index import ServerSample, availability_index
from tidegate.laws.ejection import Ejection, EjectionSettings, Standing


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
            server = Server(address, Ejection(self._settings, checked=self._checked))
            self._by_name[address.name] = server
            # It starts with the mean index of the others, so it is neither avoided nor preferred.
            known = [one.index for one in self._by_name.values() if one is not server]
            server.index = sum(known) / len(known) if known else 100.0
        else:
            if not server.is_at(address):
                server.close_idle()
                server.ejection = Ejection(self._settings, checked=self._checked)
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
        ejected = sum(1 for one in self if one.ejection.standing is Standing.EJECTED)
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
        if server.ejection.standing is Standing.EJECTED:
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


def addresses(given: Iterable[ServerAddress]) -> list[ServerAddress]:
    """Return the addresses as a list; raise `InvalidValue` if two have the same name."""
    found = list(given)
    names = [one.name for one in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidValue(f"two servers are called {', '.join(sorted(twice))}; names are unique")
    return found
