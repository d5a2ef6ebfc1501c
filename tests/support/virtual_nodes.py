"""Nodes, clients and a cable with a delay, all in virtual time: waiting takes no time at all.

A folder whose `conftest.py` imports these fixtures runs all its tests in virtual time. In other
folders a single test does so with `in_virtual_time` and `virtual_node`. What is measured is exact,
however busy the machine is: no port is opened and no real clock is read.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec

import pytest
from backing import Backing, StartNode
from node_fixtures import connect, mq, node

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Clock, Store
from tidegate.storage.memory import MemoryStore
from tidegate.testing.network import DOMAIN
from tidegate.testing.virtual_time import VirtualTimeLoop, run
from tidegate_lab.faults.proxy import TcpProxy

__all__ = [
    "backing",
    "cable",
    "clock",
    "connect",
    "in_virtual_time",
    "mq",
    "node",
    "pytest_asyncio_loop_factories",
    "start_node",
    "virtual_node",
]

# A Saturday in spring; any moment will do.
BEGAN_AT = 1_773_500_000.0


Arguments = ParamSpec("Arguments")


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
        settings = {"limits": NodeLimits(lease_s=60.0, settle_linger_s=0.001), **settings}
        node = Node(backing.store(), host=name + DOMAIN, name=name, clock=clock, **settings)
        await node.start()
        started.append(node)
        return node

    yield start
    for each in started:
        if not each.stopping:
            await each.stop()


def in_virtual_time(
    test: Callable[Arguments, Coroutine[Any, Any, None]],
) -> Callable[Arguments, None]:
    """Run an asynchronous test in an event loop of its own, in which waiting takes no time."""

    @functools.wraps(test)
    def running(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        run(test(*args, **kwargs))

    return running


class VirtualNode:
    """The node, and clients of it that are closed with it."""

    def __init__(self, node: Node, stack: AsyncExitStack) -> None:
        self.node = node
        self._stack = stack

    async def connect(self, **settings: Any) -> Client:
        client = await Client(self.node.address, mode="admin", **settings).open()
        self._stack.push_async_callback(client.close)
        return client


@asynccontextmanager
async def virtual_node() -> AsyncIterator[VirtualNode]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "use it in a test that runs `in_virtual_time`"
    clock = VirtualClock()
    node = Node(MemoryStore(clock), host="node" + DOMAIN, port=0, limits=NodeLimits(), clock=clock)
    await node.start()
    try:
        async with AsyncExitStack() as stack:
            yield VirtualNode(node, stack)
    finally:
        await node.stop()
