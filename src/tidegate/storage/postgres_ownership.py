"""Members and queue owners in PostgreSQL: one method for each SQL function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tidegate.core.ports import Claim, Location, MemberInfo
from tidegate.storage.postgres_queues import queue_of


class PostgresOwnership(ABC):
    """The part of a PostgreSQL store that manages members and owners."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    @abstractmethod
    async def _call_apart(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on a connection that no other call uses."""

    async def join(self, name: str, address: str, lease_s: float) -> int:
        return int(
            (await self._call("select join_cluster(%s, %s, %s)", name, address, lease_s))[0][0]
        )

    async def renew(self, member_id: int, lease_s: float) -> bool:
        # On its own connection: a long call before it could let the node's lease expire.
        rows = await self._call_apart("select renew_member(%s, %s)", member_id, lease_s)
        return bool(rows[0][0])

    async def leave(self, member_id: int) -> None:
        await self._call("select leave_cluster(%s)", member_id)

    async def members(self) -> list[MemberInfo]:
        return [MemberInfo(*row) for row in await self._call("select * from list_members()")]

    async def locate(self, queue_id: int) -> Location | None:
        rows = await self._call("select * from locate_queue(%s)", queue_id)
        if not rows:
            return None
        owner, address, alive = rows[0][-3:]
        return Location(queue_of(rows[0][:-3]), owner, address, alive)

    async def orphans(self, member_id: int | None = None) -> list[int]:
        return [row[0] for row in await self._call("select orphans(%s::int)", member_id)]

    async def claim(self, queue_id: int, member_id: int) -> Claim | None:
        rows = await self._call("select * from claim_queue(%s, %s)", queue_id, member_id)
        return Claim(*rows[0]) if rows else None

    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool:
        rows = await self._call("select release_queue(%s, %s, %s)", queue_id, epoch, heir)
        return bool(rows[0][0])

    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None:
        rows = await self._call("select reserve_ids(%s, %s, %s)", queue_id, epoch, count)
        return None if rows[0][0] is None else int(rows[0][0])

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        return dict(await self._call("select * from owners(%s::int[])", list(queue_ids)))
