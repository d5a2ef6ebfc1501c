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
   or a time in the future, and counts them by reason (`count_rejected`). Up to two million rows,
   Arrow counts them before Spark reads anything (`count_rejected_small`): Spark would take longer
   to prepare. Both use the same rules in the same order.

If a kind has no bad row, `read_lake` filters its frame by time only. Spark then reads only the
columns that a job uses.

A location that is not a folder raises `LakeMissing`. A file system that does not answer raises
`LakeUnreachable`.
"""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    NumericType,
    StructField,
    StructType,
)

from tidegate.core.errors import Notice, TidegateError
from tidegate.core.text import redact_secrets
from tidegate.telemetry import lake
from tidegate.telemetry.lake import HOUR_S, FileState, file_states, filesystem_of
from tidegate.telemetry.models import ReadCounts
from tidegate.telemetry.schemas import FILE_KEY, KIND_KEY, REPLACES_KEY, VERSION_KEY, RowKind


class LakeEmpty(Notice):
    """The lake has no usable rows of the requested time."""

    name = "LAKE_EMPTY"


@dataclass(frozen=True)
class LakeFrames:
    """The frames that jobs read, by kind, and what was left out of them."""

    frames: Mapping[str, DataFrame]
    reading: Mapping[str, ReadCounts]
    # The times of the first and of the last usable row. Without any, the requested time.
    first: datetime
    last: datetime


def read_lake(
    spark: SparkSession,
    place: LakeFolder,
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
    counts = (
        count_rejected_small(place, surveys.values(), since, until, now)
        if is_looked_through
        else {}
    )
    # Open the files only after the count: it removes unreadable files from the surveys.
    raw = {found.kind: _opened(spark, place, found) for found in surveys.values() if found.paths}
    if not is_looked_through:
        counts = count_rejected(raw, since, until, now)
    frames: dict[str, DataFrame] = {}
    reading: dict[str, ReadCounts] = {}
    for name, found in surveys.items():
        counted = counts.get(name, {})
        left_out = {
            str(reason): seen.rows
            for reason, seen in counted.items()
            if reason not in (None, OUT_OF_RANGE)
        }
        reading[name] = ReadCounts(
            files=len(found.paths),
            rows=counted.get(None, RowTotals()).rows,
            files_left_out=dict(found.left_out),
            rows_left_out=left_out,
        )
        schema = spark_schema(found.kind)
        if not reading[name].rows:
            frames[name] = spark.createDataFrame([], schema)
            continue
        frame = raw[found.kind]
        usable = (
            row_fault(found.kind, since, until, now).isNull()
            if left_out
            else in_range(since, until)
        )
        frames[name] = frame.filter(usable).select(*schema.names)
    good = [counted[None] for counted in counts.values() if None in counted]
    if not good:
        return LakeFrames(frames, reading, since, until)
    first_s, last_s = min(seen.first_s for seen in good), max(seen.last_s for seen in good)
    return LakeFrames(
        frames, reading, datetime.fromtimestamp(first_s, UTC), datetime.fromtimestamp(last_s, UTC)
    )


def _opened(spark: SparkSession, place: LakeFolder, found: Survey) -> DataFrame:
    """Return the rows of one kind, with the columns `date` and `hour` of their folders."""
    return (
        spark.read.schema(spark_schema(found.kind))
        .option("basePath", place.for_spark(f"{place.path}/{found.kind.name}"))
        # The paths are names, even if they contain characters of a glob pattern.
        .option("__globPaths__", "false")
        .parquet(*(place.for_spark(path) for path in found.paths))
    )


# Which files of the lake a run reads, and which it leaves out, by reason.
#
# The footer of each file holds its kind, version, file id, and the ids of the files it replaces.
# Threads read the footers before Spark opens any file. A file that is damaged or of another version
# is left out and counted; the run continues with the others.


_FOOTER_THREADS = 8
# Rows are written after they were measured, and the folder is that of the hour of writing.
LATE = timedelta(hours=1)
_AN_HOUR = timedelta(hours=1)

UNREADABLE = "cut or not Parquet"
NOT_PARTITIONED = "not in a folder of date and hour"
OTHER_KIND = "of another kind"
OTHER_VERSION = "of another version"
OTHER_COLUMNS = "with other columns"
DUPLICATE = "a copy of another"
REPLACED = "compacted into another"
_LEFT_OUT = {FileState.COPY: DUPLICATE, FileState.REPLACED: REPLACED}


class LakeMissing(TidegateError):
    """The location of the lake holds no folder."""

    name = "LAKE_MISSING"


class LakeUnreachable(TidegateError):
    """The file system of the lake did not answer, or the location is not valid."""

    name = "LAKE_UNREACHABLE"


@dataclass(frozen=True)
class LakeFolder:
    """A folder on any file system that pyarrow supports."""

    files: pa.fs.FileSystem
    path: str
    # The URI scheme by which Spark addresses this file system, with `://`.
    prefix: str

    @staticmethod
    def of(location: str) -> LakeFolder:
        """Return the folder at `location`, a path or a URI such as `s3://bucket/lake`.

        Raise `LakeUnreachable` if the location is not valid or its file system cannot be opened.
        """
        scheme = location.partition("://")[0] if "://" in location else "file"
        try:
            files, path = filesystem_of(location)
        except pa.ArrowInvalid as error:
            raise LakeUnreachable(
                f"{redact_secrets(location)} is not a place that can be read "
                f"({redact_secrets(_first_line(error))}): name a folder, or an address such as "
                "s3://bucket/lake, with --lake"
            ) from error
        except OSError as error:
            raise _unreachable(location, error) from error
        # Hadoop names the same file system s3a.
        return LakeFolder(files, path.rstrip("/"), "s3a://" if scheme == "s3" else f"{scheme}://")

    @property
    def name(self) -> str:
        """The location as users write it."""
        return self.for_spark(self.path).replace("s3a://", "s3://", 1)

    def for_spark(self, path: str) -> str:
        """Return the URI by which Spark opens `path`."""
        return self.prefix + path


@dataclass
class Survey:
    """The files of one kind that a run reads, and how many it leaves out by reason."""

    kind: RowKind
    paths: list[str] = field(default_factory=list)
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class FileFooter:
    """The contents of a file's footer."""

    path: str
    rows: int
    file_id: str
    replaces: frozenset[str]
    # The times of the first and last row; `None` if the file has no statistics.
    first_s: float | None = None
    last_s: float | None = None
    # Why the file cannot be used; empty if it can.
    fault: str = ""


