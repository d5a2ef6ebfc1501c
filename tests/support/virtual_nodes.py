"""Nodes, clients and a cable with a delay, all in virtual time: waiting takes no time at all.

A folder whose `conftest.py` imports these fixtures runs its tests so. What is measured there is
exact, however busy the machine is: no port is opened and no real clock is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from backing import Backing, Connect, StartNode

from tidegate.client.client import Client
from tidegate.core.ports import Clock, Store
from tidegate.lab.faults.proxy import TcpProxy
from tidegate.node.limits import Limits
from tidegate.node.server import Node
from tidegate.storage.memory import MemoryStore
from tidegate.testing.network import DOMAIN
from tidegate.testing.virtual_time import VirtualTimeLoop

# A Saturday in spring; any moment will do.
BEGAN_AT = 1_773_500_000.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualTimeLoop}


class VirtualClock(Clock):
    """The clock of the running loop."""

    def __init__(self) -> None:
        super().__init__(lambda: BEGAN_AT + self.monotonic(), self._now)
        self._began_at: float | None = None

    def _now(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._began_at is None:
            self._began_at = now
        return now - self._began_at


class VirtualBacking(Backing):
    """One store in memory for all nodes."""

    name = "memory"

    def __init__(self, clock: Clock) -> None:
        self._store = MemoryStore(clock)

    def store(self) -> Store:
        return self._store

    async def declare_dead(self, member_id: int) -> None:
        await self._store.renew(member_id, 0.0)


def cable(target: str, delay_s: float) -> TcpProxy:
    """A way to a node on which each byte takes so long."""
    return TcpProxy(target, delay_s, host=f"cable{DOMAIN}")


@pytest.fixture
def clock() -> Clock:
    return VirtualClock()


@pytest.fixture
def backing(clock: Clock) -> Backing:
    return VirtualBacking(clock)


@pytest.fixture
async def start_node(backing: Backing, clock: Clock) -> AsyncIterator[StartNode]:
    """Start a node; all share what `backing` holds."""
    started: list[Node] = []

    async def start(**settings: Any) -> Node:
        name = f"node-{len(started) + 1}"
        settings = {"limits": Limits(lease_s=60.0, settle_linger_s=0.001), **settings}
        node = Node(backing.store(), host=name + DOMAIN, name=name, clock=clock, **settings)
        await node.start()
        started.append(node)
        return node

    yield start
    for node in started:
        if not node.stopping:
            await node.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connect a client to a node."""
    opened: list[Client] = []

    async def open_client(node: Node, **settings: Any) -> Client:
        client = await Client(node.address, **settings).open()
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        await client.close()


@pytest.fixture
async def node(start_node: StartNode) -> Node:
    return await start_node()


@pytest.fixture
async def mq(node: Node, connect: Connect) -> Client:
    return await connect(node)
