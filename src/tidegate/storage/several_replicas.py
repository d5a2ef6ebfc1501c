"""Logical queues with replicas in several stores.

The catalogue has the list of replicas. The owner and the messages of a replica are in its own
store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidegate.core.crash import crash_point
from tidegate.core.errors import InvalidValue
from tidegate.core.replication import STORE_SHIFT, ReplicaPlace, Topology
from tidegate.storage.other_stores import OtherStores
from tidegate.storage.postgres import PostgresStore


class SeveralReplicas(PostgresStore):
    """The part of a sharded store that manages logical queues."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        writers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(urls[0], writers=writers)
        self.others = OtherStores(self, urls[1:], writers=writers, monotonic=monotonic)

    async def topology(self, queue_id: int) -> Topology | None:
        await self._hear_of_others()
        topology = await super().topology(queue_id)
        return None if topology is None else (await self._with_addresses([topology]))[0]

    async def topologies(self) -> list[Topology]:
        await self._hear_of_others()
        return await self._with_addresses(await super().topologies())

    async def topology_version(self) -> int:
        await self._hear_of_others()
        # A shard that stops or starts answering changes addresses, but no stored version.
        return await super().topology_version() + sum(other.turns for other in self.others.all)

    async def _hear_of_others(self) -> None:
        """Raise the catalogue's topology version if the version of a shard has changed."""
        for number, version in await self.others.ask(PostgresStore.topology_version):
            other = self.others.all[number - 1]
            if version != other.noted_version:
                query = "select note_store_version(%s::int, %s)"
                await self._call(query, number, version)
                other.noted_version = version

    async def _with_addresses(self, topologies: list[Topology]) -> list[Topology]:
        places = [place for topology in topologies for place in topology.replicas]
        addresses = await self._addresses(places)
        return [
            msgspec.structs.replace(
                topology, replicas=[_at(place, addresses) for place in topology.replicas]
            )
            for topology in topologies
        ]

    async def _addresses(self, places: Iterable[ReplicaPlace]) -> dict[int, str]:
        elsewhere = [place.queue_id for place in places if place.store_number]
        return await self.owners(elsewhere) if elsewhere else {}

    async def assigned(self, machine_id: int) -> list[ReplicaPlace]:
        places = await super().assigned(machine_id)
        addresses = await self._addresses(places)
        return [_at(place, addresses) for place in places]

    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaPlace | None:
        number = await self._emptiest() if store_number is None else store_number
        if not 0 <= number <= len(self.others.all):
            raise InvalidValue(f"there is no store {number}: there are {1 + len(self.others.all)}")
        if number == 0:
            return await super().add_replica(queue_id, leader_epoch, machine_id=machine_id)
        other = self.others.all[number - 1]
        # Asked first: a replica in a store that does not answer could not be served.
        await PostgresStore.topology_version(await self.others.holder(number << STORE_SHIFT))
        place = await self._note_replica(queue_id, leader_epoch, machine_id, number)
        crash_point("after-replica-noted")
        if place is not None:
            await self.others.make(other, place.queue_id)
        return place

    async def _emptiest(self) -> int:
        """Return the number of the store with the fewest replicas, among the answering ones."""
        up = {0, *(other.number for other in self.others.up)}
        counts: dict[int, int] = dict(await self._call("select * from replicas_by_store()"))
        return min(up, key=lambda number: (counts.get(number, 0), number))

    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool:
        topology = await super().topology(queue_id)
        place = None if topology is None else topology.replica(number)
        if place is None or not place.store_number:
            return await super().retire_replica(queue_id, number, leader_epoch)
        there = await self.others.holder(place.queue_id)
        query = "select begin_end(%s::int, %s::int, %s)"
        ending = (await self._call(query, queue_id, number, leader_epoch))[0][0]
        if ending is None or ending < 0:
            return ending is not None
        crash_point("after-end-noted")
        ended = (await there.ask("select end_replica(%s::int)", place.queue_id))[0][0]
        crash_point("after-replica-ended")
        query = "select finish_end(%s::int, %s::int, %s, %s)"
        await self._call(query, queue_id, number, ended, leader_epoch)
        return bool(ended)

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        by_store = _by_store(queue_ids)
        found = await super().owners(by_store.pop(0, []))
        for _, owners in await self.others.ask(lambda s: s.owners(by_store.get(s.number, []))):
            found |= owners
        return found


def _by_store(queue_ids: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for queue_id in queue_ids:
        found.setdefault(queue_id >> STORE_SHIFT, []).append(queue_id)
    return found


def _at(place: ReplicaPlace, addresses: dict[int, str]) -> ReplicaPlace:
    if not place.store_number:
        return place
    return msgspec.structs.replace(place, address=addresses.get(place.queue_id))
