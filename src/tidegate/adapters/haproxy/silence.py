"""Servers that answer nothing, by HAProxy's counts: who waits for them, and for how long.

    the head of an answer has come since the last look    who still waits cannot be told: begin anew
    none has                                              all that was sent since waits, but for
                                                          what failed or was given up

HAProxy counts requests when they are sent, and answers at their heads; of single requests it tells
nothing that is not to be read off a screen. So of a server that answers some and not others no
more is said than is certain: nobody is told to wait who may have been answered.
"""

from __future__ import annotations

from collections import deque

from tidegate.adapters.haproxy.runtime_socket import Row, Rows, number

_HEADS = ("hrsp_1xx", "hrsp_2xx", "hrsp_3xx", "hrsp_4xx", "hrsp_5xx", "hrsp_other")
# Requests that ended without one: not connected, broken off or too late, given up by the client.
_LOST = ("econ", "eresp", "cli_abrt")
# The leader's probe gives up before that (control/probe.py).
_PROBE_S_MAX = 3.0
# Looks that one stretch of silence remembers; a request is given up after a minute.
_LOOKS_MAX = 300


class _Stretch:
    """What one server was sent since it last answered anything."""

    def __init__(self, row: Row) -> None:
        self.heads = _sum(row, _HEADS)
        self.sent = number(row, "stot")
        self._lost_before = _sum(row, _LOST)
        # When it was seen to have been sent, and how many.
        self._sent: deque[tuple[float, int]] = deque(maxlen=_LOOKS_MAX)

    def look(self, row: Row, at: float) -> list[tuple[float, int]]:
        """Who waits for it, by the moment at which it was sent at the latest; the oldest first."""
        sent = number(row, "stot")
        if sent > self.sent:
            self._sent.append((at, sent - self.sent))
            self.sent = sent
        # Whoever has gone may have been the oldest.
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
    """All servers of one door."""

    def __init__(self) -> None:
        self._stretches: dict[str, _Stretch] = {}
        self._waiting: list[tuple[float, int]] = []

    def look(self, servers: Rows, at: float) -> None:
        """The running HAProxy shows this."""
        self._stretches = {name: one for name, one in self._stretches.items() if name in servers}
        self._waiting = []
        for name, row in servers.items():
            stretch = self._stretches.get(name)
            is_same = stretch is not None and stretch.heads == _sum(row, _HEADS)
            # One that is started again counts from 0.
            if stretch is None or not is_same or number(row, "stot") < stretch.sent:
                self._stretches[name] = _Stretch(row)
            else:
                self._waiting += stretch.look(row, at)

    def unanswered(self, at: float, probes: int) -> list[tuple[float, int]]:
        """By how long they have waited at least; so many of them may be the leader's probes."""
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
