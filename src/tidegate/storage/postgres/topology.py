"""Logical queues in PostgreSQL: one method for each function of sql/0007_replication.sql."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.core.errors import InvalidValue
from tidegate.core.machines import MachineInfo, MachineState, machine_detail
from tidegate.core.topology import (
    ASSIGNMENT_SLOTS,
    ControlMode,
    ReplicaInfo,
    ReplicaState,
    Scaling,
    SegmentMove,
    Topology,
    scaling_changed_meanwhile,
)

log = logging.getLogger(__name__)


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
            raise scaling_changed_meanwhile(queue_id)
        stands_there = msgspec.json.encode(rows[0][SCALING_COLUMN]).decode() if rows else None
        query = "select change_scaling(%s, %s::jsonb, %s::jsonb)"
        (said,) = (await self._call(query, queue_id, text, stands_there))[0]
        if said is None:
            raise scaling_changed_meanwhile(queue_id)
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
    ) -> ReplicaInfo | None:
        if store_number:
            raise InvalidValue(f"there is one store, no number {store_number}: list it in the url")
        return await self._note_replica(queue_id, leader_epoch, machine_id, 0)

    async def _note_replica(
        self, queue_id: int, leader_epoch: int, machine_id: int | None, store_number: int
    ) -> ReplicaInfo | None:
        rows = await self._call(
            "select * from add_replica(%s, %s, %s::int, %s::int)",
            queue_id,
            leader_epoch,
            machine_id,
            store_number,
        )
        return msgspec.convert(rows[0], ReplicaInfo) if rows else None

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
        whole = normalize_shares(shares)
        return await self._says(
            "select set_shares(%s, %s::int[], %s::float8[], %s)",
            queue_id,
            list(whole),
            list(whole.values()),
            leader_epoch,
        )

    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool:
        check_assignments(homes)
        query = "select set_homes(%s, %s::int[], %s)"
        return await self._says(query, queue_id, list(homes), leader_epoch)

    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool:
        query = "select retire_replica(%s, %s::int, %s)"
        return await self._says(query, queue_id, number, leader_epoch)

    async def assigned(self, machine_id: int) -> list[ReplicaInfo]:
        rows = await self._call("select * from assigned(%s)", machine_id)
        return [msgspec.convert(row, ReplicaInfo) for row in rows]

    async def move(self, move: SegmentMove) -> bool:
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


# Reading stored topologies, even if a setting of one of them is invalid.
#
# Invalid settings of one queue must not make the other queues unreadable. Settings that cannot be
# read get their defaults, the others are kept. Such a queue is not scaled automatically until a
# user sets it again. Its messages are still delivered.


SCALING_COLUMN = Topology.__struct_fields__.index("scaling")
_QUEUE = Topology.__struct_fields__.index("queue")
# Texts that were logged: topologies are read several times a second, and each is logged once.
_logged: set[str] = set()


def stored_topologies(rows: Iterable[tuple[Any, ...]]) -> list[Topology]:
    """Return the topologies of these rows; rows that cannot be read are logged and left out."""
    found = []
    for row in rows:
        try:
            found.append(stored_topology(row))
        except msgspec.ValidationError as failure:
            _log_once(f"queue {row[_QUEUE]!r} is left out, since it cannot be read: {failure}")
    return found


def stored_topology(row: tuple[Any, ...]) -> Topology:
    """Return the topology of a row of `topologies`."""
    # JSON keys are strings, and some keys are replica numbers.
    try:
        return msgspec.convert(row, Topology, str_keys=True)
    except msgspec.ValidationError:
        scaling, lost = _readable(row[SCALING_COLUMN])
        whole = (
            *row[:SCALING_COLUMN],
            msgspec.to_builtins(scaling, str_keys=True),
            *row[SCALING_COLUMN + 1 :],
        )
        topology = msgspec.convert(whole, Topology, str_keys=True)
    _log_once(
        f"queue {row[_QUEUE]!r} is not scaled, since its stored settings cannot be read "
        f"({'; '.join(lost)}): set them with `tidegate scale`"
    )
    return topology


def _readable(stored: Any) -> tuple[Scaling, list[str]]:
    """Return the readable scaling settings, and texts about the others."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    settings = stored if isinstance(stored, dict) else {}
    if settings is not stored:
        lost.append(f"{stored!r} is no table of settings")
    for name, setting in settings.items():
        try:
            msgspec.convert({name: setting}, Scaling, str_keys=True)
        except msgspec.ValidationError as failure:
            lost.append(f"{name} = {setting!r}: {failure}")
        else:
            kept[name] = setting
    scaling = msgspec.convert(kept, Scaling, str_keys=True)
    return msgspec.structs.replace(scaling, steering=ControlMode.RECOMMEND), lost


