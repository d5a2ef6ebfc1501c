"""Logical queues in PostgreSQL: one method for each function of sql/0007_replication.sql."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.core.errors import InvalidValue
from tidegate.core.replication import (
    Move,
    ReplicaPlace,
    ReplicaState,
    Topology,
    scaled_by_another,
)
from tidegate.core.scaling import Scaling
from tidegate.storage.shares import check_homes, whole_shares
from tidegate.storage.stored_topology import (
    SCALING_COLUMN,
    stored_topologies,
    stored_topology,
)


class PostgresReplication(ABC):
    """The part of a PostgreSQL store that manages logical queues."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    @abstractmethod
    async def _read(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function that may take longer, on a connection beside the catalogue's."""

    async def _says(self, query: str, *arguments: Any) -> bool:
        return bool((await self._call(query, *arguments))[0][0])

    async def set_scaling(
        self, queue_id: int, scaling: Scaling | None, before: Scaling | UnsetType | None = UNSET
    ) -> bool:
        text = None if scaling is None else msgspec.json.encode(scaling).decode()
        if before is UNSET:
            return await self._says("select set_scaling(%s, %s::jsonb)", queue_id, text)
        # Compared first as parsed here, then as stored: another version may have written the same
        # settings in a different text. Invalid settings are read as defaults.
        rows = await self._call("select * from topologies(%s)", queue_id)
        if before != (stored_topology(rows[0]).scaling if rows else None):
            raise scaled_by_another(queue_id)
        stands_there = msgspec.json.encode(rows[0][SCALING_COLUMN]).decode() if rows else None
        query = "select change_scaling(%s, %s::jsonb, %s::jsonb)"
        (said,) = (await self._call(query, queue_id, text, stands_there))[0]
        if said is None:
            raise scaled_by_another(queue_id)
        return bool(said)

    async def topology(self, queue_id: int) -> Topology | None:
        rows = await self._call("select * from topologies(%s)", queue_id)
        return stored_topology(rows[0]) if rows else None

    async def topologies(self) -> list[Topology]:
        rows = await self._call("select * from topologies(null)")
        return stored_topologies(rows)

    async def topology_version(self) -> int:
        return int((await self._call("select topology_version()"))[0][0])

    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaPlace | None:
        if store_number:
            raise InvalidValue(f"there is one store, no number {store_number}: list it in the url")
        return await self._note_replica(queue_id, leader_epoch, machine_id, 0)

    async def _note_replica(
        self, queue_id: int, leader_epoch: int, machine_id: int | None, store_number: int
    ) -> ReplicaPlace | None:
        rows = await self._call(
            "select * from add_replica(%s, %s, %s::int, %s::int)",
            queue_id,
            leader_epoch,
            machine_id,
            store_number,
        )
        return msgspec.convert(rows[0], ReplicaPlace) if rows else None

    async def assign_replica(
        self, queue_id: int, number: int, machine_id: int | None, leader_epoch: int
    ) -> bool:
        query = "select assign_replica(%s, %s::int, %s::int, %s)"
        return await self._says(query, queue_id, number, machine_id, leader_epoch)

    async def set_replica_state(
        self, queue_id: int, number: int, state: ReplicaState, leader_epoch: int
    ) -> bool:
        query = "select set_replica_state(%s, %s::int, %s, %s)"
        return await self._says(query, queue_id, number, str(state), leader_epoch)

    async def set_shares(self, queue_id: int, shares: dict[int, float], leader_epoch: int) -> bool:
        whole = whole_shares(shares)
        return await self._says(
            "select set_shares(%s, %s::int[], %s::float8[], %s)",
            queue_id,
            list(whole),
            list(whole.values()),
            leader_epoch,
        )

    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool:
        check_homes(homes)
        query = "select set_homes(%s, %s::int[], %s)"
        return await self._says(query, queue_id, list(homes), leader_epoch)

    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool:
        query = "select retire_replica(%s, %s::int, %s)"
        return await self._says(query, queue_id, number, leader_epoch)

    async def assigned(self, machine_id: int) -> list[ReplicaPlace]:
        rows = await self._call("select * from assigned(%s)", machine_id)
        return [msgspec.convert(row, ReplicaPlace) for row in rows]

    async def move(self, move: Move) -> bool:
        rows = await self._read(
            "select move_segments(%s, %s, %s, %s, %s, %s::bigint[], %s::bigint[])",
            move.move_id,
            move.source,
            move.source_epoch,
            move.target,
            move.target_epoch,
            list(move.first_ids),
            list(move.new_first_ids),
        )
        return bool(rows[0][0] == 0)

    async def has_arrived(self, move_id: str, target: int) -> bool:
        return await self._says("select arrived_or_never(%s, %s::int)", move_id, target)

    async def finish_moves(self, queue_id: int, epoch: int) -> int:
        return 0  # Within one store a move is one transaction
