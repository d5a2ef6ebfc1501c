"""`df.write`: a DataFrame into a queue; a task that Spark retries stores no message twice."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidegate.client.blocking import BlockingClient
from tidegate.client.message import PutOptions
from tidegate.core.errors import InternalError, InvalidValue, RequiredParameterMissing
from tidegate.pipeline.connector_read import ConnectorOptions, WriteRateLimiter

# Spark retries a failed task at once.
BATCH_DEDUP_S = 300.0


class QueueWriter(DataSourceArrowWriter):
    """One write; all its tasks share its name."""

    def __init__(self, options: ConnectorOptions, schema: StructType) -> None:
        check_columns(schema, options.key)
        self._options = options
        self._write = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return put_rows(self._options, self._write, iterator, BATCH_DEDUP_S)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        put_remaining(self._options, messages)


# `df.writeStream`: a stream into a queue; a batch that is written again is stored once.
#
# Spark does not tell the writer to which batch a task belongs. The task reads it from the local
# properties of its job.


# A person has to notice that a query ended before restarting it.
STREAM_DEDUP_S = 3600.0
# The id of a query is part of its checkpoint and stays the same after a restart.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes every batch of a query."""

    def __init__(self, options: ConnectorOptions, schema: StructType) -> None:
        check_columns(schema, options.key)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        return put_rows(self._options, _write_name(), iterator, STREAM_DEDUP_S)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        put_remaining(self._options, messages)


def _write_name() -> str:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    if query is None or batch is None:
        raise InternalError("Spark does not say to which query and batch this task belongs")
    return f"{query}-{batch}"


# Dedup ids of rows: equal for the same row, however often and in whatever order it is written.
#
# With a key column, the dedup id is the key. Without one it consists of
#
#     the write (query and batch) · the content · the row's number among equal contents
#
# Row numbers and partitions are not part of it, because they differ when a batch is written again.
# Rows with equal content are interchangeable, so only their number matters. A content that occurs n
# times gets the numbers 0 to n − 1. A task numbers its own rows. Contents that occur in several
# partitions are counted on the driver when all tasks have ended (see connector_write.py).


DIGEST_BYTES = 16
KEY_LENGTH_MAX = 255


class RowIdentities:
    """Assigns the dedup ids of one task's rows."""

    def __init__(self, write: str) -> None:
        self._write = write.encode()
        # How often each content has occurred so far.
        self.seen: Counter[bytes] = Counter()

    def dedup_id(self, put: OutgoingMessage) -> str:
        """Return the dedup id of the next row; rows without a key are numbered."""
        if put.key is not None:
            return _checked_key(put.key)
        digest = self.digest(put)
        number = self.seen[digest]
        self.seen[digest] = number + 1
        return numbered_dedup_id(digest, number)

    def digest(self, put: OutgoingMessage) -> bytes:
        """Return the digest of a content within this write."""
        hashed = blake2b(self._write, digest_size=DIGEST_BYTES)
        hashed.update(b"\0")
        hashed.update(put.content())
        return hashed.digest()


def numbered_dedup_id(digest: bytes, number: int) -> str:
    """Return the dedup id of the `number`-th row among rows of equal content."""
    return f"{digest.hex()}-{number}"


def _checked_key(key: str) -> str:
    if not 0 < len(key) <= KEY_LENGTH_MAX:
        raise InvalidValue(
            f"a key has from 1 to {KEY_LENGTH_MAX} characters, not {len(key)}: hash it, as in "
            "sha2(key, 256)"
        )
    return key


# Rows on their way into a queue: check their columns, and convert each row to a put.


_TEXT_MAP = MapType(StringType(), StringType())
_WHOLE = (ByteType, ShortType, IntegerType, LongType)
# The columns that a put may have, and their types.
_KINDS: dict[str, tuple[type[DataType], ...]] = {
    "payload": (BinaryType, StringType),
    "content_type": (StringType,),
    "headers": (MapType,),
    "priority": _WHOLE,
    "receiver": _WHOLE,
    "context": _WHOLE,
    "group": (StringType,),
    "tenant": (StringType,),
    "deliver_at": (TimestampType,),
    "expires_at": (TimestampType,),
}
KEY_KINDS = (StringType, *_WHOLE)


class OutgoingMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message to put, and the key of its row if there is a key column."""

    payload: bytes
    # Without nulls, so that a column of nulls does not change the digest of the content.
    options: dict[str, Any]
    key: str | None = None

    def content(self) -> bytes:
        """Return bytes that are equal for equal messages and differ for different ones."""
        return msgspec.msgpack.encode((self.payload, self.options), order="deterministic")

    def put_options(self, dedup_id: str) -> PutOptions:
        options: PutOptions = {**self.options, "dedup_id": dedup_id}  # type: ignore[typeddict-item]
        return options


def check_columns(schema: StructType, key: str | None) -> None:
    """Raise unless there is a payload, and every column is part of a message or is the key."""
    names = schema.fieldNames()
    if "payload" not in names:
        raise RequiredParameterMissing(
            f"a message needs a column 'payload', binary or string; there are {', '.join(names)}"
        )
    if key is not None and key not in names:
        raise InvalidValue(f"option 'key' names no column: {key!r} is none of {', '.join(names)}")
    for each in schema:
        if each.name == key:
            _check_kind(each.name, each.dataType, KEY_KINDS)
        elif each.name not in _KINDS:
            raise InvalidValue(
                f"column {each.name!r} is no part of a message, which has {', '.join(_KINDS)}: "
                'select what is to be sent, or name it by option("key")'
            )
        if each.name in _KINDS:
            _check_kind(each.name, each.dataType, _KINDS[each.name])
    headers = schema["headers"].dataType if "headers" in names else _TEXT_MAP
    assert isinstance(headers, MapType)
    if (type(headers.keyType), type(headers.valueType)) != (StringType, StringType):
        raise InvalidValue(f"headers are map<string,string>, not {headers.simpleString()}")


def _check_kind(name: str, kind: DataType, wanted: tuple[type[DataType], ...]) -> None:
    if not isinstance(kind, wanted):
        names = [_TEXT_MAP if each is MapType else each() for each in wanted]
        texts = " or ".join(each.simpleString() for each in names)
        raise InvalidValue(f"column {name!r} is {kind.simpleString()}, not {texts}: cast it")


def puts_of(batch: pa.RecordBatch, key: str | None) -> Iterator[OutgoingMessage]:
    """Yield a put for each row of an Arrow batch."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
    keys = columns[key] if key is not None else [None] * batch.num_rows
    payloads = columns.pop("payload")
    # If the key column is also part of the message, its value is sent too.
    parts = [(name, values) for name, values in columns.items() if name in _KINDS]
    for index, payload in enumerate(payloads):
        if payload is None:
            raise InvalidValue("a payload is null: leave such rows out, or send b''")
        options = {
            name: _value(name, value)
            for name, values in parts
            if (value := values[index]) is not None
        }
        if isinstance(payload, str):
            payload = payload.encode()
        yield OutgoingMessage(payload, options, None if key is None else _key(key, keys[index]))


