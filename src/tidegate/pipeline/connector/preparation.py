"""Repartitioning for large writes without a key column."""

from __future__ import annotations

from pyspark.sql import DataFrame


def prepared(frame: DataFrame, partitions: int | None = None) -> DataFrame:
    """Return the rows with equal rows in one partition, so that the task can number them.

    Equal rows have equal payloads, so the rows are shuffled by payload. `partitions` is their
    number; `None` means Spark's default.
    """
    if partitions is None:
        return frame.repartition("payload")
    return frame.repartition(partitions, "payload")
