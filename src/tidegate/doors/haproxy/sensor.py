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
import fcntl
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from tidegate.core.services import DoorSample, InstanceSample
from tidegate.doors.haproxy.configuration import BACKEND, FRONTEND, PROBES
from tidegate.doors.haproxy.runtime import Row, Rows, RuntimeSocket, counter_value
from tidegate.telemetry.meters import Histogram

_NOT_SERVERS = ("FRONTEND", "BACKEND")
# Minimum interval of a rate; the door is polled once a second.
_RATE_OVER_S = 0.5


class HaproxySensor:
    """Polls the HAProxy processes of one door, one after the other; its totals never decrease."""

    def __init__(self, runtime: RuntimeSocket) -> None:
        self._runtime = runtime
        self._tally = CounterTotals()
        self._silence = UnresponsiveServers()
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
        self._silence = UnresponsiveServers()
        # The dead process's counts of these probes were never read, so they must not be subtracted.
        self.log.read()
        self.log.taken_probes()
        self._looked = None
        self._lines_dropped = self._lines_dropped_said = 0

    def deleted(self, server: str) -> None:
        """Forget a deleted server; its counts stay in the totals."""
        self._tally.deleted(server)
        self.log.forget(server)

    async def poll(self) -> None:
        """Poll the running HAProxy; raise Unavailable if it does not answer.

        The caller holds `turn`.
        """
        generation = self._generation
        rows, info = await self._runtime.figures((FRONTEND, BACKEND), (PROBES,))
        if generation != self._generation:
            # The process died during the poll; `restarted` has added its counts already.
            return
        self._rows = rows
        self._lines_dropped = counter_value(info, "DroppedLogs")
        # Read the log after the figures: the lines of all counted requests are in the pipe by now.
        self.log.read()
        self._tally.update(
            rows.get("FRONTEND", {}),
            _servers(rows),
            self.log.taken_probes(),
            probes_begun=counter_value(info, PROBES),
        )
        self._silence.update(_servers(rows), monotonic())

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
        return logged_per_thousand((accepted - before) / lasted_s)

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
            waiting=sum(counter_value(row, "qcur") for row in (backend, *servers.values())),
            in_flight=max(counter_value(backend, "scur") - self._tally.probes_under_way, 0),
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
            outstanding=counter_value(row, "scur"),
            sent=counts.sent,
            answered=counts.answered,
            server_errors=counts.server_errors,
            failed=counts.failed,
            response=[] if times is None else times.sparse(),
            ejected=f"check: {row.get('check_status')} {row.get('last_chk', '')}" if down else None,
        )


def _servers(rows: Rows) -> Rows:
    return {name: row for name, row in rows.items() if name not in _NOT_SERVERS}


# Totals over all HAProxy processes and all servers that one door has had.
#
# A restarted HAProxy counts from 0, and a deleted server takes its counts along. Readers of samples
# rely on totals that never decrease, so `CounterTotals` keeps three parts: the counts of the
# running process, of the processes before it, and of deleted servers. Counts between the last poll
# and the death of a process are lost.
#
# The leader's probes are subtracted. HAProxy counts them as accepted when they arrive, in a
# variable of its own; the log tells how they ended. A probe may be subtracted before HAProxy's
# figures show it. So each total is also bounded from below by the value last returned.


# "other" counts statuses below 100 or above 599.
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")


class CounterTotals:
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

    def update(
        self,
        frontend: Row,
        servers: Rows,
        probes: ProbeCounts | None = None,
        *,
        probes_begun: int = 0,
    ) -> None:
        """Take the running HAProxy's figures, and the probes ended since the last call."""
        self._probes_begun = probes_begun
        self._accepted = counter_value(frontend, "req_tot")
        self._denied = counter_value(frontend, "dreq")
        self._classes = Counter(
            {kind: counter_value(frontend, f"hrsp_{kind}") for kind in _CLASSES}
        )
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


# HAProxy's request log, read from a pipe into histograms of response times.
#
# HAProxy's figures contain means only; a percentile needs single requests. A log line is a JSON
# array (configuration.py) with the time that the client saw, and the fraction of requests that are
# logged. At high rates HAProxy logs a random part of them (`logged_per_thousand`), and a line
# counts for several requests.
#
# HAProxy drops and counts lines that find the pipe full. The pipe is the only buffer.
#
# Each line begins with its syslog level. Probes have a level of their own, and are counted apart.
#
# The log is read twice a second, not when a line arrives: a wakeup for each line would cost more
# than the line itself, on processors that the application needs.


