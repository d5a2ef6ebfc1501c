"""Processor time that other processes used during a measurement."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

# If other processes used more than this share of the machine, a report says so.
QUIET = 0.05


class Processors:
    """A stopwatch for processor time of the machine and of this process with its children."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._all_s = _busy_s()
        self._ours_s = _ours_s()

    def share_of_others(self) -> float:
        """Return the share of all processors that other processes used since the start."""
        capacity_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._all_s) - (_ours_s() - self._ours_s)
        return min(max(others_s / capacity_s, 0.0), 1.0)


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle_s: float = times.idle + times.iowait
    return float(sum(times)) - idle_s - getattr(times, "guest", 0.0)


def _ours_s() -> float:
    """Return processor seconds of this process and its children, ended ones included."""
    me = psutil.Process()
    used_s = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s
