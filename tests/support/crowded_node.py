"""A node that thousands of strangers stand before, and a client inside."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator

import pytest
from backing import StartNode
from people import add_user, login
from places import SUPPORT
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.address import parse_url
from tidegate.client.client import Client
from tidegate.core.runtime import NodeLimits


@contextlib.asynccontextmanager
async def crowded_node(start_node: StartNode, sockets: int) -> AsyncIterator[tuple[Node, Client]]:
    """A node that has room for so many strangers, and a client that has logged in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = sockets + 500
    if hard < wanted:
        pytest.skip(f"only {hard} sockets per process here, {wanted} are needed: ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    node = await start_node(
        limits=NodeLimits(
            connections_max=2 * sockets + 2,
            connections_per_address_max=2 * sockets,
            # They are let stand there.
            handshake_s=600.0,
        )
    )
    await add_user(node, "ann", admin="*")
    async with Client(node.address, credentials=login("ann")) as mq:
        yield node, mq


@contextlib.asynccontextmanager
async def crowd_before(node: Node, sockets: int) -> AsyncIterator[None]:
    """A process of its own: what it costs to be a crowd is not the client's to bear."""
    ((host, port),) = parse_url(node.address)
    crowd = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SUPPORT / "crowd.py")),
        *(host, str(port), str(sockets)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert crowd.stdout is not None
        assert await crowd.stdout.readline() == b"there\n"
        await eventually_async(lambda: node.admission.strangers == sockets)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            crowd.kill()
        await crowd.wait()
