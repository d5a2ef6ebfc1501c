"""Totals over all HAProxies that one door has had, and all servers that these have had.

A HAProxy that is started again counts from 0, and a server that is deleted takes its counts along;
whoever reads samples is promised totals that never run backwards. What came between the last look
and a death is lost to the counts. Probes are taken off: those that were accepted when they come,
which HAProxy counts by itself, and what became of them when they have ended.
"""

from __future__ import annotations

from collections import Counter

from tidegate.adapters.haproxy.probe_counts import ProbeCounts
from tidegate.adapters.haproxy.runtime_socket import Row, Rows, number
from tidegate.adapters.haproxy.server_counts import ServerCounts, server_counts

# "other" is below 100 or above 599.
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")


class Tally:
    """Counts of the running HAProxy on top of those before."""

    def __init__(self) -> None:
        self._accepted_before = 0
        self._servers_before: dict[str, ServerCounts] = {}
        # Of servers that are no more.
        self._gone = ServerCounts()
        # Requests that were denied for their client's own fault, with a status of servers (501).
        self._denied_before = 0
        self._denied = 0
        self._classes_before: Counter[str] = Counter()
        self._classes: Counter[str] = Counter()
        self._accepted = 0
        self._servers: dict[str, ServerCounts] = {}
        self._probes = ProbeCounts()
        # Of the running HAProxy, how many have come; of those before, how many had, and had ended.
        self._probes_begun = 0
        self._probes_before = 0
        self._probes_ended_before = 0
        # The most that was said of each: a probe may be taken off before HAProxy shows it.
        self._said: Counter[str] = Counter()
        self._classes_said: Counter[str] = Counter()
        self._servers_said: dict[str, ServerCounts] = {}

    def look(
        self,
        frontend: Row,
        servers: Rows,
        probes: ProbeCounts | None = None,
        *,
        probes_begun: int = 0,
    ) -> None:
        """The running HAProxy shows this, and these probes have ended since the last look."""
        self._probes_begun = probes_begun
        self._accepted = number(frontend, "req_tot")
        self._denied = number(frontend, "dreq")
        self._classes = Counter({kind: number(frontend, f"hrsp_{kind}") for kind in _CLASSES})
        self._servers = {name: server_counts(row) for name, row in servers.items()}
        if probes is None:
            return
        self._probes.accepted += probes.accepted
        self._probes.by_class += probes.by_class
        for name, counts in probes.servers.items():
            if name in self._servers:
                before = self._probes.servers.get(name, ServerCounts())
                self._probes.servers[name] = before + counts

    def restarted(self) -> None:
        """The next one counts from 0."""
        self._accepted_before += self._accepted
        self._denied_before += self._denied
        self._denied = 0
        self._probes_before += self._probes_begun
        self._probes_begun = 0
        self._probes_ended_before = self._probes.accepted
        self._classes_before += self._classes
        self._classes = Counter()
        for name, counts in self._servers.items():
            before = self._servers_before.get(name, ServerCounts())
            self._servers_before[name] = before + counts
        self._accepted = 0
        self._servers = {}

    def deleted(self, name: str) -> None:
        self._gone += self.server(name)
        for known in (
            self._servers,
            self._servers_before,
            self._servers_said,
            self._probes.servers,
        ):
            known.pop(name, None)

    def server(self, name: str) -> ServerCounts:
        none = ServerCounts()
        counted = self._servers_before.get(name, none) + self._servers.get(name, none)
        counts = counted.without(self._probes.servers.get(name, none))
        said = self._servers_said[name] = counts.at_least(self._servers_said.get(name, none))
        return said

    @property
    def accepted(self) -> int:
        probes = max(self._probes_before + self._probes_begun, self._probes.accepted)
        return self._at_least_said("accepted", self._accepted_before + self._accepted - probes)

    @property
    def probes_under_way(self) -> int:
        """Of those that the running HAProxy has, how many have not ended."""
        ended = self._probes.accepted - self._probes_ended_before
        return max(self._probes_begun - ended, 0)

    @property
    def by_class(self) -> dict[str, int]:
        """Answers that clients got, those of HAProxy itself too."""
        self._classes_said |= self._classes_before + self._classes - self._probes.by_class
        return dict(self._classes_said)

    @property
    def answered(self) -> int:
        return self._all().answered

    @property
    def refused(self) -> int:
        """Answers of 500 and above that no server gave, and those that one broke off.

        But for what was denied: that was the client's own fault.
        """
        errors, servers = self.by_class.get("5xx", 0), self._all()
        errors -= self._denied_before + self._denied
        # A server's answer counts at its head, the client's at its end: never below what was said.
        return self._at_least_said("refused", errors - servers.server_errors + servers.broken_off)

    def _at_least_said(self, what: str, count: int) -> int:
        self._said[what] = max(count, self._said[what])
        return self._said[what]

    def _all(self) -> ServerCounts:
        total = self._gone
        for name in self._servers_before.keys() | self._servers.keys():
            total += self.server(name)
        return total
