"""Our policies in HAProxy's words, where it has them.

Its `random(n)` draws n servers and, if the best of them is full, puts the request into the line of
all, where it stays until somebody finishes something: beside an idle server, if need be. So random
is none of these, and better of two is its `leastconn`, which passes over who is full. It counts
exactly, so that there is no old news to be careful with, which better of two is made for.
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
    """The algorithm; InvalidValue for a policy that it does not have."""
    algorithm = _ALGORITHMS.get(policy) if isinstance(policy, str) else None
    if algorithm is None:
        raise InvalidValue(
            f"HAProxy cannot balance by {policy!r}; choose one of {', '.join(_ALGORITHMS)}, or "
            "take the engine gateway"
        )
    return algorithm
