"""The store on PostgreSQL. It only calls functions; all SQL is in sql/.

Pipelined connections carry the messages. Three plain connections serve the catalogue, long reads,
and the renewal of the lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.storage.migrations import migrate
from tidegate.storage.plain_connection import PlainConnection, Row, connect, rows_of
from tidegate.storage.postgres_clients import PostgresClients
from tidegate.storage.postgres_commits import PostgresCommits
from tidegate.storage.postgres_fleet import PostgresFleet
from tidegate.storage.postgres_hosting import PostgresHosting
from tidegate.storage.postgres_messages import PostgresMessages
from tidegate.storage.postgres_ownership import PostgresOwnership
from tidegate.storage.postgres_queues import PostgresQueues
from tidegate.storage.postgres_replication import PostgresReplication
from tidegate.storage.postgres_topics import PostgresTopics
from tidegate.storage.postgres_users import PostgresUsers


class PostgresStore(
    PostgresCommits,
    PostgresMessages,
    PostgresClients,
    PostgresQueues,
    PostgresOwnership,
    PostgresTopics,
    PostgresUsers,
    PostgresReplication,
    PostgresFleet,
    PostgresHosting,
):
    """A store at a libpq URL."""

    def __init__(self, url: str, *, writers: int = 1) -> None:
        super().__init__(url, writers=writers)
        self.url = url
        self._catalogue = PlainConnection(url)
        self._reader = PlainConnection(url, binary=True)
        self._renewer = PlainConnection(url)

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await self._prepare()
        await self._check_place(1)

    async def _prepare(self) -> None:
        connection = await connect(self.url)
        try:
            await migrate(connection)
        finally:
            await connection.close()

    async def _check_place(self, listed: int) -> None:
        """Raise `InvalidValue` unless this is the first of `listed` stores."""
        trouble = (await self._call("select store_trouble(0, null, %s::int)", listed))[0][0]
        if trouble is not None:
            raise InvalidValue(f"the store that is listed first cannot be used so: {trouble}")

    def standing(self, queue_id: int) -> int | None:
        return 0  # There is one lease, and the node itself keeps it

    async def close(self) -> None:
        self._close_pipelines()
        for connection in (self._catalogue, self._reader, self._renewer):
            await connection.close()

    async def _call(self, query: str, *arguments: Any) -> list[Row]:
        return await self._catalogue.call(query, *arguments)

    async def _read(self, query: str, *arguments: Any) -> list[Row]:
        return await self._reader.call(query, *arguments)

    async def _call_apart(self, query: str, *arguments: Any) -> list[Row]:
        return await self._renewer.call(query, *arguments)

    async def ask(self, query: str, *arguments: Any) -> list[Row]:
        """Call a function, for a sharded store."""
        return await self._call(query, *arguments)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Callable[..., Awaitable[list[Row]]]]:
        """Run function calls in one transaction, on a connection of its own."""
        connection = await connect(self.url)
        try:
            async with connection.transaction():
                yield lambda query, *arguments: rows_of(connection, query, arguments, binary=False)
        except (psycopg.OperationalError, psycopg.InterfaceError) as failure:
            raise Unavailable(f"the store went away: {failure}") from None
        finally:
            await connection.close()
