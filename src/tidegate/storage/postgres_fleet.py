"""Machines and the leader in PostgreSQL: one method for each function of sql/0008_fleet.sql."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tidegate.core.fleet import MachineInfo, MachineState, told

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
            (await self._call(query, machine_id, str(state), leader_epoch, told(detail)))[0][0]
        )

    async def machine_joined(self, machine_id: int, member_id: int) -> bool:
        rows = await self._call("select machine_joined(%s, %s)", machine_id, member_id)
        return bool(rows[0][0])

    async def report_machine(self, machine_id: int, detail: str) -> bool:
        rows = await self._call("select report_machine(%s, %s)", machine_id, told(detail))
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
