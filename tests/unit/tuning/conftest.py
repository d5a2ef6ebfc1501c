"""In virtual time a round trip of 40 ms makes a prefetch worth 25 messages a second, exactly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from virtual_nodes import (
    backing,
    cable,
    clock,
    connect,
    mq,
    node,
    pytest_asyncio_loop_factories,
    start_node,
)

from tidegate.broker.node import Node
from tidegate.engines import probe

__all__ = [
    "backing",
    "clock",
    "connect",
    "far_away",
    "mq",
    "node",
    "pytest_asyncio_loop_factories",
    "start_node",
]

ONE_WAY_S = 0.02


@pytest.fixture
async def far_away(node: Node) -> AsyncIterator[str]:
    """The URL of the node at the other end of a long cable."""
    async with cable(node.address, ONE_WAY_S) as proxy:
        yield proxy.url


@pytest.fixture(autouse=True)
def virtual_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers of probes go by the clock of the loop."""
    paced = partial(probe.PacedHandler, monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(probe, "PacedHandler", paced)
