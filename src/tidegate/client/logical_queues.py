"""Logical queues: where their messages are, how they scale, and what was decided about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.client.calls import Calls
from tidegate.client.producer import Producer
from tidegate.core.by_hand import ByHand
from tidegate.core.fleet import FleetInfo
from tidegate.core.replication import Role, Topology
from tidegate.core.scaling import Scaling
from tidegate.core.steering import Decision
from tidegate.wire.packets.cluster import GetFleet
from tidegate.wire.packets.membership import MigrateClients
from tidegate.wire.packets.steering import Explain, ExplainService, SetScaling, SteerService
from tidegate.wire.packets.topologies import (
    GetTopologies,
    GetTopologiesResponse,
    GetTopology,
    GetTopologyResponse,
)

if TYPE_CHECKING:
    from tidegate.client.client import Client


class LogicalQueueCalls(Calls):
    """The part of a client that knows replicas."""

    async def topology(self, queue: str | int) -> Topology:
        """Where the messages of a logical queue are and go."""
        answered = await self._lifeline.ask(GetTopology(await self.queue_id(queue)))
        assert isinstance(answered.packet, GetTopologyResponse)
        return answered.packet.topology

    async def topologies(self, version: int = -1) -> tuple[int, list[Topology] | None]:
        """Those of all logical queues, without homes, and their version; None: nothing is new."""
        packet = (await self._lifeline.ask(GetTopologies(version))).packet
        assert isinstance(packet, GetTopologiesResponse)
        return packet.version, packet.topologies

    async def set_scaling(
        self,
        queue: str | int,
        scaling: Scaling | None,
        *,
        before: Scaling | UnsetType | None = UNSET,
    ) -> None:
        """Make a queue a logical one that scales so; None: a plain one, once it has no replicas.

        With `before` only if it has scaled so until now (None: it was plain): ChangedMeanwhile says
        that somebody else was first, and nothing is done.
        """
        queue_id = await self.queue_id(queue)
        if before is UNSET:
            await self._lifeline.ask(SetScaling(queue_id, scaling))
        else:
            await self._lifeline.ask(SetScaling(queue_id, scaling, True, before))
        # What we know of it holds no longer.
        await self.queue(queue_id)

    def producer(self, queue: str, *, replica: int | None = None) -> Producer:
        """Come to a queue as a producer of its own: `async with mq.producer("orders") as orders`.

        Of a logical queue it is told where it is; `replica` says where it wants to be.
        """
        client = cast("Client", self)
        return Producer(client, queue, client.next_consumer(), wanted=replica)

    async def migrate(
        self, queue: str | int, role: Role, source_id: int, target_id: int, count: int = 1
    ) -> None:
        """As admin: have clients of one replica go over to another, the idlest first."""
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(MigrateClients(queue_id, role, source_id, target_id, count))

    async def explain(self, queue: str | int | None = None, *, count: int = 20) -> list[Decision]:
        """What was decided about a queue, or about the fleet, and why; the newest first."""
        queue_id = None if queue is None else await self.queue_id(queue)
        answered = await self._lifeline.ask(Explain(queue_id, count))
        return _decisions(answered.body)

    async def explain_service(self, service: str, *, count: int = 20) -> list[Decision]:
        """What was decided about an HTTP service, and why; the newest first."""
        return _decisions((await self._lifeline.ask(ExplainService(service, count))).body)

    async def steer_service(self, service: str, by_hand: ByHand, *, before: ByHand) -> None:
        """Say about an HTTP service what goes before the law; `before` is what was said until now.

        ChangedMeanwhile: somebody has said something else since then, and nothing is done.
        """
        await self._lifeline.ask(SteerService(service, by_hand, before))

    async def fleet(self) -> FleetInfo:
        """Who leads, the machines, their slots, and what is kept warm."""
        answered = await self._lifeline.ask(GetFleet())
        return msgspec.json.decode(answered.body, type=FleetInfo)


def _decisions(body: bytes | memoryview) -> list[Decision]:
    return [msgspec.json.decode(line, type=Decision) for line in bytes(body).splitlines()]