def _log_once(trouble: str) -> None:
    if trouble not in _logged:
        _logged.add(trouble)
        log.error(trouble)


# Checks of settings for replicas, shared by all stores.


def normalize_shares(shares: Mapping[int, float]) -> dict[int, float]:
    """Return shares scaled to a sum of 1; all 0 if their sum is 0.

    Raises `InvalidValue` for a share that is negative or not finite.
    """
    for number, share in shares.items():
        if not (math.isfinite(share) and share >= 0):
            raise InvalidValue(f"a share is at least 0: {share} of replica {number} is not")
    whole = sum(shares.values())
    return {number: share / whole if whole else 0.0 for number, share in shares.items()}


def check_assignments(homes: Sequence[int]) -> None:
    if len(homes) not in (0, ASSIGNMENT_SLOTS):
        raise InvalidValue(
            f"there are {ASSIGNMENT_SLOTS} homes, not {len(homes)}: name a replica for each"
        )


# Machines and the leader in PostgreSQL: one method for each function of sql/0008_fleet.sql.


# The number of decisions that are kept for each service; older ones are deleted.
DECISIONS_KEPT = 500


class PostgresFleet(ABC):
    """The part of a PostgreSQL store that manages machines and the leader."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def lead(self, member_id: int) -> int | None:
        epoch = (await self._call("select lead_cluster(%s)", member_id))[0][0]
        return None if epoch is None else int(epoch)

    async def leader(self) -> tuple[int | None, int]:
        member_id, epoch = (await self._call("select member_id, epoch from leader"))[0]
        return member_id, epoch

    async def bound_machines(self, machines_max: int, leader_epoch: int) -> None:
        await self._call("select bound_machines(%s::int, %s)", machines_max, leader_epoch)

    async def machines_bound(self) -> int | None:
        rows = await self._call("select machines_max from leader")
        return None if rows[0][0] is None else int(rows[0][0])

    async def add_machine(
        self, provider: str, slots: int, host: str | None, leader_epoch: int
    ) -> MachineInfo:
        query = "select * from add_machine(%s, %s::int, %s, %s)"
        return _machine((await self._call(query, provider, slots, host, leader_epoch))[0])

    async def set_machine_state(
        self, machine_id: int, state: MachineState, leader_epoch: int, detail: str = ""
    ) -> bool:
        query = "select set_machine_state(%s, %s, %s, %s)"
        return bool(
            (await self._call(query, machine_id, str(state), leader_epoch, machine_detail(detail)))[
                0
            ][0]
        )

    async def machine_joined(self, machine_id: int, member_id: int) -> bool:
        rows = await self._call("select machine_joined(%s, %s)", machine_id, member_id)
        return bool(rows[0][0])

    async def report_machine(self, machine_id: int, detail: str) -> bool:
        rows = await self._call("select report_machine(%s, %s)", machine_id, machine_detail(detail))
        return bool(rows[0][0])

    async def remove_machine(self, machine_id: int, leader_epoch: int) -> bool:
        rows = await self._call("select remove_machine(%s, %s)", machine_id, leader_epoch)
        return bool(rows[0][0])

    async def machines(self) -> list[MachineInfo]:
        return [_machine(row) for row in await self._call("select * from machines(null)")]

    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None:
        query = "select note_decision(%s, %s::bytea, %s, %s)"
        await self._call(query, service, document, leader_epoch, DECISIONS_KEPT)

    async def decisions(self, service: str, count: int) -> list[bytes]:
        rows = await self._call("select decisions(%s, %s::int)", service, count)
        return [bytes(row[0]) for row in rows]


def _machine(row: tuple[Any, ...]) -> MachineInfo:
    """Return the machine of a row of the type machine_row.

    Its columns are in the order of the fields, but for one.
    """
    names = (
        "machine_id",
        "provider",
        "slots",
        "state",
        "host",
        "member_id",
        "alive",
        "address",
        "ordered_at",
        "joined_at",
        "detail",
    )
    return msgspec.convert(dict(zip(names, row, strict=True)), MachineInfo)
