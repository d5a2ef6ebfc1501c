"""The store on PostgreSQL: function calls only, all SQL lives in sql/.

Two kinds of connection. Writers run in pipeline mode and carry the messages: some for puts,
one for acknowledgements, so that a confirm never waits for a delete. One plain connection
serves the catalogue and reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.rows import tuple_row
from psycopg.types.multirange import Multirange

from tidegate.core.errors import LimitReached, StaleEpoch, Unavailable
from tidegate.core.model import (
    DEFAULT_POLICY,
    Attributes,
    ClientInfo,
    Failure,
    Mode,
    QueueInfo,
    QueuePolicy,
)
from tidegate.core.ports import (
    Claim,
    LaneSummary,
    Location,
    MemberInfo,
    Publication,
    Settlement,
    Target,
    Write,
)
from tidegate.core.segment import Segment
from tidegate.core.topic import Filter, TopicInfo
from tidegate.storage import parameters as p
from tidegate.storage.migrations import migrate
from tidegate.storage.pipeline import CONNECTION, Call, Parameters, PipelineConnection
from tidegate.storage.postgres_users import PostgresUsers

_PUT = b"select put_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
_REMEMBER = b"select remember_dedup($1, $2, $3, $4)"
_PUBLISH = b"select publish_segment($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
_SETTLE = b"select settle($1, $2, $3, $4, $5)"
_ATTEMPTS = b"select note_attempts($1, $2, $3, $4, $5, $6, $7, $8)"
_FENCE = b"select fence($1, $2)"
_TRANSACTORS = 4
_BINARY = 1
_ALL_BINARY = [_BINARY] * 14
_STORED = (b"\x00\x00\x00\x00", None)

Row = tuple[Any, ...]
Committed = Callable[[list[bool] | Exception], None]


class PostgresStore(PostgresUsers):
    """A store behind a libpq URL."""

    def __init__(self, url: str, *, writers: int = 1) -> None:
        self.url = url
        # As a rule one for each writer: what it submits is stored in that order.
        self._putters = [PipelineConnection(url, (_PUT, _REMEMBER)) for _ in range(writers)]
        self._settler = PipelineConnection(url, (_SETTLE, _ATTEMPTS))
        self._settler_lock = asyncio.Lock()
        # Several, opened when they are needed: transactions beside each other share a flush.
        statements = (_FENCE, _PUT, _REMEMBER, _PUBLISH, _SETTLE, _ATTEMPTS)
        self._transactors = [PipelineConnection(url, statements) for _ in range(_TRANSACTORS)]
        self._catalogue: psycopg.AsyncConnection[Row] | None = None
        self._catalogue_lock = asyncio.Lock()
        self._reader: psycopg.AsyncConnection[Row] | None = None
        self._reader_lock = asyncio.Lock()
        self._renewer: psycopg.AsyncConnection[Row] | None = None
        self._renewer_lock = asyncio.Lock()

    async def open(self) -> None:
        """Connect and bring the schema up to date."""
        connection = await self._connect()
        try:
            await migrate(connection)
        finally:
            await connection.close()

    async def close(self) -> None:
        for putter in self._putters:
            putter.close()
        self._settler.close()
        for transactor in self._transactors:
            transactor.close()
        for connection in (self._catalogue, self._reader, self._renewer):
            if connection is not None:
                await connection.close()
        self._catalogue = self._reader = self._renewer = None

    async def _connect(self) -> psycopg.AsyncConnection[Row]:
        try:
            return await psycopg.AsyncConnection.connect(
                self.url, autocommit=True, row_factory=tuple_row, **CONNECTION
            )
        except psycopg.Error as failure:
            raise Unavailable(f"the store does not answer: {failure}") from None

    async def _call(self, query: str, *arguments: Any) -> list[Row]:
        """One function call on the catalogue connection."""
        async with self._catalogue_lock:
            if self._catalogue is None or self._catalogue.closed:
                self._catalogue = await self._connect()
            return await _rows(self._catalogue, query, arguments, binary=False)

    async def _read(self, query: str, *arguments: Any) -> list[Row]:
        """One function call that returns payloads, beside the catalogue's."""
        async with self._reader_lock:
            if self._reader is None or self._reader.closed:
                self._reader = await self._connect()
            return await _rows(self._reader, query, arguments, binary=True)

    # Clients and queues

    async def register_client(
        self, name: str, mode: Mode, user: str | None = None
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

    async def create_queue(
        self, name: str, durable: bool, policy: QueuePolicy = DEFAULT_POLICY
    ) -> QueueInfo | None:
        rows = await self._call(
            "select * from create_queue(%s, %s, %s::jsonb)", name, durable, _json(policy)
        )
        return _queue(rows[0]) if rows else None

    async def set_policy(self, queue_id: int, policy: QueuePolicy) -> bool:
        rows = await self._call("select set_policy(%s, %s::jsonb)", queue_id, _json(policy))
        return bool(rows[0][0])

    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None:
        rows = await self._call("select * from find_queue(%s, %s)", queue_id, name)
        return _queue(rows[0]) if rows else None

    async def list_queues(self) -> list[QueueInfo]:
        return [_queue(row) for row in await self._call("select * from list_queues()")]

    async def active_queues(self, client_id: int) -> list[QueueInfo]:
        rows = await self._call("select * from active_queues(%s)", client_id)
        return [_queue(row) for row in rows]

    async def delete_queue(self, queue_id: int) -> bool:
        return bool((await self._call("select delete_queue(%s)", queue_id))[0][0])

    # Members and ownership

    async def join(self, name: str, address: str, lease_s: float) -> int:
        return int(
            (await self._call("select join_cluster(%s, %s, %s)", name, address, lease_s))[0][0]
        )

    async def renew(self, member_id: int, lease_s: float) -> bool:
        # On a connection of its own: no long call may stand between a node and its life.
        async with self._renewer_lock:
            if self._renewer is None or self._renewer.closed:
                self._renewer = await self._connect()
            rows = await _rows(
                self._renewer, "select renew_member(%s, %s)", (member_id, lease_s), binary=False
            )
        return bool(rows[0][0])

    async def leave(self, member_id: int) -> None:
        await self._call("select leave_cluster(%s)", member_id)

    async def members(self) -> list[MemberInfo]:
        return [MemberInfo(*row) for row in await self._call("select * from list_members()")]

    async def locate(self, queue_id: int) -> Location | None:
        rows = await self._call("select * from locate_queue(%s)", queue_id)
        if not rows:
            return None
        owner, address, alive = rows[0][4:]
        return Location(_queue(rows[0][:4]), owner, address, alive)

    async def orphans(self) -> list[int]:
        return [row[0] for row in await self._call("select orphans()")]

    async def claim(self, queue_id: int, member_id: int) -> Claim | None:
        rows = await self._call("select * from claim_queue(%s, %s)", queue_id, member_id)
        return Claim(*rows[0]) if rows else None

    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool:
        rows = await self._call("select release_queue(%s, %s, %s)", queue_id, epoch, heir)
        return bool(rows[0][0])

    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None:
        rows = await self._call("select reserve_ids(%s, %s, %s)", queue_id, epoch, count)
        return None if rows[0][0] is None else int(rows[0][0])

    # Messages

    def submit(self, writes: Sequence[Write], done: Committed, *, writer: int = 0) -> None:
        calls = [_put(write) for write in writes]
        calls += [_remember(write) for write in writes if write.dedup_ids]

        def finished(outcome: list[bytes | None] | Exception) -> None:
            if isinstance(outcome, Exception):
                done(outcome)
            else:
                done([value in _STORED for value in outcome[: len(writes)]])

        self._putters[writer % len(self._putters)].submit(calls, finished)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        calls = [_settle(settlement) for settlement in settlements]
        calls += [_attempts(each) for each in settlements if each.attempts or each.forgotten]
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
        fence: Parameters = (p.int4_array(list(epochs)), p.int8_array(list(epochs.values())))
        calls: list[Call] = [(_FENCE, fence, _ALL_BINARY[:2])]
        calls += [_put(write) for write in writes]
        calls += [_remember(write) for write in writes if write.dedup_ids]
        for publication in publications:
            calls.append(_publish(publication))
            calls += [_remember_at(publication, t) for t in publication.targets if t.dedup_ids]
        # In the order in which all settle, so that nobody waits for each other.
        ordered = sorted(settlements, key=lambda settlement: settlement.queue_id)
        calls += [_settle(settlement) for settlement in ordered]
        calls += [_attempts(each) for each in ordered if each.attempts or each.forgotten]
        try:
            await min(self._transactors, key=lambda each: each.pending).call(calls)
        except StaleEpoch:
            return False
        return True

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

    # Topics

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
            _json(header_filter) if header_filter else None,
            member_id,
        )
        return _queue(rows[0]) if rows else None

    async def drop_subscription(self, topic: str, queue_id: int) -> bool:
        rows = await self._call("select drop_subscription(%s, %s::int)", topic, queue_id)
        return bool(rows[0][0])

    async def lost_subscriptions(self) -> list[int]:
        return [row[0] for row in await self._call("select lost_subscriptions()")]

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        return dict(await self._call("select * from owners(%s::int[])", list(queue_ids)))

    async def free_payloads(self) -> int:
        return int((await self._call("select free_payloads()"))[0][0])