_PIPE_BYTES = 1 << 20
# About 25,000 lines fit into the pipe between two reads.
_READ_EVERY_S = 0.5
# Target of lines per second: enough for a p99 over a window of seconds, at little cost.
_LINES_PER_S = 400.0
# Lines per thousand requests. Each divides 1000, so a line counts for a whole number of requests.
_KEPT = (1000, 500, 200, 100, 50, 20, 10)
_LINE_BYTES_MAX = 1 << 16

# Server, status, termination state, total time, reading the request, queue time (ms), lines per
# thousand requests.
_Line = tuple[str, int, str, int, int, int, int]
_decode = msgspec.json.Decoder(_Line).decode
# How lines begin: `<6>` (info) for requests, `<5>` (notice) for probes.
_LEVEL_BYTES = 3
_PROBE = b"<5>"


def logged_per_thousand(requests_per_s: float) -> int:
    """Return how many requests of a thousand HAProxy should log at this rate."""
    fitting = [one for one in _KEPT if requests_per_s * one / 1000 <= _LINES_PER_S]
    return fitting[0] if fitting else _KEPT[-1]


class RequestLog:
    """Response times of all requests and of each server, and the counts of probes."""

    def __init__(self) -> None:
        self.response_time = Histogram()
        self.by_server: dict[str, Histogram] = {}
        # Lines in another format: HAProxy's messages about itself.
        self.other_lines = 0
        self._probes = ProbeCounts()
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        fcntl.fcntl(self._read_fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._rest = b""
        self._reading: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._reading = asyncio.create_task(self._read_now_and_then())

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
            os.close(self._read_fd)
            os.close(self.write_fd)

    async def _read_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_READ_EVERY_S)
            self.read()

    def forget(self, server: str) -> None:
        self.by_server.pop(server, None)

    def taken_probes(self) -> ProbeCounts:
        """Return the probes that have ended since the previous call."""
        taken, self._probes = self._probes, ProbeCounts()
        return taken

    def read(self) -> None:
        """Read the available lines, at most one pipe full."""
        try:
            data = os.read(self._read_fd, _PIPE_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= _LINE_BYTES_MAX else b""
        # Times in whole milliseconds make many lines equal, so that each text is decoded once.
        for line, times in Counter(lines).items():
            self._add(line, times)

    def _add(self, line: bytes, times: int) -> None:
        try:
            server, status, ended, whole_ms, reading_ms, waiting_ms, kept = _decode(
                line[_LEVEL_BYTES:]
            )
        except msgspec.MsgspecError:
            self.other_lines += times
            return
        if line.startswith(_PROBE):
            self._probes.add(server, status, ended, times)
            return
        # A negative time means that the request ended before that phase. HAProxy's own responses
        # are left out.
        is_answer = status >= 200 and server != "<NOSRV>" and has_answer(ended)
        if not is_answer or min(whole_ms, reading_ms, waiting_ms) < 0:
            return
        stands_for = max(1000 // max(kept, 1), 1) * times
        # HAProxy truncates to milliseconds, so add half a millisecond.
        self.response_time.add((whole_ms + 0.5) / 1000, stands_for)
        own = self.by_server.get(server)
        if own is None:
            own = self.by_server[server] = Histogram()
        own.add((max(whole_ms - reading_ms - waiting_ms, 0) + 0.5) / 1000, stands_for)


# Requests that a server has not begun to answer, and how long they have waited at least.
#
# HAProxy counts requests when it sends them, and responses when their heads arrive. It offers no
# list of single requests that a program could read. So the wait is computed from counts, for each
# server:
#
#     a response head has arrived since the last sample    the waiting requests are unknown:
#                                                          restart
#     no response head has arrived                         all requests sent since then wait, minus
#                                                          failed and abandoned ones
#
# For a server that answers some requests and not others, the result is a lower bound: a request
# that may have been answered never counts as waiting.


_HEADS = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "hrsp_other")
# Requests that ended without a response head: not connected, aborted or timed out, given up by the
# client.
_LOST = ("econ", "eresp", "cli_abrt")
# The leader's probe times out before this (`probe_door`).
_PROBE_S_MAX = 3.0
# Samples that one stretch remembers; a request times out after a minute.
_SAMPLES_MAX = 300


class _Stretch:
    """The requests sent to one server since its last response head."""

    def __init__(self, row: Row) -> None:
        self.heads = _sum(row, _HEADS)
        self.sent = counter_value(row, "stot")
        self._lost_before = _sum(row, _LOST)
        # Time of the sample, and the number of requests sent since the sample before.
        self._sent: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_MAX)

    def update(self, row: Row, at: float) -> list[tuple[float, int]]:
        """Return the waiting requests as (latest possible time of sending, count), oldest first."""
        sent = counter_value(row, "stot")
        if sent > self.sent:
            self._sent.append((at, sent - self.sent))
            self.sent = sent
        # Assume that the requests that ended were the oldest ones, so that no wait is overstated.
        left = sum(count for _, count in self._sent) - (_sum(row, _LOST) - self._lost_before)
        left = min(left, counter_value(row, "scur"))
        found: list[tuple[float, int]] = []
        for sent_at, count in reversed(self._sent):
            if left <= 0:
                break
            found.append((sent_at, min(count, left)))
            left -= count
        return found[::-1]


