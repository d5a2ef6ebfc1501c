"""An in-memory broker for tests: a real node in the test's own event loop.

The node, its sessions, the client and the protocol between them are those of production. Three
things are replaced: the store is in memory, connections are in memory (`InMemoryNetwork`), and time
is virtual (`VirtualTimeLoop`).

Time passes only when the test calls `advance`, or while the test waits for something that takes
time. An example is `get(wait=30)` on an empty queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from tidegate.broker.node import Node
from tidegate.broker.replica import Replica
from tidegate.broker.transactions import retry_while_moving
from tidegate.client.address import parse_url
from tidegate.client.blocking import BlockingClient, BlockingMessage, LoopThread
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core.errors import InvalidValue, QueueNotExisting, TidegateError
from tidegate.core.model import DEAD_SUFFIX
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Clock
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    ControlMode,
    Range,
    ReplicaState,
    Scaling,
    ScalingPolicy,
    Topology,
    logical_name,
)
from tidegate.protocol.connection import FRAME_BYTES_MAX, FrameReader
from tidegate.protocol.messages import (
    Deliver,
    ReadMessage,
    ReadMessageResponse,
    ReadResponse,
    ReadResponseResponse,
    Subscribe,
)
from tidegate.protocol.packet import Run
from tidegate.storage.memory import MemoryStore
from tidegate.telemetry.stats import QueueStats
from tidegate.testing.network import DOMAIN
from tidegate.testing.virtual_time import PATIENCE_S, VirtualTimeLoop

HOST = "broker" + DOMAIN
# A single node need not renew its lease every second. Acknowledgements reach the store almost at
# once.
DEFAULT_LIMITS = NodeLimits(lease_s=60.0, settle_linger_s=0.001)
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

    def __init__(
        self, *, limits: NodeLimits = DEFAULT_LIMITS, patience_s: float = PATIENCE_S
    ) -> None:
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
        for client in (*self._clients, await self._poll()):
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

    async def _poll(self) -> Client:
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
            return await (await self._poll()).browse(queue, limit=BROWSE_MAX)
        except QueueNotExisting:
            return []

    async def dead(self, queue: str) -> list[Message]:
        """Return the dead letters of a queue, with their `deaths`."""
        try:
            info = await (await self._poll()).queue(queue)
        except QueueNotExisting:
            return await self.messages(queue + DEAD_SUFFIX)
        dead_letters = info.policy.dead_letter_queue(queue)
        return [] if dead_letters is None else await self.messages(dead_letters)

    async def queue(self, queue: str) -> QueueStats:
        """Return the stats of a queue; raise `QueueNotExisting` if there is none.

        They count waiting, unacknowledged, put, delivered, acked and returned messages, and more.
        """
        numbers = (await (await self._poll()).stats(queue)).queue(queue)
        if numbers is None:
            raise QueueNotExisting(f"no queue {queue!r}")
        return numbers

    # Logical queues

    async def scale(self, queue: str, replicas: int) -> Topology:
        """Spread a queue over this number of replicas, and return its topology.

        Clients stay connected. If replicas are removed, virtual time passes until they are empty.
        """
        info = await (await self._poll()).queue(queue)
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


# The broker for tests without async: calls run the event loop in the test's own thread.
#
# There is no other thread and no real waiting. During a call everything happens that it needs, and
# between two calls nothing happens. So a blocking test is as repeatable as an asynchronous one.


Result = TypeVar("Result")


class OnDemandLoop(LoopThread):
    """An event loop that runs only during a call, in the thread of the caller."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.loop = self._runner.get_loop()

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    def call(self, function: Callable[[], asyncio.Future[Result]]) -> Future[Result]:
        # The caller cannot run the loop to wait for the future, so complete it here.
        future: Future[Result] = Future()

        async def run() -> Result:
            return await function()

        try:
            future.set_result(self.wait(run()))
        except Exception as failure:
            future.set_exception(failure)
        return future

    def stop(self) -> None:
        """Do nothing when a client closes, since the broker owns the loop and closes it."""

    def end(self) -> None:
        self._runner.close()


