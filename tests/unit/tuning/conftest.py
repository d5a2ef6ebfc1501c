"""Where a round trip of 40 ms makes a prefetch worth 25 messages a second, on any machine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from memory_fixtures import backing

from tidegate.lab.faults.proxy import TcpProxy
from tidegate.node.server import Node

__all__ = ["backing", "far_away"]

ONE_WAY_S = 0.02


@pytest.fixture
async def far_away(node: Node) -> AsyncIterator[str]:
    """The URL of the node at the other end of a long cable."""
    async with TcpProxy(node.address, delay_s=ONE_WAY_S) as proxy:
        yield proxy.url
