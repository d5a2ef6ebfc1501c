"""How work comes to its end: first nothing new is begun, then what runs is waited for no longer."""

from __future__ import annotations

import asyncio


class Closing:
    """Asked once: finish within `drain_s`. Asked again: now."""

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self.asked = asyncio.Event()
        # The deadline has come.
        self.over = asyncio.Event()
        # Something ran then, and was not waited for.
        self.has_cut_off = False

    def ask(self) -> None:
        if self.asked.is_set():
            self.over.set()
        else:
            self.begin()

    def begin(self) -> None:
        """As if asked for the first time; nothing if it has been."""
        if not self.asked.is_set():
            self.asked.set()
            asyncio.get_running_loop().call_later(self._drain_s, self.over.set)

    def hurry(self) -> None:
        """Finish now."""
        self.asked.set()
        self.over.set()
