"""Names of balancing policies in HAProxy's configuration.

`random` is missing on purpose. HAProxy's `random(n)` draws n servers. If the best of them is full,
the request waits in the backend's queue, even while another server is idle.

`better-of-two` maps to `leastconn`, which skips full servers. The gateway draws two servers because
its counts may be outdated; HAProxy's counts are exact, so the smallest is safe to use.
"""

from __future__ import annotations

from tidegate.core.errors import InvalidValue
from tidegate.laws.balancing import Policy

_ALGORITHMS = {
    "round-robin": "roundrobin",
    "least-outstanding": "leastconn",
    "better-of-two": "leastconn",
}


def balance_of(policy: str | Policy) -> str:
    """Return HAProxy's name of a policy; raise InvalidValue if HAProxy has none."""
    algorithm = _ALGORITHMS.get(policy) if isinstance(policy, str) else None
    if algorithm is None:
        raise InvalidValue(
            f"HAProxy cannot balance by {policy!r}; choose one of {', '.join(_ALGORITHMS)}, or "
            "take the engine gateway"
        )
    return algorithm
