"""`spark.read`: the messages that wait in a queue now; they stay in the queue."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidegate.client.address import redact_url
from tidegate.client.blocking import BlockingClient, BlockingMessage
from tidegate.client.client import Client
from tidegate.client.connect import Connector, connect, default_url
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.model import IdRange, contains_id, merge_ranges


@dataclass
class WaitingPartition(InputPartition):
    """The messages of a replica whose ids were assigned before the read was planned."""

    replica: str
    queue_id: int
    last_id: int


class QueueReader(DataSourceReader):
    """Reads a queue by browsing it."""

    def __init__(self, options: ConnectorOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[WaitingPartition]:
        queue = self._options.queue
        with self._options.connected() as mq:
            queue_id = mq.queue(queue).queue_id
            # Bound the ids: otherwise the read of a queue with steady traffic would never end.
            below_id = mq.waiting_ids(queue_id, limit=1).below_id
        return [WaitingPartition(ONLY_REPLICA, queue_id, below_id - 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, WaitingPartition)
        with self._options.connected() as mq:
            for page in pages(mq, partition.queue_id, 0, partition.last_id, self._options.limit):
                yield record_batch(page, self._schema)


# `spark.readStream`: a queue as a stream, each message in exactly one batch.
#
#     latestOffset(start)            acknowledge the batch of `start`; name the next messages
#     partitions(start, end), read   browse the messages of `end`, as often as Spark asks
#     commit(end)                    acknowledge the messages of `end`
#
# Theory of operation
#
# An offset names the messages of one batch by their ids (see `offset`). Messages stay in the queue
# while their batch is planned and processed. The node removes them when they are acknowledged.
#
# When to acknowledge. Spark calls `commit(end)` after it has recorded the batch in its commit log.
# If
# the process is killed between the two, `commit` is never called for that batch. Spark asks for the
# offset after `start` only if the batch of `start` is in the commit log. `latestOffset` and
# `partitions` therefore acknowledge `start` again, which makes up for a lost `commit`.
# Acknowledging twice does no harm.
#
# After a crash, Spark plans an unfinished batch again from the offset in its checkpoint. The reader
# browses the same ids, which are still in the queue.
#
# Foreign consumers. The stream needs the queue for itself. If another consumer held messages while
# they were acknowledged and returned them later, they appear in the next batch as well. The reader
# recognizes this by overlapping ids and acknowledges them again. If another consumer took messages
# of a planned batch, `read` raises `MessagesMissing`, unless `failOnDataLoss` is false.
#
# The driver keeps one connection while the query runs; each task opens its own.


# The most messages of a batch without a limit: planning holds the ranges of ids in memory.
BATCH_COUNT_MAX = 10_000_000


@dataclass
class ReplicaBatch(InputPartition):
    """The messages of a batch in one replica."""

    replica: str
    queue_id: int
    ranges: list[IdRange]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks."""

    def __init__(
        self, options: ConnectorOptions, schema: StructType, pace: WriteRateLimiter | None = None
    ) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._pace = pace or WriteRateLimiter(options.messages_per_second)
        # Used on the driver only, while the query runs.
        self._mq: BlockingClient | None = None
        self._queue_id = 0
        self._last_id: int | None = None
        self._acknowledged: Offset | None = None

    def _connected(self) -> BlockingClient:
        if self._mq is None:
            self._mq = self._options.open()
            self._queue_id = self._mq.queue(self._options.queue).queue_id
        return self._mq

    def _offset(self, stored: dict[str, Any]) -> Offset:
        self._connected()
        return Offset.from_json(stored, self._options.queue, self._queue_id)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        self._connected()
        return Offset(self._queue_id, {}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.messages_per_batch is None:
            return ReadAllAvailable()
        return ReadMaxRows(self._options.messages_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        mq = self._connected()
        self._last_id = mq.waiting_ids(self._queue_id, limit=1).below_id - 1

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Acknowledge the batch of `start`, and return the offset of the next batch.

        Return `start` if no message waits.
        """
        done = self._offset(start)
        self._acknowledge(done)
        wanted = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_COUNT_MAX
        allowed = self._pace.allowance(wanted)
        ranges = self._waiting(allowed)
        if any(ranges_overlap(ranges, before) for before in done.batch.values()):
            # A foreign consumer held some of these messages when they were acknowledged, and
            # returned them. If exactly the same ids became the next batch, Spark would see no
            # progress and never run it.
            self._acknowledged = None
            self._acknowledge(done)
            ranges = self._waiting(allowed)
        if not ranges:
            return start
        self._pace.spend(count_ids(ranges))
        return Offset(self._queue_id, {ONLY_REPLICA: ranges}).to_json()

    def _waiting(self, limit: int) -> list[IdRange]:
        mq = self._connected()
        return mq.waiting_ids(self._queue_id, limit=limit, last_id=self._last_id).ranges

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ReplicaBatch]:
        self._acknowledge(self._offset(start))
        if start == end:
            return []
        return [
            ReplicaBatch(replica, self._queue_id, ranges)
            for replica, ranges in self._offset(end).batch.items()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReplicaBatch)
        with self._options.connected() as mq:
            for page in planned(mq, self._options, partition.queue_id, partition.ranges):
                yield record_batch(page, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        self._acknowledge(self._offset(end))

    def _acknowledge(self, offset: Offset) -> None:
        """Acknowledge the messages of a finished batch; this is on disk when the call returns."""
        if offset == self._acknowledged:
            return
        for ranges in offset.batch.values():
            self._connected().ack_ids(self._queue_id, ranges)
        self._acknowledged = offset

    def stop(self) -> None:
        if self._mq is not None:
            self._mq.close()
            self._mq = None


# The offset of a stream: the ids of the messages of its last batch, per replica of the queue.
#
# An offset cannot be a highest id. Ids are assigned when messages are put. A message with a delay,
# a retried message, or one that was stored in a transaction becomes available after messages with
# higher ids. An offset therefore names exactly the messages of its batch. It implies that the
# messages of all earlier offsets are finished as well.


# The connector treats a queue as having a single replica, under this key.
ONLY_REPLICA = "0"


@dataclass(frozen=True)
class Offset:
    """The messages of one batch."""

    # The id, not the name: a queue that was deleted and created again assigns the same message ids.
    queue_id: int
    batch: dict[str, list[IdRange]]

    def to_json(self) -> dict[str, Any]:
        """Return the offset in types that Spark's checkpoint can hold."""
        return {
            "queue_id": self.queue_id,
            "batch": {replica: format_ranges(ranges) for replica, ranges in self.batch.items()},
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any], queue: str, queue_id: int) -> Offset:
        """Parse an offset from the checkpoint; raise `InvalidValue` if it is of another queue."""
        try:
            batch = {replica: parse_ranges(ranges) for replica, ranges in stored["batch"].items()}
            offset = cls(int(stored["queue_id"]), batch)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidValue(
                f"the checkpoint was not made by a stream from a queue: {stored!r}; use a new one"
            ) from None
        if offset.queue_id != queue_id:
            raise InvalidValue(
                f"queue {queue!r} is not the one that the checkpoint knows: it was deleted and "
                "made anew, or another one was read; use a new checkpoint"
            )
        return offset


# Browsing a queue by message ids, page by page.


PAGE_COUNT = 5000
# How long to look for planned messages. A node that has just started reads its queues first, and a
# foreign consumer may return messages that it took.
MISSING_S = 10.0
MISSING_PAUSE_S = 0.2


class MessagesMissing(TidegateError):
    """Messages of a planned batch are no longer in the queue."""


def pages(
    mq: BlockingClient, queue: str | int, first_id: int, last_id: int, limit: int | None = None
) -> Iterator[list[BlockingMessage]]:
    """Yield the waiting messages with ids from `first_id` to `last_id`, in order of ids.

    Yield the first `limit` of them; `None` means all.
    """
    while limit is None or limit > 0:
        wanted = PAGE_COUNT if limit is None else min(PAGE_COUNT, limit)
        page = mq.browse(queue, limit=wanted, first_id=first_id, last_id=last_id)
        if page:
            yield page
            first_id = page[-1].message_id + 1
        if len(page) < wanted:
            return
        limit = None if limit is None else limit - len(page)


def planned(
    mq: BlockingClient, options: ConnectorOptions, queue_id: int, ranges: list[IdRange]
) -> Iterator[list[BlockingMessage]]:
    """Yield exactly the messages of a planned batch, in pages.

    Messages that are not in the queue are looked for again for ten seconds. After that, raise
    `MessagesMissing`, or skip them if the option `failOnDataLoss` is false.
    """
    gives_up_at = time.monotonic() + MISSING_S
    missing = ranges
    while missing:
        found: list[int] = []
        for page in pages(mq, queue_id, missing[0][0], missing[-1][1]):
            # Between the ids may be other messages: addressed to a receiver, or available only
            # since then.
            ours = [message for message in page if contains_id(missing, message.message_id)]
            if ours:
                found += [message.message_id for message in ours]
                yield ours
        missing = subtract_ranges(missing, found)
        if missing and time.monotonic() > gives_up_at:
            break
        if missing:
            time.sleep(MISSING_PAUSE_S)
    if missing and options.fail_on_data_loss:
        raise MessagesMissing(
            f"{count_ids(missing)} of the {count_ids(ranges)} messages of this batch are no "
            f"longer in "
            f"queue {options.queue!r} (ids {format_ranges(missing[:5])}): another consumer "
            f"took them, "
            "they expired, or the queue was purged. Leave the queue to this one stream; to go on "
            'without them, set option("failOnDataLoss", "false")'
        )


# Message ids as ranges, ascending and disjoint: they name the messages of a batch in an offset.


def format_ranges(ranges: list[IdRange]) -> str:
    """Format ranges as text, such as `1-500,502`."""
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges)


