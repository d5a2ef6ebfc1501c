"""Work under way by producer and batch.

A client that was cut off asks again: it must meet its first question, not a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class OnceEach(Generic[Result]):
    """One piece of work for each key at a time; whoever asks meanwhile shares its outcome."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[int, int], asyncio.Task[Result]] = {}

    async def run(
        self, key: tuple[int, int], work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(work())
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        # Its asker's end does not stop it.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """End what is under way: its outcome is found in the store."""
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
