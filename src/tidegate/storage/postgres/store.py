"""The store on PostgreSQL. It only calls functions; all SQL is in sql/.

Pipelined connections carry the messages. Three plain connections serve the catalogue, long reads,
and the renewal of the lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from tidegate.core.errors import InvalidValue, LimitReached, StaleEpoch, Unavailable
from tidegate.storage.postgres.catalogue import (
    PostgresClients,
    PostgresOwnership,
    PostgresQueues,
    PostgresTopics,
    PostgresUsers,
)
from tidegate.storage.postgres.messages import (
    CONNECTION,
    FENCED_STATE,
    PostgresCommits,
    PostgresMessages,
)
from tidegate.storage.postgres.services import PostgresHosting
from tidegate.storage.postgres.topology import PostgresFleet, PostgresReplication

# Seconds: nothing else waits while a store is opened, and a busy machine may take long to answer.
OPENING_S = 30


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
        connection = await connect(self.url, OPENING_S)
        try:
            await migrate(connection)
        finally:
            await connection.close()

    async def _check_place(self, listed: int) -> None:
        """Raise `InvalidValue` unless this is the first of `listed` stores."""
        trouble = (await self._call("select store_trouble(0, null, %s::int)", listed))[0][0]
        if trouble is not None:
            raise InvalidValue(f"the store that is listed first cannot be used so: {trouble}")

    def membership_epoch(self, queue_id: int) -> int | None:
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


# A PostgreSQL connection for one call at a time, opened when it is needed.


Row = tuple[Any, ...]


class PlainConnection:
    """Runs calls one after the other; `binary` is the format of the result columns."""

    __slots__ = ("_binary", "_connection", "_lock", "_url")

    def __init__(self, url: str, *, binary: bool = False) -> None:
        self._url = url
        self._binary = binary
        self._connection: psycopg.AsyncConnection[Row] | None = None
        self._lock = asyncio.Lock()

    async def call(self, query: str, *arguments: Any) -> list[Row]:
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._url)
            return await rows_of(self._connection, query, arguments, binary=self._binary)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


async def connect(
    url: str, within_s: int = CONNECTION["connect_timeout"]
) -> psycopg.AsyncConnection[Row]:
    options = CONNECTION | {"connect_timeout": within_s}
    try:
        return await psycopg.AsyncConnection.connect(
            url, autocommit=True, row_factory=tuple_row, **options
        )
    except psycopg.Error as failure:
        raise Unavailable(f"the store does not answer: {failure}") from None


async def rows_of(
    connection: psycopg.AsyncConnection[Row],
    query: str,
    arguments: tuple[Any, ...],
    *,
    binary: bool,
) -> list[Row]:
    try:
        cursor = await connection.execute(query.encode(), arguments, prepare=True, binary=binary)
        return await cursor.fetchall()
    except psycopg.errors.DiskFull as failure:
        raise LimitReached(f"the store is short of room: {failure}") from None
    except (psycopg.OperationalError, psycopg.InterfaceError) as failure:
        await connection.close()
        raise Unavailable(f"the store went away: {failure}") from None
    except psycopg.DatabaseError as failure:
        if failure.sqlstate == FENCED_STATE:
            raise StaleEpoch(f"{failure.diag.message_primary}: nothing was done") from None
        raise


# Numbered SQL files, each applied once. Nodes that start at the same time take turns.


# Any number: the key of the lock for which starting nodes wait.
_ADVISORY_KEY = 7_411_000_001


def migration_files() -> list[tuple[int, str, str]]:
    """Return number, name and text of every migration, in order."""
    found = []
    for entry in (resources.files("tidegate.storage") / "sql").iterdir():
        numbered = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if numbered:
            found.append((int(numbered[1]), numbered[2], entry.read_text(encoding="utf-8")))
    return sorted(found)


async def migrate(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> list[int]:
    """Apply the missing migrations and return their numbers."""
    applied: list[int] = []
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(%s)", (_ADVISORY_KEY,))
        await connection.execute(
            "create table if not exists migration ("
            " number int primary key, name text not null, applied_at timestamptz default now())"
        )
        rows = await (await connection.execute("select number, name from migration")).fetchall()
        done = {row[0]: row[1] for row in rows}
        for number, name, text in migration_files():
            if number in done:
                if done[number] != name:
                    raise InvalidValue(
                        f"the store was made by another development version (its migration "
                        f"{number} is {done[number]!r}, ours {name!r}): use an empty one"
                    )
                continue
            await connection.execute(text.encode(), prepare=False)
            await connection.execute(
                "insert into migration (number, name) values (%s, %s)", (number, name)
            )
            applied.append(number)
    return applied
