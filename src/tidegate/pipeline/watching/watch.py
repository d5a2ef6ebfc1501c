"""Watching: the queries over the lake, their results in one folder, one watcher at a time.

    <folder>/watch.json              what this folder watches, so that a restart goes on with it
    <folder>/checkpoints/<query>/    what Spark and the log of files remember
    <folder>/<query>/batch=…         what was found

Each query gathers whole windows and hands them, batch by batch, to a function of rows and of what
the batch before carried over. There is no other memory, so a batch run again finds the same.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.agreement.document import Agreement
from tidegate.core.errors import TidegateError
from tidegate.pipeline.vetting import FIGURE_FAULTS, figure_fault
from tidegate.pipeline.watching.batches import Batches
from tidegate.pipeline.watching.file_log import FileLog
from tidegate.pipeline.watching.queries import Query, queries_of
from tidegate.pipeline.watching.source import StreamOptions
from tidegate.pipeline.watching.streams import lake_rows, rows_of, whole_windows
from tidegate.telemetry.knowledge import Reading
from tidegate.telemetry.schemas import KINDS

# Raised when what a folder holds cannot be gone on with by this code.
FORMAT = 1
COPIES = "a copy of another row"
# How Python and Java begin the line that names an error.
_RAISED = re.compile(r"(?!py4j)[A-Za-z_][\w.]*(Error|Exception|[a-z]Failed|Invalid): ")
_POLL_S = 0.1

# Told of every batch that found something: the query's name, and its tables.
OnFound = Callable[[str, Mapping[str, pa.Table]], None]


class WatchRefused(TidegateError):
    """Watching cannot begin as asked; the sentence says what to do."""

    name = "WATCH_REFUSED"


class WatchFailed(TidegateError):
    """A query ended; what it had found is kept and a restart goes on there."""

    name = "WATCH_FAILED"


@dataclass(frozen=True)
class WatchOptions:
    """What to watch, and how."""

    lake: str
    folder: Path
    agreements: Sequence[Agreement]
    # Of the first start; a restart goes on where it was.
    since_s: float | None = None
    # How much older than the newest a row may be and still count.
    delay_s: float = 60.0
    files_max: int = 200
    every_s: float = 5.0


class _Watched(msgspec.Struct, frozen=True):
    """What a folder watches."""

    format: int
    lake: str
    delay_s: float
    since_s: float | None


class _Carried(msgspec.Struct):
    """What a batch leaves for the next: rows and reasons counted so far, and the query's own."""

    rows: int = 0
    rows_left_out: dict[str, int] = {}
    own: msgspec.Raw = msgspec.Raw()


class Watch:
    """The queries of one folder, running."""

    def __init__(
        self,
        spark: SparkSession,
        options: WatchOptions,
        on_found: OnFound,
        queries: Sequence[Query],
    ) -> None:
        # Settings of the session that are ours alone.
        self._spark = spark.newSession()
        for key, value in _SESSION.items():
            self._spark.conf.set(key, value)
        self._options = options
        self._on_found = on_found
        self._queries = queries
        self._running: list[StreamingQuery] = []

    def run_once(self, stop: threading.Event | None = None) -> None:
        """Take what is there, to the end, unless told to stop."""
        stop = stop or threading.Event()
        # One after the other: they would share the cores anyhow.
        for query in self._queries:
            running = self._start(query, {"availableNow": True})
            # Not Spark's own waiting, which signals tear up.
            while running.isActive and not stop.wait(_POLL_S):
                pass
            _raise_failure(running)

    def start(self) -> None:
        """Begin to watch."""
        for query in self._queries:
            self._start(query, {"processingTime": f"{self._options.every_s} seconds"})

    def check(self) -> None:
        """Raises if a query has ended."""
        for running in self._running:
            if not running.isActive:
                _raise_failure(running)
                raise WatchFailed(f"the query {running.name} ended by itself: start it again")

    def stop(self) -> None:
        """End all queries; a batch under way is run again at the next start."""
        for running in self._running:
            running.stop()

    def readings(self) -> dict[str, Reading]:
        """What was read and left out so far, by query."""
        return {query.name: reading(self._options.folder, query.name) for query in self._queries}

    def _start(self, query: Query, trigger: Mapping[str, bool | str]) -> StreamingQuery:
        folder = self._options.folder
        stream = StreamOptions(
            lake=self._options.lake,
            kinds=query.kinds,
            log=str(_log_folder(folder, query.name)),
            files_max=self._options.files_max,
            delay_s=self._options.delay_s,
            since_s=self._options.since_s,
            parallel=self._spark.sparkContext.defaultParallelism,
        )
        windows = whole_windows(lake_rows(self._spark, stream), stream, query.window_s)
        batches = Batches(folder / query.name)
        batches.clear_unfinished()
        running = (
            windows.writeStream.queryName(query.name)
            .option("checkpointLocation", str(folder / "checkpoints" / query.name / "spark"))
            .foreachBatch(lambda batch, number: self._take(query, batches, batch, number))
            .trigger(**trigger)  # type: ignore[arg-type]
            .start()
        )
        self._running.append(running)
        return running

    def _take(self, query: Query, batches: Batches, windows: DataFrame, number: int) -> None:
        if batches.has(number):
            # Killed between storing and telling Spark. Its state must be brought forward still.
            windows.write.format("noop").mode("overwrite").save()
            return
        before = batches.carried_before(number)
        carried = _Carried() if before is None else msgspec.json.decode(before, type=_Carried)
        # Kept while it is looked at, more than once: gathering is not repeated.
        windows.persist()
        try:
            gathered = windows.agg(F.sum(F.size("rows"))).first()
            in_all = (gathered[0] if gathered else None) or 0
            if not in_all:
                return
            rows = {
                kind: rows_of(windows, kind).withColumn("fault", figure_fault(KINDS[kind]))
                for kind in query.kinds
            }
            counts = [_counted(each) for each in rows.values()]
            good = {
                k: each.filter(F.col("fault").isNull()).drop("fault") for k, each in rows.items()
            }
            tables, own = query.answer(good, bytes(carried.own) or None)
        finally:
            windows.unpersist()
        left_out = Counter(carried.rows_left_out)
        for count in counts:
            left_out.update({reason: count[reason] for reason in FIGURE_FAULTS if count[reason]})
        once = sum(count["rows"] for count in counts)
        if in_all > once:
            left_out[COPIES] += in_all - once
        carried = _Carried(
            rows=carried.rows + once - sum(count[r] for count in counts for r in FIGURE_FAULTS),
            rows_left_out=dict(left_out),
            own=msgspec.Raw(own),
        )
        batches.store(number, tables, msgspec.json.encode(carried))
        self._on_found(query.name, tables)


