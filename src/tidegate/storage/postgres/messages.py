"""Reading and purging messages in PostgreSQL, and the records of batches and dedup ids."""

from __future__ import annotations

import asyncio
import struct
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import pq
from psycopg.types.multirange import Multirange

from tidegate.core.errors import LimitReached, StaleEpoch, Unavailable
from tidegate.core.model import Attributes, Failure, QueuePolicy
from tidegate.core.segment import Segment
from tidegate.core.store import LaneSummary, Publication, PublicationTarget, Settlement, Write


class PostgresMessages(ABC):
    """The part of a PostgreSQL store that reads messages."""

    @abstractmethod
    async def _call(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function on the catalogue connection."""

    @abstractmethod
    async def _read(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """Call a function that may take longer, on a connection beside the catalogue's."""

    async def drop_done(self, queue_id: int, epoch: int) -> bool:
        rows = await self._read("select drop_done(%s, %s)", queue_id, epoch)
        return bool(rows[0][0] == 0)

    async def stored(self, queue_id: int, first_ids: list[int]) -> set[int]:
        rows = await self._call("select stored_segments(%s, %s::bigint[])", queue_id, first_ids)
        return {row[0] for row in rows}

    async def lanes(self, queue_id: int) -> list[LaneSummary]:
        return [LaneSummary(*row) for row in await self._read("select * from lanes(%s)", queue_id)]

    async def read_lane(
        self,
        queue_id: int,
        priority: int,
        addressed: bool,
        from_id: int,
        to_id: int,
        count_max: int,
        bytes_max: int,
    ) -> list[Segment]:
        rows = await self._read(
            "select * from read_lane(%s, %s::smallint, %s, %s, %s, %s::int, %s)",
            queue_id,
            priority,
            addressed,
            from_id,
            to_id,
            count_max,
            bytes_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def read_between(
        self, queue_id: int, from_id: int, to_id: int, count_max: int, bytes_max: int
    ) -> list[Segment]:
        rows = await self._read(
            "select * from read_between(%s, %s, %s, %s::int, %s)",
            queue_id,
            from_id,
            to_id,
            count_max,
            bytes_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def find_segments(
        self,
        queue_id: int,
        from_id: int,
        receiver: int,
        sender: int | None,
        context: int | None,
        priority: int | None,
        count_max: int,
    ) -> list[Segment]:
        rows = await self._read(
            "select * from find_segments(%s, %s, %s, %s, %s, %s::smallint, %s::int)",
            queue_id,
            from_id,
            receiver,
            sender,
            context,
            priority,
            count_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def read_due(
        self, queue_id: int, behind: tuple[float, int], count_max: int, bytes_max: int
    ) -> list[Segment]:
        rows = await self._read(
            "select * from read_due(%s, %s, %s, %s::int, %s)",
            queue_id,
            *behind,
            count_max,
            bytes_max,
        )
        return [_segment(queue_id, row) for row in rows]

    async def count_due(self, queue_id: int) -> int:
        return int((await self._read("select count_due(%s)", queue_id))[0][0])

    async def dedup_ids(self, queue_id: int, newer_than_s: float) -> dict[str, float]:
        rows = await self._read("select * from dedup_ids(%s, %s)", queue_id, newer_than_s)
        return dict(rows)

    async def forget_dedup(self) -> int:
        window_s = QueuePolicy().dedup_window_s
        return int((await self._call("select forget_dedup(%s)", window_s))[0][0])

    async def marks(self, queue_id: int) -> dict[int, list[tuple[int, int]]]:
        rows = await self._read("select * from marks(%s)", queue_id)
        return {producer: _ranges(batches) for producer, batches in rows}

    async def forget_marks(self, older_than_s: float) -> int:
        return int((await self._call("select forget_marks(%s)", older_than_s))[0][0])

    async def purge(self, queue_id: int, epoch: int, below_id: int, kept: list[int]) -> bool:
        rows = await self._read(
            "select purge_queue(%s, %s, %s, %s::bigint[])", queue_id, epoch, below_id, kept
        )
        return bool(rows[0][0] == 0)

    async def free_payloads(self) -> int:
        return int((await self._call("select free_payloads()"))[0][0])


def _segment(queue_id: int, row: tuple[Any, ...]) -> Segment:
    """Return the segment of a row of the type segment_row."""
    attributes, done, attempts = row[7], row[9], row[11]
    segment = Segment(
        queue_id=queue_id,
        first_id=row[0],
        priority=row[1],
        arrived_at=row[2],
        lengths=row[3],
        senders=row[4],
        receivers=row[5],
        contexts=row[6],
        attributes=None
        if attributes is None
        else msgspec.convert(attributes, list[Attributes | None]),
        payload=row[8],
        due_at=row[10],
        reloaded=True,
    )
    for offset, count, due_at, failures in attempts or ():
        segment.remember(offset, count, due_at, msgspec.convert(failures, list[Failure]))
    if done is not None:
        for low, high in _ranges(done):
            segment.mark_done(low, high)
    return segment


def _ranges(multirange: Multirange[int]) -> list[tuple[int, int]]:
    return [(part.lower or 0, part.upper or 0) for part in multirange]


# Storing and settling messages in PostgreSQL.
#
# Connections in pipeline mode carry the calls: some for puts, one for acknowledgements, and a few
# for transactions. A put therefore never waits for deletions.


_TRANSACTORS = 4
_STORED = (b"\x00\x00\x00\x00", None)

Committed = Callable[[list[bool] | Exception], None]


class PostgresCommits:
    """The part of a PostgreSQL store that writes messages."""

    def __init__(self, url: str, *, writers: int = 1) -> None:
        # Usually one for each writer: what a writer submits is stored in that order.
        self._putters = [PipelineConnection(url, (PUT, REMEMBER)) for _ in range(writers)]
        self._settler = PipelineConnection(url, (SETTLE, ATTEMPTS))
        self._settler_lock = asyncio.Lock()
        # Several, opened when needed: concurrent transactions share a flush.
        statements = (FENCE, PUT, REMEMBER, PUBLISH, SETTLE, ATTEMPTS)
        self._transactors = [PipelineConnection(url, statements) for _ in range(_TRANSACTORS)]

    def _close_pipelines(self) -> None:
        for pipeline in (*self._putters, self._settler, *self._transactors):
            pipeline.close()

    def submit(self, writes: Sequence[Write], done: Committed, *, writer: int = 0) -> None:
        calls = [put_call(write) for write in writes]
        calls += [remember_call(write) for write in writes if write.dedup_ids]

        def finished(outcome: list[bytes | None] | Exception) -> None:
            if isinstance(outcome, Exception):
                done(outcome)
            else:
                done([value in _STORED for value in outcome[: len(writes)]])

        self._putters[writer % len(self._putters)].submit(calls, finished)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        calls = [settle_call(settlement) for settlement in settlements]
        calls += [attempts_call(each) for each in settlements if each.attempts or each.forgotten]
        async with self._settler_lock:
            values = await self._settler.call(calls)
        return [value in _STORED for value in values[: len(settlements)]]

    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool:
        epochs = {write.segment.queue_id: write.epoch for write in writes}
        epochs |= {settlement.queue_id: settlement.epoch for settlement in settlements}
        targets = [target for publication in publications for target in publication.targets]
        epochs |= {target.queue_id: target.epoch for target in targets}
        calls = [fence_call(epochs)]
        calls += [put_call(write) for write in writes]
        calls += [remember_call(write) for write in writes if write.dedup_ids]
        for publication in publications:
            calls.append(publish_call(publication))
            calls += [remember_at_call(publication, t) for t in publication.targets if t.dedup_ids]
        # Sorted by queue, as all settlements are: different orders could deadlock.
        ordered = sorted(settlements, key=lambda settlement: settlement.queue_id)
        calls += [settle_call(settlement) for settlement in ordered]
        calls += [attempts_call(each) for each in ordered if each.attempts or each.forgotten]
        try:
            await min(self._transactors, key=lambda each: each.pending).call(calls)
        except StaleEpoch:
            return False
        return True


# The function calls that carry messages, with parameters in PostgreSQL's binary format.


PUT = b"select put_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
REMEMBER = b"select remember_dedup($1, $2, $3, $4)"
PUBLISH = b"select publish_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
SETTLE = b"select settle($1, $2, $3, $4, $5)"
ATTEMPTS = b"select note_attempts($1, $2, $3, $4, $5, $6, $7, $8)"
FENCE = b"select fence($1, $2)"
_BINARY = 1
_ALL_BINARY = [_BINARY] * 14


def fence_call(epochs: dict[int, int]) -> Call:
    """Return the call that fails the transaction unless these are the epochs of the queues."""
    parameters: Parameters = (int4_array(list(epochs)), int8_array(list(epochs.values())))
    return FENCE, parameters, _ALL_BINARY[:2]


def put_call(write: Write) -> Call:
    segment = write.segment
    parameters: Parameters = (
        int4(segment.queue_id),
        int8(write.epoch),
        int8(segment.first_id),
        int2(segment.priority),
        float8(segment.arrived_at),
        int4_array(segment.lengths),
        int4_array(segment.senders),
        None if segment.receivers is None else int4_array(segment.receivers),
        None if segment.contexts is None else int8_array(segment.contexts),
        json_of(segment.attributes),
        segment.payload,
        int8_array(write.producers),
        int8_array(write.batches),
        None if segment.due_at is None else float8(segment.due_at),
    )
    return PUT, parameters, _ALL_BINARY


def remember_call(write: Write) -> Call:
    segment = write.segment
    parameters: Parameters = (
        int4(segment.queue_id),
        int8(write.epoch),
        json_of(write.dedup_ids),
        float8(segment.arrived_at),
    )
    return REMEMBER, parameters, _ALL_BINARY[:4]


def publish_call(publication: Publication) -> Call:
    messages, targets = publication.messages, publication.targets
    dones = ",".join(f'"{multirange_text(target.done)}"' for target in targets)
    parameters: Parameters = (
        int4_array([target.queue_id for target in targets]),
        int8_array([target.first_id for target in targets]),
        f"{{{dones}}}".encode(),
        int2(messages.priority),
        float8(messages.arrived_at),
        int4_array(messages.lengths),
        int4_array(messages.senders),
        None if messages.receivers is None else int4_array(messages.receivers),
        None if messages.contexts is None else int8_array(messages.contexts),
        json_of(messages.attributes),
        messages.payload,
        int8_array(publication.producers),
        int8_array(publication.batches),
        None if messages.due_at is None else float8(messages.due_at),
    )
    return PUBLISH, parameters, [1, 1, 0, *_ALL_BINARY[:11]]


def remember_at_call(publication: Publication, target: PublicationTarget) -> Call:
    parameters: Parameters = (
        int4(target.queue_id),
        int8(target.epoch),
        json_of(target.dedup_ids),
        float8(publication.messages.arrived_at),
    )
    return REMEMBER, parameters, _ALL_BINARY[:4]


def settle_call(settlement: Settlement) -> Call:
    # Sorted by segment: transactions that settle the same segments in different orders could
    # deadlock.
    partly = dict(sorted(settlement.partly.items()))
    texts = ",".join(f'"{multirange_text(done)}"' for done in partly.values())
    parameters: Parameters = (
        int4(settlement.queue_id),
        int8(settlement.epoch),
        int8_array(settlement.finished),
        int8_array(list(partly)),
        f"{{{texts}}}".encode(),
    )
    # Multiranges are sent as text: they are few, and their binary format is not worth the code.
    return SETTLE, parameters, [1, 1, 1, 1, 0]


def attempts_call(settlement: Settlement) -> Call:
    attempts = settlement.attempts
    parameters: Parameters = (
        int4(settlement.queue_id),
        int8(settlement.epoch),
        int8_array(settlement.forgotten),
        int8_array([first_id for first_id, _ in attempts]),
        int4_array([offset for _, offset in attempts]),
        int4_array([attempt.failed for attempt in attempts.values()]),
        float8_array([attempt.due_at for attempt in attempts.values()]),
        json_of([attempt.failures for attempt in attempts.values()]),
    )
    return ATTEMPTS, parameters, _ALL_BINARY[:8]


# Python values as PostgreSQL's binary parameters, for the calls that carry messages.
#
# Only the types that the hot path needs. Integer arrays are built as columns in C: a thousand
# lengths take about ten microseconds.


_ARRAY_HEADER = struct.Struct("!iiiii")
_INT4_OID, _INT8_OID, _FLOAT8_OID = 23, 20, 701
_FOUR = array("i", [4])

int2 = struct.Struct("!h").pack
int4 = struct.Struct("!i").pack
int8 = struct.Struct("!q").pack
float8 = struct.Struct("!d").pack


def int4_array(values: Sequence[int]) -> bytes:
    """Encode int4[] without nulls: element lengths and values alternate."""
    count = len(values)
    cells = array("i", bytes(8 * count))
    cells[0::2] = _FOUR * count
    cells[1::2] = array("i", values)
    cells.byteswap()
    return _ARRAY_HEADER.pack(1, 0, _INT4_OID, count, 1) + cells.tobytes()


def int8_array(values: Sequence[int | None]) -> bytes:
    """Encode int8[], nulls allowed."""
    has_null = 1 if None in values else 0
    cells = [
        b"\xff\xff\xff\xff" if value is None else b"\x00\x00\x00\x08" + int8(value)
        for value in values
    ]
    return _ARRAY_HEADER.pack(1, has_null, _INT8_OID, len(values), 1) + b"".join(cells)


def float8_array(values: Sequence[float | None]) -> bytes:
    """Encode float8[], nulls allowed."""
    has_null = 1 if None in values else 0
    cells = [
        b"\xff\xff\xff\xff" if value is None else b"\x00\x00\x00\x08" + float8(value)
        for value in values
    ]
    return _ARRAY_HEADER.pack(1, has_null, _FLOAT8_OID, len(values), 1) + b"".join(cells)


def json_of(value: object) -> bytes | None:
    """Encode jsonb: format version, then text. None stays None."""
    return None if value is None else b"\x01" + msgspec.json.encode(value)


def multirange_text(ranges: Sequence[tuple[int, int]]) -> str:
    """Return ranges [low, high) in PostgreSQL's text form of a multirange."""
    return "{" + ",".join(f"[{low},{high})" for low, high in ranges) + "}"


# A PostgreSQL connection for the writer: prepared calls, sent and committed together.
#
# It uses libpq's pipeline mode: all calls up to a sync are one transaction and one round trip,
# without BEGIN and COMMIT to wait for. It uses psycopg's public `pq` layer directly, since
# psycopg's cursors cost more than the commit itself; docs/decisions/0001 has the measurements.


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
            self._on_connection_lost(failure)

    def _writable(self) -> None:
        if self._connection is None:
            return
        try:
            if self._connection.pgconn.flush() == 0:
                asyncio.get_running_loop().remove_writer(self._descriptor)
                self._writing = False
        except psycopg.OperationalError as failure:
            self._on_connection_lost(failure)

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
            self._on_connection_lost(failure)

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
                self._on_connection_lost(self._failure)

    def _take(self, result: pq.abc.PGresult) -> None:
        if result.status == pq.ExecStatus.TUPLES_OK:
            self._values.append(result.get_value(0, 0) if result.ntuples else None)
        elif self._failure is None:
            self._failure = _explained(result)

    def _on_connection_lost(self, failure: Exception) -> None:
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
