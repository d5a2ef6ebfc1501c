"""Ending tasks for certain.

A cancellation may get lost: psycopg, cancelled in the middle of a query, waits for the server's
word, and when the server has just died raises that instead. A loop that is made to survive a store
that is away takes it for an outage, and goes on. So whoever is to end is told until it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 0.5


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel them, again and again, until all are over; what they raise is nobody's any more."""
    left = {task for task in tasks if task is not asyncio.current_task()}
    while left:
        for task in left:
            task.cancel()
        over, left = await asyncio.wait(left, timeout=_AGAIN_S)
        for task in over:
            if not task.cancelled():
                task.exception()