def parse_ranges(text: str) -> list[IdRange]:
    """Parse ranges from text."""
    ranges = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
    return ranges


def count_ids(ranges: list[IdRange]) -> int:
    """Return the number of ids in the ranges."""
    return sum(last - first + 1 for first, last in ranges)


def ranges_overlap(ranges: list[IdRange], others: list[IdRange]) -> bool:
    """Return whether some id lies in both lists of ranges."""
    return count_ids(merge_ranges([*ranges, *others])) < count_ids(ranges) + count_ids(others)


def subtract_ranges(ranges: list[IdRange], ids: list[int]) -> list[IdRange]:
    """Return the ranges without the given ids, which must be ascending."""
    left: list[IdRange] = []
    taken = iter([*ids, 1 << 63])
    following = next(taken)
    for first, last in ranges:
        while following < first:
            following = next(taken)
        while following <= last:
            if first < following:
                left.append((first, following - 1))
            first = following + 1
            following = next(taken)
        if first <= last:
            left.append((first, last))
    return left


# Unused credit is kept for at most this long.
SAVED_S_MAX = 10.0
# After a wait, allow messages for at least this long, so that chunks do not become tiny.
WORTHWHILE_S = 0.1
# Rounding could otherwise request a sleep shorter than the clock's resolution.
SLEEP_S_MIN = 0.001


