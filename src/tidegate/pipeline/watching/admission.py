"""Which files of the lake come next, and which never will.

A file is known by the id in its footer, so a copy is not read again, nor is a compacted file whose
parts have all been read. Cut files, other versions and other columns are left out with a reason.

Files are taken in the order of their rows' time and never so that a later batch holds rows that an
earlier one has made late: whoever starts on a week of history, compacted by the hour, counts the
same as whoever watched it happen. Spark's own file source goes by the time of modification and
reads no footers; it can promise neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidegate.telemetry.schemas import FILE_KEY, KIND_KEY, REPLACES_KEY, VERSION_KEY, Kind

_PARTITION = re.compile(r"/date=(\d{4})-(\d{2})-(\d{2})/hour=(\d{2})/")
_HIDDEN = re.compile(r"/[_.]")
# No sane clock is further ahead of the lake's: one row from next year would make all others late.
AHEAD_S_MAX = 600.0
AHEAD = "ahead"
LATE = "late"
READ_BEFORE = "read before"


@dataclass(frozen=True)
class LakeFile:
    """A file to be read."""

    path: str
    file_id: str
    rows: int
    first_s: float
    last_s: float
    replaces: tuple[str, ...] = ()
    # Only rows from here to there are read, both included; the others are counted by reason.
    from_s: float | None = None
    until_s: float | None = None
    rows_left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftOut:
    """A file that is not read, and why: cut, version, columns, duplicate, vanished."""

    path: str
    reason: str
    detail: str = ""


def listed(
    files: pafs.FileSystem, folder: str, since: datetime | None = None
) -> dict[str, pafs.FileInfo]:
    """The files below a folder by path, without those of hours that had ended before `since`."""
    infos = files.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
    return {
        info.path: info
        for info in infos
        if info.type == pafs.FileType.File
        and info.path.endswith(".parquet")
        and not _HIDDEN.search(info.path[len(folder) :])
        and not _ended_before(info.path, since)
    }


def examined(
    files: pafs.FileSystem, info: pafs.FileInfo, kind: Kind, now_s: float
) -> LakeFile | LeftOut:
    """What a file says of itself, or why it is left out."""
    path = info.path
    try:
        with files.open_input_file(path) as opened:
            parquet = pq.ParquetFile(opened)
            said = parquet.schema_arrow.metadata or {}
            wrong = _wrong(kind, said, parquet.schema_arrow)
            if wrong is not None:
                return LeftOut(path, *wrong)
            first_s, last_s = _range_s(parquet)
            file = LakeFile(
                path=path,
                file_id=said[FILE_KEY].decode(),
                rows=parquet.metadata.num_rows,
                first_s=first_s,
                last_s=last_s,
                replaces=tuple(json.loads(said.get(REPLACES_KEY, b"[]"))),
            )
            until_s = (info.mtime_ns / 1e9 if info.mtime_ns else now_s) + AHEAD_S_MAX
            return file if last_s <= until_s else _without_ahead(file, parquet, until_s)
    except FileNotFoundError:
        return LeftOut(path, "vanished", "it was removed before it was read")
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        return LeftOut(path, "cut", str(error).strip().splitlines()[0] if str(error) else "")


def chosen(
    candidates: Iterable[LakeFile], seen_ids: Collection[str], files_max: int, delay_s: float
) -> tuple[list[LakeFile], list[LeftOut]]:
    """The files of the next batch, and those that have been read under another name."""
    ordered = sorted(candidates, key=lambda file: (file.first_s, file.last_s, file.path))
    # A compacted file beside its parts: either will do, and it is one file instead of many.
    replaced = {part for file in ordered for part in file.replaces if part not in seen_ids}
    taken: list[LakeFile] = []
    left_out: list[LeftOut] = []
    known = set(seen_ids)
    last_s = float("-inf")
    for file in ordered:
        if len(taken) >= files_max and file.first_s >= last_s - delay_s:
            break
        parts = file.replaces or (file.file_id,)
        if file.file_id in known or all(part in known for part in parts):
            left_out.append(LeftOut(file.path, "duplicate", "its rows have been read"))
        elif file.file_id in replaced:
            left_out.append(LeftOut(file.path, "duplicate", "a compacted file holds its rows"))
        else:
            taken.append(file)
            last_s = max(last_s, file.last_s)
        known |= {file.file_id, *file.replaces}
    return taken, left_out


def without_late(files: pafs.FileSystem, file: LakeFile, from_s: float, reason: str) -> LakeFile:
    """The file without its rows before a time, which are counted under a reason."""
    if file.first_s >= from_s:
        return file
    with files.open_input_file(file.path) as opened:
        late = _count(pc.less(_at(pq.ParquetFile(opened)), _scalar(from_s)))
    return replace(
        file,
        rows=file.rows - late,
        from_s=from_s,
        rows_left_out={**file.rows_left_out, reason: late},
    )


def between(batch: Any, from_s: float | None, until_s: float | None) -> Any:
    """Of a record batch the rows between two times, both included."""
    if from_s is not None:
        batch = batch.filter(pc.greater_equal(batch["at"], _scalar(from_s)))
    if until_s is not None:
        batch = batch.filter(pc.less_equal(batch["at"], _scalar(until_s)))
    return batch


def stand_in(
    files: pafs.FileSystem, missing: LakeFile, kind: Kind, now_s: float
) -> LakeFile | None:
    """The compacted file that took the place of one that is gone."""
    folder = missing.path.rsplit("/", 1)[0]
    for info in listed(files, folder).values():
        file = examined(files, info, kind, now_s)
        if isinstance(file, LakeFile) and missing.file_id in file.replaces:
            return file
    return None


def _wrong(kind: Kind, said: dict[bytes, bytes], columns: pa.Schema) -> tuple[str, str] | None:
    if said.get(KIND_KEY) != kind.name.encode() or FILE_KEY not in said:
        return "columns", f"it does not say that it holds {kind.name}"
    if said.get(VERSION_KEY) != str(kind.version).encode():
        return "version", f"version {said.get(VERSION_KEY, b'?').decode()} of {kind.name}"
    for field in kind.columns:
        index = columns.get_field_index(field.name)
        if index < 0 or not _alike(columns.field(index).type, field.type):
            found = "missing" if index < 0 else str(columns.field(index).type)
            return "columns", f"{field.name} is {found}"
    return None


def _alike(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column can be read as what it should be; how texts are packed does not matter."""
    if pa.types.is_dictionary(wanted):
        return _alike(found, wanted.value_type)
    if pa.types.is_dictionary(found):
        return _alike(found.value_type, wanted)
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found))
    if pa.types.is_map(wanted):
        return bool(pa.types.is_map(found))
    return bool(found == wanted)


