"""The format "tidegate": choose a reader or writer, and check its options."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.core.errors import InvalidValue
from tidegate.pipeline.connector import options as o
from tidegate.pipeline.connector.batch_reader import QueueReader
from tidegate.pipeline.connector.batch_writer import QueueWriter
from tidegate.pipeline.connector.columns import MESSAGE
from tidegate.pipeline.connector.stream_reader import QueueStreamReader
from tidegate.pipeline.connector.stream_writer import QueueStreamWriter


class QueueSource(DataSource):
    """The data source of one queue."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> StructType:
        return MESSAGE

    def reader(self, schema: StructType) -> QueueReader:
        return QueueReader(o.parse(self.options, o.READ, "a read"), schema)

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802
        return QueueStreamReader(o.parse(self.options, o.READ_STREAM, "a stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        _refuse(overwrite)
        return QueueWriter(o.parse(self.options, o.WRITE, "a write"), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> QueueStreamWriter:
        _refuse(overwrite)
        return QueueStreamWriter(o.parse(self.options, o.WRITE_STREAM, "a written stream"), schema)


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise InvalidValue(
            'a queue is not overwritten: use mode("append"), or for a stream outputMode("append")'
        )
