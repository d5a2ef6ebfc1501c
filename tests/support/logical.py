"""Logical queues for tests: a leader's hand on the store, and a client that speaks packets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from backing import StartNode
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.broker.replica import Replica
from tidegate.client.address import parse_url
from tidegate.client.connection import TRANSIENT_ERRORS, Transport
from tidegate.core.errors import Notice
from tidegate.core.model import ClientMode
from tidegate.core.runtime import NodeLimits
from tidegate.core.store import Store
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    DEFAULT_SCALING,
    MemberRole,
    ReplicaInfo,
    ReplicaState,
    Scaling,
    Topology,
)
from tidegate.protocol.catalogue import CreateQueue, CreateQueueResponse, RegisterClient
from tidegate.protocol.cluster import Join, JoinResponse, Pull, PullResponse
from tidegate.protocol.messages import PutMessages, ReadMessage, ReadMessageResponse
from tidegate.protocol.packet import Packet, Request

Found = TypeVar("Found", bound=Packet)
Result = TypeVar("Result")


async def while_moving(work: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat `work` while queues change owners, for as long as a client would.

    On a busy machine a node does not reach another one at each try: a relay has 3 s for its login.
    """

    async def attempt() -> list[Result]:
        try:
            return [await work()]
        except TRANSIENT_ERRORS:
            return []

    [result] = await eventually_async(attempt, "the queue has an owner that answers")
    return result


class Orders:
    """What whoever leads may order about one logical queue, and what the store says of it."""

    def __init__(self, store: Store, epoch: int, queue_id: int) -> None:
        self.store = store
        self.epoch = epoch
        self.queue_id = queue_id

    async def topology(self) -> Topology:
        found = await self.store.topology(self.queue_id)
        assert found is not None
        return found

    async def place(self, number: int) -> ReplicaInfo:
        found = (await self.topology()).replica(number)
        assert found is not None
        return found

    async def add_starting(self, node: Node, *, store_number: int | None = None) -> ReplicaInfo:
        """Another replica, served by this node, at which nobody is to be yet."""
        place = await self.store.add_replica(self.queue_id, self.epoch, store_number=store_number)
        assert place is not None
        await self.bring(node, place.queue_id)
        return place

    async def bring(self, node: Node, queue_id: int) -> Replica:
        """Own it there, also when somebody else wants it at the same moment."""
        return await while_moving(lambda: node.ownership.bring_here(queue_id))

    async def set_state(self, number: int, state: ReplicaState) -> None:
        assert await self.store.set_replica_state(self.queue_id, number, state, self.epoch)

    async def set_shares(self, shares: dict[int, float]) -> None:
        assert await self.store.set_shares(self.queue_id, shares, self.epoch)

    async def retire(self, number: int) -> bool:
        return await self.store.retire_replica(self.queue_id, number, self.epoch)


class Leader(Orders):
    """Orders one by one, from whoever leads; nobody is told until they look."""

    @classmethod
    async def of(
        cls, node: Node, queue_id: int, scaling: Scaling | None = DEFAULT_SCALING
    ) -> Leader:
        """Whoever leads; the queue is an alias from here on."""
        if scaling is not None:
            assert await node.store.set_scaling(queue_id, scaling)
            await node.aliases.poll()
        for member in sorted(m.member_id for m in await node.store.members() if m.alive):
            epoch = await node.store.lead(member)
            if epoch is not None:
                return cls(node.store, epoch, queue_id)
        raise AssertionError("nobody leads")

    async def add(self, owner: Node, *, store_number: int | None = None) -> ReplicaInfo:
        """A replica that this node serves; its share is to be set."""
        place = await self.add_starting(owner, store_number=store_number)
        await self.set_state(place.number, ReplicaState.SERVING)
        return await self.place(place.number)

    async def set_homes(self, *numbers: int) -> None:
        """Homes in turn at these replicas."""
        homes = [numbers[index % len(numbers)] for index in range(ASSIGNMENT_SLOTS)]
        assert await self.store.set_homes(self.queue_id, homes, self.epoch)


