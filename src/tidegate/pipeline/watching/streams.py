"""From the lake's rows to complete windows of rows.

Spark gathers rows until the watermark passes the end of their window, then emits each window once.
A window contains the rows themselves. The transforms of `learn`, which know nothing of streams, can
therefore judge a window of the stream as they judge a window of history.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.pipeline.watching.source import FORMAT, LakeSource, StreamOptions
from tidegate.telemetry.schemas import REQUESTS

# The columns that identify a row; a row with equal values is a copy.
_IDENTITY: dict[str, tuple[str, ...]] = {
    "queue_samples": ("node", "queue", "replica", "at"),
    "http_samples": ("node", "service", "door", "instance", "at"),
    "lifecycles": ("node", "queue", "message_id", "at"),
    # Requests have no id: two rows are copies if all columns are equal.
    "requests": tuple(REQUESTS.columns.names),
}
# The state of a window is split by minute: Spark rewrites a state entry for each change, and a
# finished piece does not change again.
_PIECE = "minute"


def lake_rows(spark: SparkSession, stream: StreamOptions) -> DataFrame:
    """Return the rows of the lake as an unbounded frame."""
    spark.dataSource.register(LakeSource)
    return spark.readStream.format(FORMAT).options(**stream.as_options()).load()


def whole_windows(rows: DataFrame, stream: StreamOptions, window_s: float) -> DataFrame:
    """Return the rows of complete windows, as lists per window, minute and key."""
    return (
        rows.withWatermark("at", f"{round(stream.delay_s * 1000)} milliseconds")
        .groupBy(
            F.window("at", f"{round(window_s * 1000)} milliseconds").alias("gathered"),
            F.date_trunc(_PIECE, "at").alias("piece"),
            "key",
        )
        .agg(F.collect_list(F.struct("kind", *stream.kinds)).alias("rows"))
    )


def rows_of(windows: DataFrame, kind: str) -> DataFrame:
    """Return the rows of one kind in a batch of complete windows, without copies."""
    return (
        # Use one task: a batch is a few windows, and a shuffle would cost more than the rest.
        windows.coalesce(1)
        .select(F.inline("rows"))
        .filter(F.col("kind") == kind)
        .select(f"{kind}.*")
        .dropDuplicates(list(_IDENTITY[kind]))
    )
