"""Queues in PostgreSQL: one method for each SQL function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tidegate.core.model import DEFAULT_POLICY, QueueInfo, QueuePolicy, promised_by_another

# Of the type queue_row.
_POLICY_COLUMN = 3


class PostgresQueues(ABC):
    """The part of a PostgreSQL store that manages queues."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def create_queue(
        self, name: str, durable: bool, policy: QueuePolicy = DEFAULT_POLICY
    ) -> QueueInfo | None:
        rows = await self._call(
            "select * from create_queue(%s, %s, %s::jsonb)", name, durable, json_of(policy)
        )
        return queue_of(rows[0]) if rows else None

    async def set_policy(
        self, queue_id: int, policy: QueuePolicy, before: QueuePolicy | None = None
    ) -> bool:
        if before is None:
            rows = await self._call("select set_policy(%s, %s::jsonb)", queue_id, json_of(policy))
            return bool(rows[0][0])
        # Compared first as parsed here, then as stored: another version may have written the same
        # policy in a different text.
        rows = await self._call("select * from find_queue(%s, null)", queue_id)
        if not rows:
            return False
        if before != queue_of(rows[0]).policy:
            raise promised_by_another(queue_id)
        query = "select change_policy(%s, %s::jsonb, %s::jsonb)"
        stands_there = json_of(rows[0][_POLICY_COLUMN])
        (said,) = (await self._call(query, queue_id, json_of(policy), stands_there))[0]
        if said is None:
            raise promised_by_another(queue_id)
        return bool(said)

    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None:
        rows = await self._call("select * from find_queue(%s, %s)", queue_id, name)
        return queue_of(rows[0]) if rows else None

    async def list_queues(self) -> list[QueueInfo]:
        return [queue_of(row) for row in await self._call("select * from list_queues()")]

    async def active_queues(self, client_id: int) -> list[QueueInfo]:
        rows = await self._call("select * from active_queues(%s)", client_id)
        return [queue_of(row) for row in rows]

    async def delete_queue(self, queue_id: int) -> bool:
        return bool((await self._call("select delete_queue(%s)", queue_id))[0][0])


def queue_of(row: tuple[Any, ...]) -> QueueInfo:
    """Return the queue of a row of the type queue_row."""
    policy = msgspec.convert(row[_POLICY_COLUMN], QueuePolicy)
    return QueueInfo(row[0], row[1], row[2], policy, *row[4:])


def json_of(value: object) -> str:
    return msgspec.json.encode(value).decode()
