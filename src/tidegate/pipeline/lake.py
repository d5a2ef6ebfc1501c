"""Which files of the lake a run reads, and which it leaves out, by reason.

The footer of each file holds its kind, version, file id, and the ids of the files it replaces.
Threads read the footers before Spark opens any file. A file that is damaged or of another version
is left out and counted; the run continues with the others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tidegate.core.errors import TidegateError
from tidegate.core.secrecy import without_secrets
from tidegate.telemetry import lake
from tidegate.telemetry.lake import Standing, located, standings
from tidegate.telemetry.retention import HOUR_S
from tidegate.telemetry.schemas import FILE_KEY, KIND_KEY, REPLACES_KEY, VERSION_KEY, Kind

_THREADS = 8
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
_LEFT_OUT = {Standing.COPY: DUPLICATE, Standing.REPLACED: REPLACED}


class LakeMissing(TidegateError):
    """The location of the lake holds no folder."""

    name = "LAKE_MISSING"


class LakeUnreachable(TidegateError):
    """The file system of the lake did not answer, or the location is not valid."""

    name = "LAKE_UNREACHABLE"


@dataclass(frozen=True)
class Place:
    """A folder on any file system that pyarrow supports."""

    files: pa.fs.FileSystem
    path: str
    # The URI scheme by which Spark addresses this file system, with `://`.
    prefix: str

    @staticmethod
    def of(location: str) -> Place:
        """Return the folder at `location`, a path or a URI such as `s3://bucket/lake`.

        Raise `LakeUnreachable` if the location is not valid or its file system cannot be opened.
        """
        scheme = location.partition("://")[0] if "://" in location else "file"
        try:
            files, path = located(location)
        except pa.ArrowInvalid as error:
            raise LakeUnreachable(
                f"{without_secrets(location)} is not a place that can be read "
                f"({without_secrets(_first_line(error))}): name a folder, or an address such as "
                "s3://bucket/lake, with --lake"
            ) from error
        except OSError as error:
            raise _unreachable(location, error) from error
        # Hadoop names the same file system s3a.
        return Place(files, path.rstrip("/"), "s3a://" if scheme == "s3" else f"{scheme}://")

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

    kind: Kind
    paths: list[str] = field(default_factory=list)
    rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Footer:
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
    place: Place, kinds: Iterable[Kind], since: datetime, until: datetime
) -> dict[str, Survey]:
    """Return, for each kind, the files that may hold rows between two times.

    Raise `LakeMissing` or `LakeUnreachable` if the lake cannot be read.
    """
    check_there(place)
    return {kind.name: _survey_of(place, kind, since, until) for kind in kinds}


def check_there(place: Place) -> None:
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
        f"the lake at {without_secrets(location)} cannot be reached "
        f"({without_secrets(_first_line(error))}): check its name, its credentials and the "
        "network, or name another with --lake"
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _survey_of(place: Place, kind: Kind, since: datetime, until: datetime) -> Survey:
    found = Survey(kind)
    paths = []
    for path in list_files(place, kind):
        hour = hour_of(path)
        if hour is None:
            found.left_out[NOT_PARTITIONED] += 1
        elif not ended_before(path, since.timestamp()) and hour <= until + LATE:
            paths.append(path)
    with ThreadPoolExecutor(_THREADS, "footers") as threads:
        footers = list(threads.map(lambda path: read_footer(place, kind, path), paths))
    found.left_out.update(footer.fault for footer in footers if footer.fault)
    sound = [footer for footer in footers if not footer.fault]
    claims = [(footer.file_id, footer.replaces) for footer in sound]
    for footer, standing in zip(sound, standings(claims), strict=True):
        if standing is Standing.COUNTS:
            found.paths.append(footer.path)
            found.rows += footer.rows
        else:
            found.left_out[_LEFT_OUT[standing]] += 1
    return found


def list_files(place: Place, kind: Kind) -> Sequence[str]:
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


def read_footer(place: Place, kind: Kind, path: str) -> Footer:
    """Return the contents of a file's footer; `fault` says why the file is unusable."""
    try:
        metadata = pq.read_metadata(path, filesystem=place.files)
        columns = metadata.schema.to_arrow_schema()
        says = metadata.metadata or {}
        replaces = frozenset(map(str, json.loads(says.get(REPLACES_KEY, b"[]"))))
    except (pa.ArrowException, OSError, ValueError, TypeError):
        return Footer(path, 0, "", frozenset(), fault=UNREADABLE)
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
    return Footer(path, metadata.num_rows, file_id, replaces, first_s, last_s, fault)


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
        and _plain(found.field(field.name).type) == _plain(field.type)
        for field in wanted
    )


def _plain(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type without details that Parquet may drop.

    Such details are dictionary encoding, and the names and nullability inside lists.
    """
    if pa.types.is_dictionary(arrow_type):
        return arrow_type.value_type
    if pa.types.is_list(arrow_type):
        return pa.list_(_plain(arrow_type.value_type))
    if pa.types.is_map(arrow_type):
        return pa.map_(_plain(arrow_type.key_type), _plain(arrow_type.item_type))
    if pa.types.is_struct(arrow_type):
        return pa.struct([(part.name, _plain(part.type)) for part in arrow_type])
    return arrow_type
