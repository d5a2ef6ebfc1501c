"""A PostgreSQL connection for the writer: prepared calls, sent and committed together.

It uses libpq's pipeline mode: all calls up to a sync are one transaction and one round trip,
without BEGIN and COMMIT to wait for. It uses psycopg's public `pq` layer directly, since psycopg's
cursors cost more than the commit itself; docs/decisions/0001 has the measurements.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import pq

from tidegate.core.errors import LimitReached, StaleEpoch, Unavailable

Parameters = Sequence[bytes | bytearray | memoryview | None]

# SQLSTATE classes of shortages, after which nothing was stored.
_SHORTAGE = (b"53",)
_UNIQUE_VIOLATION = b"23505"
_DEADLOCK = b"40P01"
# Raised by the SQL functions `fence` and `fence_leader`.
FENCED_STATE = "TG001"
_FENCED = FENCED_STATE.encode()


# A store that does not answer is noticed within seconds; TCP alone would take minutes.
CONNECTION: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}

Call = tuple[bytes, Parameters, Sequence[int]]
Done = Callable[["list[bytes | None] | Exception"], None]


class PipelineConnection:
    """A connection in pipeline mode: batches of calls, each a transaction, in their order.

    It uses callbacks instead of coroutines, since every confirmation of a put waits for it. Each
    saved turn of the event loop is about ten microseconds.
    """

    def __init__(self, url: str, statements: Sequence[bytes]) -> None:
        self._url = url
        self._statements = statements
        self._connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None
        self._descriptor = -1
        # Callbacks of the batches under way, in the order in which they were sent.
        self._waiting: deque[Done] = deque()
        self._values: list[bytes | None] = []
        self._failure: Exception | None = None
        self._writing = False
        self._connecting: asyncio.Task[None] | None = None
        # Batches that were submitted before there was a connection.
        self._unsent: list[Sequence[Call]] = []

    @property
    def pending(self) -> int:
        """Return how many batches wait for their result."""
        return len(self._waiting)

    def submit(self, calls: Sequence[Call], done: Done) -> None:
        """Run calls (statement, parameters, formats) in one transaction.

        `done` gets the first value of each call, or the error. `Unavailable` means that the result
        is unknown. After it, no batch submitted later is stored until its callback has got the same
        error.
        """
        self._waiting.append(done)
        if self._connecting is not None:
            self._unsent.append(calls)
        elif self._connection is not None and self._is_usable(self._connection.pgconn):
            self._send(self._connection.pgconn, calls)
        else:
            self._unsent.append(calls)
            self._connecting = asyncio.create_task(self._connect_and_send())

    def _is_usable(self, pgconn: pq.abc.PGconn) -> bool:
        """Return whether the connection is open; the server may have closed it while idle."""
        if len(self._waiting) > 1:
            return True  # The waiting batches will see that it was closed
        try:
            pgconn.consume_input()
        except psycopg.OperationalError:
            self.close()
            return False
        return True

    async def call(self, calls: Sequence[Call]) -> list[bytes | None]:
        """Run calls in one transaction; see `submit`."""
        future: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()

        def done(outcome: list[bytes | None] | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(calls, done)
        return await future

    async def _connect_and_send(self) -> None:
        try:
            pgconn = await self._connect()
        except Unavailable as failure:
            self._connecting = None
            self._fail_all(failure)
        except psycopg.Error as failure:
            # The server closed the connection during setup. The callers must be told.
            self._connecting = None
            self._fail_all(Unavailable(f"the store went away: {failure}"))
        else:
            self._connecting = None
            unsent, self._unsent = self._unsent, []
            for calls in unsent:
                if self._has(pgconn):
                    self._send(pgconn, calls)

    async def _connect(self) -> pq.abc.PGconn:
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, **CONNECTION
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

    def _send(self, pgconn: pq.abc.PGconn, calls: Sequence[Call]) -> None:
        try:
            for statement, parameters, formats in calls:
                pgconn.send_query_prepared(statement, parameters, formats, pq.Format.BINARY)
            pgconn.pipeline_sync()
            if pgconn.flush() and not self._writing:
                self._writing = True
                asyncio.get_running_loop().add_writer(self._descriptor, self._writable)
        except psycopg.OperationalError as failure:
            self._lose(failure)

    def _writable(self) -> None:
        if self._connection is None:
            return
        try:
            if self._connection.pgconn.flush() == 0:
                asyncio.get_running_loop().remove_writer(self._descriptor)
                self._writing = False
        except psycopg.OperationalError as failure:
            self._lose(failure)

    def _readable(self) -> None:
        if self._connection is None:
            return
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
            self._take_results(pgconn)
            if not self._has(pgconn):
                return
            if self._waiting:
                # libuv reports a broken socket only once, and the end may follow directly behind
                # the data that was just read.
                pgconn.consume_input()
                self._take_results(pgconn)
            elif pgconn.status == pq.ConnStatus.BAD:
                self.close()
        except psycopg.OperationalError as failure:
            self._lose(failure)

    def _has(self, pgconn: pq.abc.PGconn) -> bool:
        """Return whether `pgconn` is still the connection; handling results may have ended it."""
        return self._connection is not None and self._connection.pgconn is pgconn

    def _take_results(self, pgconn: pq.abc.PGconn) -> None:
        while self._waiting and self._has(pgconn) and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                outcome = self._values if self._failure is None else self._failure
                self._values, self._failure = [], None
                self._waiting.popleft()(outcome)
                continue
            self._take(result)
            if isinstance(self._failure, Unavailable):
                # The server has ended the connection: no sync will come.
                self._lose(self._failure)

    def _take(self, result: pq.abc.PGresult) -> None:
        if result.status == pq.ExecStatus.TUPLES_OK:
            self._values.append(result.get_value(0, 0) if result.ntuples else None)
        elif self._failure is None:
            self._failure = _explained(result)

    def _lose(self, failure: Exception) -> None:
        """Close a broken connection; the batches under way may or may not be committed."""
        self.close()
        if not isinstance(failure, Unavailable):
            failure = Unavailable(f"the store went away: {failure}")
        self._fail_all(failure)

    def _fail_all(self, failure: Unavailable) -> None:
        waiting, self._waiting = self._waiting, deque()
        self._unsent.clear()
        for done in waiting:
            done(failure)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        self._values, self._failure = [], None
        connection, self._connection = self._connection, None
        if connection is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._descriptor)
        loop.remove_writer(self._descriptor)
        self._writing = False
        connection.pgconn.finish()


def _explained(result: pq.abc.PGresult) -> Exception:
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    text = (
        result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message or b""
    ).decode(errors="replace")
    if state == _FENCED:
        return StaleEpoch("one of the queues has a new owner: try again")
    if state.startswith(_SHORTAGE):
        return LimitReached(f"the store is short of room: {text}")
    # A unique violation: a repeated commit found its own segment, so the first one was stored. A
    # deadlock: nothing was stored, and the next attempt may succeed.
    if not state or state.startswith((b"08", b"57")) or state in (_UNIQUE_VIOLATION, _DEADLOCK):
        return Unavailable(f"the store went away: {text}")
    return psycopg.DatabaseError(f"{text} ({state.decode()})")
