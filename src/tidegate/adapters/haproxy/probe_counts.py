"""The leader's probes as the request log shows them, to be subtracted from HAProxy's counts.

HAProxy counts every request. Each probe has a line in the log, with a level of its own, which says
enough to find the counts that include it.

The counts of requests sent to an instance, and of failed connections, keep the probes: they
describe the instance, as in the gateway.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidegate.adapters.haproxy.server_counts import ServerCounts

# Second letter of a termination state: the server had not sent the head of a response.
_HEADLESS = "RQCH"
# Termination state: the server aborted in the middle of the response.
_BROKEN_OFF = "SD"


def has_answer(ended: str) -> bool:
    """Return whether a server had begun to respond, by HAProxy's termination state."""
    return ended[1:2] not in _HEADLESS


@dataclass
class ProbeCounts:
    """Counts of the probes in some log lines."""

    accepted: int = 0
    by_class: Counter[str] = field(default_factory=Counter)
    servers: dict[str, ServerCounts] = field(default_factory=dict)

    def add(self, server: str, status: int, ended: str, times: int) -> None:
        """Add a log line that occurred `times` times."""
        self.accepted += times
        self.by_class[f"{status // 100}xx" if 100 <= status < 600 else "other"] += times
        if has_answer(ended):
            counts = ServerCounts(
                answered=times,
                server_errors=times * (status >= 500),
                broken_off=times * (ended == _BROKEN_OFF),
            )
            self.servers[server] = self.servers.get(server, ServerCounts()) + counts
