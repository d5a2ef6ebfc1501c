"""What probes have added to HAProxy's counts, by its log: the tally takes it off again.

HAProxy counts whatever passes. A probe's line stands in the log under a level of its own, always,
and says enough to know which counts it is in. What a probe proves of an instance, that it was asked
or could not be reached, stays where it is, as at the gateway.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidegate.adapters.haproxy.server_counts import ServerCounts

# The second letter of how a request ended: the head of an answer had not come from the server yet.
_HEADLESS = "RQCH"
# The server broke off in the middle of the answer.
_BROKEN_OFF = "SD"


def has_answer(ended: str) -> bool:
    """Whether a server has begun to answer, by HAProxy's two letters for how it ended."""
    return ended[1:2] not in _HEADLESS


@dataclass
class ProbeCounts:
    """Of all probes in some lines."""

    accepted: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    servers: dict[str, ServerCounts] = field(default_factory=dict)

    def add(self, server: str, status: int, ended: str, times: int) -> None:
        """One line, so many times."""
        self.accepted += times
        self.by_class[f"{status // 100}xx" if 100 <= status < 600 else "other"] += times
        if has_answer(ended):
            counts = ServerCounts(
                answered=times,
                server_errors=times * (status >= 500),
                broken_off=times * (ended == _BROKEN_OFF),
            )
            self.servers[server] = self.servers.get(server, ServerCounts()) + counts
