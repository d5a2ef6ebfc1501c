"""`df.writeStream`: a stream into a queue; a batch that is written again is stored once.

Spark does not tell the writer to which batch a task belongs. The task reads it from the local
properties of its job.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.core.errors import InternalError
from tidegate.pipeline.connector.options import Options
from tidegate.pipeline.connector.outgoing import check_columns
from tidegate.pipeline.connector.putting import put_rest, put_rows
from tidegate.pipeline.connector.tally import Written

# A person has to notice that a query ended before restarting it.
DEDUP_S = 3600.0
# The id of a query is part of its checkpoint and stays the same after a restart.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes every batch of a query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options.key)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return put_rows(self._options, _write_name(), iterator, DEDUP_S)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        put_rest(self._options, messages)


def _write_name() -> str:
    context = TaskContext.get()
    query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    if query is None or batch is None:
        raise InternalError("Spark does not say to which query and batch this task belongs")
    return f"{query}-{batch}"
