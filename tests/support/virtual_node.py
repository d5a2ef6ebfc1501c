"""A real node on the memory store in virtual time: nothing waits, and no machine is too slow."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec

from tidegate.client.client import Client
from tidegate.core.ports import Clock
from tidegate.node.limits import Limits
from tidegate.node.server import Node
from tidegate.storage.memory import MemoryStore
from tidegate.testing.network import DOMAIN
from tidegate.testing.virtual_time import VirtualTimeLoop, run

Arguments = ParamSpec("Arguments")


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
    began_at, wall_at = loop.time(), time.time()
    clock = Clock(lambda: wall_at + loop.time() - began_at, loop.time)
    node = Node(MemoryStore(clock), host="node" + DOMAIN, port=0, limits=Limits(), clock=clock)
    await node.start()
    try:
        async with AsyncExitStack() as stack:
            yield VirtualNode(node, stack)
    finally:
        await node.stop()
