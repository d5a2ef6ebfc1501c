"""Queues as DataFrames: the Spark format "tidegate", for reads, writes and streams.

    connector.register(spark)
    orders = spark.readStream.format("tidegate").option("url", url).option("queue", "orders").load()

Theory of operation

The connector uses the Python data source API of Spark 4. Spark creates a `QueueSource` with the
options of the call and asks it for a reader or writer. Readers and writers are pickled: part of
them runs on the driver, part in tasks on the workers. Each task opens a connection of its own.

- `spark.read` browses the waiting messages and leaves them in the queue (`QueueReader`).
- `readStream` names the messages of each batch by their ids (`QueueStreamReader`). A batch is
  browsed as often as Spark asks for it, and acknowledged when Spark has recorded it as finished.
  Each message is therefore in exactly one finished batch, even if the process is killed.
- `write` and `writeStream` give each row a dedup id (`identity`). If Spark writes a row again, the
  node recognizes the id and stores the message once.

Both directions rely on the queue. A stream needs the queue for itself: another consumer could take
messages between planning and reading. A writer needs a deduplication window at least as long as the
time until Spark may write a row again.
"""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tidegate.core.errors import InvalidValue
from tidegate.pipeline import connector_read as o
from tidegate.pipeline.connector_read import MESSAGE, QueueReader, QueueStreamReader
from tidegate.pipeline.connector_write import QueueStreamWriter, QueueWriter, prepared

__all__ = ["QueueSource", "prepared", "register"]


def register(spark: SparkSession) -> None:
    """Register the format "tidegate" with a session, for the calling thread.

    Other threads that use the format must call this again.

    Spark looks up formats in the active session of the calling thread, and new threads have none.
    """
    spark.dataSource.register(QueueSource)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.SparkSession.setActiveSession(spark._jsparkSession)


# The format "tidegate": choose a reader or writer, and check its options.


class QueueSource(DataSource):
    """The data source of one queue."""

    @classmethod
    def name(cls) -> str:
        return "tidegate"

    def schema(self) -> StructType:
        return MESSAGE

    def reader(self, schema: StructType) -> QueueReader:
        return QueueReader(o.parse_options(self.options, o.READ, "a read"), schema)

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802
        return QueueStreamReader(o.parse_options(self.options, o.READ_STREAM, "a stream"), schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        _refuse(overwrite)
        return QueueWriter(o.parse_options(self.options, o.WRITE, "a write"), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> QueueStreamWriter:
        _refuse(overwrite)
        return QueueStreamWriter(
            o.parse_options(self.options, o.WRITE_STREAM, "a written stream"), schema
        )


def _refuse(overwrite: bool) -> None:
    if overwrite:
        raise InvalidValue(
            'a queue is not overwritten: use mode("append"), or for a stream outputMode("append")'
        )
