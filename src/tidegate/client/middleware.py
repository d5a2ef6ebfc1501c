"""What stands around every call of a worker's function.

    @app.middleware
    async def timed(message: tidegate.Message, call_next: tidegate.CallNext) -> object:
        with timer(message.queue):
            return await call_next()

One shape for all: what precedes `call_next` happens before, what follows it after, `try` sees
failures, and `with` holds a span or a database session open in between. The first one declared is
the outermost. The message is acknowledged when the outermost has returned.
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
    """Call the innermost through all layers; what the outermost returns."""
    call = innermost
    for layer in reversed(layers):
        call = partial(layer, message, call)
    return await call()
