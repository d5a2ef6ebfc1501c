"""Watching: run the queries over the lake, and store their results in one folder.

    <folder>/watch.json              what this folder watches, so that a restart continues it
    <folder>/checkpoints/<query>/    the state of Spark and of the file log
    <folder>/<query>/batch=…         the results

Theory of operation

A `WatchQuery` is one Spark stream. It names the row kinds it reads, the width of its windows, and a
function that turns the rows of complete windows into tables. The data of a query take this path:

1. `source.LakeSource` plans a batch: it chooses the next files of the lake and writes them to the
   file log before Spark learns about them.
2. `streams.whole_windows` gathers rows until the watermark passes the end of their window.
3. `StreamingWatch._take` runs once per batch. It removes copies and rows that cannot be true, calls
   the query's function, and stores the tables.
4. `batches.QueryResults` stores the tables of a batch and the query's state with one rename.

Exactly once. Spark may run a batch again after a kill. Three rules make the result the same:

- The input of a batch is an entry of the file log. An entry keeps naming the same rows, even if
  their files are compacted in the meantime.
- A query has no memory besides the state that the previous batch stored.
- A batch that is already stored is not computed again. Its rows are still read, because Spark must
  update its own state.

One watcher. A lock on `<folder>/.lock` excludes other watchers. The operating system releases the
lock if the process is killed. `watch.json` records the lake, the delay and the beginning of the
first start. A restart with another lake or delay is refused, and the recorded beginning applies.

Failures. A query that fails ends alone; `check` then raises `WatchFailed`. All stored results stay
valid, and the next start continues after the last finished batch.

Threads. Spark calls `_take` in a thread of its own, one batch of a query at a time.
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

# Increase this number when a change makes existing folders unusable.
FORMAT = 1
COPIES = "a copy of another row"
# The beginning of a line in which Python or Java names an error.
_RAISED = re.compile(r"(?!py4j)[A-Za-z_][\w.]*(Error|Exception|[a-z]Failed|Invalid): ")
_POLL_S = 0.1

# Called after every batch that was stored, with the query's name and its tables.
OnFound = Callable[[str, Mapping[str, pa.Table]], None]


class WatchRefused(TidegateError):
    """Watching cannot start with these options; the message says what to change."""

    name = "WATCH_REFUSED"


class WatchFailed(TidegateError):
    """A query ended; its results are kept, and a restart continues after them."""

    name = "WATCH_FAILED"


@dataclass(frozen=True)
class WatchOptions:
    """The options of a watch."""

    lake: str
    folder: Path
    agreements: Sequence[Agreement]
    # Rows before this time are ignored; `None` ignores none. A restart uses the first start's
    # value.
    since_s: float | None = None
    # How many seconds older than the newest row a row may be and still count.
    delay_s: float = 60.0
    files_max: int = 200
    every_s: float = 5.0


class _Watched(msgspec.Struct, frozen=True):
    """The contents of `watch.json`."""

    format: int
    lake: str
    delay_s: float
    since_s: float | None


class _Carried(msgspec.Struct):
    """The state after a batch: rows read, rows left out by reason, and the query's own state."""

    rows: int = 0
    rows_left_out: dict[str, int] = {}
    own: msgspec.Raw = msgspec.Raw()


class Watch:
    """The running queries of one folder."""

    def __init__(
        self,
        spark: SparkSession,
        options: WatchOptions,
        on_found: OnFound,
        queries: Sequence[Query],
    ) -> None:
        # A session of its own, so that these settings affect no other user of this Spark.
        self._spark = spark.newSession()
        for key, value in _SESSION.items():
            self._spark.conf.set(key, value)
        self._options = options
        self._on_found = on_found
        self._queries = queries
        self._running: list[StreamingQuery] = []

    def run_once(self, stop: threading.Event | None = None) -> None:
        """Process all files that exist when a query starts; return early when `stop` is set."""
        stop = stop or threading.Event()
        # One query after the other: they would share the cores anyway.
        for query in self._queries:
            running = self._start(query, {"availableNow": True})
            # Poll: a signal would interrupt Spark's own waiting within a call to Java.
            while running.isActive and not stop.wait(_POLL_S):
                pass
            _raise_failure(running)

    def start(self) -> None:
        """Start all queries; each looks for new files every `every_s` seconds."""
        for query in self._queries:
            self._start(query, {"processingTime": f"{self._options.every_s} seconds"})

    def check(self) -> None:
        """Raise `WatchFailed` if a query has ended."""
        for running in self._running:
            if not running.isActive:
                _raise_failure(running)
                raise WatchFailed(f"the query {running.name} ended by itself: start it again")

    def stop(self) -> None:
        """Stop all queries; the next start runs an unfinished batch again."""
        for running in self._running:
            running.stop()

    def readings(self) -> dict[str, Reading]:
        """Return by query how much was read and left out so far."""
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
        """Compute and store one batch of a query."""
        if batches.has(number):
            # The process was killed after storing the batch and before Spark recorded it. Spark
            # must still read the rows, to update its own state.
            windows.write.format("noop").mode("overwrite").save()
            return
        before = batches.carried_before(number)
        carried = _Carried() if before is None else msgspec.json.decode(before, type=_Carried)
        # Several actions follow; without persist() Spark would gather the windows for each of them.
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
    """Count the rows, in total and by fault."""
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
    """Lock the folder, and yield a watch that stops when the block ends.

    Raise `WatchRefused` if the folder is locked, not writable, or holds another watch.
    """
    with held(options) as continued, started(spark, continued, on_found, queries) as watch:
        yield watch


@contextmanager
def held(options: WatchOptions) -> Iterator[WatchOptions]:
    """Lock the folder while the block runs, and yield the options with which it continues.

    This needs no Spark, so that a refusal comes before Spark is started.
    """
    with _alone(options.folder):
        yield _continued(options)


@contextmanager
def started(
    spark: SparkSession,
    options: WatchOptions,
    on_found: OnFound = lambda *_: None,
    queries: Sequence[Query] | None = None,
) -> Iterator[Watch]:
    """Yield a watch in a folder that the caller has locked; stop it when the block ends."""
    chosen = queries_of(options.agreements) if queries is None else queries
    watch = Watch(spark, options, on_found, chosen)
    try:
        yield watch
    finally:
        watch.stop()


def start_afresh(folder: Path) -> None:
    """Delete everything that a watch has stored in a folder."""
    with _alone(folder):
        for each in folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
        (folder / "watch.json").unlink(missing_ok=True)


def reading(folder: Path, query: str) -> Reading:
    """Return how much one query has read and left out."""
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
    """Lock the folder while the block runs.

    Raise `WatchRefused` if another process holds the lock or the folder is not writable.
    """
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
    """Return the options with the beginning of the first start.

    Raise `WatchRefused` if lake, delay or format differ from those of the first start.
    """
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
    """Return the line of Spark's message that names the error."""
    lines = (str(error).strip() or type(error).__name__).splitlines()
    raised = [line for line in lines if _RAISED.match(line)]
    return raised[-1] if raised else lines[0]


_SESSION = {
    # Fixed with the first batch for the life of a checkpoint; two suit a machine with two cores.
    "spark.sql.shuffle.partitions": "2",
    # Emit windows that the watermark has completed, even if no further rows arrive.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    "spark.sql.streaming.minBatchesToRetain": "10",
    # Let stop() wait this long for a batch under way, which calls back into this process.
    "spark.sql.streaming.stopTimeout": "30s",
}
