"""Middleware: code around every call of a worker's function.

    @app.middleware
    async def timed(message: tidegate.Message, call_next: tidegate.CallNext) -> object:
        with timer(message.queue):
            return await call_next()

Code before `call_next` runs before the function, and code after it runs afterwards. `try` sees
exceptions, and `with` keeps a span or a database session open during the call. The first middleware
declared is the outermost. The message is acknowledged after the outermost one returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from tidegate.client.message import Message

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Message, CallNext], Awaitable[Any]]


async def call_through(
    layers: Sequence[Middleware], message: Message, innermost: CallNext
) -> object:
    """Call `innermost` through all middleware, and return the result of the outermost one."""
    call = innermost
    for layer in reversed(layers):
        call = partial(layer, message, call)
    return await call()
