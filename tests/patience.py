"""Waiting for what comes about by itself in other processes, and whose coming nobody announces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate.core.errors import TidegateError

Found = TypeVar("Found")
PATIENCE_S = 60.0
_LOOK_S = 0.05


def eventually(look: Callable[[], Found], what: str, patience_s: float = PATIENCE_S) -> Found:
    """Look until there is something to see; whoever is asked may just be going or coming."""
    deadline = time.monotonic() + patience_s
    failure: TidegateError | None = None
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
            failure = None
        except TidegateError as refused:
            failure = refused
        time.sleep(_LOOK_S)
    raise AssertionError(f"not within {patience_s:g} s: {what}") from failure


async def eventually_seen(
    look: Callable[[], Awaitable[Found | None]], what: str, patience_s: float = PATIENCE_S
) -> Found:
    """The same for who looks with async; what is refused is a failure."""
    try:
        async with asyncio.timeout(patience_s):
            while True:
                if found := await look():
                    return found
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise AssertionError(f"not within {patience_s:g} s: {what}") from None
