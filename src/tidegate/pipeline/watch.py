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
4. `QueryResults` stores the tables of a batch and the query's state with one rename.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import Verdict, worst_verdict
from tidegate.agreements.ledger import AgreementHistory, terms_of
from tidegate.core.errors import TidegateError
from tidegate.core.text import format_duration
from tidegate.laws.forecasting import AnomalyChange, AnomalySettings, SeriesHistory, judge_window
from tidegate.pipeline.jobs import window_start
from tidegate.pipeline.jobs.queues import stability_by_window
from tidegate.pipeline.lake import VALUE_FAULTS, value_fault
from tidegate.pipeline.promises import judge_windows, measure_doors, measure_queues
from tidegate.pipeline.stream_source import STREAM_FORMAT, FileLog, LakeSource, StreamOptions
from tidegate.telemetry.learned import QueryResults
from tidegate.telemetry.models import ReadCounts
from tidegate.telemetry.schemas import HTTP_SAMPLES, KINDS, LIFECYCLES, QUEUE_SAMPLES, REQUESTS

# Increase this number when a change makes existing folders unusable.
FOLDER_FORMAT = 1
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


class StreamingWatch:
    """The running queries of one folder."""

    def __init__(
        self,
        spark: SparkSession,
        options: WatchOptions,
        on_found: OnFound,
        queries: Sequence[WatchQuery],
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

    def readings(self) -> dict[str, ReadCounts]:
        """Return by query how much was read and left out so far."""
        return {
            query.name: query_progress(self._options.folder, query.name) for query in self._queries
        }

    def _start(self, query: WatchQuery, trigger: Mapping[str, bool | str]) -> StreamingQuery:
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
        batches = QueryResults(folder / query.name)
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

    def _take(
        self, query: WatchQuery, batches: QueryResults, windows: DataFrame, number: int
    ) -> None:
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
                kind: rows_of(windows, kind).withColumn("fault", value_fault(KINDS[kind]))
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
            left_out.update({reason: count[reason] for reason in VALUE_FAULTS if count[reason]})
        once = sum(count["rows"] for count in counts)
        if in_all > once:
            left_out[COPIES] += in_all - once
        carried = _Carried(
            rows=carried.rows + once - sum(count[r] for count in counts for r in VALUE_FAULTS),
            rows_left_out=dict(left_out),
            own=msgspec.Raw(own),
        )
        batches.store(number, tables, msgspec.json.encode(carried))
        self._on_found(query.name, tables)


def _counted(rows: DataFrame) -> dict[str, int]:
    """Count the rows, in total and by fault."""
    found = rows.agg(
        F.count(F.lit(1)).alias("rows"),
        *(F.count_if(F.col("fault") == reason).alias(reason) for reason in VALUE_FAULTS),
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
def run_watch(
    spark: SparkSession,
    options: WatchOptions,
    on_found: OnFound = lambda *_: None,
    queries: Sequence[WatchQuery] | None = None,
) -> Iterator[StreamingWatch]:
    """Lock the folder, and yield a watch that stops when the block ends.

    Raise `WatchRefused` if the folder is locked, not writable, or holds another watch.
    """
    with (
        lock_folder(options) as continued,
        start_watch(spark, continued, on_found, queries) as watch,
    ):
        yield watch


@contextmanager
def lock_folder(options: WatchOptions) -> Iterator[WatchOptions]:
    """Lock the folder while the block runs, and yield the options with which it continues.

    This needs no Spark, so that a refusal comes before Spark is started.
    """
    with _alone(options.folder):
        yield _continued(options)


@contextmanager
def start_watch(
    spark: SparkSession,
    options: WatchOptions,
    on_found: OnFound = lambda *_: None,
    queries: Sequence[WatchQuery] | None = None,
) -> Iterator[StreamingWatch]:
    """Yield a watch in a folder that the caller has locked; stop it when the block ends."""
    chosen = queries_of(options.agreements) if queries is None else queries
    watch = StreamingWatch(spark, options, on_found, chosen)
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


def query_progress(folder: Path, query: str) -> ReadCounts:
    """Return how much one query has read and left out."""
    log = FileLog(_log_folder(folder, query))
    counts = log.counts(log.last)
    last = QueryResults(folder / query).carried_before(10**9)
    carried = _Carried() if last is None else msgspec.json.decode(last, type=_Carried)
    return ReadCounts(
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
    asked = _Watched(FOLDER_FORMAT, options.lake, options.delay_s, options.since_s)
    if not file.exists():
        file.write_bytes(msgspec.json.encode(asked))
        return options
    found = msgspec.json.decode(file.read_bytes(), type=_Watched)
    for what, before, now in (
        ("by another version of Tidegate", found.format, FOLDER_FORMAT),
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


# The queries that `watch` runs: from the rows of complete windows to tables.
#
#     compliance-10s              agreements whose windows are ten seconds long
#     compliance-10s-response     of these, agreements that promise response times (sampled)
#     compliance-10s-http         agreements about HTTP services
#     rates                       anomalies of the rates into and out of queues
#     phases                      anomalies of the phases of requests
#
# Each query is a stream of its own, because the first batch fixes what a stream gathers and for how
# long.


# Rows by kind.
Frames = Mapping[str, DataFrame]
# Tables by name, and the state for the next batch.
BatchResult = tuple[Mapping[str, pa.Table], bytes]


@dataclass(frozen=True)
class WatchQuery:
    """One stream: its row kinds, its window, and the function that computes its tables.

    `answer` receives the rows of a batch and the query's state (`None` in the first batch). It
    returns tables and the new state.
    """

    name: str
    kinds: tuple[str, ...]
    window_s: float
    answer: Callable[[Frames, bytes | None], BatchResult]


def queries_of(agreements: Sequence[Agreement]) -> list[WatchQuery]:
    """Return all queries for these agreements."""
    return [
        *_compliance(agreements),
        WatchQuery("rates", (QUEUE_SAMPLES.name,), WINDOW_S, _odd_rates),
        WatchQuery("phases", (REQUESTS.name,), WINDOW_S, _odd_phases),
    ]


def _compliance(agreements: Sequence[Agreement]) -> list[WatchQuery]:
    """Return a query for each width of windows and set of row kinds."""
    alike: dict[tuple[float, str], list[Agreement]] = {}
    for one in agreements:
        responds = any(metric.stem == "response" for metric in one.metrics)
        of = "-http" if one.queue is None else "-response" if responds else ""
        alike.setdefault((one.window_s, of), []).append(one)
    kinds = {
        "": (QUEUE_SAMPLES.name,),
        "-response": (QUEUE_SAMPLES.name, LIFECYCLES.name),
        "-http": (HTTP_SAMPLES.name,),
    }
    return [
        WatchQuery(
            f"compliance-{format_duration(window_s)}{of}",
            kinds[of],
            window_s,
            partial(_judged, judged_together),
        )
        for (window_s, of), judged_together in sorted(alike.items(), key=lambda group: group[0])
    ]


def _judged(agreements: Sequence[Agreement], frames: Frames, carried: bytes | None) -> BatchResult:
    doors = frames.get(HTTP_SAMPLES.name)
    sums = (
        frames[QUEUE_SAMPLES.name].transform(
            measure_queues(agreements, frames.get(LIFECYCLES.name))
        )
        if doors is None
        else doors.transform(measure_doors(agreements))
    )
    windows = sums.transform(judge_windows(agreements)).select("agreement", "window", "verdict")
    verdicts = [
        (row["agreement"], row["window"], Verdict(row["verdict"]))
        for row in windows.toArrow().to_pylist()
    ]
    before = (
        ServiceLevelCarry()
        if carried is None
        else msgspec.json.decode(carried, type=ServiceLevelCarry)
    )
    found, after = slide_windows(before, verdicts, agreements)
    return {"compliance": found}, msgspec.json.encode(after)


def _odd_rates(frames: Frames, carried: bytes | None) -> BatchResult:
    windows = frames[QUEUE_SAMPLES.name].transform(rates_by_window)
    return _anomalies(windows, carried, RATES)


def _odd_phases(frames: Frames, carried: bytes | None) -> BatchResult:
    windows = frames[REQUESTS.name].transform(phases_by_window)
    return _anomalies(windows, carried, PHASES)


def _anomalies(
    windows: DataFrame, carried: bytes | None, figures: Sequence[WatchedMetric]
) -> BatchResult:
    before = AnomalyCarry() if carried is None else msgspec.json.decode(carried, type=AnomalyCarry)
    found, after = track_anomalies(before, windows.toArrow().to_pylist(), figures)
    return {"anomalies": found}, msgspec.json.encode(after)


# From the lake's rows to complete windows of rows.
#
# Spark gathers rows until the watermark passes the end of their window, then emits each window
# once. A window contains the rows themselves. The transforms of `learn`, which know nothing of
# streams, can therefore judge a window of the stream as they judge a window of history.


# The columns that identify a row; a row with equal values is a copy.
_IDENTITY: dict[str, tuple[str, ...]] = {
    "queue_samples": ("node", "queue", "replica", "at"),
    "http_samples": ("node", "service", "door", "instance", "at"),
    "lifecycles": ("node", "queue", "message_id", "at"),
    # Requests have no id: two rows are copies if all columns are equal.
    "requests": tuple(REQUESTS.columns.names),
}
# The state of a window is split by minute: Spark rewrites a state entry for each change, and a
# finished piece does not change again.
_PIECE = "minute"


def lake_rows(spark: SparkSession, stream: StreamOptions) -> DataFrame:
    """Return the rows of the lake as an unbounded frame."""
    spark.dataSource.register(LakeSource)
    return spark.readStream.format(STREAM_FORMAT).options(**stream.as_options()).load()


def whole_windows(rows: DataFrame, stream: StreamOptions, window_s: float) -> DataFrame:
    """Return the rows of complete windows, as lists per window, minute and key."""
    return (
        rows.withWatermark("at", f"{round(stream.delay_s * 1000)} milliseconds")
        .groupBy(
            F.window("at", f"{round(window_s * 1000)} milliseconds").alias("gathered"),
            F.date_trunc(_PIECE, "at").alias("piece"),
            "key",
        )
        .agg(F.collect_list(F.struct("kind", *stream.kinds)).alias("rows"))
    )


def rows_of(windows: DataFrame, kind: str) -> DataFrame:
    """Return the rows of one kind in a batch of complete windows, without copies."""
    return (
        # Use one task: a batch is a few windows, and a shuffle would cost more than the rest.
        windows.coalesce(1)
        .select(F.inline("rows"))
        .filter(F.col("kind") == kind)
        .select(f"{kind}.*")
        .dropDuplicates(list(_IDENTITY[kind]))
    )


# Anomalies of rates and phases, window by window.
#
# Rates come from samples of queues, phases from sampled requests. Spark sums them by window. The
# few values that remain per subject and window are judged in the order of time by
# `laws.forecasting.judge_window`. Only changes are reported, each with the expected value: an
# anomaly begins, it ends, or the new value has become normal. A report per window would hide the
# important ones.


WINDOW_S = 60.0
# A queue or node without data for this long is removed, with its anomaly.
FORGOTTEN_S = 3600.0

ANOMALY_SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC")),  # end of the window in which it was found
        pa.field("subject", pa.string()),
        pa.field("what", pa.string()),
        pa.field("change", pa.string()),
        pa.field("since", pa.timestamp("us", "UTC")),
        pa.field("expected", pa.float64()),
        pa.field("seen", pa.float64()),
        pa.field("score", pa.float64()),
    ]
)


@dataclass(frozen=True)
class WatchedMetric:
    """A value that is watched for each queue or each node."""

    name: str
    column: str
    unit: str
    sensitivity: AnomalySettings


_PHASES = ("parse", "store", "respond")
RATES = (
    WatchedMetric("rate in", "produced_per_s", "/s", AnomalySettings(absolute=1.0)),
    WatchedMetric("rate out", "consumed_per_s", "/s", AnomalySettings(absolute=1.0)),
)
PHASES = (
    # Deviations below 0.1 ms are noise, even if they are a multiple of the usual value.
    WatchedMetric("time in node", "in_node_us", "µs", AnomalySettings(absolute=100.0)),
    *(
        WatchedMetric(f"share of {phase}", f"{phase}_share", "", AnomalySettings(absolute=0.02))
        for phase in _PHASES
    ),
)
WATCHED_METRICS = {figure.name: figure for figure in (*RATES, *PHASES)}


class _Followed(msgspec.Struct):
    """The history of one metric of one subject, and the time of its last value."""

    track: SeriesHistory
    last_s: float


class AnomalyCarry(msgspec.Struct):
    """The state for the next batch: the history of each metric, by subject and metric."""

    tracks: dict[str, dict[str, _Followed]] = {}


def rates_by_window(samples: DataFrame) -> DataFrame:
    """Return the rates into and out of each queue, per window."""
    return (
        samples.transform(stability_by_window(WINDOW_S))
        .withColumn("subject", F.concat(F.lit("queue "), "queue"))
        .select("subject", "window", *(figure.column for figure in RATES))
    )


def phases_by_window(requests: DataFrame) -> DataFrame:
    """Return mean time and shares of the phases within each node, per window.

    Waiting for clients and for messages is excluded.
    """
    sums = {phase: F.sum(F.col("weight") * F.col(f"{phase}_us")) for phase in _PHASES}
    in_node = sum((F.col(phase) for phase in _PHASES), start=F.lit(0.0))
    return (
        requests.groupBy(
            F.concat(F.lit("node "), "node").alias("subject"),
            window_start(WINDOW_S).alias("window"),
        )
        .agg(*(total.alias(phase) for phase, total in sums.items()), F.sum("weight").alias("n"))
        .filter((in_node > 0) & (F.col("n") > 0))
        .select(
            "subject",
            "window",
            (in_node / F.col("n")).alias("in_node_us"),
            *((F.col(phase) / in_node).alias(f"{phase}_share") for phase in _PHASES),
        )
    )


def track_anomalies(
    carried: AnomalyCarry, windows: Iterable[dict[str, object]], figures: Iterable[WatchedMetric]
) -> tuple[pa.Table, AnomalyCarry]:
    """Judge windows in the order of time; return the changes, and the new state."""
    tracks = {subject: dict(each) for subject, each in carried.tracks.items()}
    reports: list[dict[str, object]] = []
    chosen = list(figures)
    ordered = sorted(windows, key=lambda row: (row["window"], str(row["subject"])))
    newest_s = 0.0
    for row in ordered:
        subject, start = str(row["subject"]), row["window"]
        assert isinstance(start, datetime)
        at_s = start.timestamp()
        newest_s = max(newest_s, at_s)
        for figure in chosen:
            value = row[figure.column]
            if not isinstance(value, float):
                continue
            known = tracks.setdefault(subject, {}).get(figure.name)
            judged = judge_window(
                known.track if known else SeriesHistory(), at_s, value, figure.sensitivity
            )
            tracks[subject][figure.name] = _Followed(judged.track, at_s)
            if judged.change is not None:
                reports.append(
                    {
                        "at": _time(at_s + WINDOW_S),
                        "subject": subject,
                        "what": figure.name,
                        "change": judged.change.value,
                        "since": _time(judged.since_s),
                        "expected": judged.expected,
                        "seen": judged.seen,
                        "score": judged.score,
                    }
                )
    kept = {
        subject: alive
        for subject, each in tracks.items()
        if (alive := {k: one for k, one in each.items() if one.last_s > newest_s - FORGOTTEN_S})
    }
    return pa.Table.from_pylist(reports, ANOMALY_SCHEMA), AnomalyCarry(kept)


def describe_anomaly(row: dict[str, object]) -> str:
    """Describe an anomaly in one line."""
    unit = WATCHED_METRICS[str(row["what"])].unit
    expected, seen = f"{row['expected']:.4g}{unit}", f"{row['seen']:.4g}{unit}"
    match row["change"]:
        case AnomalyChange.BEGAN:
            rest = f"{seen} instead of {expected}"
        case AnomalyChange.ENDED:
            rest = f"back at {seen}"
        case _:
            rest = f"{seen} is the new normal, it was {expected}"
    since = row["since"]
    assert isinstance(since, datetime)
    return f"{row['subject']}: {row['what']} {rest} (since {since:%H:%M})"


def _time(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


# Sliding service levels: the last minutes and hours of each agreement, and its period's budget.
#
# The input is a verdict per agreement and window. The output is a row for each: the counts of the
# hour that ends with the window, the burn rate, the alarm, and the remaining budget. The arithmetic
# is that of `agreements.ledger`, which the control loops and the simulation use too.


SERVICE_LEVEL_SCHEMA = pa.schema(
    [
        pa.field("agreement", pa.string()),
        pa.field("window", pa.timestamp("us", "UTC")),  # start of the window
        pa.field("window_s", pa.float64()),
        pa.field("verdict", pa.string()),
        # Counts of the hour that ends with the window.
        pa.field("met", pa.int64()),
        pa.field("warned", pa.int64()),
        pa.field("breached", pa.int64()),
        pa.field("no_data", pa.int64()),
        # How many times faster than allowed the budget is used; null if nothing was judged.
        pa.field("burn_hour", pa.float64()),
        pa.field("alarm", pa.string()),  # fast, slow or null
        # Of the agreement's whole period.
        pa.field("budget_left", pa.float64()),
    ]
)


class ServiceLevelCarry(msgspec.Struct):
    """The state for the next batch: a history per agreement."""

    histories: dict[str, AgreementHistory] = {}


def slide_windows(
    carried: ServiceLevelCarry,
    verdicts: Iterable[tuple[str, datetime, Verdict]],
    agreements: Sequence[Agreement],
) -> tuple[pa.Table, ServiceLevelCarry]:
    """Add verdicts in the order of time; return a row for each window, and the new state.

    The history of an agreement whose terms have changed starts again.
    """
    by_name = {agreement.name: agreement for agreement in agreements}
    histories = {
        name: history
        for name, agreement in by_name.items()
        if (history := carried.histories.get(name)) and history.terms == terms_of(agreement)
    }
    together: dict[tuple[datetime, str], list[Verdict]] = {}
    for name, window, verdict in verdicts:
        if name in by_name:
            together.setdefault((window, name), []).append(verdict)
    rows = []
    for (window, name), found in sorted(together.items()):
        agreement = by_name[name]
        history = histories.setdefault(name, AgreementHistory(terms_of(agreement), {}, {}))
        rows.append(_row(agreement, history, window, worst_verdict(found)))
    return pa.Table.from_pylist(rows, SERVICE_LEVEL_SCHEMA), ServiceLevelCarry(histories)


def _row(
    agreement: Agreement, history: AgreementHistory, window: datetime, verdict: Verdict
) -> dict[str, object]:
    # A window counts at its end.
    standing = history.add_window(agreement, window.timestamp() + agreement.window_s, verdict)
    return {
        "agreement": agreement.name,
        "window": window.astimezone(UTC),
        "window_s": agreement.window_s,
        "verdict": verdict.value,
        "met": standing.last_hour.met,
        "warned": standing.last_hour.warned,
        "breached": standing.last_hour.breached,
        "no_data": standing.last_hour.no_data,
        "burn_hour": standing.burn_hour,
        "alarm": standing.alarm,
        "budget_left": standing.budget_left,
    }


# `tidegate watch`: the lake as a stream.
#
# admission → file_log → source      choose the next files, log them, read them
# streams                            rows → complete windows, on Spark
# service_level, anomalies           windows → sliding service levels, anomalies
# batches                            store each batch once, with the state for the next batch
# watch                              run all of it, one watcher per folder