class WriteRateLimiter:
    """Limits messages per second; a rate of `None` means unlimited."""

    def __init__(
        self,
        per_second: float | None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._monotonic = monotonic
        self._sleep = sleep
        self._credit = 0.0
        self._at = monotonic()

    def allowance(self, count: int) -> int:
        """Return how many of `count` messages may go now, at least one; sleep until one may.

        The caller then passes the number it used to `spend`.
        """
        if self._per_second is None:
            return count
        self._grow(self._per_second)
        worthwhile = min(count, max(1.0, self._per_second * WORTHWHILE_S))
        while self._credit < worthwhile:
            self._sleep(max((worthwhile - self._credit) / self._per_second, SLEEP_S_MIN))
            self._grow(self._per_second)
        return min(count, int(self._credit))

    def spend(self, count: int) -> None:
        self._credit -= count

    def _grow(self, per_second: float) -> None:
        now = self._monotonic()
        saved_max = max(per_second * SAVED_S_MAX, 1.0)
        self._credit = min(self._credit + (now - self._at) * per_second, saved_max)
        self._at = now


# The columns in which a reader returns a message.


_HEADERS = MapType(StringType(), StringType(), valueContainsNull=False)

MESSAGE = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
        StructField("content_type", StringType()),
        StructField("headers", _HEADERS, nullable=False),
        StructField("priority", IntegerType(), nullable=False),
        StructField("sender", LongType(), nullable=False),
        StructField("receiver", LongType()),
        StructField("context", LongType()),
        StructField("put_at", TimestampType(), nullable=False),
        StructField("expires_at", TimestampType()),
        StructField("delivery_count", IntegerType(), nullable=False),
        StructField("group", StringType()),
        StructField("tenant", StringType()),
        StructField("dedup_id", StringType()),
    ]
)


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


