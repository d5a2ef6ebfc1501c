"""The lake as Spark frames: the files that can be read, of them the rows that can be true.

surveys = survey(place, kinds, since, until)
lake = read_lake(spark, place, surveys, since, until, now)
lake.frames["queue_samples"].transform(…)
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
    """The lake has no rows of the time that was asked for."""

    name = "LAKE_EMPTY"


@dataclass(frozen=True)
class LakeFrames:
    """What jobs read, by kind, and what was left out of it."""

    frames: Mapping[str, DataFrame]
    reading: Mapping[str, Reading]
    # When the first of its rows was recorded, and the last.
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
    """The rows of the files that a survey found, between two times."""
    is_looked_through = is_small(surveys.values())
    counts = tally_small(place, surveys.values(), since, until, now) if is_looked_through else {}
    # Only now: a file that turned out to be spoiled is in no survey any more.
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
    """The files of one kind, with the columns date and hour of their folders."""
    return (
        spark.read.schema(spark_schema(found.kind))
        .option("basePath", place.for_spark(f"{place.path}/{found.kind.name}"))
        # They are names and not patterns, whatever is in them.
        .option("__globPaths__", "false")
        .parquet(*(place.for_spark(path) for path in found.paths))
    )
