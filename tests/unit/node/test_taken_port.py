"""A node whose port somebody else has: refused if it was asked for, and any other if not."""

from __future__ import annotations

import socket

import pytest

from tidegate.broker.node import Node
from tidegate.core.errors import Unavailable
from tidegate.storage.memory import MemoryStore


async def test_a_port_that_was_asked_for_and_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            await Node(MemoryStore(), port=port).start()


async def test_a_port_that_nobody_asked_for_is_taken_if_it_can_be_had_and_another_if_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = Node(MemoryStore(), port=port, or_free=True)
        await node.start()
        elsewhere = int(node.address.rpartition(":")[2])
        await node.stop()
        assert elsewhere != port

    node = Node(MemoryStore(), port=port, or_free=True)
    await node.start()
    assert node.address == f"tidegate://127.0.0.1:{port}"
    await node.stop()