async def _rows(
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


def _client(rows: list[Row]) -> ClientInfo | None:
    return ClientInfo(rows[0][0], rows[0][1], Mode(rows[0][2])) if rows else None


def _queue(row: Row) -> QueueInfo:
    """A row of the type queue_row."""
    return QueueInfo(row[0], row[1], row[2], msgspec.convert(row[3], QueuePolicy))


def _topic(rows: list[Row]) -> TopicInfo | None:
    return msgspec.convert(rows[0], TopicInfo) if rows else None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _ranges(multirange: Multirange[int]) -> list[tuple[int, int]]:
    return [(part.lower or 0, part.upper or 0) for part in multirange]


def _put(write: Write) -> Call:
    segment = write.segment
    parameters: Parameters = (
        p.int4(segment.queue_id),
        p.int8(write.epoch),
        p.int8(segment.first_id),
        p.int2(segment.priority),
        p.float8(segment.arrived_at),
        p.int4_array(segment.lengths),
        p.int4_array(segment.senders),
        None if segment.receivers is None else p.int4_array(segment.receivers),
        None if segment.contexts is None else p.int8_array(segment.contexts),
        p.json_of(segment.attributes),
        segment.payload,
        p.int8_array(write.producers),
        p.int8_array(write.batches),
        None if segment.due_at is None else p.float8(segment.due_at),
    )
    return _PUT, parameters, _ALL_BINARY


def _remember(write: Write) -> Call:
    segment = write.segment
    parameters: Parameters = (
        p.int4(segment.queue_id),
        p.int8(write.epoch),
        p.json_of(write.dedup_ids),
        p.float8(segment.arrived_at),
    )
    return _REMEMBER, parameters, _ALL_BINARY[:4]


def _publish(publication: Publication) -> Call:
    messages, targets = publication.messages, publication.targets
    dones = ",".join(f'"{p.multirange_text(target.done)}"' for target in targets)
    parameters: Parameters = (
        p.int4_array([target.queue_id for target in targets]),
        p.int8_array([target.first_id for target in targets]),
        f"{{{dones}}}".encode(),
        p.int2(messages.priority),
        p.float8(messages.arrived_at),
        p.int4_array(messages.lengths),
        p.int4_array(messages.senders),
        None if messages.receivers is None else p.int4_array(messages.receivers),
        None if messages.contexts is None else p.int8_array(messages.contexts),
        p.json_of(messages.attributes),
        messages.payload,
        p.int8_array(publication.producers),
        p.int8_array(publication.batches),
        None if messages.due_at is None else p.float8(messages.due_at),
    )
    return _PUBLISH, parameters, [1, 1, 0, *_ALL_BINARY[:11]]


def _remember_at(publication: Publication, target: Target) -> Call:
    parameters: Parameters = (
        p.int4(target.queue_id),
        p.int8(target.epoch),
        p.json_of(target.dedup_ids),
        p.float8(publication.messages.arrived_at),
    )
    return _REMEMBER, parameters, _ALL_BINARY[:4]


def _settle(settlement: Settlement) -> Call:
    # In order: transactions that settle the same segments must not wait for each other.
    partly = dict(sorted(settlement.partly.items()))
    texts = ",".join(f'"{p.multirange_text(done)}"' for done in partly.values())
    parameters: Parameters = (
        p.int4(settlement.queue_id),
        p.int8(settlement.epoch),
        p.int8_array(settlement.finished),
        p.int8_array(list(partly)),
        f"{{{texts}}}".encode(),
    )
    # Multiranges go as text: they are few, and their binary form is not worth code.
    return _SETTLE, parameters, [1, 1, 1, 1, 0]


def _attempts(settlement: Settlement) -> Call:
    attempts = settlement.attempts
    parameters: Parameters = (
        p.int4(settlement.queue_id),
        p.int8(settlement.epoch),
        p.int8_array(settlement.forgotten),
        p.int8_array([first_id for first_id, _ in attempts]),
        p.int4_array([offset for _, offset in attempts]),
        p.int4_array([attempt.failed for attempt in attempts.values()]),
        p.float8_array([attempt.due_at for attempt in attempts.values()]),
        p.json_of([attempt.failures for attempt in attempts.values()]),
    )
    return _ATTEMPTS, parameters, _ALL_BINARY[:8]


def _segment(queue_id: int, row: Row) -> Segment:
    """A row of the type segment_row."""
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
