"""Clients in PostgreSQL: one method for each SQL function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tidegate.core.model import ClientInfo, Mode


class PostgresClients(ABC):
    """The part of a PostgreSQL store that manages clients."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def register_client(
        self, name: str, mode: Mode, user: str | None = None
    ) -> ClientInfo | None:
        query = "select * from register_client(%s, %s::smallint, %s)"
        return _client(await self._call(query, name, int(mode), user))

    async def find_client(
        self, client_id: int | None, name: str | None, user: str | None = None
    ) -> ClientInfo | None:
        query = "select * from find_client(%s, %s, %s)"
        return _client(await self._call(query, client_id, name, user))

    async def reserve_client(self, name: str) -> int:
        return int((await self._call("select reserve_client(%s)", name))[0][0])

    async def delete_client(self, client_id: int) -> bool:
        return bool((await self._call("select delete_client(%s)", client_id))[0][0])


def _client(rows: list[tuple[Any, ...]]) -> ClientInfo | None:
    return ClientInfo(rows[0][0], rows[0][1], Mode(rows[0][2])) if rows else None