def _value(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    if name == "headers":
        headers = dict(value)
        if None in headers.values():
            raise InvalidValue("a header is null: leave it out")
        return headers
    return value


def _key(column: str, value: Any) -> str:
    if value is None:
        raise InvalidValue(f"a row has no key: column {column!r} is null")
    return str(value)


def prepared(frame: DataFrame, partitions: int | None = None) -> DataFrame:
    """Return the rows with equal rows in one partition, so that the task can number them.

    Equal rows have equal payloads, so the rows are shuffled by payload. `partitions` is their
    number; `None` means Spark's default.
    """
    if partitions is None:
        return frame.repartition("payload")
    return frame.repartition(partitions, "payload")


# Writing: the puts of a task or of the driver, in chunks and within the rate limit.
#
# Theory of operation
#
# 1. Each task converts its rows to messages with dedup ids (`outgoing`, `identity`) and puts them
# in
#    chunks of at most 5,000. When `put_rows` returns, the node has stored them on disk.
# 2. The task returns a `TaskCommit` with the digests of its rows, and with their contents unless
#    these are large (`tally`).
# 3. When all tasks have ended, the driver compares the digests. Equal rows in several partitions
# have
#    received the same numbers, so the node has stored some of them once only. The driver puts the
#    missing ones under the remaining numbers (`put_remaining`).
#
# A task that Spark runs again produces the same dedup ids, and the node ignores messages that it
# has stored. This works while the queue remembers dedup ids. Before writing, `check_window`
# compares the queue's deduplication window with the time in which Spark may retry.


CHUNK_COUNT = 5000


def put_rows(
    options: ConnectorOptions, write: str, batches: Iterable[pa.RecordBatch], dedup_s: float
) -> TaskCommit:
    """Put the rows of a task; they are stored on disk when this returns.

    `write` names the write, and is the same when the write is run again.
    """
    identities = RowIdentities(write)
    tally = TaskTotals(identities, write)

    def identified() -> Iterator[tuple[str, OutgoingMessage]]:
        for batch in batches:
            for put in puts_of(batch, options.key):
                tally.add(put)
                yield identities.dedup_id(put), put

    with options.connected() as mq:
        check_window(mq, options, dedup_s)
        _put_all(mq, options, identified())
    return tally.written()


def put_remaining(options: ConnectorOptions, messages: Iterable[object]) -> None:
    """Put, on the driver, the equal rows of several partitions that the tasks could not number."""
    rest = list(still_to_put(messages))  # type: ignore[arg-type]
    if rest:
        with options.connected() as mq:
            _put_all(mq, options, iter(rest))


def _put_all(
    mq: BlockingClient, options: ConnectorOptions, puts: Iterator[tuple[str, OutgoingMessage]]
) -> None:
    pace = WriteRateLimiter(options.messages_per_second)
    while True:
        chunk = list(islice(puts, pace.allowance(CHUNK_COUNT)))
        if not chunk:
            return
        pace.spend(len(chunk))
        mq.put_each(
            options.queue, [(put.payload, put.put_options(dedup_id)) for dedup_id, put in chunk]
        )


def check_window(mq: BlockingClient, options: ConnectorOptions, dedup_s: float) -> None:
    """Raise `InvalidValue` if the queue forgets dedup ids before a write may be repeated.

    A repeated write would otherwise store its messages twice.
    """
    window_s = mq.queue(options.queue).policy.dedup_window_s
    needed_s = dedup_s if options.dedup_s is None else options.dedup_s
    if window_s < needed_s:
        raise InvalidValue(
            f"queue {options.queue!r} remembers dedup ids for {window_s:g} s, and a write may be "
            f"repeated for {needed_s:g} s: `tidegate policy {options.queue} --set "
            f'dedup_window={needed_s:g}s`, or say by option("dedupSeconds", "{window_s:g}") that '
            "you restart sooner"
        )


# Counting on the driver of equal rows in several partitions.
#
# Each task numbers its equal rows from 0. If a content occurs 3 times in one partition and 2 times
# in another, the node has therefore stored 3 messages. The driver puts the other 2 under the
# remaining numbers. For that, a task with up to 8 MiB of rows returns their contents. A larger task
# returns the digests only. The driver then finds out that rows are missing, and raises an error
# with the remedy.


# A task returns its contents up to this size.
CONTENT_BYTES_MAX = 8 * 1024 * 1024


@dataclass
class TaskCommit(WriterCommitMessage):
    """The commit message of a task."""

    write: str
    # Digest → number of rows; empty for rows with keys.
    counts: dict[bytes, int] = field(default_factory=dict)
    # The rows; `None` if they were too large.
    contents: list[OutgoingMessage] | None = None


class TaskTotals:
    """Collects the commit message of a task while it puts rows."""

    def __init__(self, identities: RowIdentities, write: str) -> None:
        self._identities = identities
        self._write = write
        self._contents: list[OutgoingMessage] | None = []
        self._bytes = 0

    def add(self, put: OutgoingMessage) -> None:
        if put.key is not None or self._contents is None:
            return
        self._bytes += len(put.payload) + 100
        if self._bytes > CONTENT_BYTES_MAX:
            self._contents = None
        else:
            self._contents.append(put)

    def written(self) -> TaskCommit:
        return TaskCommit(self._write, dict(self._identities.seen), self._contents)


def still_to_put(
    messages: Iterable[WriterCommitMessage | None],
) -> Iterator[tuple[str, OutgoingMessage]]:
    """Yield dedup id and message of the equal rows that no task could number.

    Raise `InvalidValue` if the content of such a row is not known.
    """
    written = [message for message in messages if isinstance(message, TaskCommit)]
    if len(written) < 2:
        return
    total: Counter[bytes] = Counter()
    most: defaultdict[bytes, int] = defaultdict(int)
    for message in written:
        total.update(message.counts)
        for digest, count in message.counts.items():
            most[digest] = max(most[digest], count)
    missing = {digest for digest, count in total.items() if count > most[digest]}
    if not missing:
        return
    contents = _contents(written, missing)
    for digest in missing:
        for number in range(most[digest], total[digest]):
            yield numbered_dedup_id(digest, number), contents[digest]


def _contents(written: list[TaskCommit], wanted: set[bytes]) -> dict[bytes, OutgoingMessage]:
    found: dict[bytes, OutgoingMessage] = {}
    for message in written:
        identities = RowIdentities(message.write)
        for put in message.contents or ():
            digest = identities.digest(put)
            if digest in wanted:
                found[digest] = put
    if len(found) < len(wanted):
        raise InvalidValue(
            f"{len(wanted) - len(found)} messages are equal to others in other partitions, in a "
            "write too large to be counted: write connector.prepared(df), or name a key column by "
            f'option("key"); a batch write that is run again so with option("writeId", '
            f'"{written[0].write}") does not store again what is stored'
        )
    return found
