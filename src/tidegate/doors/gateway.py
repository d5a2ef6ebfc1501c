"""The embedded gateway as a door."""

from __future__ import annotations

import contextlib
import resource
import secrets
from collections import Counter
from collections.abc import Sequence
from time import time

from tidegate.core.errors import Unavailable
from tidegate.core.services import Backend, DoorSample, Engine, InstanceSample
from tidegate.doors import ILL_FROM_STATUS, DoorSettings, why_not_bound
from tidegate.gateway.gateway import Gateway
from tidegate.gateway.http1 import CLIENT_FAULTS, StickySessions
from tidegate.gateway.servers import HealthCheck, Server, ServerAddress
from tidegate.laws.http.balancing import ServerState
from tidegate.telemetry.recorder import HttpRequestSamples

# The embedded gateway as a door: backends become its servers, its meters become samples.
#
# Theory of operation.
#
# A `GatewayDoor` wraps one `Gateway` that runs in this process and in this event loop. Each call of
# the `Door` protocol maps to one call of the gateway:
#
# - `set_backends` replaces the gateway's list of servers.
# - `set_admission` sets how many requests may be in flight.
# - `sample` reads the gateway's meters. They are totals since the door was created, so they never
#   decrease.
#
# A server that is missing from `set_backends` gets no new requests. It may finish its outstanding
# requests, for at most 10 minutes.
#
# The door does not supervise anything: if this process dies, the gateway dies with it. The parent
# process then starts another door.


# How long a removed server may finish its outstanding requests. A conversation without an end (a
# WebSocket, say) ends when its instance does.
_LEAVE_S = 600.0


class GatewayDoor:
    """A `Door` that balances requests by itself."""

    engine = Engine.GATEWAY

    def __init__(self, settings: DoorSettings) -> None:
        self._settings = settings
        self._name = secrets.token_hex(8)
        self._in_flight_max = settings.limits.in_flight_max
        self._has_begun = False
        secret = settings.session_secret
        self._gateway = Gateway(
            policy=settings.balancing,
            limits=settings.limits,
            host=settings.host,
            port=settings.port,
            sessions=None if secret is None else StickySessions(secret),
            health=HealthCheck(settings.health_path, ill_from=ILL_FROM_STATUS),
            trusted_peers=settings.trusted_peers,
            probe_mark=settings.probe_mark,
        )

    @property
    def address(self) -> str:
        return self._gateway.address

    async def start(self) -> None:
        _raise_descriptors()
        try:
            await self._gateway.start()
        except OSError as failure:
            raise Unavailable(why_not_bound(self._settings, failure)) from failure
        self._gateway.set_in_flight_max(self._in_flight_max)

    async def stop(self, timeout_s: float = 30.0) -> int:
        return await self._gateway.stop(timeout_s)

    async def set_backends(self, backends: Sequence[Backend]) -> None:
        servers = [
            ServerAddress(
                one.name,
                one.host,
                one.port,
                one.weight,
                one.concurrency,
                draining=one.draining,
                sessions_s=max((one.sessions_until or 0.0) - time(), 0.0),
            )
            for one in backends
        ]
        self._gateway.set_servers(servers, timeout_s=_LEAVE_S)
        self._has_begun = self._has_begun or bool(servers)

    def report_free_memory(self, instance_id: int, free_memory_bytes: float) -> None:
        self._gateway.report_free_memory(f"i{instance_id}", free_memory_bytes)

    async def set_admission(self, in_flight_max: int | None) -> None:
        most = self._settings.limits.in_flight_max
        self._in_flight_max = most if in_flight_max is None else in_flight_max
        if self._gateway.started:
            self._gateway.set_in_flight_max(self._in_flight_max)

    def record_requests(self, samples: HttpRequestSamples | None) -> None:
        """Write some single requests to `samples` from now on; None stops that.

        Raises InvalidValue before `start`.
        """
        self._gateway.record_requests(samples)

    async def sample(self) -> DoorSample:
        gateway = self._gateway
        return DoorSample(
            service=self._settings.service,
            door=self._name,
            at=time(),
            address=gateway.address,
            accepted=gateway.accepted,
            answered=gateway.answered,
            # Errors that the client caused (4xx, and some others) are no failures of the service.
            refused=sum(
                n
                for status, n in gateway.refusals.items()
                if status >= 500 and status not in CLIENT_FAULTS
            )
            + gateway.broken_off,
            by_class=_by_class(gateway),
            waiting=gateway.waiting,
            in_flight=gateway.in_flight,
            unanswered=gateway.unanswered,
            response=gateway.response_time.sparse(),
            instances=[_instance(one) for one in gateway.servers],
            has_begun=self._has_begun,
        )


def _raise_descriptors() -> None:
    """Raise the soft limit of open files to the hard limit.

    Each client takes two descriptors, and the usual soft limit is 1,024.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems report an infinite hard limit and then refuse it as a soft limit.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _by_class(gateway: Gateway) -> dict[str, int]:
    counts = Counter({f"{first}xx": n for first, n in enumerate(gateway.classes) if n})
    for status, n in gateway.refusals.items():
        counts[f"{status // 100}xx"] += n
    return dict(counts)


def _instance(server: Server) -> InstanceSample:
    meters = server.meters
    ejected = server.ejection.standing is ServerState.EJECTED
    return InstanceSample(
        instance_id=int(server.name.removeprefix("i")),
        outstanding=server.outstanding,
        sent=meters.sent.total,
        answered=meters.answered.total,
        server_errors=meters.server_errors.total,
        failed=meters.failed.total,
        response=meters.response_time.sparse(),
        ejected=server.ejection.why if ejected else None,
    )
