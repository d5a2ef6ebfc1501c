"""A logical queue for tests: what the leader of a fleet orders, ordered by hand."""

from __future__ import annotations

from collections import Counter

from logical import Orders
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    ControlMode,
    Range,
    ReplicaInfo,
    ReplicaState,
    Scaling,
    ScalingPolicy,
)

# What is ordered here, no loop undoes.
SCALING = Scaling(replicas=Range(1, 8), policy=ScalingPolicy.FIXED, steering=ControlMode.RECOMMEND)


class LogicalQueue(Orders):
    """The queue `orders`, the nodes that serve it, and orders of which everybody is told."""

    def __init__(self, nodes: list[Node], alias_id: int, leader_epoch: int) -> None:
        super().__init__(nodes[0].store, leader_epoch, alias_id)
        self.nodes = nodes
        self.alias_id = alias_id

    @classmethod
    async def make(
        cls, mq: Client, nodes: list[Node], replicas: int = 0, scaling: Scaling = SCALING
    ) -> LogicalQueue:
        info = await mq.create_queue("orders", exist_ok=True)
        await mq.set_scaling("orders", scaling)
        leader_epoch = await nodes[0].store.lead(nodes[0].member_id)
        assert leader_epoch is not None
        queue = cls(nodes, info.queue_id, leader_epoch)
        for number in range(replicas):
            await queue.add(nodes[number % len(nodes)])
        return queue

    async def add(self, node: Node, *, is_home: bool = True) -> ReplicaInfo:
        """Another replica, served by this node; all get the same share."""
        place = await self.add_starting(node)
        await self.set_state(place.number, ReplicaState.SERVING)
        serving = [p.number for p in (await self.topology()).replicas]
        await self.share({number: 1 / len(serving) for number in serving})
        if place.number == 1 and is_home:
            await self.set_homes([1] * ASSIGNMENT_SLOTS)
        return place

    async def share(self, shares: dict[int, float]) -> None:
        """Everybody is told before this returns."""
        await self.set_shares(shares)
        await self.look()

    async def set_homes(self, homes: list[int]) -> None:
        assert await self.store.set_homes(self.queue_id, homes, self.epoch)
        await self.look()

    async def drain(self, number: int) -> None:
        """It gets no new messages and no new clients."""
        await self.set_state(number, ReplicaState.DRAINING)
        others = [p.number for p in (await self.topology()).replicas if p.number != number]
        await self.share({number: 0.0} | {other: 1 / len(others) for other in others})

    async def look(self) -> None:
        for node in self.nodes:
            if not node.stopping:
                await node.aliases.poll(again=True)

    def replica(self, queue_id: int) -> Node | None:
        return next((node for node in self.nodes if queue_id in node.replicas), None)

    async def waiting(self) -> Counter[int]:
        """Number of a replica → messages that wait there; 0 is the alias."""
        found: Counter[int] = Counter()
        places = [(0, self.alias_id)]
        places += [(p.number, p.queue_id) for p in (await self.topology()).replicas]
        for number, queue_id in places:
            for node in self.nodes:
                if queue_id in node.replicas:
                    found[number] = node.replicas[queue_id].numbers().waiting
        return found


async def until_told(mq: Client, version: int) -> None:
    """Wait until a client that has joined knows that much."""
    await eventually_async(
        lambda: all(
            each.topology is not None and each.topology.version >= version
            for each in mq._queues.memberships
        )
    )
