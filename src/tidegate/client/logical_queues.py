"""The calls about logical queues: replicas, scaling, decisions."""

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
        """Return the replicas of a logical queue with their states, shares and addresses."""
        answered = await self._lifeline.ask(GetTopology(await self.queue_id(queue)))
        assert isinstance(answered.packet, GetTopologyResponse)
        return answered.packet.topology

    async def topologies(self, version: int = -1) -> tuple[int, list[Topology] | None]:
        """Return the current version and the topologies of all logical queues, without assignments.

        If nothing has changed since `version`, the topologies are `None`. The default -1 always
        returns them.
        """
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
        """Make a queue a logical queue with this scaling, or change its scaling.

        Args:
            scaling: `None` turns the queue into a plain queue, which must have no replicas.
            before: the scaling that the caller has seen; `None` means that the queue was plain. If
                the queue's scaling differs, the call changes nothing and raises `ChangedMeanwhile`.
                Without this argument the change is unconditional.
        """
        queue_id = await self.queue_id(queue)
        if before is UNSET:
            await self._lifeline.ask(SetScaling(queue_id, scaling))
        else:
            await self._lifeline.ask(SetScaling(queue_id, scaling, True, before))
        # Refresh the cached queue, which may have become plain or logical.
        await self.queue(queue_id)

    def producer(self, queue: str, *, replica: int | None = None) -> Producer:
        """Return a producer of its own for a queue: `async with mq.producer("orders") as orders`.

        Under the scaling policy "clients", a producer of a logical queue is assigned to one
        replica, and `replica` is the preferred one. Under the other policies its messages go to all
        replicas.
        """
        client = cast("Client", self)
        return Producer(client, queue, client.next_consumer(), wanted=replica)

    async def migrate(
        self, queue: str | int, role: Role, source_id: int, target_id: int, count: int = 1
    ) -> None:
        """Move `count` clients from one replica to another, the least busy first; needs admin mode.

        `role` selects producers or consumers. `source_id` and `target_id` are queue ids of
        replicas.
        """
        queue_id = await self.queue_id(queue)
        await self._lifeline.ask(MigrateClients(queue_id, role, source_id, target_id, count))

    async def explain(self, queue: str | int | None = None, *, count: int = 20) -> list[Decision]:
        """Return recent decisions with their reasons, the newest first.

        `queue=None` returns decisions about machines.
        """
        queue_id = None if queue is None else await self.queue_id(queue)
        answered = await self._lifeline.ask(Explain(queue_id, count))
        return _decisions(answered.body)

    async def explain_service(self, service: str, *, count: int = 20) -> list[Decision]:
        """Return recent decisions about an HTTP service with their reasons, the newest first."""
        return _decisions((await self._lifeline.ask(ExplainService(service, count))).body)

    async def steer_service(self, service: str, by_hand: ByHand, *, before: ByHand) -> None:
        """Set the override of an HTTP service, which takes precedence over its scaling law.

        `before` is the override that the caller has seen. If it has changed since, the call changes
        nothing and raises `ChangedMeanwhile`.
        """
        await self._lifeline.ask(SteerService(service, by_hand, before))

    async def fleet(self) -> FleetInfo:
        """Return the leader, the machines, their slots, and the number of warm machines."""
        answered = await self._lifeline.ask(GetFleet())
        return msgspec.json.decode(answered.body, type=FleetInfo)


def _decisions(body: bytes | memoryview) -> list[Decision]:
    return [msgspec.json.decode(line, type=Decision) for line in bytes(body).splitlines()]
