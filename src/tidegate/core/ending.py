"""Cancelling tasks reliably.

A cancellation can get lost. psycopg, cancelled during a query, waits for the server's answer. If
the server has just died, psycopg raises that error and not `CancelledError`. A loop that survives
store outages then continues. So the cancellation is repeated until the task has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 0.5


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks repeatedly until all have ended; their exceptions are ignored."""
    left = {task for task in tasks if task is not asyncio.current_task()}
    while left:
        for task in left:
            task.cancel()
        over, left = await asyncio.wait(left, timeout=_AGAIN_S)
        for task in over:
            if not task.cancelled():
                task.exception()