class UnresponsiveServers:
    """The waiting requests of all servers of one door."""

    def __init__(self) -> None:
        self._stretches: dict[str, _Stretch] = {}
        self._waiting: list[tuple[float, int]] = []

    def update(self, servers: Rows, at: float) -> None:
        """Take a sample of the running HAProxy's servers."""
        self._stretches = {name: one for name, one in self._stretches.items() if name in servers}
        self._waiting = []
        for name, row in servers.items():
            stretch = self._stretches.get(name)
            is_same = stretch is not None and stretch.heads == _sum(row, _HEADS)
            # A lower count than before means that HAProxy was restarted.
            if stretch is None or not is_same or counter_value(row, "stot") < stretch.sent:
                self._stretches[name] = _Stretch(row)
            else:
                self._waiting += stretch.update(row, at)

    def unanswered(self, at: float, probes: int) -> list[tuple[float, int]]:
        """Return the waiting requests as (seconds waited at least, count), without probes.

        `probes` is the number of the leader's probes under way. They are subtracted from requests
        that have waited no longer than a probe can.
        """
        counts: dict[float, int] = {}
        for sent_at, count in self._waiting:
            waited_s = max(at - sent_at, 0.0)
            counts[waited_s] = counts.get(waited_s, 0) + count
        for waited_s in sorted(counts, reverse=True):
            if waited_s <= _PROBE_S_MAX:
                taken = min(probes, counts[waited_s])
                counts[waited_s] -= taken
                probes -= taken
        return [(waited_s, count) for waited_s, count in sorted(counts.items()) if count]


def _sum(row: Row, fields: tuple[str, ...]) -> int:
    return sum(counter_value(row, field) for field in fields)


# Counts of one server.


@dataclass(frozen=True)
class ServerCounts:
    """Totals that add up over servers and over HAProxy processes."""

    sent: int = 0
    answered: int = 0
    server_errors: int = 0
    failed: int = 0
    # Responses that began and were aborted.
    broken_off: int = 0

    def __add__(self, other: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.sent + other.sent,
            self.answered + other.answered,
            self.server_errors + other.server_errors,
            self.failed + other.failed,
            self.broken_off + other.broken_off,
        )

    def without(self, other: ServerCounts) -> ServerCounts:
        """Return the difference, with no count below 0."""
        return ServerCounts(
            max(self.sent - other.sent, 0),
            max(self.answered - other.answered, 0),
            max(self.server_errors - other.server_errors, 0),
            max(self.failed - other.failed, 0),
            max(self.broken_off - other.broken_off, 0),
        )

    def at_least(self, other: ServerCounts) -> ServerCounts:
        """Return the larger of the two values, for each count."""
        return self + other.without(self)


def server_counts(row: Row) -> ServerCounts:
    """Return the counts in a server's row of `show stat`."""
    answered = sum(
        counter_value(row, f"hrsp_{kind}") for kind in ("2xx", "3xx", "4xx", "5xx", "other")
    )
    failed = counter_value(row, "econ") + counter_value(row, "eresp")
    return ServerCounts(
        counter_value(row, "stot"),
        answered,
        counter_value(row, "hrsp_5xx"),
        failed,
        counter_value(row, "srv_abrt"),
    )


# The leader's probes as the request log shows them, to be subtracted from HAProxy's counts.
#
# HAProxy counts every request. Each probe has a line in the log, with a level of its own, which
# says enough to find the counts that include it.
#
# The counts of requests sent to an instance, and of failed connections, keep the probes: they
# describe the instance, as in the gateway.


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
