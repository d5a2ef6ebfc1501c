"""The peak memory of this process and its children together."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil

LOOK_EVERY_S = 0.1
SETTLED_S = 1.0


class MemoryPeak:
    """Samples the memory ten times a second and keeps the maximum in `bytes_max`."""

    def __init__(self, without: frozenset[int] = frozenset()) -> None:
        """Prepare a measurement; `without` has the ids of processes that do not count."""
        self._without = without
        self._over = threading.Event()
        self.bytes_max = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[MemoryPeak]:
        """Sample while the block runs."""
        thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes_max = max(self.bytes_max, self._look())
            if self._over.wait(LOOK_EVERY_S):
                return

    def _look(self) -> int:
        total = 0
        # A process that has just been forked to run a command appears as large as its parent.
        settled_s = time.time() - SETTLED_S
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            # A process that has just ended uses no memory.
            with contextlib.suppress(psutil.Error):
                if process.pid not in self._without and process.create_time() < settled_s:
                    total += process.memory_info().rss
        return total
