"""Clients in memory: a name, a mode and a user."""

from __future__ import annotations

import asyncio

from tidegate.core.model import ClientInfo, Mode
from tidegate.storage.memory_users import MemoryUsers


class MemoryClients(MemoryUsers):
    """The part of an in-memory store that manages clients."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[int, tuple[str, Mode | None]] = {}
        self._client_ids: dict[str, int] = {}
        self._client_users: dict[int, str | None] = {}
        # Like PostgreSQL's sequences: an id is never used again.
        self._last_client = 0

    async def register_client(
        self, name: str, mode: Mode, user: str | None = None
    ) -> ClientInfo | None:
        await asyncio.sleep(0)
        client_id = self._client_ids.get(name)
        if client_id is None:
            client_id = self._new_client(name)
        elif self._clients[client_id][1] is not None:
            return None
        self._clients[client_id] = (name, mode)
        self._client_users[client_id] = user
        return ClientInfo(client_id, name, mode)

    def _new_client(self, name: str) -> int:
        self._last_client += 1
        self._client_ids[name] = self._last_client
        # Without a mode: a message was addressed to the name before its client registered.
        self._clients[self._last_client] = (name, None)
        return self._last_client

    async def find_client(
        self, client_id: int | None, name: str | None, user: str | None = None
    ) -> ClientInfo | None:
        await asyncio.sleep(0)
        if client_id is None and name is not None:
            client_id = self._client_ids.get(name)
        found = self._clients.get(client_id) if client_id is not None else None
        if client_id is None or found is None or found[1] is None:
            return None
        if user is not None and self._client_users.get(client_id) != user:
            return None
        return ClientInfo(client_id, found[0], found[1])

    async def reserve_client(self, name: str) -> int:
        await asyncio.sleep(0)
        client_id = self._client_ids.get(name)
        return self._new_client(name) if client_id is None else client_id

    async def delete_client(self, client_id: int) -> bool:
        await asyncio.sleep(0)
        found = self._clients.get(client_id)
        if found is None or found[1] is None:
            return False
        del self._clients[client_id], self._client_ids[found[0]]
        self._client_users.pop(client_id, None)
        return True

    def _forget_clients_of(self, name: str) -> None:
        for client_id in [c for c, user in self._client_users.items() if user == name]:
            del self._client_ids[self._clients.pop(client_id)[0]], self._client_users[client_id]
