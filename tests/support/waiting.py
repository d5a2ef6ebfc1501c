"""The one way in which tests wait: ask again until the answer is true.

A test waits for an event, never for a time. Where the product announces the event (a future, a
line of output, a process that ends), the test awaits that. Where nothing announces it, the test
calls `eventually` or, inside an event loop, `eventually_async`.

The limit is a safety net against hanging, so it is generous: it says nothing about speed.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidegate.core.errors import TidegateError

Found = TypeVar("Found")
LIMIT_S = 60.0
_PAUSE_S = 0.02
# A look inside the process costs microseconds. Who looks through /proc or asks a database pauses
# for longer, as `eventually` does: else the test takes the processor from what it waits for.
_PAUSE_IN_LOOP_S = 0.005


def eventually(look: Callable[[], Found], what: str = "", limit_s: float = LIMIT_S) -> Found:
    """Call `look` until it returns something true, and return that.

    A `TidegateError` counts as "not yet": the server may be starting or stopping.
    `what` names the awaited event in the failure; the source of `look` stands in for it.
    """
    deadline = time.monotonic() + limit_s
    seen: Any = None
    refused: TidegateError | None = None
    while True:
        try:
            if found := look():
                return found
            seen, refused = found, None
        except TidegateError as error:
            refused = error
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(look, what, limit_s, seen)) from refused
        time.sleep(_PAUSE_S)


async def eventually_async(
    look: Callable[[], Found | Awaitable[Found]],
    what: str = "",
    limit_s: float = LIMIT_S,
    pause_s: float = _PAUSE_IN_LOOP_S,
) -> Found:
    """Do the same inside an event loop; `look` may be a coroutine function.

    An error raised by `look` is a failure of the test.
    """
    deadline = time.monotonic() + limit_s
    while True:
        answer = look()
        found: Any = await answer if inspect.isawaitable(answer) else answer
        if found:
            return found  # type: ignore[no-any-return]
        if time.monotonic() > deadline:
            raise AssertionError(_complaint(look, what, limit_s, found))
        await asyncio.sleep(pause_s)


def _complaint(look: Callable[..., Any], what: str, limit_s: float, seen: Any) -> str:
    if not what:
        try:
            what = " ".join(inspect.getsource(look).split())
        except OSError:
            what = repr(look)
    return f"not within {limit_s:g} s: {what}; seen last: {seen!r}"