_VALUES: dict[str, Callable[[BlockingMessage], Any]] = {
    "id": lambda message: message.message_id,
    "payload": lambda message: message.payload,
    "content_type": lambda message: message.content_type,
    "headers": lambda message: list(message.headers.items()),
    "priority": lambda message: message.priority,
    "sender": lambda message: message.sender,
    "receiver": lambda message: message.receiver,
    "context": lambda message: message.context,
    "put_at": lambda message: _time(message.arrived_at),
    "expires_at": lambda message: _time(message.expires_at),
    "delivery_count": lambda message: message.delivery_count,
    "group": lambda message: message.group,
    "tenant": lambda message: message.tenant,
    "dedup_id": lambda message: message.dedup_id,
}


def check_schema(schema: StructType) -> None:
    """Raise `InvalidValue` if a schema has columns that a message lacks, or other types.

    Columns may be left out.
    """
    known = {each.name: each for each in MESSAGE}
    for each in schema:
        if each.name not in known:
            raise InvalidValue(f"no column {each.name!r}; a message has {', '.join(known)}")
        if each.dataType != known[each.name].dataType:
            wanted = known[each.name].dataType.simpleString()
            raise InvalidValue(
                f"column {each.name!r} is {wanted}, not {each.dataType.simpleString()}: load it "
                "without a schema, and cast"
            )


