"""Clients in PostgreSQL: one method for each SQL function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from tidegate.core.model import (
    DEFAULT_POLICY,
    ClientInfo,
    ClientMode,
    Filter,
    Grant,
    PasswordKeys,
    QueueInfo,
    QueuePolicy,
    TopicInfo,
    User,
    policy_changed_meanwhile,
)
from tidegate.core.store import ClaimedQueue, Location, MemberInfo


class PostgresClients(ABC):
    """The part of a PostgreSQL store that manages clients."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def register_client(
        self, name: str, mode: ClientMode, user: str | None = None
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
    return ClientInfo(rows[0][0], rows[0][1], ClientMode(rows[0][2])) if rows else None


# Queues in PostgreSQL: one method for each SQL function.


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
            raise policy_changed_meanwhile(queue_id)
        query = "select change_policy(%s, %s::jsonb, %s::jsonb)"
        stands_there = json_of(rows[0][_POLICY_COLUMN])
        (said,) = (await self._call(query, queue_id, json_of(policy), stands_there))[0]
        if said is None:
            raise policy_changed_meanwhile(queue_id)
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


# Topics and subscriptions in PostgreSQL: one method for each SQL function.


class PostgresTopics(ABC):
    """The part of a PostgreSQL store that manages topics."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    async def create_topic(self, name: str) -> TopicInfo | None:
        return _topic(await self._call("select * from create_topic(%s)", name))

    async def delete_topic(self, name: str) -> bool:
        return bool((await self._call("select delete_topic(%s)", name))[0][0])

    async def find_topic(self, name: str) -> TopicInfo | None:
        return _topic(await self._call("select * from find_topic(%s)", name))

    async def list_topics(self) -> list[TopicInfo]:
        rows = await self._call("select * from list_topics()")
        return [msgspec.convert(row, TopicInfo) for row in rows]

    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None:
        rows = await self._call(
            "select * from add_subscription(%s, %s, %s::jsonb, %s::int)",
            topic,
            queue,
            json_of(header_filter) if header_filter else None,
            member_id,
        )
        return queue_of(rows[0]) if rows else None

    async def drop_subscription(self, topic: str, queue_id: int) -> bool:
        rows = await self._call("select drop_subscription(%s, %s::int)", topic, queue_id)
        return bool(rows[0][0])

    async def lost_subscriptions(self) -> list[int]:
        return [row[0] for row in await self._call("select lost_subscriptions()")]


def _topic(rows: list[tuple[Any, ...]]) -> TopicInfo | None:
    return msgspec.convert(rows[0], TopicInfo) if rows else None


# Users in PostgreSQL: one method for each function of sql/0004_access.sql.


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

    async def set_user_keys(self, name: str, keys: PasswordKeys) -> bool:
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


def _columns(keys: PasswordKeys) -> tuple[bytes, bytes, bytes, int]:
    return keys.salt, keys.stored_key, keys.server_key, keys.iterations


def _json(grants: list[Grant]) -> str:
    return msgspec.json.encode(grants).decode()


def _user(row: tuple[Any, ...]) -> User:
    name, salt, stored_key, server_key, iterations, grants = row
    keys = PasswordKeys(bytes(salt), bytes(stored_key), bytes(server_key), iterations)
    return User(name, keys, msgspec.convert(grants, list[Grant]))


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

    async def claim(self, queue_id: int, member_id: int) -> ClaimedQueue | None:
        rows = await self._call("select * from claim_queue(%s, %s)", queue_id, member_id)
        return ClaimedQueue(*rows[0]) if rows else None

    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool:
        rows = await self._call("select release_queue(%s, %s, %s)", queue_id, epoch, heir)
        return bool(rows[0][0])

    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None:
        rows = await self._call("select reserve_ids(%s, %s, %s)", queue_id, epoch, count)
        return None if rows[0][0] is None else int(rows[0][0])

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        return dict(await self._call("select * from owners(%s::int[])", list(queue_ids)))
