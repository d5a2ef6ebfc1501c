"""A driver to kill: streams a queue into one folder per batch, and holds still where it is told.

    stream_process.py URL QUEUE CHECKPOINT OUTPUT BATCH half|whole

Prints `holding` in the middle of BATCH, with half or all of it written, and waits to be killed.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from tidegate.pipeline import connector
from tidegate.pipeline.session import SparkOptions, spark_session

PER_BATCH = 6_000


def stream_to_folders(
    spark: SparkSession,
    url: str,
    queue: str,
    checkpoint: str,
    output: str,
    held: int | None = None,
    how: str = "",
) -> None:
    """All that waits; a batch that comes again replaces its folder."""

    def into_its_folder(batch: DataFrame, number: int) -> None:
        rows = batch.select("id", "payload")
        if number == held and how == "half":
            rows = rows.limit(PER_BATCH // 2)
        rows.write.mode("overwrite").parquet(f"{output}/batch={number}")
        if number == held:
            print("holding", flush=True)
            sys.stdin.read()

    stream = spark.readStream.format("tidegate").option("url", url).option("queue", queue)
    query = (
        stream.option("messagesPerBatch", PER_BATCH)
        .load()
        .writeStream.foreachBatch(into_its_folder)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    options = SparkOptions("local[2]", {"spark.driver.memory": "1g"}, brief=True)
    with spark_session(options) as spark:
        connector.register(spark)
        stream_to_folders(spark, *sys.argv[1:5], held=int(sys.argv[5]), how=sys.argv[6])
