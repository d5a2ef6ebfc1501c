"""The lake: Parquet files in `<lake>/<kind>/date=YYYY-MM-DD/hour=HH/`, in UTC.

Theory of operation
-------------------

A lake is a folder, or a location that Arrow's file systems support, such as `s3://bucket/lake`. It
has no index and no locks. A file name and the metadata inside the file say everything:

    <writer>~<id>.parquet         rows of a few seconds
    <writer>~all~<id>.parquet     a compacted hour; its metadata lists the ids it replaces
    _<writer>~<run>~<id>.parquet  hidden: being written, or left behind by a killed writer

Actors: recorders write new files. Rounds of compaction (compaction.py) merge the files of a past
hour, and delete old hours (lake.py). Readers, such as the pipeline, list files at any time.

Invariants:

- A file is written under a hidden name and then renamed. Readers see all of it or nothing.
- Each row counts once (`file_states`). A reader ignores a file whose id a compacted file replaces,
  and a second file with the same id. It also ignores a compacted file that replaces a subset of the
  files that another one replaces.
- A file never changes after the rename.

Failures:

- A killed writer leaves a hidden file. The next run of the writer deletes it. If the writer never
  returns, another writer deletes it after a day.
- A killed round leaves a compacted file and the files it replaces. Readers count the rows once, and
  the next round deletes the replaced files.
- Two rounds may compact the same hour. Equal results have the same id, so one of them is a copy.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from tidegate.core.errors import InvalidValue
from tidegate.core.runtime import crash_point
from tidegate.telemetry.schemas import FILE_KEY, KIND_KEY, REPLACES_KEY, VERSION_KEY, RowKind

_SUFFIX = ".parquet"
_HIDDEN = ("_", ".")
_WHOLE = "all"
_NAME_LENGTH_MAX = 120
_PARTITION = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/[^/]+$")


@dataclass(frozen=True)
class LakeFile:
    """A file of the lake, known by its name and without reading it."""

    path: str
    kind: str
    # Hours since 1970, UTC.
    hour: int
    name: str
    size_bytes: int
    # The time of the last modification, by the clock of the file system.
    modified_s: float

    @property
    def writer(self) -> str:
        """The writer as encoded in the name (see `safe_name`)."""
        return self.name.lstrip("_").partition("~")[0]

    @property
    def is_hidden(self) -> bool:
        return self.name.startswith(_HIDDEN)

    @property
    def is_whole_hour(self) -> bool:
        """Whether the file is a compacted one, which may replace others."""
        return f"~{_WHOLE}~" in self.name

    @property
    def run(self) -> str:
        """The run of the writer that began a hidden file; empty for a visible file."""
        return self.name.split("~")[1] if self.is_hidden and "~" in self.name else ""


class FileState(Enum):
    """Whether the rows of a file count."""

    COUNTS = "counts"
    COPY = "copy"
    REPLACED = "replaced"


@dataclass(frozen=True)
class FileIdentity:
    """The metadata inside a file."""

    kind: str
    version: int
    file_id: str
    replaces: frozenset[str]


class Lake:
    """One lake: write, list, read and delete files."""

    def __init__(self, location: str, *, filesystem: Any = None) -> None:
        self.location = location
        if filesystem is not None:
            self._files, self._root = filesystem, location
        else:
            try:
                self._files, self._root = filesystem_of(location)
            except pa.ArrowInvalid as wrong:
                raise InvalidValue(f"{location!r} is no lake that Arrow knows: {wrong}") from None
        self._root = self._root.rstrip("/")

    # ---- writing

    def write(
        self,
        kind: RowKind,
        hour: int,
        tables: Iterable[Any],
        *,
        writer: str,
        run: str,
        replaces: Iterable[str] = (),
        file_id: str | None = None,
        author: str | None = None,
    ) -> str:
        """Write tables as one file, each as a row group, and return its path.

        A failure leaves no visible file. `replaces` are the ids of files that a compacted file
        replaces. `author` is the encoded name of the writer of the rows, if another writer compacts
        them.
        """
        file_id = file_id or uuid.uuid4().hex
        replaced = sorted(replaces)
        metadata = kind.file_metadata(file_id)
        if replaced:
            metadata[REPLACES_KEY] = msgspec.json.encode(replaced)
        folder = f"{self._root}/{kind.name}/{partition(hour)}"
        author = author or safe_name(writer)
        whole = f"~{_WHOLE}" if replaced else ""
        hidden = f"{folder}/_{safe_name(writer)}~{run}~{file_id}{_SUFFIX}"
        path = f"{folder}/{author}{whole}~{file_id}{_SUFFIX}"
        self._files.create_dir(folder, recursive=True)
        try:
            # The stream is opened here because Arrow's writer does not close its own stream on a
            # full disk.
            with self._files.open_output_stream(hidden, compression=None) as stream:
                self._write_tables(stream, kind.columns.with_metadata(metadata), tables)
            crash_point("before-file-in-place")
            self._files.move(hidden, path)
            crash_point("after-file-in-place")
        except BaseException:
            self._delete_quietly(hidden)
            raise
        return path

    @staticmethod
    def _write_tables(stream: Any, schema: Any, tables: Iterable[Any]) -> None:
        with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(schema.metadata))

    # ---- reading

    def kinds(self) -> list[str]:
        """Return the kinds that have a folder, in order of name."""
        selector = pa.fs.FileSelector(self._root, allow_not_found=True)
        return sorted(
            info.base_name
            for info in self._files.get_file_info(selector)
            if info.type == pa.fs.FileType.Directory
        )

    def files(
        self,
        kind: str,
        *,
        since_s: float | None = None,
        until_s: float | None = None,
        hidden: bool = False,
    ) -> list[LakeFile]:
        """Return the files of a kind whose hour overlaps a time range, by hour and name.

        None leaves the range open on that side.
        """
        selector = pa.fs.FileSelector(f"{self._root}/{kind}", recursive=True, allow_not_found=True)
        found = []
        for info in self._files.get_file_info(selector):
            hour = hour_of(info.path)
            if info.type != pa.fs.FileType.File or hour is None:
                continue
            if since_s is not None and (hour + 1) * HOUR_S <= since_s:
                continue
            if until_s is not None and hour * HOUR_S >= until_s:
                continue
            modified_s = (info.mtime_ns or 0) / 1e9
            file = LakeFile(info.path, kind, hour, info.base_name, info.size, modified_s)
            if file.is_hidden == hidden and file.name.endswith(_SUFFIX):
                found.append(file)
        return sorted(found, key=lambda file: (file.hour, file.name))

    def identity(self, file: LakeFile) -> FileIdentity:
        """Return the metadata of a file; raise `InvalidValue` if it is damaged or foreign."""
        try:
            metadata = pq.read_metadata(file.path, filesystem=self._files).metadata or {}
            return FileIdentity(
                kind=metadata[KIND_KEY].decode(),
                version=int(metadata[VERSION_KEY]),
                file_id=metadata[FILE_KEY].decode(),
                replaces=frozenset(
                    msgspec.json.decode(metadata.get(REPLACES_KEY, b"[]"), type=list[str])
                ),
            )
        except (pa.ArrowInvalid, KeyError, ValueError) as wrong:
            raise InvalidValue(f"{file.path} is not a file of a lake: {wrong}") from None

    def read(self, file: LakeFile, columns: Sequence[str] | None = None) -> Any:
        """Return the rows of one file as an Arrow table."""
        with self._files.open_input_file(file.path) as source:
            return pq.ParquetFile(source).read(columns=columns)

    def current(self, files: Iterable[LakeFile]) -> list[LakeFile]:
        """Return the files whose rows count, without copies and replaced files."""
        return valid_files({file: self.identity(file) for file in files})

    # ---- deleting

    def delete(self, file: LakeFile) -> None:
        """Delete a file; it is no error if the file is already gone."""
        try:
            self._files.delete_file(file.path)
        except FileNotFoundError:
            return

    def delete_hour(self, kind: str, hour: int) -> None:
        """Delete the folder of an hour, and the folder of its day if that is then empty."""
        folder = f"{self._root}/{kind}/{partition(hour)}"
        day = folder.rpartition("/")[0]
        try:
            self._files.delete_dir(folder)
            if not self._files.get_file_info(pa.fs.FileSelector(day)):
                self._files.delete_dir(day)
        except FileNotFoundError:
            return  # another node deleted it first

    def _delete_quietly(self, path: str) -> None:
        try:
            self._files.delete_file(path)
        except OSError:
            return  # the next run of this writer deletes it


def valid_files(identities: Mapping[LakeFile, FileIdentity]) -> list[LakeFile]:
    """Return the files whose rows count, without copies and replaced files."""
    claims = [(identity.file_id, identity.replaces) for identity in identities.values()]
    return [
        file
        for file, standing in zip(identities, file_states(claims), strict=True)
        if standing is FileState.COUNTS
    ]


def file_states(claims: Sequence[tuple[str, frozenset[str]]]) -> list[FileState]:
    """Return the state of each file, from its id and the ids that it replaces."""
    wholes = [replaces for _, replaces in claims if replaces]
    replaced = frozenset[str]().union(*wholes)
    seen: set[str] = set()
    found = []
    for file_id, replaces in claims:
        if file_id in replaced:
            found.append(FileState.REPLACED)
        elif file_id in seen:
            found.append(FileState.COPY)
        # Two rounds compacted the same hour concurrently. The one with more files replaces the
        # other.
        elif replaces and any(replaces < other for other in wholes):
            found.append(FileState.REPLACED)
        else:
            seen.add(file_id)
            found.append(FileState.COUNTS)
    return found


def filesystem_of(location: str) -> tuple[Any, str]:
    """Return the Arrow file system of a location, and the path in it; raise Arrow's errors."""
    if "://" not in location:
        return pa.fs.LocalFileSystem(), str(Path(location).expanduser().absolute())
    files, path = pa.fs.FileSystem.from_uri(location)
    return files, path


