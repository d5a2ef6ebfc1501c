"""HAProxy's request log, read from a pipe into histograms of response times.

HAProxy's figures contain means only; a percentile needs single requests. A log line is a JSON array
(configuration.py) with the time that the client saw, and the fraction of requests that are logged.
At high rates HAProxy logs a random part of them (`logged_per_thousand`), and a line counts for
several requests.

HAProxy drops and counts lines that find the pipe full. The pipe is the only buffer.

Each line begins with its syslog level. Probes have a level of their own, and are counted apart.

The log is read twice a second, not when a line arrives: a wakeup for each line would cost more than
the line itself, on processors that the application needs.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import Counter

import msgspec

from tidegate.adapters.haproxy.probe_counts import ProbeCounts, has_answer
from tidegate.telemetry.histogram import Histogram

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


def kept_for(requests_per_s: float) -> int:
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
