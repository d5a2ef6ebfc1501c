"""What every door is told when it is made, whatever its engine."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace

from tidegate.core.hosting import ServiceSpec
from tidegate.gateway.limits import GatewayLimits
from tidegate.laws.balancing import Policy

# Full instances are waited for: the leader sees the line, and adds instances or sheds. How many
# requests may be in hand at all is its decision (Door.set_admission).
# Heads fit into HAProxy's usual buffer of 16 KiB, which it copies for each request that it may have
# to send again.
DOOR_LIMITS = GatewayLimits(
    header_bytes_max=15 * 1024, in_flight_max=10_000, waiting_max=10_000, wait_s=5.0
)
# As its machine and the probe see it: an application that has no such path, or wants to know who
# asks, is well. Doors that thought otherwise would send it nothing, ever.
ILL_FROM_STATUS = 500


@dataclass(frozen=True)
class DoorSettings:
    """One door before one service."""

    service: str
    host: str = "127.0.0.1"
    # 0: any that is free.
    port: int = 0
    # A policy of the gateway (laws/balancing.py), or its name; HAProxy has three of them by name.
    balancing: str | Policy = "better-of-two"
    # Sessions stay with their instance; the same at every door of the service. None: no sessions.
    session_secret: bytes | None = None
    # Asked of each instance each second; None: it is enough that somebody listens.
    health_path: str | None = None
    # Networks whose word about the client (X-Forwarded-For …) counts.
    trusted_peers: tuple[str, ...] = ()
    # By which a door knows the leader's probe, which counts nowhere (core/probe_mark.py); empty:
    # there is none.
    probe_mark: bytes = b""
    limits: GatewayLimits = DOOR_LIMITS


def limits_of(spec: ServiceSpec) -> GatewayLimits:
    """Those of every door, with what is said of this service."""
    return replace(
        DOOR_LIMITS,
        deadline_s=spec.deadline_s,
        answer_timeout_s=spec.answer_timeout_s,
        answer_stall_s=spec.answer_timeout_s,
        body_bytes_max=spec.body_bytes_max,
    )


def why_not_bound(settings: DoorSettings, failure: OSError) -> str:
    where = f"{settings.host}:{settings.port}"
    if failure.errno == errno.EADDRINUSE:
        return f"{where} is in use; give another port, or end the program that has it"
    if failure.errno == errno.EACCES:
        return f"{where} is not for this user; give a port above 1023"
    return f"cannot listen on {where}: {failure.strerror or failure}; give another host or port"
