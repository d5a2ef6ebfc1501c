"""Requests under way by producer and batch.

A client whose connection broke sends its request again. The second one must share the result of the
first one, and not run beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class OnceEach(Generic[Result]):
    """Runs one request for each key at a time; equal requests share its result."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[int, int], asyncio.Task[Result]] = {}

    async def run(
        self, key: tuple[int, int], work: Callable[[], Coroutine[Any, Any, Result]]
    ) -> Result:
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(work())
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        # The request runs to its end even if its caller is cancelled.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel the requests under way; the store knows which of them were done."""
        under_way = list(self._under_way.values())
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