def survey(
    place: LakeFolder, kinds: Iterable[RowKind], since: datetime, until: datetime
) -> dict[str, Survey]:
    """Return, for each kind, the files that may hold rows between two times.

    Raise `LakeMissing` or `LakeUnreachable` if the lake cannot be read.
    """
    check_there(place)
    return {kind.name: _survey_of(place, kind, since, until) for kind in kinds}


def check_there(place: LakeFolder) -> None:
    """Raise `LakeMissing` or `LakeUnreachable` unless `place` is an existing folder."""
    try:
        found = place.files.get_file_info(place.path).type
    except (pa.ArrowException, OSError) as error:
        raise _unreachable(place.name, error) from error
    if found != pa.fs.FileType.Directory:
        raise LakeMissing(
            f"there is no lake at {place.path}: nodes write one while telemetry is enabled; "
            "name another with --lake"
        )


def _unreachable(location: str, error: Exception) -> LakeUnreachable:
    return LakeUnreachable(
        f"the lake at {redact_secrets(location)} cannot be reached "
        f"({redact_secrets(_first_line(error))}): check its name, its credentials and the "
        "network, or name another with --lake"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _survey_of(place: LakeFolder, kind: RowKind, since: datetime, until: datetime) -> Survey:
    found = Survey(kind)
    paths = []
    for path in list_files(place, kind):
        hour = hour_of(path)
        if hour is None:
            found.left_out[NOT_PARTITIONED] += 1
        elif not ended_before(path, since.timestamp()) and hour <= until + LATE:
            paths.append(path)
    with ThreadPoolExecutor(_FOOTER_THREADS, "footers") as threads:
        footers = list(threads.map(lambda path: read_footer(place, kind, path), paths))
    found.left_out.update(footer.fault for footer in footers if footer.fault)
    sound = [footer for footer in footers if not footer.fault]
    claims = [(footer.file_id, footer.replaces) for footer in sound]
    for footer, standing in zip(sound, file_states(claims), strict=True):
        if standing is FileState.COUNTS:
            found.paths.append(footer.path)
            found.rows += footer.rows
        else:
            found.left_out[_LEFT_OUT[standing]] += 1
    return found


def list_files(place: LakeFolder, kind: RowKind) -> Sequence[str]:
    """Return the paths of all Parquet files of a kind, sorted."""
    folder = f"{place.path}/{kind.name}"
    selector = pa.fs.FileSelector(folder, recursive=True, allow_not_found=True)
    return sorted(
        info.path
        for info in place.files.get_file_info(selector)
        if info.type == pa.fs.FileType.File
        and info.path.endswith(".parquet")
        # Files and folders that begin with `_` or `.` are being written; Spark skips them too.
        and not any(part[0] in "_." for part in info.path[len(folder) + 1 :].split("/"))
    )


def ended_before(path: str, since_s: float | None) -> bool:
    """Return whether a file's folder can hold only rows older than `since_s`, even late ones."""
    hour = hour_of(path)
    if hour is None or since_s is None:
        return False
    return (hour + _AN_HOUR + LATE).timestamp() <= since_s


def hour_of(path: str) -> datetime | None:
    """Return the hour of the folder that holds a file, or `None` if it lies in no such folder."""
    hour = lake.hour_of(path)
    return None if hour is None else datetime.fromtimestamp(hour * HOUR_S, UTC)


def read_footer(place: LakeFolder, kind: RowKind, path: str) -> FileFooter:
    """Return the contents of a file's footer; `fault` says why the file is unusable."""
    try:
        metadata = pq.read_metadata(path, filesystem=place.files)
        columns = metadata.schema.to_arrow_schema()
        says = metadata.metadata or {}
        replaces = frozenset(map(str, json.loads(says.get(REPLACES_KEY, b"[]"))))
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return FileFooter(path, 0, "", frozenset(), fault=UNREADABLE)
    fault = ""
    if says.get(KIND_KEY) != kind.name.encode():
        fault = OTHER_KIND
    elif says.get(VERSION_KEY) != str(kind.version).encode():
        fault = OTHER_VERSION
    elif not _has_columns(columns, kind.columns):
        fault = OTHER_COLUMNS
    # A file without an id is equal only to itself.
    file_id = says.get(FILE_KEY, path.encode()).decode(errors="replace")
    first_s, last_s = (None, None) if fault else _range_s(metadata)
    return FileFooter(path, metadata.num_rows, file_id, replaces, first_s, last_s, fault)


def _range_s(metadata: Any) -> tuple[float | None, float | None]:
    """Return the times of the first and last row, from the statistics of column `at`."""
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    statistics = [group.column(names.index("at")).statistics for group in groups]
    if not statistics or not all(each and each.has_min_max for each in statistics):
        return None, None
    # Use the raw microseconds: the times of a clock that is far off exceed Python's `datetime`.
    first_us = min(each.min_raw for each in statistics)
    last_us = max(each.max_raw for each in statistics)
    return first_us / 1e6, last_us / 1e6


def _has_columns(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether all wanted columns are there; additional columns are allowed."""
    return all(
        found.get_field_index(field.name) >= 0
        and _plain_type(found.field(field.name).type) == _plain_type(field.type)
        for field in wanted
    )


def _plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type without details that Parquet may drop.

    Such details are dictionary encoding, and the names and nullability inside lists.
    """
    if pa.types.is_dictionary(arrow_type):
        return arrow_type.value_type
    if pa.types.is_list(arrow_type):
        return pa.list_(_plain_type(arrow_type.value_type))
    if pa.types.is_map(arrow_type):
        return pa.map_(_plain_type(arrow_type.key_type), _plain_type(arrow_type.item_type))
    if pa.types.is_struct(arrow_type):
        return pa.struct([(part.name, _plain_type(part.type)) for part in arrow_type])
    return arrow_type


# Rules for rows that cannot be true, as Spark columns.
#
# A row is left out if a value is missing, infinite, not a number or negative, or if a sample covers
# no time. A row is also left out if its time is in the future or far from the hour of its folder.
# One Spark job checks the rows of all kinds and counts them by reason. Small lakes are checked
# without Spark, by the same rules (`count_rejected_small`). Most kinds have no such row; their
# frames are then read without these checks, so that Spark skips the columns that no job needs.


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
VALUE_FAULTS = (MISSING, NOT_A_NUMBER, NEGATIVE, NO_TIME)

# The value of an event may have any sign.
_MAY_BE_NEGATIVE = {"value"}


def row_fault(kind: RowKind, since: datetime, until: datetime, now: datetime) -> Column:
    """Return why a row is left out, or null if it is not.

    The frame needs the partition columns `date` and `hour`. The first reason that applies counts.
    """
    # Folders are in UTC, while the session may have another time zone.
    hour_s = F.unix_date(F.col("date").cast("date")).cast("bigint") * 86_400 + F.col("hour") * 3600
    at_s = F.unix_seconds("at")
    far = (at_s < hour_s - BEFORE_ITS_HOUR_S) | (at_s > hour_s + AFTER_ITS_HOUR_S)
    return (
        value_fault(kind)
        .when(F.col("at") > F.lit(now + AHEAD), FUTURE)
        .when(far, CLOCK_JUMP)
        .when(~in_range(since, until), OUT_OF_RANGE)
    )


def value_fault(kind: RowKind) -> Column:
    """Return which rule the values of a row break, or null if none."""
    reason = F.when(_any_column(F.col(name).isNull() for name in required_of(kind)), MISSING)
    if floats := floats_of(kind):
        reason = reason.when(_any_column(_not_finite(F.col(name)) for name in floats), NOT_A_NUMBER)
    if figures := numeric_columns(kind):
        reason = reason.when(_any_column(F.col(name) < 0 for name in figures), NEGATIVE)
    if "interval_s" in kind.columns.names:
        # Rates would divide by zero.
        reason = reason.when(F.col("interval_s") == 0, NO_TIME)
    return reason


def in_range(since: datetime, until: datetime) -> Column:
    """Return whether the row's time is at or after `since` and before `until`."""
    return (F.col("at") >= F.lit(since)) & (F.col("at") < F.lit(until))


@dataclass(frozen=True)
class RowTotals:
    """A number of rows, with the times of the first and the last of them."""

    rows: int = 0
    first_s: float = math.inf
    last_s: float = -math.inf

    def __add__(self, other: RowTotals) -> RowTotals:
        return RowTotals(
            self.rows + other.rows,
            min(self.first_s, other.first_s),
            max(self.last_s, other.last_s),
        )


def count_rejected(
    frames: Mapping[RowKind, DataFrame], since: datetime, until: datetime, now: datetime
) -> dict[str, dict[str | None, RowTotals]]:
    """Count the rows of each kind by the reason to leave them out; `None` counts usable rows."""
    counted: dict[str, dict[str | None, RowTotals]] = {kind.name: {} for kind in frames}
    looked_at = [
        frame.select(
            F.lit(kind.name).alias("kind"),
            row_fault(kind, since, until, now).alias("fault"),
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
            counted[kind][reason] = RowTotals(rows, *times)
    return counted


def required_of(kind: RowKind) -> list[str]:
    """Return the columns that must not be null."""
    return [field.name for field in kind.columns if not field.nullable]


def floats_of(kind: RowKind) -> list[str]:
    """Return the columns that could hold NaN or infinity."""
    return [f.name for f in spark_schema(kind) if isinstance(f.dataType, DoubleType | FloatType)]


def numeric_columns(kind: RowKind) -> list[str]:
    """Return the numeric columns that must not be negative."""
    return [
        field.name
        for field in spark_schema(kind)
        if isinstance(field.dataType, NumericType) and field.name not in _MAY_BE_NEGATIVE
    ]


def _not_finite(figure: Column) -> Column:
    return F.isnan(figure) | (F.abs(figure) == float("inf"))


def _any_column(conditions: Iterable[Column]) -> Column:
    return reduce(operator.or_, conditions)


# The rules of `row_fault` in Arrow, for lakes of up to two million rows.
#
# Spark takes seconds to compile the rules; Arrow applies them to a million rows in one second. Both
# give the same reasons, check them in the same order, and share their tests.


_ROWS_MAX = 2_000_000
_VETTING_THREADS = 2
_S = 1_000_000  # microseconds
_INTERVAL = {"interval_s"}

_Mask = NDArray[np.bool_]


def is_small(surveys: Iterable[Survey]) -> bool:
    """Return whether the files hold at most two million rows."""
    return sum(found.rows for found in surveys) <= _ROWS_MAX


def count_rejected_small(
    place: LakeFolder, surveys: Iterable[Survey], since: datetime, until: datetime, now: datetime
) -> dict[str, dict[str | None, RowTotals]]:
    """Count the rows of each kind by the reason to leave them out; `None` counts usable rows.

    A file whose footer is readable but whose rows are not is removed from its survey.
    """
    counted: dict[str, dict[str | None, RowTotals]] = {}
    with ThreadPoolExecutor(_VETTING_THREADS, "vetting") as threads:
        for found in surveys:
            kind, of_kind = found.kind, counted.setdefault(found.kind.name, {})
            files = [(place, path, kind, since, until, now) for path in found.paths]
            tallies = list(threads.map(lambda file: _tally_file(*file), files))
            found.paths = [
                path
                for path, of_file in zip(found.paths, tallies, strict=True)
                if of_file is not None
            ]
            if spoiled := len(files) - len(found.paths):
                found.left_out[UNREADABLE] += spoiled
            for of_file in tallies:
                for reason, tally in (of_file or {}).items():
                    of_kind[reason] = of_kind.get(reason, RowTotals()) + tally
    return counted


def _tally_file(
    place: LakeFolder, path: str, kind: RowKind, since: datetime, until: datetime, now: datetime
) -> dict[str | None, RowTotals] | None:
    """Count the rows of one file by reason; return `None` if the rows cannot be read."""
    required, floats, figures = required_of(kind), floats_of(kind), numeric_columns(kind)
    names = list(dict.fromkeys([*required, *floats, *figures]))
    try:
        with place.files.open_input_file(path) as file:
            table = pq.ParquetFile(file).read(columns=names)
    except (pa.ArrowException, OSError):
        return None
    hour = hour_of(path)
    assert hour is not None, "files of a survey are in folders of date and hour"
    at_us = table["at"].cast(pa.int64()).fill_null(0).to_numpy()
    at_s, hour_s = at_us // _S, round(hour.timestamp())
    faults: list[tuple[str | None, _Mask]] = [
        (MISSING, _any_mask(table, required, _null)),
        (
            NOT_A_NUMBER,
            _any_mask(table, floats, lambda column: ~np.isfinite(_plain_values(column))),
        ),
        (NEGATIVE, _any_mask(table, figures, lambda column: _plain_values(column) < 0)),
        (
            NO_TIME,
            _any_mask(table, _INTERVAL & set(names), lambda column: _plain_values(column) == 0),
        ),
        (FUTURE, at_us > _us(now + AHEAD)),
        (
            CLOCK_JUMP,
            (at_s < hour_s - BEFORE_ITS_HOUR_S) | (at_s > hour_s + AFTER_ITS_HOUR_S),
        ),
        (OUT_OF_RANGE, (at_us < _us(since)) | (at_us >= _us(until))),
        (None, np.ones(table.num_rows, dtype=np.bool_)),
    ]
    found: dict[str | None, RowTotals] = {}
    # A row counts under the first reason that applies.
    left = np.ones(table.num_rows, dtype=np.bool_)
    for reason, mask in faults:
        these = at_us[left & mask]
        if these.size:
            found[reason] = RowTotals(these.size, these.min() / _S, these.max() / _S)
        left &= ~mask
    return found


def _any_mask(
    table: pa.Table, names: Iterable[str], wrong: Callable[[pa.ChunkedArray], _Mask]
) -> _Mask:
    nothing = np.zeros(table.num_rows, dtype=np.bool_)
    return reduce(np.logical_or, (wrong(table[name]) for name in names), nothing)


def _null(column: pa.ChunkedArray) -> _Mask:
    mask: _Mask = column.is_null().to_numpy()
    return mask


def _plain_values(column: pa.ChunkedArray) -> NDArray[np.float64]:
    # Null is allowed in these columns; null in required columns is counted as `MISSING`.
    values: NDArray[np.float64] = column.fill_null(0).to_numpy()
    return values


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * _S)


# Schemas: the lake's row kinds as Spark reads them, and the tables that jobs declare.


class SchemaDiffers(TidegateError):
    """A job's table does not have the columns that the job declares; a bug in the job."""

    name = "SCHEMA_DIFFERS"


def spark_schema(kind: RowKind) -> StructType:
    """Return the columns of a kind as Spark reads them."""
    return StructType(
        [StructField(field.name, _spark_type(field.type), True) for field in kind.columns]
    )


def checked(frame: DataFrame, promised: StructType, what: str) -> DataFrame:
    """Return `frame` if it has the promised columns, in order and type; else raise `SchemaDiffers`.

    `what` names the table in the error message. Whether columns may be null is not compared.
    """
    found = [(field.name, _loose(field.dataType)) for field in frame.schema]
    wanted = [(field.name, _loose(field.dataType)) for field in promised]
    if found != wanted:
        differing = [f"{name} {kind.simpleString()}" for name, kind in found]
        expected = [f"{name} {kind.simpleString()}" for name, kind in wanted]
        raise SchemaDiffers(
            f"{what} has the columns ({', '.join(differing)}) and promised ({', '.join(expected)})"
        )
    return frame


def _spark_type(arrow_type: pa.DataType) -> DataType:
    # Dictionary encoding is a property of the file; to Spark the column is text.
    if pa.types.is_dictionary(arrow_type):
        return _spark_type(arrow_type.value_type)
    return from_arrow_type(arrow_type)


def _loose(data_type: DataType) -> DataType:
    """Return the type with every part nullable: Spark marks every computed column as nullable."""
    if isinstance(data_type, ArrayType):
        return ArrayType(_loose(data_type.elementType), True)
    if isinstance(data_type, StructType):
        return StructType([StructField(f.name, _loose(f.dataType), True) for f in data_type])
    return data_type


# Small tables between Spark and the laws: out as Arrow, back with a checked schema.
#
# Spark aggregates millions of rows. The laws run on the driver, on the few thousand sums that
# remain.


Numbers = NDArray[np.float64]


def column_numbers(table: pa.Table, name: str) -> Numbers:
    """Return a numeric column as an array of floats; null becomes NaN."""
    found: Numbers = table.column(name).cast(pa.float64()).to_numpy()
    return found


def column_seconds(table: pa.Table, name: str) -> Numbers:
    """Return a time column as seconds since 1970."""
    found: Numbers = table.column(name).cast(pa.int64()).cast(pa.float64()).to_numpy() / 1e6
    return found


def rows_by_name(table: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each distinct value of a text column, in the order of the values."""
    if not table.num_rows:
        return
    table = table.sort_by(name)
    names = table.column(name).combine_chunks().dictionary_encode()
    begins = np.flatnonzero(np.diff(names.indices.to_numpy(), prepend=-1)).tolist()
    for one, begin, end in zip(
        names.dictionary.to_pylist(), begins, [*begins[1:], table.num_rows], strict=True
    ):
        yield one, table.slice(begin, end - begin)


def frame_of(
    session: SparkSession, schema: StructType, columns: Mapping[str, Sequence[Any] | NDArray[Any]]
) -> DataFrame:
    """Return a frame of `columns` with the schema; NaN becomes null, which means "not known"."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [pa.array(columns[field.name], type=field.type, from_pandas=True) for field in arrow]
    return session.createDataFrame(pa.Table.from_arrays(arrays, schema=arrow), schema)
