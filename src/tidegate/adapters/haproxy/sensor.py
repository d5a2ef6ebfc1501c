"""What a HAProxy shows and logs, as the sample of a door.

Counts come from `show stat typed`, response times from the log of requests. Who asks gets what was
seen last if HAProxy does not answer; what it then lacks is said by whoever asked.
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
# A rate is that of so long at the least; doors are asked each second.
_RATE_OVER_S = 0.5


class HaproxySensor:
    """Looks at one HAProxy after the other, and forgets nothing that was counted."""

    def __init__(self, runtime: RuntimeSocket) -> None:
        self._runtime = runtime
        self._tally = Tally()
        self._silence = Silence()
        self.log = RequestLog()
        self._rows: Rows = {}
        # Counts up with each HAProxy.
        self._generation = 0
        # Accepted requests, and when, as the rate was last found.
        self._looked: tuple[int, float] | None = None
        # Lines that found the log's pipe full, as the running HAProxy counts them: at the last
        # look, and when it was last said.
        self._lines_dropped = 0
        self._lines_dropped_said = 0
        # Looks do not mix with the deletion of who is looked at.
        self.turn = asyncio.Lock()

    def restarted(self) -> None:
        """The next HAProxy counts from 0."""
        self._generation += 1
        self._tally.restarted()
        # Nobody waits for one that has died.
        self._silence = Silence()
        # Of these nothing was counted.
        self.log.read()
        self.log.taken_probes()
        self._looked = None
        self._lines_dropped = self._lines_dropped_said = 0

    def deleted(self, server: str) -> None:
        """It is no more, and what it had is in the totals."""
        self._tally.deleted(server)
        self.log.forget(server)

    async def look(self) -> None:
        """Once at a time (`turn`); Unavailable if it does not answer."""
        generation = self._generation
        rows, info = await self._runtime.figures((FRONTEND, BACKEND), (PROBES,))
        if generation != self._generation:
            # It has died meanwhile, and its counts are in already.
            return
        self._rows = rows
        self._lines_dropped = number(info, "DroppedLogs")
        # What is counted is in the pipe already.
        self.log.read()
        self._tally.look(
            rows.get("FRONTEND", {}),
            _servers(rows),
            self.log.taken_probes(),
            probes_begun=number(info, PROBES),
        )
        self._silence.look(_servers(rows), monotonic())

    def dropped_lines(self) -> str:
        """Whether response times lack some since this was last asked; "": none."""
        more = self._lines_dropped - self._lines_dropped_said
        self._lines_dropped_said = self._lines_dropped
        return f"response times lack {more} requests: too many to log" if more > 0 else ""

    def kept(self, so_far: int) -> int:
        """Of a thousand requests, how many are worth a line at the rate since this was last found.

        Over some milliseconds a few requests would pass for a high rate, and lines be left out.
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
