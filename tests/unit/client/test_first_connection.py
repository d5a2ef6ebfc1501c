"""What a client does when a node hangs up before the client is registered."""

from __future__ import annotations

import asyncio

import pytest
from virtual_nodes import in_virtual_time, virtual_node

from tidegate.client.client import Client
from tidegate.core.errors import Unavailable
from tidegate.testing.network import DOMAIN


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the first request, and close the transport without an answer."""
    await reader.read(1)
    writer.close()


@in_virtual_time
async def test_client_tries_the_next_node_when_the_first_hangs_up() -> None:
    async with virtual_node() as there:
        server = await asyncio.start_server(hang_up, f"dying{DOMAIN}", 7411)
        nodes = f"tidegate://dying{DOMAIN}:7411,{there.node.address.removeprefix('tidegate://')}"

        async with Client(nodes, name="first") as mq:
            await mq.create_queue("orders")
            assert [queue.name for queue in await mq.queues()] == ["orders"]
        server.close()


@in_virtual_time
async def test_client_says_that_the_only_node_hung_up() -> None:
    server = await asyncio.start_server(hang_up, f"dying{DOMAIN}", 7411)

    with pytest.raises(Unavailable, match=f"the node at dying{DOMAIN}:7411 hung up"):
        await Client(f"tidegate://dying{DOMAIN}:7411", name="first").open()
    server.close()
