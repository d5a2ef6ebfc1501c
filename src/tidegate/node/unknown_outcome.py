"""Requests that must not be repeated when the store has not answered.

Clients repeat every request after `Unavailable`, since it says that the node has done nothing.
`Unavailable` from a store says that the result is not known. So a handler whose repetition would
have another result, such as the creation of a queue, answers `IoFailure` then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate.core.errors import IoFailure, Unavailable
from tidegate.core.ports import Store


@asynccontextmanager
async def unknown_outcome(store: Store) -> AsyncIterator[None]:
    """Turn `Unavailable` from a change in the store into `IoFailure`.

    A read comes first. If the store is away, it raises `Unavailable` before the change, and clients
    repeat the request until the store is back.
    """
    await store.find_client(0, None)
    try:
        yield
    except Unavailable as failure:
        raise IoFailure(f"{failure}; the outcome is not known") from None
