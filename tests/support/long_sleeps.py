"""Sleeps of many minutes, which a test gives to the product so that none of them really passes."""

from __future__ import annotations

import asyncio

import pytest

# No part of the product sleeps as long by itself.
LONG_S = 10_000.0


def long_sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each `asyncio.sleep` of about LONG_S ends at once; the list says how long each was."""
    begun_s: list[float] = []
    sleep = asyncio.sleep

    async def sleeps(delay_s: float) -> None:
        if delay_s < LONG_S / 2:
            await sleep(delay_s)  # as the product said
        else:
            begun_s.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleeps)
    return begun_s
