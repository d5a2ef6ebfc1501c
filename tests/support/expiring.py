"""A deadline that passes when something has happened, and not when so much time has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from waiting import eventually_async

# Turns of the loop in which everything is read that was written before the sign.
_TURNS = 10


def expire_when(sign: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Have `asyncio.timeout` expire as soon as `sign` is true; the delays that it was asked for."""
    asked: list[float | None] = []
    without_sign = asyncio.timeout

    @asynccontextmanager
    async def timeout(delay: float | None) -> AsyncIterator[asyncio.Timeout]:
        asked.append(delay)

        async def expire() -> None:
            await eventually_async(sign)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            running.reschedule(asyncio.get_running_loop().time())

        async with without_sign(None) as running:
            expiring = asyncio.create_task(expire())
            try:
                yield running
            finally:
                expiring.cancel()

    monkeypatch.setattr(asyncio, "timeout", timeout)
    return asked
