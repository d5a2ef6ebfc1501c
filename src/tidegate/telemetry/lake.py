"""Where rows live: `<lake>/<kind>/date=YYYY-MM-DD/hour=HH/<writer>~<file id>.parquet`, in UTC.

A file is written whole under a hidden name and then renamed, so that a reader sees all of it or
nothing, whenever its writer is killed. The lake is any path that Arrow's file systems know: a
folder, or an address such as `s3://bucket/lake`.

    <writer>~<id>.parquet         rows of some seconds
    <writer>~all~<id>.parquet     a whole hour, which stands for the files that it names
    _<writer>~<run>~<id>.parquet  not there yet; what a killed writer leaves behind
"""

from __future__ import annotations

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

from tidegate.core.crash import crash_point
from tidegate.core.errors import InvalidValue
from tidegate.telemetry.retention import HOUR_S
from tidegate.telemetry.schemas import (
    FILE_KEY,
    KIND_KEY,
    REPLACES_KEY,
    VERSION_KEY,
    Kind,
)

_SUFFIX = ".parquet"
_HIDDEN = ("_", ".")
_WHOLE = "all"
_NAME_LENGTH_MAX = 120
_PARTITION = re.compile(r"/date=(\d{4}-\d{2}-\d{2})/hour=(\d{2})/[^/]+$")


@dataclass(frozen=True)
class LakeFile:
    """A file of the lake, by its name alone."""

    path: str
    kind: str
    # Hours since 1970, UTC.
    hour: int
    name: str
    size_bytes: int
    # When it was written, by the clock of who keeps it.
    modified_s: float

    @property
    def writer(self) -> str:
        """Who wrote it, as it stands in the name."""
        return self.name.lstrip("_").partition("~")[0]

    @property
    def is_hidden(self) -> bool:
        return self.name.startswith(_HIDDEN)

    @property
    def is_whole_hour(self) -> bool:
        """Whether it may stand for others."""
        return f"~{_WHOLE}~" in self.name

    @property
    def run(self) -> str:
        """Of a hidden one: the life of its writer in which it was begun."""
        return self.name.split("~")[1] if self.is_hidden and "~" in self.name else ""


class Standing(Enum):
    """Whether the rows of a file count."""

    COUNTS = "counts"
    COPY = "copy"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Identity:
    """What a file says of itself."""

    kind: str
    version: int
    file_id: str
    replaces: frozenset[str]


class Lake:
    """One lake: files go in whole, are listed, and go away."""

    def __init__(self, location: str, *, filesystem: Any = None) -> None:
        self.location = location
        if filesystem is not None:
            self._files, self._root = filesystem, location
        else:
            try:
                self._files, self._root = located(location)
            except pa.ArrowInvalid as wrong:
                raise InvalidValue(f"{location!r} is no lake that Arrow knows: {wrong}") from None
        self._root = self._root.rstrip("/")

    # In

    def write(
        self,
        kind: Kind,
        hour: int,
        tables: Iterable[Any],
        *,
        writer: str,
        run: str,
        replaces: Iterable[str] = (),
        file_id: str | None = None,
        author: str | None = None,
    ) -> str:
        """Put tables in place as one file, each a row group; its path.

        What fails leaves no visible file behind. The author is whose rows they are, as it stands
        in names of files, when that is not the writer.
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
            # The stream is ours: Arrow's writer leaves the one it opens open when the disk is full.
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

    # Out

    def kinds(self) -> list[str]:
        """The kinds of which there may be files."""
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
        """The files of a kind whose hour touches a range of time, in order of hour and name."""
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

    def identity(self, file: LakeFile) -> Identity:
        """Who a file is; InvalidValue when it is none of ours, or cut."""
        try:
            metadata = pq.read_metadata(file.path, filesystem=self._files).metadata or {}
            return Identity(
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
        """The rows of one file."""
        with self._files.open_input_file(file.path) as source:
            return pq.ParquetFile(source).read(columns=columns)

    def current(self, files: Iterable[LakeFile]) -> list[LakeFile]:
        """Those that count: no copies, and none that another one stands for."""
        return counting({file: self.identity(file) for file in files})

    # Away

    def delete(self, file: LakeFile) -> None:
        """Delete a file; that it is gone already is as good."""
        try:
            self._files.delete_file(file.path)
        except FileNotFoundError:
            return

    def delete_hour(self, kind: str, hour: int) -> None:
        """Delete an hour with all that is in it, and its day when that was the last one."""
        folder = f"{self._root}/{kind}/{partition(hour)}"
        day = folder.rpartition("/")[0]
        try:
            self._files.delete_dir(folder)
            if not self._files.get_file_info(pa.fs.FileSelector(day)):
                self._files.delete_dir(day)
        except FileNotFoundError:
            return  # another node was as quick

    def _delete_quietly(self, path: str) -> None:
        try:
            self._files.delete_file(path)
        except OSError:
            return  # the next life of this writer finds it


def counting(identities: Mapping[LakeFile, Identity]) -> list[LakeFile]:
    """Of these files those that count: no copies, and none that another one stands for."""
    claims = [(identity.file_id, identity.replaces) for identity in identities.values()]
    return [
        file
        for file, standing in zip(identities, standings(claims), strict=True)
        if standing is Standing.COUNTS
    ]


def standings(claims: Sequence[tuple[str, frozenset[str]]]) -> list[Standing]:
    """How each of some files stands, by its id and the ids of those that it stands for."""
    wholes = [replaces for _, replaces in claims if replaces]
    replaced = frozenset[str]().union(*wholes)
    seen: set[str] = set()
    found = []
    for file_id, replaces in claims:
        if file_id in replaced:
            found.append(Standing.REPLACED)
        elif file_id in seen:
            found.append(Standing.COPY)
        # Two that compacted the same hour at a time: the one that saw more stands for both.
        elif replaces and any(replaces < other for other in wholes):
            found.append(Standing.REPLACED)
        else:
            seen.add(file_id)
            found.append(Standing.COUNTS)
    return found


def located(location: str) -> tuple[Any, str]:
    """The file system of a location, and the path there; raises what Arrow raises."""
    if "://" not in location:
        return pa.fs.LocalFileSystem(), str(Path(location).expanduser().absolute())
    files, path = pa.fs.FileSystem.from_uri(location)
    return files, path


def partition(hour: int) -> str:
    """The folders of an hour."""
    return datetime.fromtimestamp(hour * HOUR_S, UTC).strftime("date=%Y-%m-%d/hour=%H")


def hour_of(path: str) -> int | None:
    """The hour since 1970 whose folder a file is in; None: it is in no such folder."""
    match = _PARTITION.search(path)
    if match is None:
        return None
    try:
        at = datetime.strptime(f"{match[1]} {match[2]}", "%Y-%m-%d %H").replace(tzinfo=UTC)
    except ValueError:
        # Digits that are no day or no hour.
        return None
    return int(at.timestamp()) // HOUR_S


def safe_name(writer: str) -> str:
    """A writer's name as it may stand in the name of a file, whatever people called it."""
    name = quote(writer, safe="-.").replace("~", "%7E").replace("_", "%5F")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _NAME_LENGTH_MAX:
        # File systems allow some 255 bytes, and our own words need room.
        name = f"{name[:80]}-{uuid.uuid5(uuid.NAMESPACE_OID, writer).hex}"
    return name
