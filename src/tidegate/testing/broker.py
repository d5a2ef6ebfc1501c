"""An in-memory broker for tests: a real node in the test's own event loop.

The node, its sessions, the client and the protocol between them are those of production. Three
things are replaced: the store is in memory, connections are in memory (`InMemoryNetwork`), and time
is virtual (`VirtualTimeLoop`).

Time passes only when the test calls `advance`, or while the test waits for something that takes
time. An example is `get(wait=30)` on an empty queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from tidegate.client.address import parse_url
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core.errors import InvalidValue, QueueNotExisting
from tidegate.core.model import DEAD_SUFFIX
from tidegate.core.ports import Clock
from tidegate.core.replication import Topology, logical_name
from tidegate.node.limits import Limits
from tidegate.node.server import Node
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.numbers import QueueNumbers
from tidegate.testing.deliveries import Delivery, Observer
from tidegate.testing.network import DOMAIN
from tidegate.testing.replicas import Replicas
from tidegate.testing.virtual_time import PATIENCE_S, VirtualTimeLoop

HOST = "broker" + DOMAIN
# A single node need not renew its lease every second. Acknowledgements reach the store almost at
# once.
DEFAULT_LIMITS = Limits(lease_s=60.0, settle_linger_s=0.001)
# Longer than any delay with which client or node batch packets, in seconds.
_LINGER_S = 0.01
_SETTLE_STEPS_MAX = 1000
BROWSE_MAX = 100_000


class Application(Protocol):
    """The part of `tidegate.App` that the broker uses."""

    url: str

    def running(self, *, url: str | None = None) -> AbstractAsyncContextManager[object]: ...


class Broker:
    """An in-memory broker; use it with `async with`, or let its first method start it.

    Args:
        limits: limits of the node.
        patience_s: how much virtual time the test may wait for something before it counts as
            hanging and raises `TimeoutError`.

    A broker belongs to one event loop, so use a new one for each test. `deliveries` lists every
    message that was sent to a consumer or reader, in order.
    """

    def __init__(self, *, limits: Limits = DEFAULT_LIMITS, patience_s: float = PATIENCE_S) -> None:
        self._limits = limits
        # How much virtual time the test may wait before it counts as hanging.
        self._patience_s = patience_s
        self._loop: VirtualTimeLoop | None = None
        self._node: Node | None = None
        self._starting: asyncio.Future[None] | None = None
        self._clock: Clock
        self._store: MemoryStore
        self._address: tuple[str, int]
        self._clients: list[Client] = []
        # The broker's own client, for its views of queues.
        self._looker: Client | None = None
        # Every message that was sent to a consumer or reader, in order.
        self.deliveries: list[Delivery] = []

    # Starting and stopping

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Make the running loop's time virtual, and start the node; does nothing if started.

        Raise `InvalidValue` in another event loop than at the first start.
        """
        running = asyncio.get_running_loop()
        if self._loop is running and self._starting is not None:
            await asyncio.shield(self._starting)
            return
        if self._loop is not None:
            raise InvalidValue("this broker lives in another event loop: use one for each test")
        loop = self._loop = VirtualTimeLoop.adopt(running)
        loop.timeline.patience_s = self._patience_s
        self._starting = loop.create_future()
        began_at, wall_at = loop.time(), time.time()
        self._clock = Clock(lambda: wall_at + loop.time() - began_at, loop.time)
        self._store = MemoryStore(self._clock)
        try:
            await self._start_node(port=0)
            self._looker = await Client(self.url, mode="admin").open()
        except BaseException:
            self._starting.cancel()
            self._loop = None
            loop.let_go()
            raise
        self._starting.set_result(None)

    async def _start_node(self, port: int) -> None:
        assert self._loop is not None
        node = Node(
            self._store,
            host=HOST,
            port=port,
            name="broker",
            limits=self._limits,
            clock=self._clock,
        )
        await node.start()
        self._node = node
        self._address = parse_url(node.address)[0]
        self._loop.network.listeners[self._address].taps = self._observe

    async def restart(self) -> None:
        """Stop the node and start it again on the same store; clients reconnect by themselves.

        Messages that consumers held return to their queues. This takes some hundredths of a second
        of virtual time.
        """
        await self.start()
        await self._started().stop()
        await self._start_node(port=self._address[1])
        for client in (*self._clients, await self._look()):
            await client.connected()
        await self.settle()

    def _observe(self) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
        observer = Observer(self.deliveries, self._queue_name, self.time)
        return observer.asked, observer.answered

    def _queue_name(self, queue_id: int) -> str:
        return logical_name(self._started().replicas[queue_id].info.name)

    async def stop(self) -> None:
        """Close all clients, stop the node, and give the loop its own time back."""
        if self._loop is None or self._node is None:
            return
        for client in (*self._clients, self._looker):
            if client is not None:
                await client.close()
        await self._node.stop()
        # Let the sessions end, which takes turns of the loop.
        await self._loop.timeline.quiet()
        self._loop.let_go()
        self._loop = self._node = self._looker = None

    def drop(self) -> None:
        """Stop the broker from outside the loop; do nothing if the loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(self.stop())

    def _started(self) -> Node:
        if self._node is None:
            raise InvalidValue("the broker has not started: use `async with Broker() as broker`")
        return self._node

    async def _look(self) -> Client:
        await self.start()
        assert self._looker is not None
        return self._looker

    # Clients

    @property
    def url(self) -> str:
        """The URL for `tidegate.connect` and `tidegate.App` in this event loop."""
        return self._started().address

    async def connect(self, **settings: Any) -> Client:
        """Return a connected client, which is closed with the broker.

        The settings are those of `Client` without the URL, such as `name` and `mode`.
        """
        await self.start()
        client = await Client(self.url, **settings).open()
        self._clients.append(client)
        return client

    # Virtual time

    def time(self) -> float:
        """Return the broker's time in seconds since 1970, for `deliver_at` and `expires_at`."""
        self._started()
        return self._clock.wall()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass: everything due happens in order; then settle."""
        if not 0 <= seconds < float("inf"):
            raise InvalidValue(f"time goes forward, not by {seconds!r} s")
        await self.start()
        assert self._loop is not None
        await self._loop.timeline.pass_time(seconds)
        await self.settle()

    async def settle(self) -> None:
        """Run everything until no packet moves any more.

        This takes some hundredths of a second of virtual time. Handlers that sleep are not waited
        for; use `advance` for them. Raise `TimeoutError` if packets never stop, for example because
        a worker puts what it takes.
        """
        await self.start()
        assert self._loop is not None
        node = self._started()
        for _ in range(_SETTLE_STEPS_MAX):
            moved = node.packets_in + node.packets_out
            await self._loop.timeline.pass_time(_LINGER_S)
            if node.packets_in + node.packets_out == moved:
                return
        raise TimeoutError(
            f"packets still move after {_SETTLE_STEPS_MAX * _LINGER_S:g} s of virtual time: does a "
            "worker put what it takes, for ever? Then `await broker.advance(...)` instead"
        )

    # Views of queues

    async def messages(self, queue: str) -> list[Message]:
        """Return the waiting messages of a queue, the oldest first.

        The list is empty if there is no such queue.
        """
        try:
            return await (await self._look()).browse(queue, limit=BROWSE_MAX)
        except QueueNotExisting:
            return []

    async def dead(self, queue: str) -> list[Message]:
        """Return the dead letters of a queue, with their `deaths`."""
        try:
            info = await (await self._look()).queue(queue)
        except QueueNotExisting:
            return await self.messages(queue + DEAD_SUFFIX)
        dead_letters = info.policy.dead_letter_queue(queue)
        return [] if dead_letters is None else await self.messages(dead_letters)

    async def queue(self, queue: str) -> QueueNumbers:
        """Return the stats of a queue; raise `QueueNotExisting` if there is none.

        They count waiting, unacknowledged, put, delivered, acked and returned messages, and more.
        """
        numbers = (await (await self._look()).stats(queue)).queue(queue)
        if numbers is None:
            raise QueueNotExisting(f"no queue {queue!r}")
        return numbers

    # Logical queues

    async def scale(self, queue: str, replicas: int) -> Topology:
        """Spread a queue over this number of replicas, and return its topology.

        Clients stay connected. If replicas are removed, virtual time passes until they are empty.
        """
        info = await (await self._look()).queue(queue)
        return await Replicas(self._started(), info.queue_id).become(replicas, self.advance)

    # Workers

    @asynccontextmanager
    async def running(self, app: Application) -> AsyncIterator[None]:
        """Run an app's workers on this broker while the block runs, ignoring the app's URL."""
        await self.start()
        elsewhere = app.url
        try:
            async with app.running(url=self.url):
                await self.settle()
                yield
        finally:
            app.url = elsewhere

    async def run(self, app: Application) -> None:
        """Run an app's workers until no packet moves any more."""
        async with self.running(app):
            await self.settle()
