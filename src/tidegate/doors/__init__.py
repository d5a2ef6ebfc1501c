"""Front doors: the gateway and HAProxy as engines of a door, and the settings of both."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace

from tidegate.core.services import ServiceSpec
from tidegate.gateway.gateway import GatewayLimits
from tidegate.laws.http.balancing import Policy

# A request waits while all instances are full: the leader sees the queue in the door's samples, and
# adds instances or lowers the admission limit (`Door.set_admission`).
#
# Request heads fit into HAProxy's default buffer of 16 KiB. HAProxy copies that buffer for each
# request that it may have to retry.
DOOR_LIMITS = GatewayLimits(
    header_bytes_max=15 * 1024, in_flight_max=10_000, waiting_max=10_000, wait_s=5.0
)
# A health check fails from this status on; the machine and the probe use the same rule. An
# application without the path (404), or one that demands a login (401), is healthy. A stricter door
# would never send it a request.
ILL_FROM_STATUS = 500


@dataclass(frozen=True)
class DoorSettings:
    """Settings of one door before one service."""

    service: str
    host: str = "127.0.0.1"
    # 0 means any free port.
    port: int = 0
    # A policy of the gateway (laws/http/balancing.py), or its name. HAProxy accepts three of the
    # names.
    balancing: str | Policy = "better-of-two"
    # Key for sticky sessions; the same at every door of the service. None means no sticky sessions.
    session_secret: bytes | None = None
    # Requested from each instance once a second. None means that a successful TCP connection
    # suffices.
    health_path: str | None = None
    # Networks whose statements about the client (X-Forwarded-For …) the door believes.
    trusted_peers: tuple[str, ...] = ()
    # Identifies the leader's probe, which the door leaves out of all counts (`probe_mark`). Empty
    # means that there is no probe.
    probe_mark: bytes = b""
    limits: GatewayLimits = DOOR_LIMITS


def door_limits(spec: ServiceSpec) -> GatewayLimits:
    """Return the limits of every door, with the bounds that this service sets."""
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
