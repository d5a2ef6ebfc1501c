"""The shutdown of workers: they stop taking messages, and later stop waiting for handlers."""

from __future__ import annotations

import asyncio


class Closing:
    """The shutdown state that all workers of an app share.

    The first request lets handlers finish within `drain_s` seconds. A second one stops them now.
    """

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.asked = asyncio.Event()
        # Set at the deadline, or by a second request.
        self.over = asyncio.Event()
        # Whether handlers were still running at the deadline.
        self.has_cut_off = False

    def ask(self) -> None:
        if self.asked.is_set():
            self.over.set()
        else:
            self.begin()

    def begin(self) -> None:
        """Begin the shutdown, unless it has begun."""
        if not self.asked.is_set():
            self.asked.set()
            asyncio.get_running_loop().call_later(self._drain_s, self.over.set)

    def hurry(self) -> None:
        """Stop without waiting for handlers."""
        self.asked.set()
        self.over.set()
