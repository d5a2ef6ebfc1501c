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

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec
import pyarrow as pa
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

from tidegate.pipeline.schema import spark_schema
from tidegate.pipeline.survey import Place, ended_before, list_files
from tidegate.pipeline.watching.admission import (
    BEFORE,
    LATE,
    READ_BEFORE,
    VANISHED,
    LakeFile,
    LeftOut,
    between,
    chosen,
    examined,
    stand_in,
    without_late,
)
from tidegate.pipeline.watching.file_log import Entry, FileLog
from tidegate.telemetry.schemas import KINDS, Kind

FORMAT = "tidegate_lake"
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
    files: list[LakeFile]


class LakeSource(DataSource):
    """The data source that Spark asks for a reader."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

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
        self._examined: dict[str, LakeFile | LeftOut] = {}
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
        place = Place.of(self._stream.lake)
        schema = to_arrow_schema(streamed_schema(self._stream), timezone="UTC")
        for file in partition.files:
            # Cast dictionary-encoded text, which Spark does not read, to plain text.
            own = pa.schema(list(schema.field(file.kind).type))
            with place.files.open_input_file(file.path) as opened:
                for batch in pq.ParquetFile(opened).iter_batches(_BATCH_ROWS, columns=own.names):
                    rows = between(batch.select(own.names).cast(own), file.from_s, file.until_s)
                    yield _enveloped(rows, file.kind, schema)

    def _opened_log(self) -> FileLog:
        if self._log is None:
            self._log = FileLog(Path(self._stream.log))
        return self._log

    def _listed(self) -> dict[str, Kind]:
        """Return the files of the lake with their kinds, except files that end before `since_s`."""
        place = Place.of(self._stream.lake)
        return {
            path: KINDS[kind]
            for kind in self._stream.kinds
            for path in list_files(place, KINDS[kind])
            if not ended_before(path, self._stream.since_s)
        }

    def _next_entry(self, log: FileLog, files_max: int) -> Entry | None:
        place = Place.of(self._stream.lake)
        found = self._listed()
        self._present = set(found)
        now_s = time.time()
        new = [path for path in found if path not in log.paths]
        if self._allowed is not None:
            new = [path for path in new if path in self._allowed]
        # Cache the footers: a file may wait for several batches.
        self._examined = {
            path: self._examined.get(path) or examined(place, path, found[path], now_s)
            for path in new
        }
        results = list(self._examined.values())
        left_out = [one for one in results if isinstance(one, LeftOut)]
        taken, known = chosen(
            [one for one in results if isinstance(one, LakeFile)],
            log.ids,
            files_max,
            self._stream.delay_s,
        )
        if not taken and not known and not left_out:
            return None
        return Entry(
            files=[self._in_time(log, file) for file in taken], left_out=[*left_out, *known]
        )

    def _in_time(self, log: FileLog, file: LakeFile) -> LakeFile:
        """Return the file without rows that are too late.

        The result must depend on the log only; see the theory of operation.
        """
        place = Place.of(self._stream.lake)
        if self._stream.since_s is not None:
            file = without_late(place, file, self._stream.since_s, BEFORE)
        if log.newest_s is None:
            return file
        # If parts of a compacted file were read, most of its old rows were read with them.
        reason = READ_BEFORE if any(part in log.ids for part in file.replaces) else LATE
        return without_late(place, file, log.newest_s - self._stream.delay_s, reason)

    def _resolved(self, log: FileLog, number: int) -> list[LakeFile]:
        """Return the files of an entry, with compacted files in the place of missing ones."""
        entry = log.entry(number)
        assert entry is not None, f"entry {number} of {self._stream.log} is missing"
        place = Place.of(self._stream.lake)
        infos = place.files.get_file_info([file.path for file in entry.files])
        found: list[LakeFile] = []
        vanished: list[LeftOut] = []
        for file, info in zip(entry.files, infos, strict=True):
            if info.type != pa.fs.FileType.NotFound:
                found.append(file)
                continue
            other = stand_in(place, file, time.time())
            if other is None:
                vanished.append(LeftOut(file.path, VANISHED))
            else:
                found.append(replace(other, file_id=file.file_id, replaces=file.replaces))
        if found != entry.files:
            log.rewrite(number, Entry(files=found, left_out=[*entry.left_out, *vanished]))
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


def _spread(files: list[LakeFile], parts: int) -> list[list[LakeFile]]:
    """Distribute files over at most `parts` lists with similar numbers of rows."""
    piles: list[list[LakeFile]] = [[] for _ in range(max(parts, 1))]
    for file in sorted(files, key=lambda file: -file.rows):
        min(piles, key=lambda pile: sum(one.rows for one in pile)).append(file)
    return [pile for pile in piles if pile]