def partition(hour: int) -> str:
    """Return the path of an hour's folder, relative to the kind."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_of(path: str) -> int | None:
    """Return the hour since 1970 from a file's path; None if the path has no valid hour."""
    match = _PARTITION.search(path)
    if match is None:
        return None
    try:
        at = datetime.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        # The digits are not a valid date or hour.
        return None
    return int(at.timestamp()) // HOUR_S


def safe_name(writer: str) -> str:
    """Return a writer's name, encoded for use in a file name."""
    name = quote(writer, safe="-.").replace("~", "%7E").replace("_", "%5F")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _NAME_LENGTH_MAX:
        # File systems allow about 255 bytes, and the name needs room for the other parts.
        name = f"{name[:80]}-{uuid.uuid5(uuid.NAMESPACE_OID, writer).hex}"
    return name


# Retention: which hours of a lake are too old, decided by a clock that may be wrong.
#
# A clock that jumps ahead by a year would make all history look expired. The clock is therefore
# trusted only as far as recorded rows confirm it: up to one day after the 24th newest recorded
# hour.
#
#     present = min(clock, end of the day that begins with the 24th newest hour)
#
# A process that records continuously is not affected. After a jump of the clock nothing is deleted
# until a day has been recorded at the new time. A process that records one hour a day keeps some
# hours longer than configured, but it has few hours.


HOUR_S = 3600
# Recorded hours that confirm a new time. Fewer are needed if the retention is shorter than this.
_HOURS_BELIEVED = 24
_HOURS_BELIEVED_LEAST = 2


def expired_hours(hours: Iterable[int], retention_s: float, now_s: float) -> set[int]:
    """Return the hours to delete, from the hours since 1970 that have rows of any kind.

    A retention of 0 keeps all hours.
    """
    if not retention_s:
        return set()
    # Hours in the future come from a clock that was ahead, and confirm nothing.
    past = sorted({hour for hour in hours if hour * HOUR_S <= now_s}, reverse=True)
    kept_hours = math.ceil(retention_s / HOUR_S)
    needed = max(min(_HOURS_BELIEVED, kept_hours), _HOURS_BELIEVED_LEAST)
    if len(past) < needed:
        return set()
    present_s = min(now_s, (past[needed - 1] + needed) * HOUR_S)
    return {hour for hour in past if (hour + 1) * HOUR_S + retention_s < present_s}
