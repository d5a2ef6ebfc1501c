"""Rules for rows that cannot be true, as Spark columns.

A row is left out if a value is missing, infinite, not a number or negative, or if a sample covers
no time. A row is also left out if its time is in the future or far from the hour of its folder.
One Spark job checks the rows of all kinds and counts them by reason. Small lakes are checked
without Spark, by the same rules (`pipeline.small_vetting`). Most kinds have no such row; their
frames are then read without these checks, so that Spark skips the columns that no job needs.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, NumericType

from tidegate.pipeline.schema import spark_schema
from tidegate.telemetry.schemas import Kind

# Tolerance for the differences between the clocks of machines.
AHEAD = timedelta(minutes=5)
# A row's folder is the hour of writing, shortly after the row was measured.
BEFORE_ITS_HOUR_S = 3600
AFTER_ITS_HOUR_S = 2 * 3600

MISSING = "a figure is missing"
NOT_A_NUMBER = "not a number"
NEGATIVE = "negative"
NO_TIME = "of no time"
FUTURE = "in the future"
CLOCK_JUMP = "far from its hour"
OUT_OF_RANGE = "out of range"

# Reasons that follow from the values of a row alone.
FIGURE_FAULTS = (MISSING, NOT_A_NUMBER, NEGATIVE, NO_TIME)

# The value of an event may have any sign.
_MAY_BE_NEGATIVE = {"value"}


def fault(kind: Kind, since: datetime, until: datetime, now: datetime) -> Column:
    """Return why a row is left out, or null if it is not.

    The frame needs the partition columns `date` and `hour`. The first reason that applies counts.
    """
    # Folders are in UTC, while the session may have another time zone.
    hour_s = F.unix_date(F.col("date").cast("date")).cast("bigint") * 86_400 + F.col("hour") * 3600
    at_s = F.unix_seconds("at")
    far = (at_s < hour_s - BEFORE_ITS_HOUR_S) | (at_s > hour_s + AFTER_ITS_HOUR_S)
    return (
        figure_fault(kind)
        .when(F.col("at") > F.lit(now + AHEAD), FUTURE)
        .when(far, CLOCK_JUMP)
        .when(~in_range(since, until), OUT_OF_RANGE)
    )


def figure_fault(kind: Kind) -> Column:
    """Return which rule the values of a row break, or null if none."""
    reason = F.when(_any(F.col(name).isNull() for name in required_of(kind)), MISSING)
    if floats := floats_of(kind):
        reason = reason.when(_any(_not_finite(F.col(name)) for name in floats), NOT_A_NUMBER)
    if figures := figures_of(kind):
        reason = reason.when(_any(F.col(name) < 0 for name in figures), NEGATIVE)
    if "interval_s" in kind.columns.names:
        # Rates would divide by zero.
        reason = reason.when(F.col("interval_s") == 0, NO_TIME)
    return reason


def in_range(since: datetime, until: datetime) -> Column:
    """Return whether the row's time is at or after `since` and before `until`."""
    return (F.col("at") >= F.lit(since)) & (F.col("at") < F.lit(until))


@dataclass(frozen=True)
class Tally:
    """A number of rows, with the times of the first and the last of them."""

    rows: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.rows + other.rows,
            min(self.first_s, other.first_s),
            max(self.last_s, other.last_s),
        )


def tally(
    frames: Mapping[Kind, DataFrame], since: datetime, until: datetime, now: datetime
) -> dict[str, dict[str | None, Tally]]:
    """Count the rows of each kind by the reason to leave them out; `None` counts usable rows."""
    counted: dict[str, dict[str | None, Tally]] = {kind.name: {} for kind in frames}
    looked_at = [
        frame.select(
            F.lit(kind.name).alias("kind"),
            fault(kind, since, until, now).alias("fault"),
            F.unix_micros("at").alias("at_us"),
        )
        for kind, frame in frames.items()
    ]
    if looked_at:
        every = reduce(DataFrame.unionAll, looked_at)
        sums = (F.count("*"), F.min("at_us"), F.max("at_us"))
        for kind, reason, rows, first_us, last_us in (
            every.groupBy("kind", "fault").agg(*sums).collect()
        ):
            # Rows without a time have neither first nor last.
            times = () if first_us is None else (first_us / 1e6, last_us / 1e6)
            counted[kind][reason] = Tally(rows, *times)
    return counted


def required_of(kind: Kind) -> list[str]:
    """Return the columns that must not be null."""
    return [field.name for field in kind.columns if not field.nullable]


def floats_of(kind: Kind) -> list[str]:
    """Return the columns that could hold NaN or infinity."""
    return [f.name for f in spark_schema(kind) if isinstance(f.dataType, DoubleType | FloatType)]


def figures_of(kind: Kind) -> list[str]:
    """Return the numeric columns that must not be negative."""
    return [
        field.name
        for field in spark_schema(kind)
        if isinstance(field.dataType, NumericType) and field.name not in _MAY_BE_NEGATIVE
    ]


def _not_finite(figure: Column) -> Column:
    return F.isnan(figure) | (F.abs(figure) == float("inf"))


def _any(conditions: Iterable[Column]) -> Column:
    return reduce(operator.or_, conditions)
