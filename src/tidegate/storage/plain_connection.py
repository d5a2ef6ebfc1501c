"""A PostgreSQL connection for one call at a time, opened when it is needed."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from tidegate.core.errors import LimitReached, StaleEpoch, Unavailable
from tidegate.storage.pipeline import CONNECTION, FENCED_STATE

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


async def connect(url: str) -> psycopg.AsyncConnection[Row]:
    try:
        return await psycopg.AsyncConnection.connect(
            url, autocommit=True, row_factory=tuple_row, **CONNECTION
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
