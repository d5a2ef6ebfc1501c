"""The lake as Spark frames: usable rows of usable files.

    surveys = survey(place, kinds, since, until)
    lake = read_lake(spark, place, surveys, since, until, now)
    lake.frames["queue_samples"].transform(…)

Theory of operation

The lake is a folder of Parquet files, one subfolder per row kind, date and hour. Nodes append files
to it; a compaction replaces the files of an hour by one. Reading takes two steps, and each removes
what cannot be used and counts it by reason. No step fails because of a bad file or a bad row.

1. `survey` works on files. It lists the files whose hour can hold rows of the requested time, and
   reads the footer of each. It drops files that are damaged, of another kind or version, copies, or
   replaced by a compacted file. It needs no Spark.
2. `read_lake` works on rows. It drops rows that cannot be true, for example with a negative count
   or a time in the future, and counts them by reason (`vetting`). Up to two million rows, Arrow
   counts them before Spark reads anything (`small_vetting`): Spark would take longer to prepare.
   Both use the same rules in the same order.

If a kind has no bad row, `read_lake` filters its frame by time only. Spark then reads only the
columns that a job uses.

A location that is not a folder raises `LakeMissing`. A file system that does not answer raises
`LakeUnreachable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from tidegate.core.errors import Notice
from tidegate.pipeline.schema import spark_schema
from tidegate.pipeline.small_vetting import is_small, tally_small
from tidegate.pipeline.survey import Place, Survey
from tidegate.pipeline.vetting import OUT_OF_RANGE, Tally, fault, in_range, tally
from tidegate.telemetry.knowledge import Reading


class LakeEmpty(Notice):
    """The lake has no usable rows of the requested time."""

    name = "LAKE_EMPTY"


@dataclass(frozen=True)
class LakeFrames:
    """The frames that jobs read, by kind, and what was left out of them."""

    frames: Mapping[str, DataFrame]
    reading: Mapping[str, Reading]
    # The times of the first and of the last usable row. Without any, the requested time.
    first: datetime
    last: datetime


def read_lake(
    spark: SparkSession,
    place: Place,
    surveys: Mapping[str, Survey],
    since: datetime,
    until: datetime,
    now: datetime,
) -> LakeFrames:
    """Return the usable rows from `since` up to, but not including, `until`.

    `surveys` is the result of `survey`. A file whose rows turn out to be unreadable is removed from
    its survey. Rows later than `now` plus five minutes are left out as lying in the future. A kind
    without rows becomes an empty frame with its schema.
    """
    is_looked_through = is_small(surveys.values())
    counts = tally_small(place, surveys.values(), since, until, now) if is_looked_through else {}
    # Open the files only after the count: it removes unreadable files from the surveys.
    raw = {found.kind: _opened(spark, place, found) for found in surveys.values() if found.paths}
    if not is_looked_through:
        counts = tally(raw, since, until, now)
    frames: dict[str, DataFrame] = {}
    reading: dict[str, Reading] = {}
    for name, found in surveys.items():
        counted = counts.get(name, {})
        left_out = {
            str(reason): seen.rows
            for reason, seen in counted.items()
            if reason not in (None, OUT_OF_RANGE)
        }
        reading[name] = Reading(
            files=len(found.paths),
            rows=counted.get(None, Tally()).rows,
            files_left_out=dict(found.left_out),
            rows_left_out=left_out,
        )
        schema = spark_schema(found.kind)
        if not reading[name].rows:
            frames[name] = spark.createDataFrame([], schema)
            continue
        frame = raw[found.kind]
        usable = (
            fault(found.kind, since, until, now).isNull() if left_out else in_range(since, until)
        )
        frames[name] = frame.filter(usable).select(*schema.names)
    good = [counted[None] for counted in counts.values() if None in counted]
    if not good:
        return LakeFrames(frames, reading, since, until)
    first_s, last_s = min(seen.first_s for seen in good), max(seen.last_s for seen in good)
    return LakeFrames(
        frames, reading, datetime.fromtimestamp(first_s, UTC), datetime.fromtimestamp(last_s, UTC)
    )


def _opened(spark: SparkSession, place: Place, found: Survey) -> DataFrame:
    """Return the rows of one kind, with the columns `date` and `hour` of their folders."""
    return (
        spark.read.schema(spark_schema(found.kind))
        .option("basePath", place.for_spark(f"{place.path}/{found.kind.name}"))
        # The paths are names, even if they contain characters of a glob pattern.
        .option("__globPaths__", "false")
        .parquet(*(place.for_spark(path) for path in found.paths))
    )
