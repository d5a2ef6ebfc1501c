"""`df.write`: a DataFrame into a queue; a task that Spark retries stores no message twice."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tidegate.pipeline.connector.options import Options
from tidegate.pipeline.connector.outgoing import check_columns
from tidegate.pipeline.connector.putting import put_rest, put_rows
from tidegate.pipeline.connector.tally import Written

# Spark retries a failed task at once.
DEDUP_S = 300.0


class QueueWriter(DataSourceArrowWriter):
    """One write; all its tasks share its name."""

    def __init__(self, options: Options, schema: StructType) -> None:
        check_columns(schema, options.key)
        self._options = options
        self._write = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return put_rows(self._options, self._write, iterator, DEDUP_S)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        put_rest(self._options, messages)
