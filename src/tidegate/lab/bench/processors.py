"""Who used the processors meanwhile: a figure from a shared machine has to say that it is one."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

# Others may take this share of the machine before a figure is doubted.
QUIET = 0.05


class Processors:
    """A look at the whole machine and at our own processes, and what changed since."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._all_s = _busy_s()
        self._ours_s = _ours_s()

    def share_of_others(self) -> float:
        """The share of all processors that others used since."""
        capacity_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._all_s) - (_ours_s() - self._ours_s)
        return min(max(others_s / capacity_s, 0.0), 1.0)


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle_s: float = times.idle + times.iowait
    return float(sum(times)) - idle_s - getattr(times, "guest", 0.0)


def _ours_s() -> float:
    """Processor seconds of this process and of all it has started, also of those that ended."""
    me = psutil.Process()
    used_s = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s