def record_batch(messages: Sequence[BlockingMessage], schema: StructType) -> pa.RecordBatch:
    """Convert messages to an Arrow batch with the columns of the schema."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array(map(_VALUES[each.name], messages), type=each.type, size=len(messages))
        for each in arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)


# The options of reads and writes, checked on the driver before it connects to a node.
#
# Spark passes options as text and their names in lower case. A password appears in no repr, plan or
# error message.


READ = ("limit",)
READ_STREAM = ("messagesPerBatch", "messagesPerSecond", "failOnDataLoss")
WRITE = ("key", "dedupSeconds", "messagesPerSecond", "writeId")
# `checkpointLocation` and `queryName` are Spark's own options, which it passes to sinks as well.
WRITE_STREAM = ("key", "dedupSeconds", "messagesPerSecond", "checkpointLocation", "queryName")
COMMON_OPTIONS = ("url", "queue", "user", "password", "passwordFile", "tls", "caFile", "patience")
KNOWN = dict.fromkeys((*COMMON_OPTIONS, *READ, *READ_STREAM, *WRITE, *WRITE_STREAM))

# How long a task tries to reconnect to the node.
PATIENCE_S = 60.0
WRITE_ID_LENGTH_MAX = 200


@dataclass(frozen=True)
class ConnectorOptions:
    """Which queue, and how it is read or written."""

    queue: str
    url: str = field(default_factory=default_url, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    tls: bool | None = None
    ca_file: str | None = None
    patience_s: float = PATIENCE_S
    limit: int | None = None
    messages_per_batch: int | None = None
    messages_per_second: float | None = None
    fail_on_data_loss: bool = True
    key: str | None = None
    # How long the queue must remember dedup ids, in seconds; `None` means the default of the write.
    dedup_s: float | None = None
    write_id: str | None = None

    @contextmanager
    def connected(self) -> Iterator[BlockingClient]:
        """Yield a connection for a task, and close it when the block ends."""
        with self.telling(), self.connector() as mq:
            yield mq

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Add queue and URL to the errors of the block; Spark shows errors without the options."""
        try:
            yield
        except TidegateError as error:
            if getattr(error, "tells", False):
                raise
            told = type(error)(f"queue {self.queue!r} at {redact_url(self.url)}: {error}")
            told.tells = True  # type: ignore[attr-defined]
            raise told from None

    def connector(self) -> Connector[Client]:
        """Return an unopened connection; raise if the URL is wrong or the password is missing."""
        return connect(
            self.url,
            user=self.user,
            password=self.password,
            password_file=self.password_file,
            tls=self.tls,
            ca_file=self.ca_file,
            reconnect_s=self.patience_s,
        )

    def open(self) -> BlockingClient:
        """Return a connection that the caller must close."""
        return self.connector().__enter__()


def parse_options(
    options: Mapping[str, str], allowed: tuple[str, ...], purpose: str
) -> ConnectorOptions:
    """Return the options of a read or write; raise `InvalidValue` if one is unknown or wrong.

    `purpose` names the operation in the error message.
    """
    _check_names(options, allowed, purpose)
    if not options.get("queue"):
        raise InvalidValue('name a queue: .option("queue", "orders")')
    values = {
        "url": options.get("url", default_url()),
        "queue": options["queue"],
        "user": options.get("user"),
        "password": options.get("password"),
        "password_file": options.get("passwordFile"),
        "tls": _read(options, "tls", _flag),
        "ca_file": options.get("caFile"),
        "patience_s": _read(options, "patience", _amount),
        "limit": _read(options, "limit", _count),
        "messages_per_batch": _read(options, "messagesPerBatch", _count),
        "messages_per_second": _read(options, "messagesPerSecond", _amount),
        "fail_on_data_loss": _read(options, "failOnDataLoss", _flag),
        "key": options.get("key"),
        "dedup_s": _read(options, "dedupSeconds", _amount),
        "write_id": _read(options, "writeId", _write_id),
    }
    assert values.keys() == {each.name for each in fields(ConnectorOptions)}
    chosen = ConnectorOptions(
        **{name: value for name, value in values.items() if value is not None}
    )
    chosen.connector()
    return chosen


def _check_names(options: Mapping[str, str], allowed: tuple[str, ...], purpose: str) -> None:
    usable = (*COMMON_OPTIONS, *allowed)
    known = {name.lower(): name for name in KNOWN}
    for name in options:
        if name.lower() == "path":
            raise InvalidValue('load() and save() take no path: name the queue by option("queue")')
        if name.lower() not in known:
            raise InvalidValue(f"no option {name!r}; {purpose} has {', '.join(usable)}")
        if known[name.lower()] not in usable:
            raise InvalidValue(
                f"option {known[name.lower()]!r} is not for {purpose}, which has "
                f"{', '.join(usable)}"
            )


def _read(options: Mapping[str, str], name: str, kind: Callable[[str], Any]) -> Any:
    text = options.get(name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError as failure:
        raise InvalidValue(f"option {name!r} is {failure}, not {text!r}") from None


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number from 1")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise ValueError("a number above 0")
    return amount


def _write_id(text: str) -> str:
    if not 0 < len(text) <= WRITE_ID_LENGTH_MAX:
        raise ValueError(f"a name of up to {WRITE_ID_LENGTH_MAX} characters")
    return text
