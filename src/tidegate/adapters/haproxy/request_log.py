"""HAProxy's log of requests, read from a pipe into histograms.

Its figures have means only; a percentile needs each request. A line is a JSON array (see
configuration.py), with the time that the client saw, and how many requests it stands for: where
there are too many to read all, HAProxy draws some (`set_kept`). Lines that find the pipe full are
dropped and counted by HAProxy; the pipe is all that there is to hold. Before each stands its level:
that of a probe is another one, and probes are kept apart.

It is read a few times a second and not when a line comes: to be woken for each would cost more than
the line, on processors that the application needs.
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
# Some 25 000 lines fit into the pipe between two reads.
_READ_EVERY_S = 0.5
# Lines that one second may bring: enough for a p99 in a window of seconds, and no burden.
_LINES_PER_S = 400.0
# Of a thousand, so that what a line stands for is a whole number.
_KEPT = (1000, 500, 200, 100, 50, 20, 10)
_LINE_BYTES_MAX = 1 << 16

# Server, status, how it ended, whole time, reading the request, in line (ms), kept of a thousand.
_Line = tuple[str, int, str, int, int, int, int]
_decode = msgspec.json.Decoder(_Line).decode
# As they begin: `<6>` is info, which HAProxy gives to requests, and `<5>` notice.
_LEVEL_BYTES = 3
_PROBE = b"<5>"


def kept_for(requests_per_s: float) -> int:
    """Of a thousand requests, how many are worth a line at this rate."""
    fitting = [one for one in _KEPT if requests_per_s * one / 1000 <= _LINES_PER_S]
    return fitting[0] if fitting else _KEPT[-1]


class RequestLog:
    """Response times, of all and of each server."""

    def __init__(self) -> None:
        self.response_time = Histogram()
        self.by_server: dict[str, Histogram] = {}
        # Lines that were none of ours: HAProxy's words about itself.
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
        """Those that have ended since this was last asked."""
        taken, self._probes = self._probes, ProbeCounts()
        return taken

    def read(self) -> None:
        """Whatever is there, at most one pipe full."""
        try:
            data = os.read(self._read_fd, _PIPE_BYTES)
        except BlockingIOError:
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= _LINE_BYTES_MAX else b""
        # Of whole milliseconds many are alike.
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
        # Below 0: broken off before it came to that. An answer of HAProxy's own is no answer.
        is_answer = status >= 200 and server != "<NOSRV>" and has_answer(ended)
        if not is_answer or min(whole_ms, reading_ms, waiting_ms) < 0:
            return
        stands_for = max(1000 // max(kept, 1), 1) * times
        # HAProxy counts whole milliseconds: the middle of the one it says.
        self.response_time.add((whole_ms + 0.5) / 1000, stands_for)
        own = self.by_server.get(server)
        if own is None:
            own = self.by_server[server] = Histogram()
        own.add((max(whole_ms - reading_ms - waiting_ms, 0) + 0.5) / 1000, stands_for)
