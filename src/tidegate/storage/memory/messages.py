"""Logical queues in memory, as in sql/0007_replication.sql.

A version is raised when a topology is read and differs from the last read. The parts that change
addresses therefore need not know about versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.core.errors import InvalidValue
from tidegate.core.model import QueueInfo
from tidegate.core.ports import Clock
from tidegate.core.replication import (
    Move,
    ReplicaPlace,
    ReplicaState,
    Topology,
    replica_name,
    scaled_by_another,
)
from tidegate.core.scaling import Scaling
from tidegate.storage.memory_queue import StoredQueue
from tidegate.storage.memory_queues import MemoryQueues
from tidegate.storage.shares import check_homes, whole_shares


class MemoryReplication(MemoryQueues):
    """The part of an in-memory store that manages logical queues."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        # Logical queue -> its topology as last read; addresses are looked up for each read.
        self._topologies: dict[int, Topology] = {}
        self._alias_addresses: dict[int, str | None] = {}
        self._last_numbers: dict[int, int] = {}
        # Sum of the versions of deleted topologies, so that the total never decreases.
        self._past_versions = 0
        # Ended replicas whose batches are still recorded.
        self._retired: dict[int, StoredQueue] = {}
        # Move id -> when it was made, and whether it was cancelled.
        self._arrivals: dict[str, tuple[float, bool]] = {}

    # Topologies

    async def set_scaling(
        self, queue_id: int, scaling: Scaling | None, before: Scaling | UnsetType | None = UNSET
    ) -> bool:
        await asyncio.sleep(0)
        queue = self._replicas.get(queue_id)
        if queue is None or queue.info.alias_id:
            return False
        known = self._topologies.get(queue_id)
        if before is not UNSET and before != (None if known is None else known.scaling):
            raise scaled_by_another(queue_id)
        if scaling is None:
            if known is not None and known.replicas:
                return False
            self._forget_topology(queue_id)
        elif known is None:
            self._topologies[queue_id] = Topology(queue_id, queue.info.name, 1, scaling)
        else:
            self._change_topology(known, scaling=scaling)
        queue.info = msgspec.structs.replace(queue.info, elastic=scaling is not None)
        return True

    def _forget_queue(self, queue_id: int) -> None:
        super()._forget_queue(queue_id)
        self._forget_topology(queue_id)

    def _forget_topology(self, queue_id: int) -> None:
        known = self._topologies.pop(queue_id, None)
        if known is not None:
            self._past_versions += known.version + 1

    def _change_topology(self, topology: Topology, **fields: object) -> None:
        self._topologies[topology.queue_id] = msgspec.structs.replace(
            topology, version=topology.version + 1, **fields
        )

    def _change_place(self, topology: Topology, number: int, **fields: object) -> bool:
        if topology.replica(number) is None:
            return False
        self._change_topology(
            topology,
            replicas=[
                msgspec.structs.replace(place, **fields) if place.number == number else place
                for place in topology.replicas
            ],
        )
        return True

    def _seen_topology(self, queue_id: int) -> Topology | None:
        """Return the topology with the addresses of live owners.

        If one of them has changed, the version is raised.
        """
        known = self._topologies.get(queue_id)
        if known is None:
            return None
        places = [
            msgspec.structs.replace(place, address=self._address_of(place.queue_id))
            for place in known.replicas
        ]
        alias_at = self._address_of(queue_id)
        if places != known.replicas or alias_at != self._alias_addresses.get(queue_id):
            self._alias_addresses[queue_id] = alias_at
            self._change_topology(known, replicas=places)
        return self._topologies[queue_id]

    def _address_of(self, queue_id: int) -> str | None:
        queue = self._replicas.get(queue_id)
        if queue is None or queue.owner is None or not self._is_alive(queue.owner):
            return None
        return self._members[queue.owner].address

    async def topology(self, queue_id: int) -> Topology | None:
        await asyncio.sleep(0)
        return self._seen_topology(queue_id)

    async def topologies(self) -> list[Topology]:
        await asyncio.sleep(0)
        seen = [self._seen_topology(queue_id) for queue_id in list(self._topologies)]
        return sorted((each for each in seen if each is not None), key=lambda each: each.queue)

    async def topology_version(self) -> int:
        seen = await self.topologies()
        return self._past_versions + sum(topology.version for topology in seen)

    # Replicas

    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaPlace | None:
        await asyncio.sleep(0)
        if store_number:
            raise InvalidValue(f"there is one store, no number {store_number}: list it in the url")
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        if topology is None:
            return None
        alias = self._replicas[queue_id].info
        number = self._last_numbers.get(queue_id, 0) + 1
        while replica_name(alias.name, number) in self._queue_ids:
            number += 1
        self._last_numbers[queue_id] = number
        info = QueueInfo(
            self._next_queue_id(),
            replica_name(alias.name, number),
            alias.durable,
            alias.policy,
            alias_id=queue_id,
            number=number,
        )
        self._add_queue(info)
        place = ReplicaPlace(info.queue_id, number, machine_id=machine_id)
        self._change_topology(topology, replicas=[*topology.replicas, place])
        return place

    async def assign_replica(
        self, queue_id: int, number: int, machine_id: int | None, leader_epoch: int
    ) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        return topology is not None and self._change_place(topology, number, machine_id=machine_id)

    def _unassign(self, machine_id: int) -> None:
        for topology in list(self._topologies.values()):
            for place in topology.replicas:
                if place.machine_id == machine_id:
                    current = self._topologies[topology.queue_id]
                    self._change_place(current, place.number, machine_id=None)

    async def set_replica_state(
        self, queue_id: int, number: int, state: ReplicaState, leader_epoch: int
    ) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        return topology is not None and self._change_place(topology, number, state=state)

    async def set_shares(self, queue_id: int, shares: dict[int, float], leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        whole = whole_shares(shares)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        if topology is None or any(topology.replica(number) is None for number in whole):
            return False
        self._change_topology(
            topology,
            replicas=[
                msgspec.structs.replace(place, share=whole.get(place.number, 0.0))
                for place in topology.replicas
            ],
        )
        return True

    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        check_homes(homes)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        if topology is None or any(topology.replica(abs(n)) is None for n in homes):
            return False
        self._change_topology(topology, homes=list(homes))
        return True

    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        place = None if topology is None else topology.replica(number)
        if topology is None or place is None:
            return True
        queue = self._replicas.get(place.queue_id)
        if queue is not None:
            queue.drop_done(self._clock.monotonic())
        if place.state is not ReplicaState.DRAINING or (queue is not None and queue.segments):
            return False
        if queue is not None:
            del self._replicas[place.queue_id], self._queue_ids[queue.info.name]
            self._retired[place.queue_id] = queue
        left = [each for each in topology.replicas if each.number != number]
        share = sum(each.share for each in left)
        if share > 0:
            left = [msgspec.structs.replace(each, share=each.share / share) for each in left]
        heirs = [e.number for e in left if e.state is not ReplicaState.DRAINING]
        heirs = heirs or [each.number for each in left]
        homes = [
            heirs[at % len(heirs)] * (1 if home > 0 else -1) if abs(home) == number else home
            for at, home in enumerate(topology.homes if heirs else [], start=1)
        ]
        self._change_topology(topology, replicas=left, homes=homes)
        return True

    async def assigned(self, machine_id: int) -> list[ReplicaPlace]:
        return [
            place
            for topology in await self.topologies()
            for place in topology.replicas
            if place.machine_id == machine_id
        ]

    def _is_reserved(self, queue: StoredQueue, member_id: int | None) -> bool:
        """Return whether the live machine of another member has been assigned the replica."""
        topology = self._topologies.get(queue.info.alias_id)
        place = None if topology is None else topology.replica(queue.info.number)
        if place is None or place.machine_id is None or place.machine_id not in self._machines:
            return False
        wanted = self._machines[place.machine_id].member_id
        return wanted != member_id and self._is_alive(wanted)

    # Moves

    async def move(self, move: Move) -> bool:
        await asyncio.sleep(0)
        source, target = self._replicas.get(move.source), self._replicas.get(move.target)
        if source is None or source.epoch != move.source_epoch:
            return False
        if target is None or target.epoch != move.target_epoch:
            return False
        if move.move_id in self._arrivals:
            return not self._arrivals[move.move_id][1]
        now = self._clock.monotonic()
        for first_id, new_first_id in zip(move.first_ids, move.new_first_ids, strict=True):
            if first_id in source.segments:
                source.give(first_id, target, new_first_id, now)
        self._arrivals[move.move_id] = (now, False)
        return True

    def _forget_arrivals(self, before: float) -> None:
        self._arrivals = {m: known for m, known in self._arrivals.items() if known[0] >= before}

    async def has_arrived(self, move_id: str, target: int) -> bool:
        await asyncio.sleep(0)
        return not self._arrivals.setdefault(move_id, (self._clock.monotonic(), True))[1]

    async def finish_moves(self, queue_id: int, epoch: int) -> int:
        await asyncio.sleep(0)
        return 0
