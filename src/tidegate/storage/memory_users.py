"""Users in memory, as in sql/0004_access.sql."""

from __future__ import annotations

import asyncio

import msgspec

from tidegate.core.users import Grant, Keys, User


class MemoryUsers:
    """The part of an in-memory store that manages users."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._users_version = 0
        self._secret: bytes | None = None

    async def add_user(self, user: User) -> bool:
        await asyncio.sleep(0)
        if user.name in self._users:
            return False
        self._change(user)
        return True

    async def set_user_keys(self, name: str, keys: Keys) -> bool:
        await asyncio.sleep(0)
        user = self._users.get(name)
        if user is not None:
            self._change(msgspec.structs.replace(user, keys=keys))
        return user is not None

    async def set_user_grants(self, name: str, grants: list[Grant]) -> bool:
        await asyncio.sleep(0)
        user = self._users.get(name)
        if user is not None:
            self._change(msgspec.structs.replace(user, grants=list(grants)))
        return user is not None

    def _change(self, user: User) -> None:
        self._users[user.name] = user
        self._users_version += 1

    async def remove_user(self, name: str) -> bool:
        await asyncio.sleep(0)
        self._forget_clients_of(name)
        if self._users.pop(name, None) is None:
            return False
        self._users_version += 1
        return True

    def _forget_clients_of(self, name: str) -> None:
        """Delete the clients of a user; implemented by `MemoryClients`."""

    async def list_users(self) -> list[User]:
        await asyncio.sleep(0)
        return [self._users[name] for name in sorted(self._users)]

    async def users_version(self) -> int:
        await asyncio.sleep(0)
        return self._users_version

    async def cluster_secret(self, candidate: bytes) -> bytes:
        await asyncio.sleep(0)
        if self._secret is None:
            self._secret = candidate
        return self._secret
