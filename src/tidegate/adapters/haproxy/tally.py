"""Totals over all HAProxy processes and all servers that one door has had.

A restarted HAProxy counts from 0, and a deleted server takes its counts along. Readers of samples
rely on totals that never decrease, so `CounterTotals` keeps three parts: the counts of the running
process, of the processes before it, and of deleted servers. Counts between the last poll and the
death of a process are lost.

The leader's probes are subtracted. HAProxy counts them as accepted when they arrive, in a variable
of its own; the log tells how they ended. A probe may be subtracted before HAProxy's figures show
it. So each total is also bounded from below by the value last returned.
"""

from __future__ import annotations

from collections import Counter

from tidegate.adapters.haproxy.probe_counts import ProbeCounts
from tidegate.adapters.haproxy.runtime_socket import Row, Rows, number
from tidegate.adapters.haproxy.server_counts import ServerCounts, server_counts

# "other" counts statuses below 100 or above 599.
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")


class Tally:
    """Counts of the running HAProxy plus those of the processes before."""

    def __init__(self) -> None:
        self._accepted_before = 0
        self._servers_before: dict[str, ServerCounts] = {}
        # Counts of deleted servers.
        self._gone = ServerCounts()
        # Requests that HAProxy refused with a 5xx status (501) although the client was at fault.
        self._denied_before = 0
        self._denied = 0
        self._classes_before: Counter[str] = Counter()
        self._classes: Counter[str] = Counter()
        self._accepted = 0
        self._servers: dict[str, ServerCounts] = {}
        self._probes = ProbeCounts()
        # Probes that have arrived at the running HAProxy; then of the processes before: how many
        # had arrived, and how many had ended.
        self._probes_begun = 0
        self._probes_before = 0
        self._probes_ended_before = 0
        # The highest value returned for each total: a probe may be subtracted before HAProxy shows
        # it.
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
        """Take the running HAProxy's figures, and the probes ended since the last call."""
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
        """Add the running process's counts to those before; the next process counts from 0."""
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
        """Probes at the running HAProxy that have not ended."""
        ended = self._probes.accepted - self._probes_ended_before
        return max(self._probes_begun - ended, 0)

    @property
    def by_class(self) -> dict[str, int]:
        """Responses to clients by class of status, HAProxy's own responses included."""
        self._classes_said |= self._classes_before + self._classes - self._probes.by_class
        return dict(self._classes_said)

    @property
    def answered(self) -> int:
        return self._all().answered

    @property
    def refused(self) -> int:
        """Responses of 500 and above that no server sent, and responses that a server aborted.

        Denied requests (501) do not count: the client was at fault.
        """
        errors, servers = self.by_class.get("5xx", 0), self._all()
        errors -= self._denied_before + self._denied
        # HAProxy counts a server's response at its head and the client's at its end, so the
        # difference may shrink for a moment. Never return less than before.
        return self._at_least_said("refused", errors - servers.server_errors + servers.broken_off)

    def _at_least_said(self, what: str, count: int) -> int:
        self._said[what] = max(count, self._said[what])
        return self._said[what]

    def _all(self) -> ServerCounts:
        total = self._gone
        for name in self._servers_before.keys() | self._servers.keys():
            total += self.server(name)
        return total
