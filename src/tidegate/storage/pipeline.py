"""A PostgreSQL connection for the writer: prepared calls, sent together, committed together.

libpq's pipeline mode: all calls up to a sync are one transaction and one round trip, with
no BEGIN and no COMMIT to wait for. psycopg's public `pq` layer is used directly because
its cursors cost more than the commit itself: docs/decisions/0001 has the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
from psycopg import pq

from tidegate.core.errors import LimitReached, Unavailable

Parameters = Sequence[bytes | bytearray | memoryview | None]

# SQLSTATE classes in which nothing was stored and the cause is a shortage.
_SHORTAGE = (b"53",)


class PipelineConnection:
    """One connection in pipeline mode; one batch of calls at a time."""

    def __init__(self, url: str, statements: Sequence[bytes]) -> None:
        self._url = url
        self._statements = statements
        self._connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None
        self._descriptor = -1
        self._waiting: asyncio.Future[list[bytes | None]] | None = None
        self._values: list[bytes | None] = []
        self._failure: Exception | None = None
        self._writing = False

    async def _connect(self) -> pq.abc.PGconn:
        if self._connection is not None:
            return self._connection.pgconn
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, connect_timeout=5
            )
        except psycopg.Error as failure:
            raise Unavailable(f"the store does not answer: {failure}") from None
        pgconn = connection.pgconn
        for statement in self._statements:
            prepared = pgconn.prepare(statement, statement)
            if prepared.status != pq.ExecStatus.COMMAND_OK:
                pgconn.finish()
                raise Unavailable(f"the store is not ready: {prepared.error_message!r}")
        pgconn.nonblocking = 1
        pgconn.enter_pipeline_mode()
        self._descriptor = pgconn.socket
        asyncio.get_running_loop().add_reader(self._descriptor, self._readable)
        self._connection = connection
        return pgconn

    async def call(
        self, calls: Sequence[tuple[bytes, Parameters, Sequence[int]]]
    ) -> list[bytes | None]:
        """Run the calls in one transaction: statement, parameters, formats; first value of each."""
        pgconn = await self._connect()
        assert self._waiting is None, "one batch of calls at a time"
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._values, self._failure = [], None
        try:
            for statement, parameters, formats in calls:
                pgconn.send_query_prepared(statement, parameters, formats, pq.Format.BINARY)
            pgconn.pipeline_sync()
            if pgconn.flush():
                self._writing = True
                loop.add_writer(self._descriptor, self._writable)
        except psycopg.OperationalError as failure:
            self._lose(failure)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def _writable(self) -> None:
        assert self._connection is not None
        try:
            if self._connection.pgconn.flush() == 0:
                self._stop_writing()
        except psycopg.OperationalError as failure:
            self._lose(failure)

    def _stop_writing(self) -> None:
        if self._writing and self._connection is not None:
            asyncio.get_running_loop().remove_writer(self._descriptor)
        self._writing = False

    def _readable(self) -> None:
        if self._connection is None:
            return
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
            while self._waiting is not None and not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    continue
                if result.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._finish()
                    return
                self._take(result)
            if self._waiting is None and pgconn.status == pq.ConnStatus.BAD:
                self._lose(psycopg.OperationalError("the connection was closed"))
        except psycopg.OperationalError as failure:
            self._lose(failure)

    def _take(self, result: pq.abc.PGresult) -> None:
        if result.status == pq.ExecStatus.TUPLES_OK:
            self._values.append(result.get_value(0, 0) if result.ntuples else None)
        elif result.status in (pq.ExecStatus.FATAL_ERROR, pq.ExecStatus.PIPELINE_ABORTED):
            if self._failure is None:
                self._failure = self._explain(result)

    def _explain(self, result: pq.abc.PGresult) -> Exception:
        state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
        text = (
            result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message or b""
        ).decode(errors="replace")
        if state.startswith(_SHORTAGE):
            return LimitReached(f"the store is short of room: {text}")
        if not state or state.startswith((b"08", b"57")):
            return Unavailable(f"the store went away: {text}")
        return psycopg.errors.lookup(state.decode())(text)

    def _finish(self) -> None:
        assert self._waiting is not None
        waiting, self._waiting = self._waiting, None
        if waiting.done():
            return
        if self._failure is not None:
            failure = self._failure
            if isinstance(failure, Unavailable):
                self.close()
            waiting.set_exception(failure)
        else:
            waiting.set_result(self._values)

    def _lose(self, failure: Exception) -> None:
        """The connection broke: what was under way may or may not be committed."""
        waiting = self._waiting
        self.close()
        if waiting is not None and not waiting.done():
            waiting.set_exception(Unavailable(f"the store went away: {failure}"))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        loop.remove_writer(self._descriptor)
        self._writing = False
        connection.pgconn.finish()