def _counted(rows: DataFrame) -> dict[str, int]:
    """How many rows there are, and how many of them with which fault."""
    found = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        *(F.count_if(F.col("fault") == reason).alias(reason) for reason in FIGURE_FAULTS),
    ).first()
    assert found is not None, "an aggregate has one row"
    return found.asDict()


def _raise_failure(running: StreamingQuery) -> None:
    failure = running.exception()
    if failure is not None:
        raise WatchFailed(
            f"the query {running.name} failed: {_why(failure)}; what it had found is kept, start "
            "it again to go on"
        ) from failure


@contextmanager
def watching(
    spark: SparkSession,
    options: WatchOptions,
    on_found: OnFound = lambda *_: None,
    queries: Sequence[Query] | None = None,
) -> Iterator[Watch]:
    """A watch that alone writes to its folder, and ends with the block."""
    with held(options) as continued, started(spark, continued, on_found, queries) as watch:
        yield watch


@contextmanager
def held(options: WatchOptions) -> Iterator[WatchOptions]:
    """The folder is this watcher's alone; the options as they go on there. Needs no Spark."""
    with _alone(options.folder):
        yield _continued(options)


@contextmanager
def started(
    spark: SparkSession,
    options: WatchOptions,
    on_found: OnFound = lambda *_: None,
    queries: Sequence[Query] | None = None,
) -> Iterator[Watch]:
    """A watch in a folder that is held; it ends with the block."""
    chosen = queries_of(options.agreements) if queries is None else queries
    watch = Watch(spark, options, on_found, chosen)
    try:
        yield watch
    finally:
        watch.stop()


def start_afresh(folder: Path) -> None:
    """Forget all that a folder holds."""
    with _alone(folder):
        for each in folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
        (folder / "watch.json").unlink(missing_ok=True)


def reading(folder: Path, query: str) -> Reading:
    """What one query has read and left out."""
    log = FileLog(_log_folder(folder, query))
    counts = log.counts(log.last)
    last = Batches(folder / query).carried_before(10**9)
    carried = _Carried() if last is None else msgspec.json.decode(last, type=_Carried)
    return Reading(
        files=counts.files,
        rows=carried.rows,
        files_left_out=counts.files_left_out,
        rows_left_out=dict(Counter(counts.rows_left_out) + Counter(carried.rows_left_out)),
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a+")
    except OSError as error:
        raise WatchRefused(
            f"{error.filename or folder} cannot be written: {error.strerror or error}"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise WatchRefused(
                f"another tidegate watch (process {lock.read().strip() or '?'}) writes to "
                f"{folder}: end it first, or name another folder with --knowledge"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _continued(options: WatchOptions) -> WatchOptions:
    """The options, with the beginning of the first start; refused if they contradict it."""
    file = options.folder / "watch.json"
    asked = _Watched(FORMAT, options.lake, options.delay_s, options.since_s)
    if not file.exists():
        file.write_bytes(msgspec.json.encode(asked))
        return options
    found = msgspec.json.decode(file.read_bytes(), type=_Watched)
    for what, before, now in (
        ("by another version of Tidegate", found.format, FORMAT),
        (f"over the lake {found.lake}", found.lake, options.lake),
        (f"with a delay of {found.delay_s:g} s", found.delay_s, options.delay_s),
    ):
        if before != now:
            raise WatchRefused(
                f"{options.folder} was begun {what}: go on with that, or add --afresh to forget "
                "what it holds and begin anew"
            )
    return WatchOptions(**{**options.__dict__, "since_s": found.since_s})


def _log_folder(folder: Path, query: str) -> Path:
    return folder / "checkpoints" / query / "files"


def _why(error: Exception) -> str:
    """The line that says it, of the many that Spark says."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    raised = [line for line in lines if _RAISED.match(line)]
    return raised[-1] if raised else lines[0]


_SESSION = {
    # Fixed with the first batch for as long as the checkpoint lives: one for each core of two.
    "spark.sql.shuffle.partitions": "2",
    # Windows end when the lake says so, whether or not more comes.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Python threads that Spark calls back must not die with a half-told story.
    "spark.sql.streaming.stopTimeout": "30s",
}
