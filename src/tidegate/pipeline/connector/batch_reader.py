"""`spark.read`: the messages that wait in a queue now; they stay in the queue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidegate.pipeline.connector.columns import check_schema, record_batch
from tidegate.pipeline.connector.offset import ONLY_REPLICA
from tidegate.pipeline.connector.options import Options
from tidegate.pipeline.connector.pages import pages


@dataclass
class Waiting(InputPartition):
    """The messages of a replica whose ids were assigned before the read was planned."""

    replica: str
    queue_id: int
    last_id: int


class QueueReader(DataSourceReader):
    """Reads a queue by browsing it."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema

    def partitions(self) -> list[Waiting]:
        queue = self._options.queue
        with self._options.connected() as mq:
            queue_id = mq.queue(queue).queue_id
            # Bound the ids: otherwise the read of a queue with steady traffic would never end.
            below_id = mq.waiting_ids(queue_id, limit=1).below_id
        return [Waiting(ONLY_REPLICA, queue_id, below_id - 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Waiting)
        with self._options.connected() as mq:
            for page in pages(mq, partition.queue_id, 0, partition.last_id, self._options.limit):
                yield record_batch(page, self._schema)
