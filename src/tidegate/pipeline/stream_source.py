"""The lake as a Spark stream, of one row kind or of several that are judged together.

    spark.dataSource.register(LakeSource)
    spark.readStream.format("tidegate_lake").options(**StreamOptions(…).as_options()).load()

Theory of operation

Spark's file source cannot be used: it orders files by modification time and reads no footers (see
`admission`). This data source plans and reads itself; the stages after it are Spark's own.

Planning happens in one Python process beside the driver. Spark calls it in this order:

1. `latestOffset` lists the lake, examines the new files, chooses those of the next batch, and
   appends them as an entry to the file log. The offset is the number of the entry. If the log is
   already ahead of Spark's offset, the process was killed after writing the entry; then that entry
   is the next batch.
2. `partitions` distributes the files of the entry over tasks by their number of rows. A file that
   was compacted in the meantime is replaced by the compacted file. A file that was deleted is
   dropped and counted. In both cases the entry is rewritten.
3. `commit` moves old entries to the log's summary.

Reading happens in Spark's workers, file by file, as Arrow batches. A row of the stream has its
time, kind and key, and one struct column per kind. Only the column of the row's own kind is set.

Rows that are too late are removed while planning. Spark would remove them too, but at a moment that
depends on the sizes of its batches. Here the result depends on the file log only, so that reading
the same lake again gives the same result.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from tidegate.pipeline.lake import (
    DUPLICATE,
    REPLACED,
    UNREADABLE,
    LakeFolder,
    ended_before,
    list_files,
    read_footer,
    spark_schema,
)
from tidegate.telemetry.schemas import KINDS, RowKind

STREAM_FORMAT = "tidegate_lake"
_BATCH_ROWS = 16_384
# The column by which Spark distributes the rows of a kind.
_KEYS = {
    "http_samples": "service",
    "lifecycles": "queue",
    "queue_samples": "queue",
    "requests": "node",
}


@dataclass(frozen=True)
class StreamOptions:
    """Which rows to read, and the folder of the file log."""

    lake: str
    kinds: tuple[str, ...]
    log: str
    files_max: int = 200
    # How many seconds older than the newest row a row may be; see `admission`.
    delay_s: float = 60.0
    since_s: float | None = None
    parallel: int = 2

    def as_options(self) -> dict[str, str]:
        return {"stream": msgspec.json.encode(asdict(self)).decode()}


@dataclass
class _Part(InputPartition):
    files: list[CandidateFile]


class LakeSource(DataSource):
    """The data source that Spark asks for a reader."""

    @classmethod
    def name(cls) -> str:
        return STREAM_FORMAT

    @property
    def stream(self) -> StreamOptions:
        return msgspec.json.decode(self.options["stream"], type=StreamOptions)

    def schema(self) -> StructType:
        return streamed_schema(self.stream)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's)
        return _Reader(self.stream)


def streamed_schema(stream: StreamOptions) -> StructType:
    """Return the columns of a stream."""
    return StructType(
        [
            StructField("at", TimestampType()),
            StructField("kind", StringType()),
            StructField("key", StringType()),
            *(StructField(kind, spark_schema(KINDS[kind])) for kind in stream.kinds),
        ]
    )


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the process beside the driver, and reads in the workers."""

    def __init__(self, stream: StreamOptions) -> None:
        self._stream = stream
        # Used in the planning process only.
        self._log: FileLog | None = None
        self._examined: dict[str, CandidateFile | SkippedFile] = {}
        self._present: set[str] = set()
        # With --once: the files that existed at the start. `None` allows all files.
        self._allowed: frozenset[str] | None = None

    # Planning

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"entry": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxFiles(self._stream.files_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._allowed = frozenset(self._listed())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the offset of the next batch, or `start` if there are no new files."""
        log = self._opened_log()
        if log.last > start["entry"]:
            # The entry was written, and the process was killed before Spark recorded its number.
            return {"entry": start["entry"] + 1}
        files_max = self._stream.files_max
        if isinstance(limit, ReadMaxFiles):
            files_max = limit.max_files
        elif isinstance(limit, ReadAllAvailable):
            files_max = 1_000_000
        entry = self._next_entry(log, files_max)
        return start if entry is None else {"entry": log.append(entry)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        log = self._opened_log()
        files = [
            file
            for number in range(start["entry"] + 1, end["entry"] + 1)
            for file in self._resolved(log, number)
        ]
        return [_Part(part) for part in _spread(files, self._stream.parallel)]

    def commit(self, end: dict[str, int]) -> None:
        self._opened_log().forget(end["entry"], self._present)

    # Reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        place = LakeFolder.of(self._stream.lake)
        schema = to_arrow_schema(streamed_schema(self._stream), timezone="UTC")
        for file in partition.files:
            # Cast dictionary-encoded text, which Spark does not read, to plain text.
            own = pa.schema(list(schema.field(file.kind).type))
            with place.files.open_input_file(file.path) as opened:
                for batch in pq.ParquetFile(opened).iter_batches(_BATCH_ROWS, columns=own.names):
                    rows = rows_between(
                        batch.select(own.names).cast(own), file.from_s, file.until_s
                    )
                    yield _enveloped(rows, file.kind, schema)

    def _opened_log(self) -> FileLog:
        if self._log is None:
            self._log = FileLog(Path(self._stream.log))
        return self._log

    def _listed(self) -> dict[str, RowKind]:
        """Return the files of the lake with their kinds, except files that end before `since_s`."""
        place = LakeFolder.of(self._stream.lake)
        return {
            path: KINDS[kind]
            for kind in self._stream.kinds
            for path in list_files(place, KINDS[kind])
            if not ended_before(path, self._stream.since_s)
        }

    def _next_entry(self, log: FileLog, files_max: int) -> BatchEntry | None:
        place = LakeFolder.of(self._stream.lake)
        found = self._listed()
        self._present = set(found)
        now_s = time.time()
        new = [path for path in found if path not in log.paths]
        if self._allowed is not None:
            new = [path for path in new if path in self._allowed]
        # Cache the footers: a file may wait for several batches.
        self._examined = {
            path: self._examined.get(path) or examine_file(place, path, found[path], now_s)
            for path in new
        }
        results = list(self._examined.values())
        left_out = [one for one in results if isinstance(one, SkippedFile)]
        taken, known = choose_files(
            [one for one in results if isinstance(one, CandidateFile)],
            log.ids,
            files_max,
            self._stream.delay_s,
        )
        if not taken and not known and not left_out:
            return None
        return BatchEntry(
            files=[self._in_time(log, file) for file in taken], left_out=[*left_out, *known]
        )

    def _in_time(self, log: FileLog, file: CandidateFile) -> CandidateFile:
        """Return the file without rows that are too late.

        The result must depend on the log only; see the theory of operation.
        """
        place = LakeFolder.of(self._stream.lake)
        if self._stream.since_s is not None:
            file = without_late(place, file, self._stream.since_s, BEFORE)
        if log.newest_s is None:
            return file
        # If parts of a compacted file were read, most of its old rows were read with them.
        reason = READ_BEFORE if any(part in log.ids for part in file.replaces) else LATE
        return without_late(place, file, log.newest_s - self._stream.delay_s, reason)

    def _resolved(self, log: FileLog, number: int) -> list[CandidateFile]:
        """Return the files of an entry, with compacted files in the place of missing ones."""
        entry = log.entry(number)
        assert entry is not None, f"entry {number} of {self._stream.log} is missing"
        place = LakeFolder.of(self._stream.lake)
        infos = place.files.get_file_info([file.path for file in entry.files])
        found: list[CandidateFile] = []
        vanished: list[SkippedFile] = []
        for file, info in zip(entry.files, infos, strict=True):
            if info.type != pa.fs.FileType.NotFound:
                found.append(file)
                continue
            other = compacted_replacement(place, file, time.time())
            if other is None:
                vanished.append(SkippedFile(file.path, VANISHED))
            else:
                found.append(replace(other, file_id=file.file_id, replaces=file.replaces))
        if found != entry.files:
            log.rewrite(number, BatchEntry(files=found, left_out=[*entry.left_out, *vanished]))
        return list({file.path: file for file in found}.values())


def _enveloped(rows: pa.RecordBatch, kind: str, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows of one kind to rows of the stream."""
    arrays = {
        "at": rows["at"],
        "kind": pa.repeat(kind, len(rows)),
        "key": rows[_KEYS[kind]],
        kind: pa.StructArray.from_arrays(rows.columns, fields=list(schema.field(kind).type)),
    }
    return pa.RecordBatch.from_arrays(
        [arrays.get(field.name, pa.nulls(len(rows), field.type)) for field in schema],
        schema=schema,
    )


def _spread(files: list[CandidateFile], parts: int) -> list[list[CandidateFile]]:
    """Distribute files over at most `parts` lists with similar numbers of rows."""
    piles: list[list[CandidateFile]] = [[] for _ in range(max(parts, 1))]
    for file in sorted(files, key=lambda file: -file.rows):
        min(piles, key=lambda pile: sum(one.rows for one in pile)).append(file)
    return [pile for pile in piles if pile]


# Which files of the lake a stream takes next, and which it never takes.
#
# A file is known by the id in its footer. A copy of a file is therefore not read again, and neither
# is a compacted file whose parts have all been read. Damaged files and files with another version
# or other columns are left out with a reason.
#
# Files are taken in the order of the time of their rows. A later batch never holds rows that an
# earlier batch has made late. A watch that starts on a week of compacted history counts the same as
# a watch that ran during that week. Spark's own file source cannot promise this: it orders files by
# modification time and reads no footers.


# How far ahead of the file's modification time a row may be. A single row from next year would
# make all other rows late.
AHEAD_S_MAX = 600.0

# Reasons to leave out files or rows, besides those of `survey`.
ALREADY_READ = "read under another name"
VANISHED = "removed before it was read"
AHEAD = "in the future"
LATE = "too late"
BEFORE = "before the time asked for"
READ_BEFORE = "read before it was compacted"


@dataclass(frozen=True)
class CandidateFile:
    """A file to be read, possibly without some of its rows."""

    path: str
    kind: str
    file_id: str
    rows: int
    first_s: float
    last_s: float
    replaces: tuple[str, ...] = ()
    # Only rows between these times, both included, are read; the others are counted by reason.
    from_s: float | None = None
    until_s: float | None = None
    rows_left_out: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SkippedFile:
    """A file that is not read, and why."""

    path: str
    reason: str


def examine_file(
    place: LakeFolder, path: str, kind: RowKind, now_s: float
) -> CandidateFile | SkippedFile:
    """Return the file as its footer describes it, or the reason to leave it out.

    `now_s` replaces a modification time that the file system does not know.
    """
    info = place.files.get_file_info(path)
    if info.type != pa.fs.FileType.File:
        return SkippedFile(path, VANISHED)
    footer = read_footer(place, kind, path)
    if footer.fault:
        return SkippedFile(path, footer.fault)
    try:
        first_s, last_s = footer.first_s, footer.last_s
        if first_s is None or last_s is None:
            at = _times(place, path)
            first_s, last_s = _ends_s(at)
    except (pa.ArrowException, OSError):
        return SkippedFile(path, UNREADABLE)
    replaces = tuple(sorted(footer.replaces))
    file = CandidateFile(path, kind.name, footer.file_id, footer.rows, first_s, last_s, replaces)
    written_s = info.mtime_ns / 1e9 if info.mtime_ns else now_s
    until_s = written_s + AHEAD_S_MAX
    return file if last_s <= until_s else _without_ahead(place, file, until_s)


def choose_files(
    candidates: Iterable[CandidateFile], seen_ids: Collection[str], files_max: int, delay_s: float
) -> tuple[list[CandidateFile], list[SkippedFile]]:
    """Return the files of the next batch, and the files whose rows come or came with another file.

    `seen_ids` are the ids that earlier batches took. A batch has at most `files_max` files, plus
    those that begin before its last row minus `delay_s`: they would be late in a later batch.
    """
    ordered = sorted(candidates, key=lambda file: (file.first_s, file.last_s, file.path))
    # If a compacted file and its parts are present, take the compacted file: it is one instead of
    # many.
    replaced = {part for file in ordered for part in file.replaces if part not in seen_ids}
    taken: list[CandidateFile] = []
    left_out: list[SkippedFile] = []
    known = set(seen_ids)
    last_s = float("-inf")
    for file in ordered:
        if len(taken) >= files_max and file.first_s >= last_s - delay_s:
            break
        if file.file_id in known:
            left_out.append(SkippedFile(file.path, DUPLICATE))
        elif file.replaces and all(part in seen_ids for part in file.replaces):
            left_out.append(SkippedFile(file.path, ALREADY_READ))
        elif file.file_id in replaced:
            left_out.append(SkippedFile(file.path, REPLACED))
        else:
            taken.append(file)
            last_s = max(last_s, file.last_s)
        known.add(file.file_id)
    return taken, left_out


def without_late(
    place: LakeFolder, file: CandidateFile, from_s: float, reason: str
) -> CandidateFile:
    """Return the file without its rows before `from_s`, which are counted under `reason`."""
    if max(file.first_s, file.from_s or 0.0) >= from_s:
        return file
    at = _times(place, file.path)
    if file.from_s is not None:
        at = at.filter(pc.greater_equal(at, _scalar(file.from_s)))
    if file.until_s is not None:
        at = at.filter(pc.less_equal(at, _scalar(file.until_s)))
    late = int(pc.sum(pc.less(at, _scalar(from_s))).as_py() or 0)
    return replace(
        file,
        rows=file.rows - late,
        from_s=from_s,
        rows_left_out={**file.rows_left_out, reason: late},
    )


def rows_between(batch: Any, from_s: float | None, until_s: float | None) -> Any:
    """Return the rows of a record batch between two times, both included; `None` means no limit."""
    if from_s is not None:
        batch = batch.filter(pc.greater_equal(batch["at"], _scalar(from_s)))
    if until_s is not None:
        batch = batch.filter(pc.less_equal(batch["at"], _scalar(until_s)))
    return batch


def compacted_replacement(
    place: LakeFolder, missing: CandidateFile, now_s: float
) -> CandidateFile | None:
    """Return the compacted file that replaced a missing file, or `None`."""
    folder = missing.path.rsplit("/", 1)[0]
    selector = pa.fs.FileSelector(folder, allow_not_found=True)
    for info in place.files.get_file_info(selector):
        # `examine_file` rejects hidden files and files of other formats.
        file = examine_file(place, info.path, KINDS[missing.kind], now_s)
        if isinstance(file, CandidateFile) and missing.file_id in file.replaces:
            return file
    return None


def _without_ahead(place: LakeFolder, file: CandidateFile, until_s: float) -> CandidateFile:
    """Return the file without rows after `until_s`, which come from a clock that ran ahead."""
    at = _times(place, file.path)
    sane = at.filter(pc.less_equal(at, _scalar(until_s)))
    return replace(
        file,
        rows=len(sane),
        last_s=_ends_s(sane)[1] if len(sane) else file.first_s,
        until_s=until_s,
        rows_left_out={AHEAD: len(at) - len(sane)},
    )


def _times(place: LakeFolder, path: str) -> Any:
    with place.files.open_input_file(path) as opened:
        at = pq.ParquetFile(opened).read(columns=["at"])["at"]
    return at.cast(pa.timestamp("us", "UTC"))


def _ends_s(at: Any) -> tuple[float, float]:
    if not len(at):
        return 0.0, 0.0
    # Use raw microseconds: the times of a clock that is far off exceed Python's `datetime`.
    at_us = at.cast(pa.int64())
    return pc.min(at_us).as_py() / 1e6, pc.max(at_us).as_py() / 1e6


def _scalar(at_s: float) -> Any:
    return pa.scalar(round(at_s * 1e6), pa.int64()).cast(pa.timestamp("us", "UTC"))


# The log of the files that a stream has taken from the lake; each entry is the input of one batch.
#
#     <folder>/000000007.json      the files of batch 7, and the files left out before it
#     <folder>/seen.json           a summary of all entries up to one that was finished long ago
#
# An entry is written before Spark learns about it, and it keeps naming the same rows. A batch that
# runs again after a kill therefore reads the same rows. Spark's offset is the number of the entry.


_KEPT_ENTRIES = 100
# File ids are forgotten when their rows are this much older than the newest. If such a file
# appears again, its rows are dropped as late.
_REMEMBERED_S = 2 * 86400.0


class BatchEntry(msgspec.Struct, frozen=True):
    """The input of one batch, and the files that were left out on the way."""

    files: list[CandidateFile]
    left_out: list[SkippedFile]


class FileCounts(msgspec.Struct):
    """How many files and rows were taken and left out so far."""

    files: int = 0
    rows: int = 0
    files_left_out: dict[str, int] = {}
    rows_left_out: dict[str, int] = {}


class _SeenEntries(msgspec.Struct):
    """The summary of finished entries."""

    through: int = 0
    paths: set[str] = set()
    # File id → time of the file's last row.
    ids: dict[str, float] = {}
    # The time of the newest row so far.
    newest_s: float | None = None
    counts: FileCounts = msgspec.field(default_factory=FileCounts)


class FileLog:
    """The log of one stream; one process writes to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        seen = folder / "seen.json"
        self._seen = (
            msgspec.json.decode(seen.read_bytes(), type=_SeenEntries)
            if seen.exists()
            else _SeenEntries()
        )
        self._next = self._seen.through + 1
        # The summary plus the entries that still exist.
        self.paths = set(self._seen.paths)
        self.ids = dict(self._seen.ids)
        self.newest_s = self._seen.newest_s
        while (entry := self.entry(self._next)) is not None:
            self._note(entry)

    @property
    def last(self) -> int:
        """The number of the newest entry."""
        return self._next - 1

    def entry(self, number: int) -> BatchEntry | None:
        """Return an entry, or `None` if it is not written yet or only part of the summary."""
        file = self._folder / f"{number:09d}.json"
        return msgspec.json.decode(file.read_bytes(), type=BatchEntry) if file.exists() else None

    def append(self, entry: BatchEntry) -> int:
        """Write the next entry and return its number."""
        number = self._next
        self.rewrite(number, entry)
        self._note(entry)
        return number

    def rewrite(self, number: int, entry: BatchEntry) -> None:
        """Write an entry, replacing the file of that number atomically."""
        _write(self._folder / f"{number:09d}.json", msgspec.json.encode(entry))

    def forget(self, done_through: int, present: Collection[str]) -> None:
        """Move entries before `done_through` to the summary, once there are 100 of them.

        The paths of files that no longer exist in the lake (`present`) and the ids of old files are
        dropped.
        """
        through = done_through - 1
        if through - self._seen.through < _KEPT_ENTRIES:
            return
        seen = self._seen
        for number in range(seen.through + 1, through + 1):
            entry = self.entry(number)
            assert entry is not None, f"entry {number} is missing"
            _count(seen.counts, entry)
            seen.paths |= _paths(entry)
            seen.ids |= _ids(entry)
            seen.newest_s = _newest_s(seen.newest_s, entry)
        seen.paths &= set(present)
        oldest_s = max(seen.ids.values(), default=0.0) - _REMEMBERED_S
        seen.ids = {file_id: last_s for file_id, last_s in seen.ids.items() if last_s >= oldest_s}
        first, seen.through = seen.through + 1, through
        _write(self._folder / "seen.json", msgspec.json.encode(seen))
        for number in range(first, through + 1):
            (self._folder / f"{number:09d}.json").unlink(missing_ok=True)

    def counts(self, through: int) -> FileCounts:
        """Return the totals of all entries up to `through`."""
        total = msgspec.convert(msgspec.to_builtins(self._seen.counts), FileCounts)
        for number in range(self._seen.through + 1, through + 1):
            if (entry := self.entry(number)) is not None:
                _count(total, entry)
        return total

    def _note(self, entry: BatchEntry) -> None:
        self.paths |= _paths(entry)
        self.ids |= _ids(entry)
        self.newest_s = _newest_s(self.newest_s, entry)
        self._next += 1


def _paths(entry: BatchEntry) -> set[str]:
    return {one.path for one in entry.files} | {one.path for one in entry.left_out}


def _ids(entry: BatchEntry) -> dict[str, float]:
    """Return the ids of files and of the files they replace: either may appear again as a copy."""
    return {
        file_id: file.last_s for file in entry.files for file_id in (file.file_id, *file.replaces)
    }


def _newest_s(before_s: float | None, entry: BatchEntry) -> float | None:
    times_s = [file.last_s for file in entry.files if file.rows]
    return max(times_s if before_s is None else [before_s, *times_s], default=None)


def _count(counts: FileCounts, entry: BatchEntry) -> None:
    counts.files += len(entry.files)
    counts.rows += sum(file.rows for file in entry.files)
    files_left_out = Counter(counts.files_left_out)
    files_left_out.update(one.reason for one in entry.left_out)
    rows_left_out = Counter(counts.rows_left_out)
    for file in entry.files:
        rows_left_out.update(file.rows_left_out)
    counts.files_left_out = dict(files_left_out)
    counts.rows_left_out = dict(rows_left_out)


def _write(file: Path, content: bytes) -> None:
    """Replace a file atomically, after its content has reached the disk."""
    hidden = file.with_name(f".{file.name}")
    with hidden.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    hidden.replace(file)
