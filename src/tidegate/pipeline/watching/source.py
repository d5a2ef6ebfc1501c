"""The lake as a stream of Spark: rows of one kind, or of several that are judged together.

    spark.dataSource.register(LakeSource)
    spark.readStream.format("tidegate_lake").options(**StreamOptions(…).as_options()).load()

Planning happens in a process beside the driver, which lists the lake and writes the log of files;
reading happens in Spark's workers, Arrow to Arrow. Everything after it is Spark's own. A row is its
time, its kind, its key, and of the columns named like the kinds the one of its own.
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
# By what Spark spreads rows over its tasks.
_KEYS = {
    "http_samples": "service",
    "lifecycles": "queue",
    "queue_samples": "queue",
    "requests": "node",
}


@dataclass(frozen=True)
class StreamOptions:
    """Which rows, and where it is written down which files they came from."""

    lake: str
    kinds: tuple[str, ...]
    log: str
    files_max: int = 200
    # How late a row may be; see admission.
    delay_s: float = 60.0
    since_s: float | None = None
    parallel: int = 2

    def as_options(self) -> dict[str, str]:
        return {"stream": msgspec.json.encode(asdict(self)).decode()}


@dataclass
class _Part(InputPartition):
    files: list[LakeFile]


class LakeSource(DataSource):
    """What Spark asks for readers."""

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
    """The columns of a stream."""
    return StructType(
        [
            StructField("at", TimestampType()),
            StructField("kind", StringType()),
            StructField("key", StringType()),
            *(StructField(kind, spark_schema(KINDS[kind])) for kind in stream.kinds),
        ]
    )


class _Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in the process beside the driver, reads in the workers."""

    def __init__(self, stream: StreamOptions) -> None:
        self._stream = stream
        # Of the planning process alone: it is the only one that lists.
        self._log: FileLog | None = None
        self._examined: dict[str, LakeFile | LeftOut] = {}
        self._present: set[str] = set()
        # With --once: only what was there when it began.
        self._allowed: frozenset[str] | None = None

    # Planning

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"entry": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxFiles(self._stream.files_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._allowed = frozenset(self._listed())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        log = self._opened_log()
        if log.last > start["entry"]:
            # It was written down and Spark was killed before it had heard of it.
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
            # Texts come packed as dictionaries, which Spark does not read.
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
        """The files that there are, each with its kind."""
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
        # A footer is read once, however many batches pass until it is the file's turn.
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
        """The file without rows that are too late.

        Spark would drop them too, but when exactly depends on how its batches fell. Here it
        depends on the log alone, so that a batch run again, or a lake read again, says the same.
        """
        place = Place.of(self._stream.lake)
        if self._stream.since_s is not None:
            file = without_late(place, file, self._stream.since_s, BEFORE)
        if log.newest_s is None:
            return file
        # Of a compacted file some parts of which have been read, most rows are no news.
        reason = READ_BEFORE if any(part in log.ids for part in file.replaces) else LATE
        return without_late(place, file, log.newest_s - self._stream.delay_s, reason)

    def _resolved(self, log: FileLog, number: int) -> list[LakeFile]:
        """The files of an entry, those that were compacted meanwhile by what took their place."""
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
    """Rows of one kind as rows of the stream."""
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
    """The files in so many parts of about as many rows."""
    piles: list[list[LakeFile]] = [[] for _ in range(max(parts, 1))]
    for file in sorted(files, key=lambda file: -file.rows):
        min(piles, key=lambda pile: sum(one.rows for one in pile)).append(file)
    return [pile for pile in piles if pile]
