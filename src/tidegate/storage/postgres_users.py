"""Users in PostgreSQL: one method for each function of sql/0004_access.sql."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from tidegate.core.users import Grant, Keys, User


class PostgresUsers(ABC):
    """The part of a PostgreSQL store that manages users."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def add_user(self, user: User) -> bool:
        return await self._did(
            "select add_user(%s, %s::bytea, %s::bytea, %s::bytea, %s, %s::jsonb)",
            user.name,
            *_columns(user.keys),
            _json(user.grants),
        )

    async def set_user_keys(self, name: str, keys: Keys) -> bool:
        return await self._did(
            "select set_user_keys(%s, %s::bytea, %s::bytea, %s::bytea, %s)", name, *_columns(keys)
        )

    async def set_user_grants(self, name: str, grants: list[Grant]) -> bool:
        return await self._did("select set_user_grants(%s, %s::jsonb)", name, _json(grants))

    async def remove_user(self, name: str) -> bool:
        return await self._did("select remove_user(%s)", name)

    async def list_users(self) -> list[User]:
        return [_user(row) for row in await self._call("select * from list_users()")]

    async def users_version(self) -> int:
        return int((await self._call("select users_version()"))[0][0])

    async def cluster_secret(self, candidate: bytes) -> bytes:
        return bytes((await self._call("select cluster_secret(%s::bytea)", candidate))[0][0])

    async def _did(self, query: str, *arguments: Any) -> bool:
        return bool((await self._call(query, *arguments))[0][0])


def _columns(keys: Keys) -> tuple[bytes, bytes, bytes, int]:
    return keys.salt, keys.stored_key, keys.server_key, keys.iterations


def _json(grants: list[Grant]) -> str:
    return msgspec.json.encode(grants).decode()


def _user(row: tuple[Any, ...]) -> User:
    name, salt, stored_key, server_key, iterations, grants = row
    keys = Keys(bytes(salt), bytes(stored_key), bytes(server_key), iterations)
    return User(name, keys, msgspec.convert(grants, list[Grant]))