def _range_s(parquet: Any) -> tuple[float, float]:
    """The time of the first and of the last row; by the footer, where it says so."""
    index = parquet.schema_arrow.get_field_index("at")
    name = parquet.schema_arrow.field(index).name
    column = next(
        i for i in range(parquet.metadata.num_columns) if parquet.schema.column(i).path == name
    )
    found: list[datetime] = []
    for group in range(parquet.metadata.num_row_groups):
        statistics = parquet.metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            at = _at(parquet)
            found += [pc.min(at).as_py(), pc.max(at).as_py()]
            break
        found += [statistics.min, statistics.max]
    if not found:
        return 0.0, 0.0
    return _utc(min(found)).timestamp(), _utc(max(found)).timestamp()


def _without_ahead(file: LakeFile, parquet: Any, until_s: float) -> LakeFile:
    """The file without the rows of a clock that ran ahead."""
    at = _at(parquet)
    sane = at.filter(pc.less_equal(at, _scalar(until_s)))
    return replace(
        file,
        rows=len(sane),
        last_s=_utc(pc.max(sane).as_py()).timestamp() if len(sane) else file.first_s,
        until_s=until_s,
        rows_left_out={AHEAD: len(at) - len(sane)},
    )


def _at(parquet: Any) -> Any:
    return parquet.read(columns=["at"])["at"].cast(pa.timestamp("us", "UTC"))


def _scalar(at_s: float) -> Any:
    return pa.scalar(round(at_s * 1e6), pa.int64()).cast(pa.timestamp("us", "UTC"))


def _count(condition: Any) -> int:
    return int(pc.sum(condition).as_py() or 0)


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _ended_before(path: str, since: datetime | None) -> bool:
    match = _PARTITION.search(path)
    if since is None or match is None:
        return False
    year, month, day, hour = (int(part) for part in match.groups())
    return datetime(year, month, day, hour, tzinfo=UTC) + timedelta(hours=1) <= since
