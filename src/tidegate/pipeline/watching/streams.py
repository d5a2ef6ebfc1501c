"""From the lake's rows to whole windows of them.

Spark gathers rows until the watermark says that their window is complete, and gives each window
out once. What is given out are the rows themselves, without copies: so the transforms of `learn`,
which know nothing of streams, judge a window of the stream as they judge it in history.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidegate.pipeline.watching.source import FORMAT, LakeSource, StreamOptions
from tidegate.telemetry.schemas import REQUESTS

# What makes a row itself: the same again is a copy.
_IDENTITY: dict[str, tuple[str, ...]] = {
    "queue_samples": ("node", "queue", "replica", "at"),
    "http_samples": ("node", "service", "door", "instance", "at"),
    "lifecycles": ("node", "queue", "message_id", "at"),
    # They have no name: two are the same if nothing tells them apart.
    "requests": tuple(REQUESTS.columns.names),
}
# Windows are gathered in pieces of at most so long: a piece that is done is not touched again.
_PIECE = "minute"


def lake_rows(spark: SparkSession, stream: StreamOptions) -> DataFrame:
    """The rows of the lake as they come."""
    spark.dataSource.register(LakeSource)
    return spark.readStream.format(FORMAT).options(**stream.as_options()).load()


def whole_windows(rows: DataFrame, stream: StreamOptions, window_s: float) -> DataFrame:
    """The rows of windows that are complete, as lists."""
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
    """Of one batch of whole windows the rows of a kind, each once."""
    return (
        # In one task: a batch is a few windows, and each shuffle would cost more than all the rest.
        windows.coalesce(1)
        .select(F.inline("rows"))
        .filter(F.col("kind") == kind)
        .select(f"{kind}.*")
        .dropDuplicates(list(_IDENTITY[kind]))
    )
