"""Requests that a server has not begun to answer, and how long they have waited at least.

HAProxy counts requests when it sends them, and responses when their heads arrive. It offers no list
of single requests that a program could read. So the wait is computed from counts, for each server:

    a response head has arrived since the last sample    the waiting requests are unknown:
                                                         restart
    no response head has arrived                         all requests sent since then wait, minus
                                                         failed and abandoned ones

For a server that answers some requests and not others, the result is a lower bound: a request that
may have been answered never counts as waiting.
"""

from __future__ import annotations

from collections import deque

from tidegate.adapters.haproxy.runtime_socket import Row, Rows, number

_HEADS = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "hrsp_other")
# Requests that ended without a response head: not connected, aborted or timed out, given up by the
# client.
_LOST = ("econ", "eresp", "cli_abrt")
# The leader's probe times out before this (`probe_door`).
_PROBE_S_MAX = 3.0
# Samples that one stretch remembers; a request times out after a minute.
_LOOKS_MAX = 300


class _Stretch:
    """The requests sent to one server since its last response head."""

    def __init__(self, row: Row) -> None:
        self.heads = _sum(row, _HEADS)
        self.sent = number(row, "stot")
        self._lost_before = _sum(row, _LOST)
        # Time of the sample, and the number of requests sent since the sample before.
        self._sent: deque[tuple[float, int]] = deque(maxlen=_LOOKS_MAX)

    def look(self, row: Row, at: float) -> list[tuple[float, int]]:
        """Return the waiting requests as (latest possible time of sending, count), oldest first."""
        sent = number(row, "stot")
        if sent > self.sent:
            self._sent.append((at, sent - self.sent))
            self.sent = sent
        # Assume that the requests that ended were the oldest ones, so that no wait is overstated.
        left = sum(count for _, count in self._sent) - (_sum(row, _LOST) - self._lost_before)
        left = min(left, number(row, "scur"))
        found: list[tuple[float, int]] = []
        for sent_at, count in reversed(self._sent):
            if left <= 0:
                break
            found.append((sent_at, min(count, left)))
            left -= count
        return found[::-1]


class Silence:
    """The waiting requests of all servers of one door."""

    def __init__(self) -> None:
        self._stretches: dict[str, _Stretch] = {}
        self._waiting: list[tuple[float, int]] = []

    def look(self, servers: Rows, at: float) -> None:
        """Take a sample of the running HAProxy's servers."""
        self._stretches = {name: one for name, one in self._stretches.items() if name in servers}
        self._waiting = []
        for name, row in servers.items():
            stretch = self._stretches.get(name)
            is_same = stretch is not None and stretch.heads == _sum(row, _HEADS)
            # A lower count than before means that HAProxy was restarted.
            if stretch is None or not is_same or number(row, "stot") < stretch.sent:
                self._stretches[name] = _Stretch(row)
            else:
                self._waiting += stretch.look(row, at)

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
    return sum(number(row, field) for field in fields)
