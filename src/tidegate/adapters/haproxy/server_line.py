"""An instance as a server line of HAProxy's configuration, or as arguments of `add server`."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.hosting import Backend
from tidegate.gateway.limits import GatewayLimits

# HAProxy's weights are integers up to 256.
_WEIGHT_MOST = 100
_LIMITS = GatewayLimits()


def weight_of(backend: Backend, among: Iterable[Backend]) -> int:
    """Return the weight of a backend on HAProxy's scale; the heaviest among `among` has 100.

    A weight above 0 becomes at least 1. A draining backend has weight 0: only requests of its
    sessions go there. HAProxy calls this the state `drain`, which a configuration file cannot
    express.
    """
    heaviest = max((one.weight for one in among), default=0.0)
    if backend.draining or backend.weight <= 0.0 or heaviest <= 0.0:
        return 0
    return max(round(backend.weight / heaviest * _WEIGHT_MOST), 1)


def rests(backend: Backend) -> bool:
    """Return whether a backend is in maintenance: it drains and keeps no sessions."""
    return backend.draining and backend.sessions_until is None


def stand_in(backends: Iterable[Backend]) -> str:
    """Return the name of the spare that serves while no server with weight is up; "" if none."""
    spares = (one for one in backends if one.weight <= 0.0 and not one.draining)
    first = min(spares, key=lambda one: one.instance_id, default=None)
    return "" if first is None else first.name


def server_line(backend: Backend, among: Iterable[Backend]) -> str:
    """Return the server line for the configuration, in its final state from the start."""
    disabled = " disabled" if rests(backend) else ""
    return f"{_server(backend, weight_of(backend, among))}{disabled}"


def new_server(backend: Backend, among: Iterable[Backend]) -> str:
    """Return the arguments of `add server`, with a weight of at least 1.

    `add server` leaves the server in maintenance; the weight is lowered to 0 afterwards. A server
    that is added with weight 0 and then selected by name counts as a candidate of `leastconn`
    (HAProxy 2.6.12, tests/integration/doors). A server whose weight was lowered later does not.
    """
    return _server(backend, max(weight_of(backend, among), 1))


def _server(backend: Backend, weight: int) -> str:
    host = f"[{backend.host}]" if ":" in backend.host else backend.host
    return (
        f"{backend.name} {host}:{backend.port} weight {weight}"
        f" maxconn {backend.concurrency}"
        # Failed connections count as failed checks. Three in a row take the server out until a
        # check passes.
        " check inter 1s fall 2 rise 1 observe layer4 error-limit 3 on-error mark-down"
        f" pool-purge-delay {_LIMITS.pool_idle_s:g}s pool-max-conn {_LIMITS.pool_idle_max}"
    )