class BlockingBroker:
    """An in-memory broker for tests without async; use it with `with`. See `Broker`."""

    def __init__(self, *, limits: NodeLimits = DEFAULT_LIMITS) -> None:
        self._turned = OnDemandLoop()
        self._broker = Broker(limits=limits)

    def __enter__(self) -> BlockingBroker:
        self._turned.wait(self._broker.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._turned.wait(self._broker.stop())
        self._turned.end()

    @property
    def deliveries(self) -> list[Delivery]:
        return self._broker.deliveries

    def connect(self, **settings: Any) -> BlockingClient:
        """Return a connected client; the settings are those of `Client` without the URL."""
        return BlockingClient(lambda: Client(self._broker.url, **settings), self._turned)

    def time(self) -> float:
        """Return the broker's time in seconds since 1970."""
        return self._broker.time()

    def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass, in which everything due happens; then settle."""
        self._turned.wait(self._broker.advance(seconds))

    def settle(self) -> None:
        """Run everything until no packet moves any more; see `Broker.settle`."""
        self._turned.wait(self._broker.settle())

    def restart(self) -> None:
        """Stop the node and start it again on the same store."""
        self._turned.wait(self._broker.restart())

    def messages(self, queue: str) -> list[BlockingMessage]:
        """Return the waiting messages of a queue, the oldest first.

        The list is empty if there is no such queue.
        """
        return self._here(self._turned.wait(self._broker.messages(queue)))

    def dead(self, queue: str) -> list[BlockingMessage]:
        """Return the dead letters of a queue."""
        return self._here(self._turned.wait(self._broker.dead(queue)))

    def _here(self, messages: list[Message]) -> list[BlockingMessage]:
        return [BlockingMessage(message, self._turned) for message in messages]

    def queue(self, queue: str) -> QueueStats:
        """Return the stats of a queue; raise `QueueNotExisting` if there is none."""
        return self._turned.wait(self._broker.queue(queue))

    def scale(self, queue: str, replicas: int) -> Topology:
        """Spread a queue over this number of replicas, and return its topology."""
        return self._turned.wait(self._broker.scale(queue, replicas))

    def run(self, app: Application) -> None:
        """Run an app's workers until no packet moves any more."""
        self._turned.wait(self._broker.run(app))


# Recording of deliveries from the bytes on the connection, so it shows what consumers received.


class Delivery(NamedTuple):
    """One message on its way to one consumer."""

    queue: str
    message_id: int
    payload: bytes
    # How often it was delivered, this time included.
    delivery_count: int
    redelivered: bool
    # Seconds since 1970, by the broker's clock.
    at: float


_decode_subscribe = msgspec.msgpack.Decoder(Subscribe).decode
_decode_read = msgspec.msgpack.Decoder(ReadMessage).decode
_decode_read_response = msgspec.msgpack.Decoder(ReadResponse).decode
_decode_deliver = msgspec.msgpack.Decoder(Deliver).decode
_decode_message = msgspec.msgpack.Decoder(ReadMessageResponse).decode
_decode_response = msgspec.msgpack.Decoder(ReadResponseResponse).decode


class Observer:
    """Records the deliveries of one connection from the bytes in both directions."""

    def __init__(
        self,
        deliveries: list[Delivery],
        queue_name: Callable[[int], str],
        wall: Callable[[], float],
    ) -> None:
        self._deliveries = deliveries
        self._queue_name = queue_name
        self._wall = wall
        self._requests = FrameReader(FRAME_BYTES_MAX)
        self._answers = FrameReader(FRAME_BYTES_MAX)
        # By consumer number, and by packet id of a read: the queue id.
        self._consumers: dict[int, int] = {}
        self._reads: dict[int, int] = {}

    def asked(self, data: bytes) -> None:
        """Process bytes that the client wrote."""
        for frame in self._requests.receive(data):
            if frame.method == Subscribe.method:
                subscribe = _decode_subscribe(frame.meta)
                self._consumers[subscribe.consumer] = subscribe.queue_id
            elif frame.method == ReadMessage.method:
                self._reads[frame.packet_id] = _decode_read(frame.meta).queue_id
            elif frame.method == ReadResponse.method:
                self._reads[frame.packet_id] = _decode_read_response(frame.meta).queue_id

    def answered(self, data: bytes) -> None:
        """Process bytes that the node wrote."""
        for frame in self._answers.receive(data):
            queue_id = self._reads.pop(frame.packet_id, None)
            if frame.method == Deliver.method:
                deliver = _decode_deliver(frame.meta)
                self._note(self._consumers[deliver.consumer], deliver.runs, bytes(frame.body))
            elif queue_id is None:
                continue
            elif frame.method == ReadMessageResponse.method:
                self._note(queue_id, [_decode_message(frame.meta).run], bytes(frame.body))
            elif frame.method == ReadResponseResponse.method:
                self._note(queue_id, [_decode_response(frame.meta).run], bytes(frame.body))

    def _note(self, queue_id: int, runs: list[Run], body: bytes) -> None:
        queue = self._queue_name(queue_id)
        at = 0
        for run in runs:
            ends = list(accumulate(run.lengths, initial=at))
            at = ends[-1]
            for index, (low, high) in enumerate(pairwise(ends)):
                count = run.deliveries[index if len(run.deliveries) > 1 else 0]
                self._deliveries.append(
                    Delivery(
                        queue,
                        run.message_id + index,
                        body[low:high],
                        count,
                        run.redelivered or count > 1,
                        self._wall(),
                    )
                )


# Replicas as the leader makes them, for tests that set their number themselves.
#
# The actions are the real ones, on the real store with the leader's epoch; only the decision is the
# test's. A replica that is to be removed is emptied first, as in production: it gets no new
# messages and no new clients, and its waiting messages move to another replica.


REPLICAS_MAX = 64
_MOVED_AT_ONCE = 10_000
# Clients join again every few seconds, and learn then that their replica is to be removed.
_STEP_S = 1.0
_STEPS_MAX = 30


class Replicas:
    """The replicas of one logical queue."""

    def __init__(self, node: Node, queue_id: int) -> None:
        self._node = node
        self._store = node.store
        self._queue_id = queue_id
        self._leader_epoch = 0

    async def become(self, count: int, pass_time: Callable[[float], Awaitable[None]]) -> Topology:
        """Create replicas, or remove the latest ones, until there are `count`."""
        if type(count) is not int or not 1 <= count <= REPLICAS_MAX:
            raise InvalidValue(f"a queue has from 1 to {REPLICAS_MAX} replicas, not {count!r}")
        leader_epoch = await self._store.lead(self._node.member_id)
        assert leader_epoch is not None
        self._leader_epoch = leader_epoch
        scaling = Scaling(
            replicas=Range(1, REPLICAS_MAX),
            policy=ScalingPolicy.FIXED,
            # No control loop may change the number that the test has set.
            steering=ControlMode.RECOMMEND,
        )
        if await self._store.topology(self._queue_id) is None:
            await self._store.set_scaling(self._queue_id, scaling)
        numbers = await self._numbers()
        while len(numbers) < count:
            numbers.append(await self._add())
        staying, going = numbers[:count], numbers[count:]
        for number in going:
            await self._set_state(number, ReplicaState.DRAINING)
        await self._share(staying, going)
        for number in going:
            await self._retire(number, staying[0], pass_time)
        topology = await self._store.topology(self._queue_id)
        assert topology is not None
        return topology

    async def _numbers(self) -> list[int]:
        topology = await self._store.topology(self._queue_id)
        return [] if topology is None else sorted(place.number for place in topology.replicas)

    async def _add(self) -> int:
        place = await self._store.add_replica(self._queue_id, self._leader_epoch)
        assert place is not None
        await self._bring_here(place.queue_id)
        await self._set_state(place.number, ReplicaState.SERVING)
        return place.number

    async def _bring_here(self, queue_id: int) -> Replica:
        """Make this node the owner of a queue, with retries while the queue moves."""
        return await retry_while_moving(lambda: self._node.ownership.bring_here(queue_id))

    async def _set_state(self, number: int, state: ReplicaState) -> None:
        await self._store.set_replica_state(self._queue_id, number, state, self._leader_epoch)

    async def _share(self, staying: list[int], going: list[int]) -> None:
        shares = dict.fromkeys(going, 0.0) | dict.fromkeys(staying, 1 / len(staying))
        await self._store.set_shares(self._queue_id, shares, self._leader_epoch)
        homes = [staying[index % len(staying)] for index in range(ASSIGNMENT_SLOTS)]
        await self._store.set_homes(self._queue_id, homes, self._leader_epoch)
        await self._node.aliases.poll(again=True)

    async def _retire(
        self, number: int, heir: int, pass_time: Callable[[float], Awaitable[None]]
    ) -> None:
        topology = await self._store.topology(self._queue_id)
        assert topology is not None
        leaving, taking = topology.replica(number), topology.replica(heir)
        assert leaving is not None
        assert taking is not None
        for _ in range(_STEPS_MAX):
            if await self._store.retire_replica(self._queue_id, number, self._leader_epoch):
                await self._node.aliases.poll(again=True)
                return
            taker = await self._bring_here(taking.queue_id)
            # The messages may be moving already.
            with contextlib.suppress(TidegateError):
                await self._node.exchange.pull(taker, leaving.queue_id, _MOVED_AT_ONCE)
            await pass_time(_STEP_S)
        raise TimeoutError(
            f"replica {number} did not become empty: does a consumer hold a message of it?"
        )
