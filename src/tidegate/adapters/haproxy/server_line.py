"""An instance as HAProxy is told of it, in its configuration or at run time."""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.hosting import Backend
from tidegate.gateway.limits import GatewayLimits

# HAProxy's weights are whole numbers up to 256.
_WEIGHT_MOST = 100
_LIMITS = GatewayLimits()


def weight_of(backend: Backend, among: Iterable[Backend]) -> int:
    """Its weight on HAProxy's scale, the heaviest at 100; whoever has any gets at least 1.

    Who drains has none: only what belongs to its sessions goes there. HAProxy shows it as in its
    state `drain`, which no configuration can say.
    """
    heaviest = max((one.weight for one in among), default=0.0)
    if backend.draining or backend.weight <= 0.0 or heaviest <= 0.0:
        return 0
    return max(round(backend.weight / heaviest * _WEIGHT_MOST), 1)


def rests(backend: Backend) -> bool:
    """Whether it is in maintenance: it drains, and keeps no sessions (session_grace.py)."""
    return backend.draining and backend.sessions_until is None


def stand_in(backends: Iterable[Backend]) -> str:
    """The name of the spare that serves while nobody of weight can; empty: there is none."""
    spares = (one for one in backends if one.weight <= 0.0 and not one.draining)
    first = min(spares, key=lambda one: one.instance_id, default=None)
    return "" if first is None else first.name


def server_line(backend: Backend, among: Iterable[Backend]) -> str:
    """For the configuration: as it is to be from the first moment."""
    disabled = " disabled" if rests(backend) else ""
    return f"{_server(backend, weight_of(backend, among))}{disabled}"


def new_server(backend: Backend, among: Iterable[Backend]) -> str:
    """For `add server`, which leaves it in maintenance; who is to have no weight has 1 till then.

    One that is added without, and is asked by its name, is taken by `leastconn` for one that may be
    elected (2.6.12, seen in `tests/integration/doors`); one that has lost its weight is not.
    """
    return _server(backend, max(weight_of(backend, among), 1))


def _server(backend: Backend, weight: int) -> str:
    host = f"[{backend.host}]" if ":" in backend.host else backend.host
    return (
        f"{backend.name} {host}:{backend.port} weight {weight}"
        f" maxconn {backend.concurrency}"
        # Failed connections count as failed checks: three in a row, and it is out until one passes.
        " check inter 1s fall 2 rise 1 observe layer4 error-limit 3 on-error mark-down"
        f" pool-purge-delay {_LIMITS.pool_idle_s:g}s pool-max-conn {_LIMITS.pool_idle_max}"
    )
