"""Queues as DataFrames: `spark.read`, `readStream`, `write` and `writeStream` with "tidegate".

    connector.register(spark)
    orders = spark.readStream.format("tidegate").option("url", url).option("queue", "orders").load()

On the Python Data Source API of Spark 4. A batch of a stream is named by the ids of its messages:
they are browsed, not taken, and acknowledged when Spark says that the batch is done. What is
written carries dedup ids, so that a batch that is written again is stored once.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from tidegate.pipeline.connector.preparation import prepared
from tidegate.pipeline.connector.source import QueueSource

__all__ = ["QueueSource", "prepared", "register"]


def register(spark: SparkSession) -> None:
    """Let a session know the format "tidegate"; from another thread, once more there.

    Spark looks formats up in the session of the thread that asks, and threads begin without one.
    """
    spark.dataSource.register(QueueSource)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.SparkSession.setActiveSession(spark._jsparkSession)
