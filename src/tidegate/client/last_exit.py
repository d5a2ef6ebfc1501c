"""The forced end of a process in which something hangs.

A blocked event loop cannot enforce a deadline, and Python waits for threads of user code at exit.
So a thread of its own watches the deadline. It receives deadlines through a `SimpleQueue`, which
signal handlers may use at any point.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from queue import Empty, SimpleQueue

# The time for hooks and disconnecting, beyond the time for running handlers, in seconds.
GOODBYE_S = 10.0
_STDERR_FD = 2
_WORDS = b"tidegate: a handler or a hook hangs: the process did not end in time, and is ended\n"


class LastExit:
    """Ends the process at the earliest deadline that was set; does nothing before one is set."""

    def __init__(self) -> None:
        # Deadlines by the monotonic clock; `None` cancels.
        self._times: SimpleQueue[float | None] = SimpleQueue()
        threading.Thread(target=self._wait, name="tidegate-last-exit", daemon=True).start()

    def within(self, seconds: float) -> None:
        """End the process in `seconds` from now, unless called off."""
        self._times.put(time.monotonic() + seconds)

    def call_off(self) -> None:
        """Cancel the forced end, since the process ends by itself."""
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
    # A logger's lock may be what hangs, and writing to a full pipe would block. So write directly,
    # and only if that does not block.
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [_STDERR_FD], [], 0.0)[1]:
            os.write(_STDERR_FD, _WORDS)
