"""The sensor of an HAProxy door: figures and the request log become a `DoorSample`.

Theory of operation.

`poll` reads the figures of the running HAProxy and the counter of probes, then the log. It passes
both to `CounterTotals`, which adds up the counts of all processes and servers, and to
`UnresponsiveServers`. `sample` only renders that state, so it works while HAProxy does not answer:
it then repeats the previous figures.

- When HAProxy dies, `restarted` adds the last counts to the totals. Counts between the last poll
  and the death are lost.
- When a server is deleted, `deleted` keeps its counts in the totals of the door.
- A poll that was under way during a restart is discarded (`_generation`).
- Polling holds `turn`, and so does the deletion of servers: a deleted server's counters must not be
  read again.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from tidegate.adapters.haproxy.configuration import BACKEND, FRONTEND, PROBES
from tidegate.adapters.haproxy.request_log import RequestLog, kept_for
from tidegate.adapters.haproxy.runtime_socket import Row, Rows, RuntimeSocket, number
from tidegate.adapters.haproxy.silence import Silence
from tidegate.adapters.haproxy.tally import Tally
from tidegate.core.hosting import DoorSample, InstanceSample

_NOT_SERVERS = ("FRONTEND", "BACKEND")
# Minimum interval of a rate; the door is polled once a second.
_RATE_OVER_S = 0.5


class HaproxySensor:
    """Polls the HAProxy processes of one door, one after the other; its totals never decrease."""

    def __init__(self, runtime: RuntimeSocket) -> None:
        self._runtime = runtime
        self._tally = Tally()
        self._silence = Silence()
        self.log = RequestLog()
        self._rows: Rows = {}
        # Incremented with each HAProxy process.
        self._generation = 0
        # Accepted requests and the time, when the rate was last computed.
        self._looked: tuple[int, float] | None = None
        # Log lines that the running HAProxy dropped because the pipe was full: at the last poll,
        # and when `dropped_lines` last reported them.
        self._lines_dropped = 0
        self._lines_dropped_said = 0
        # Serialize polling with server deletion: a deleted server's counters must not be read
        # again.
        self.turn = asyncio.Lock()

    def restarted(self) -> None:
        """Prepare for the next HAProxy process, which counts from 0."""
        self._generation += 1
        self._tally.restarted()
        # The requests of a dead process no longer wait.
        self._silence = Silence()
        # The dead process's counts of these probes were never read, so they must not be subtracted.
        self.log.read()
        self.log.taken_probes()
        self._looked = None
        self._lines_dropped = self._lines_dropped_said = 0

    def deleted(self, server: str) -> None:
        """Forget a deleted server; its counts stay in the totals."""
        self._tally.deleted(server)
        self.log.forget(server)

    async def look(self) -> None:
        """Poll the running HAProxy; raise Unavailable if it does not answer.

        The caller holds `turn`.
        """
        generation = self._generation
        rows, info = await self._runtime.figures((FRONTEND, BACKEND), (PROBES,))
        if generation != self._generation:
            # The process died during the poll; `restarted` has added its counts already.
            return
        self._rows = rows
        self._lines_dropped = number(info, "DroppedLogs")
        # Read the log after the figures: the lines of all counted requests are in the pipe by now.
        self.log.read()
        self._tally.look(
            rows.get("FRONTEND", {}),
            _servers(rows),
            self.log.taken_probes(),
            probes_begun=number(info, PROBES),
        )
        self._silence.look(_servers(rows), monotonic())

    def dropped_lines(self) -> str:
        """Return a text if log lines were dropped since the previous call; "" means none."""
        more = self._lines_dropped - self._lines_dropped_said
        self._lines_dropped_said = self._lines_dropped
        return f"response times lack {more} requests: too many to log" if more > 0 else ""

    def kept(self, so_far: int) -> int:
        """Return how many requests of a thousand to log at the rate since the previous change.

        Returns `so_far` if the interval is too short: a few requests within some milliseconds would
        look like a high rate, and lines would be left out.
        """
        now, accepted = monotonic(), self._tally.accepted
        if self._looked is None:
            self._looked = (accepted, now)
        before, lasted_s = self._looked[0], now - self._looked[1]
        if lasted_s < _RATE_OVER_S:
            return so_far
        self._looked = (accepted, now)
        return kept_for((accepted - before) / lasted_s)

    def sample(self, service: str, door: str, address: str, at: float, trouble: str) -> DoorSample:
        backend = self._rows.get("BACKEND", {})
        servers = _servers(self._rows)
        return DoorSample(
            service=service,
            door=door,
            at=at,
            address=address,
            accepted=self._tally.accepted,
            answered=self._tally.answered,
            refused=self._tally.refused,
            by_class=self._tally.by_class,
            waiting=sum(number(row, "qcur") for row in (backend, *servers.values())),
            in_flight=max(number(backend, "scur") - self._tally.probes_under_way, 0),
            unanswered=self._silence.unanswered(monotonic(), self._tally.probes_under_way),
            response=self.log.response_time.sparse(),
            instances=[self._instance(name, row) for name, row in servers.items()],
            trouble=trouble,
        )

    def _instance(self, name: str, row: Row) -> InstanceSample:
        counts = self._tally.server(name)
        times = self.log.by_server.get(name)
        down = str(row.get("status", "")).startswith("DOWN")
        return InstanceSample(
            instance_id=int(name.removeprefix("i")),
            outstanding=number(row, "scur"),
            sent=counts.sent,
            answered=counts.answered,
            server_errors=counts.server_errors,
            failed=counts.failed,
            response=[] if times is None else times.sparse(),
            ejected=f"check: {row.get('check_status')} {row.get('last_chk', '')}" if down else None,
        )


def _servers(rows: Rows) -> Rows:
    return {name: row for name, row in rows.items() if name not in _NOT_SERVERS}
