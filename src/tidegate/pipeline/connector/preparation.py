"""Equal rows side by side, so that who writes them can count them."""

from __future__ import annotations

from pyspark.sql import DataFrame


def prepared(frame: DataFrame, partitions: int | None = None) -> DataFrame:
    """The same rows, with equal ones in one partition: for large writes without a key column.

    Equal rows have equal payloads, so that is what they are shuffled by.
    """
    if partitions is None:
        return frame.repartition("payload")
    return frame.repartition(partitions, "payload")
