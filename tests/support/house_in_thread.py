"""A node in memory and its console, in a thread of this process: for tests that drive a browser.

Playwright keeps the main thread's event loop, so these two have one of their own. Nothing is
started but a thread: `running_house.House` is for tests that need processes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from people import add_user
from serving_console import console_of

from tidegate.broker.node import Node
from tidegate.storage.memory import MemoryStore

Found = TypeVar("Found")
# Against hanging; it says nothing about speed.
_LIMIT_S = 60.0


class HouseInThread:
    """What `House` offers of itself to a browser."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.data.mkdir()
        self.page = ""
        self._loop = uvloop.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(_LIMIT_S), "the node and its console have not started"
        assert self.page, "the node or its console has failed"

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        finally:
            self._ready.set()
            self._loop.close()

    async def _live(self) -> None:
        self.node = Node(MemoryStore(), name="node-1")
        await self.node.start()
        try:
            async with console_of(
                self.node,
                self.data / "console",
                knowledge=self.data / "knowledge",
                results=(self.folder / "results",),
            ) as console:
                self.page = console.address
                self._ready.set()
                await self._over.wait()
        finally:
            await self.node.stop()

    @property
    def url(self) -> str:
        return self.node.address

    def do(self, work: Coroutine[Any, Any, Found]) -> Found:
        """Something in the node's own event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    def add_users(self, rights: Mapping[str, Sequence[str]]) -> None:
        """As the options of `tidegate user add` say: --admin, or a role and a pattern."""
        for name, granted in rights.items():
            roles = {"admin": "*"} if "--admin" in granted else {granted[0][2:]: granted[1]}
            self.do(add_user(self.node, name, **roles))

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(_LIMIT_S)
        assert not self._thread.is_alive()