class Talker:
    """A connection that says what it is told to, and keeps what is pushed to it."""

    def __init__(self) -> None:
        self.pushed: list[Packet] = []
        self._came = asyncio.Event()
        self.link: Transport

    @classmethod
    async def to(cls, node: Node, name: str) -> Talker:
        talker = cls()
        host, port = parse_url(node.address)[0]
        talker.link = await Transport.open(host, port, talker._push, lambda _: None, LIMIT_S)
        await talker.link.request(RegisterClient(name, ClientMode.ADMIN))
        return talker

    def _push(self, packet: Packet, body: memoryview) -> None:
        self.pushed.append(packet)
        self._came.set()

    async def ask(self, packet: Request, body: bytes | None = None) -> Packet:
        return (await self.link.request(packet, None if body is None else [body])).packet

    async def join(self, queue_id: int, role: MemberRole, **settings: object) -> JoinResponse:
        answer = await self.ask(Join(queue_id, role, **settings))  # type: ignore[arg-type]
        assert isinstance(answer, JoinResponse)
        return answer

    async def heard(
        self, kind: type[Found], is_it: Callable[[Found], bool] = lambda _: True
    ) -> Found:
        """The first push of a kind that is meant, which is thereby forgotten."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for packet in self.pushed:
                    if isinstance(packet, kind) and is_it(packet):
                        self.pushed.remove(packet)
                        return packet
                self._came.clear()
                await self._came.wait()

    def close(self) -> None:
        self.link.close()


class Scene:
    """A logical queue: its alias and one replica at one node, another replica at another."""

    def __init__(self, here: Node, there: Node, talker: Talker, leader: Leader) -> None:
        self.here = here
        self.there = there
        self.talker = talker
        self.leader = leader
        self.places: list[ReplicaInfo] = []
        self._batches = 0

    @classmethod
    async def of(
        cls, start_node: StartNode, *, stores: tuple[int, int] = (0, 0), **settings: Any
    ) -> Scene:
        settings = {"limits": NodeLimits(memory_bytes=2 * 1024 * 1024)} | settings
        here, there = await start_node(**settings), await start_node(**settings)
        talker = await Talker.to(here, "talker")
        made = await talker.ask(CreateQueue("orders"))
        assert isinstance(made, CreateQueueResponse)
        scene = cls(here, there, talker, await Leader.of(here, made.queue.queue_id))
        scene.places = [
            await scene.leader.add(node, store_number=number)
            for node, number in zip((here, there), stores, strict=True)
        ]
        await scene.leader.set_shares({1: 0.5, 2: 0.5})
        await scene.leader.set_homes(1, 2)
        await scene.look()
        return scene

    async def put(self, queue_id: int, *payloads: bytes, **columns: object) -> None:
        self._batches += 1
        lengths = [len(payload) for payload in payloads]
        packet = PutMessages(queue_id, 7, self._batches, lengths, [5], **columns)  # type: ignore[arg-type]
        await self.talker.ask(packet, b"".join(payloads))

    async def pull(self, target: ReplicaInfo, source: ReplicaInfo, count: int = 1000) -> int:
        answer = await self.talker.ask(Pull(target.queue_id, source.queue_id, count))
        assert isinstance(answer, PullResponse)
        return answer.count

    async def read(self, place: ReplicaInfo) -> tuple[bytes, bool] | None:
        try:
            answered = await while_moving(
                lambda: self.talker.link.request(ReadMessage(place.queue_id))
            )
        except Notice:
            return None
        assert isinstance(answered.packet, ReadMessageResponse)
        run = answered.packet.run
        return bytes(answered.body), run.redelivered or run.deliveries[0] > 1

    async def drain(self, place: ReplicaInfo) -> list[tuple[bytes, bool]]:
        found = []
        while (message := await self.read(place)) is not None:
            found.append(message)
        return found

    async def look(self) -> None:
        await self.here.aliases.poll(again=True)
        await self.there.aliases.poll(again=True)
