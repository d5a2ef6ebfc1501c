"""`spark.readStream`: a queue as a stream, each message in exactly one batch.

    latestOffset(start)            acknowledge the batch of `start`; name the next messages
    partitions(start, end), read   browse the messages of `end`, as often as Spark asks
    commit(end)                    acknowledge the messages of `end`

Theory of operation

An offset names the messages of one batch by their ids (see `offset`). Messages stay in the queue
while their batch is planned and processed. The node removes them when they are acknowledged.

When to acknowledge. Spark calls `commit(end)` after it has recorded the batch in its commit log. If
the process is killed between the two, `commit` is never called for that batch. Spark asks for the
offset after `start` only if the batch of `start` is in the commit log. `latestOffset` and
`partitions` therefore acknowledge `start` again, which makes up for a lost `commit`.
Acknowledging twice does no harm.

After a crash, Spark plans an unfinished batch again from the offset in its checkpoint. The reader
browses the same ids, which are still in the queue.

Foreign consumers. The stream needs the queue for itself. If another consumer held messages while
they were acknowledged and returned them later, they appear in the next batch as well. The reader
recognizes this by overlapping ids and acknowledges them again. If another consumer took messages of
a planned batch, `read` raises `MessagesMissing`, unless `failOnDataLoss` is false.

The driver keeps one connection while the query runs; each task opens its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidegate.client.blocking import BlockingClient
from tidegate.core.id_ranges import Range
from tidegate.pipeline.connector.columns import check_schema, record_batch
from tidegate.pipeline.connector.offset import ONLY_REPLICA, Offset
from tidegate.pipeline.connector.options import Options
from tidegate.pipeline.connector.pace import Pace
from tidegate.pipeline.connector.pages import planned
from tidegate.pipeline.connector.ranges import count, overlap

# The most messages of a batch without a limit: planning holds the ranges of ids in memory.
BATCH_COUNT_MAX = 10_000_000


@dataclass
class Share(InputPartition):
    """The messages of a batch in one replica."""

    replica: str
    queue_id: int
    ranges: list[Range]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, and reads them in tasks."""

    def __init__(self, options: Options, schema: StructType, pace: Pace | None = None) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._pace = pace or Pace(options.messages_per_second)
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
        if any(overlap(ranges, before) for before in done.batch.values()):
            # A foreign consumer held some of these messages when they were acknowledged, and
            # returned them. If exactly the same ids became the next batch, Spark would see no
            # progress and never run it.
            self._acknowledged = None
            self._acknowledge(done)
            ranges = self._waiting(allowed)
        if not ranges:
            return start
        self._pace.spend(count(ranges))
        return Offset(self._queue_id, {ONLY_REPLICA: ranges}).to_json()

    def _waiting(self, limit: int) -> list[Range]:
        mq = self._connected()
        return mq.waiting_ids(self._queue_id, limit=limit, last_id=self._last_id).ranges

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Share]:
        self._acknowledge(self._offset(start))
        if start == end:
            return []
        return [
            Share(replica, self._queue_id, ranges)
            for replica, ranges in self._offset(end).batch.items()
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
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
