"""The end of a process that was told to end, whatever hangs in it.

A loop that is blocked hears no deadline, and threads of users' code are joined by Python for as
long as they like. A thread of our own needs neither. It is told through a queue, since that is what
a handler of signals may use in the middle of anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from queue import Empty, SimpleQueue

# What a worker may take beyond its drain: hooks, and goodbye.
GOODBYE_S = 10.0
_STDERR_FD = 2
_WORDS = b"tidegate: a handler or a hook hangs: the process did not end in time, and is ended\n"


class LastExit:
    """Nothing until a time is set; the earliest that was set counts."""

    def __init__(self) -> None:
        # Times by the monotonic clock; None: no longer needed.
        self._times: SimpleQueue[float | None] = SimpleQueue()
        threading.Thread(target=self._wait, name="tidegate-last-exit", daemon=True).start()

    def within(self, seconds: float) -> None:
        """Have the process gone by then."""
        self._times.put(time.monotonic() + seconds)

    def call_off(self) -> None:
        """It has ended what it had to end."""
        self._times.put(None)

    def _wait(self) -> None:
        ends_at = self._times.get()
        while ends_at is not None:
            left_s = min(max(ends_at - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
            try:
                other = self._times.get(timeout=left_s)
            except Empty:
                _say_last()
                os._exit(1)
            ends_at = None if other is None else min(ends_at, other)


def _say_last() -> None:
    # Neither through a logger, whose lock may be what hangs, nor into a pipe that is full.
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [_STDERR_FD], [], 0.0)[1]:
            os.write(_STDERR_FD, _WORDS)
