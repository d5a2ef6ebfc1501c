"""Queues as DataFrames: the Spark format "tidegate", for reads, writes and streams.

    connector.register(spark)
    orders = spark.readStream.format("tidegate").option("url", url).option("queue", "orders").load()

Theory of operation

The connector uses the Python data source API of Spark 4. Spark creates a `QueueSource` with the
options of the call and asks it for a reader or writer. Readers and writers are pickled: part of
them runs on the driver, part in tasks on the workers. Each task opens a connection of its own.

- `spark.read` browses the waiting messages and leaves them in the queue (`batch_reader`).
- `readStream` names the messages of each batch by their ids (`stream_reader`). A batch is browsed,
  as often as Spark asks for it, and acknowledged when Spark has recorded it as finished. Each
  message is therefore in exactly one finished batch, even if the process is killed.
- `write` and `writeStream` give each row a dedup id (`identity`). If Spark writes a row again, the
  node recognizes the id and stores the message once.

Both directions rely on the queue. A stream needs the queue for itself: another consumer could take
messages between planning and reading. A writer needs a deduplication window at least as long as the
time until Spark may write a row again.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidegate.pipeline.connector.preparation import prepared
from tidegate.pipeline.connector.source import QueueSource

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
