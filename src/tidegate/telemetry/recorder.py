"""The recorder: it accepts rows cheaply, and its own thread writes them to the lake.

Theory of operation
-------------------

    caller → add(kind, rows) → buffer per kind and hour → recorder thread → one Parquet file each

Callers are the event loops of nodes, doors and control loops. `add` appends tuples to a buffer
under a lock and returns. It never waits for a disk. Every `flush_s` seconds the recorder thread
takes the whole buffer, converts the rows to columns, and writes one file for each kind and hour.
The same thread starts the rounds of compaction (`LakeMaintenance`).

Invariants:

- Rows are tuples in the order of the columns in `schemas`. The first column is the time in
  microseconds since 1970.
- The buffer never exceeds `rows_max` rows. Rows that do not fit are dropped and counted.
- A row is written to one file, or counted in `rows_dropped`, or lost with the process.
- Recording never delays a message.

Failures:

- The process is killed: the rows of the last seconds are lost. No broken file is visible, because a
  file becomes visible by a rename.
- The lake cannot be written: the rows return to the buffer and the thread tries again. New rows are
  dropped once the buffer is full. The recorder logs the beginning and the end of such a time.
- The location is no lake, or Arrow is missing: the thread logs an error, and all rows are dropped.
- The lake hangs at the end of the process: `stop` gives up after a few seconds.

Only the thread imports Arrow, so that a process that does not record does not need it.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.core.services import DoorSample, Durations, Instance, InstanceSample, sample_delta
from tidegate.telemetry.meters import AdaptiveSampler, bucket_up_to

if TYPE_CHECKING:
    from tidegate.telemetry.lake import Lake


log = logging.getLogger(__name__)

Row = tuple[Any, ...]

_HOUR_US = 3600 * 1_000_000
# The limit of the buffer: some minutes of a hundred queues, in about 40 MB.
ROWS_MAX = 50_000
# A column of this many values takes a tenth of a millisecond.
_ROWS_AT_A_STRETCH = 500
# The backlog after an outage of the lake is large. A column of this many values blocks the node's
# event loop for 1 ms.
_ROWS_PER_GROUP = 5000
# How long the end of a process waits for the last file.
_STOP_S = 5.0


class RecorderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recorder writes, and how much."""

    lake: str
    # The time between samples, and between files.
    interval_s: float = 1.0
    flush_s: float = 5.0
    rows_max: int = ROWS_MAX
    # Hours older than this are deleted; 0 keeps all hours.
    retention_s: float = 30 * 86400.0
    # The approximate number of single requests and messages recorded per second, at any load.
    requests_per_s: float = 50.0
    lifecycles_per_s: float = 50.0


class Recorder:
    """Buffers the rows of one process, and writes them to a lake in its own thread."""

    def __init__(self, options: RecorderOptions, *, filesystem: Any = None) -> None:
        self.options = options
        self.lake = options.lake
        self.rows_recorded = 0
        self.rows_dropped = 0
        self._rows_max = options.rows_max
        self._filesystem = filesystem
        self._writer = ""
        # Identifies this run of the process. Hidden files of earlier runs are leftovers.
        self._run = uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], list[Row]] = {}
        self._waiting_rows = 0
        self._failing = False
        self._stopping = False
        self._wake = threading.Event()
        # The number of requested flushes, and how many of them are complete.
        self._flushed = threading.Condition()
        self._asked = 0
        self._done = 0
        self._thread: threading.Thread | None = None

    # ---- for callers

    @property
    def writer(self) -> str:
        """The name in the file names and in the `node` column."""
        return self._writer

    def start(self, writer: str) -> None:
        """Start the thread; files carry the writer's name."""
        self._writer = writer
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def add(self, kind: str, rows: Sequence[Row]) -> bool:
        """Buffer rows of one kind; return False and drop them if the buffer is full.

        Any thread may call this. It never waits for the disk.
        """
        if not rows:
            return True
        with self._lock:
            if self._waiting_rows + len(rows) > self._rows_max:
                self.rows_dropped += len(rows)
                return False
            self._waiting_rows += len(rows)
            for row in rows:
                self._waiting.setdefault((kind, row[0] // _HOUR_US), []).append(row)
        return True

    def event(
        self,
        event: str,
        subject: str,
        *,
        at_s: float,
        duration_s: float | None = None,
        value: float | None = None,
        detail: Mapping[str, str] | None = None,
    ) -> None:
        """Record an event that concerns a subject."""
        pairs = list((detail or {}).items())
        row = (_us(at_s), self._writer, event, subject, duration_s, value, pairs)
        self.add("events", [row])

    def decision(
        self,
        loop: str,
        service: str,
        law: str,
        *,
        at_s: float,
        inputs: Mapping[str, float],
        outputs: Mapping[str, float],
        action: str,
        reason: str,
    ) -> None:
        """Record a decision of a control loop: its inputs, outputs, law and reason."""
        seen, chosen = list(inputs.items()), list(outputs.items())
        row = (_us(at_s), self._writer, loop, service, law, seen, chosen, action, reason)
        self.add("decisions", [row])

    def http_probe(
        self,
        service: str,
        address: str,
        *,
        at_s: float,
        duration_s: float,
        status: int | None,
        failure: str = "",
        instance: int | None = None,
    ) -> None:
        """Record the result of an HTTP probe; `failure` is empty if the probe succeeded."""
        row = (_us(at_s), self._writer, service, address, instance)
        self.add("http_probes", [(*row, not failure, status, duration_s, failure)])

    def agreement_turn(
        self,
        agreement: str,
        metric: str,
        turn: str,
        *,
        at_s: float,
        evidence: str,
        worst: float | None = None,
        before_s: float | None = None,
    ) -> None:
        """Record a transition of a promise (agreement.violations).

        A breach becomes the event `violation`. `before_s` is how long the verdict before it lasted.
        """
        self.event(
            "violation" if turn == "breached" else turn,
            agreement,
            at_s=at_s,
            duration_s=before_s,
            value=worst,
            detail={"metric": metric, "turn": turn, "evidence": evidence},
        )

    def reconfigured(
        self, service: str, *, at_s: float, took_s: float, detail: Mapping[str, str] | None = None
    ) -> None:
        """Record that a reconfiguration takes effect `took_s` seconds after its decision."""
        self.event("reconfigured", service, at_s=at_s, duration_s=took_s, detail=detail)

    def flush(self, timeout_s: float = _STOP_S) -> bool:
        """Write the buffer now; return whether that finished within the timeout.

        The call blocks, so an event loop must not make it.
        """
        with self._flushed:
            self._asked += 1
            wanted = self._asked
            self._wake.set()
            return self._flushed.wait_for(lambda: self._done >= wanted, timeout_s)

    def stop(self) -> None:
        """Write the buffer and end the thread; give up after some seconds if the lake hangs."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                log.warning("the lake %s hangs: its last rows are lost", self.lake)

    def abort(self) -> None:
        """End the thread and lose the buffered rows, as a kill of the process would."""
        with self._lock:
            self._waiting.clear()
        self.stop()

    # ---- the recorder thread

    def _work(self) -> None:
        try:
            from tidegate.telemetry.lake import Lake

            lake = Lake(self.lake, filesystem=self._filesystem)
        except Exception as failure:
            log.error("nothing is recorded: %s", failure)
            self._drop_everything()
            return
        housekeeping = LakeMaintenance(self.lake, self._writer, self._run, self.options.retention_s)
        while not self._stopping:
            housekeeping.tick()
            self._wake.wait(self.options.flush_s)
            self._wake.clear()
            asked = self._asked
            self._write_all(lake)
            with self._flushed:
                self._done = asked
                self._flushed.notify_all()
        self._write_all(lake)
        housekeeping.stop()

    def _write_all(self, lake: Lake) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for (kind, hour), rows in waiting.items():
            try:
                self._write(lake, kind, hour, rows)
            except OSError as failure:
                self._keep(kind, hour, rows, failure)
            except Exception:
                # Rows that Arrow rejects are a bug of ours. Keeping them would repeat the error for
                # ever.
                log.exception("%d rows of %s cannot be recorded", len(rows), kind)
                self._release(rows, dropped=True)
            else:
                self._release(rows, dropped=False)
                if self._failing:
                    self._failing = False
                    log.warning(
                        "recording to %s again; %d rows were dropped so far",
                        self.lake,
                        self.rows_dropped,
                    )

    def _write(self, lake: Lake, kind: str, hour: int, rows: list[Row]) -> None:
        from tidegate.telemetry.schemas import KINDS

        columns = KINDS[kind].columns
        # The tables are built lazily, after the file is open. Otherwise each attempt at an
        # unavailable lake would cost a second of processor time.
        tables = (
            table_of(columns, rows[low : low + _ROWS_PER_GROUP])
            for low in range(0, len(rows), _ROWS_PER_GROUP)
        )
        lake.write(KINDS[kind], hour, tables, writer=self._writer, run=self._run)

    def _keep(self, kind: str, hour: int, rows: list[Row], failure: OSError) -> None:
        """Put rows back before those that arrived meanwhile, to be written again later."""
        with self._lock:
            self._waiting[kind, hour] = rows + self._waiting.get((kind, hour), [])
        if not self._failing:
            self._failing = True
            log.warning(
                "cannot record to %s: %s. Rows wait for it, and beyond %d are dropped",
                self.lake,
                failure,
                self._rows_max,
            )

    def _release(self, rows: list[Row], *, dropped: bool) -> None:
        with self._lock:
            self._waiting_rows -= len(rows)
            if dropped:
                self.rows_dropped += len(rows)
            else:
                self.rows_recorded += len(rows)

    def _drop_everything(self) -> None:
        """Drop all rows from now on and count them; there is no lake to write to."""
        with self._lock:
            self.rows_dropped += self._waiting_rows
            self._waiting.clear()
            self._waiting_rows, self._rows_max = 0, 0
        with self._flushed:
            self._done = 1 << 62
            self._flushed.notify_all()


def _us(at_s: float) -> int:
    return int(at_s * 1e6)


def table_of(columns: Any, rows: Sequence[Row]) -> Any:
    """Return rows as an Arrow table."""
    import pyarrow as pa

    arrays = []
    for field, values in zip(columns, zip(*rows, strict=True), strict=True):
        arrays.append(pa.array(values, field.type))
        if len(rows) > _ROWS_AT_A_STRETCH:
            # Release the interpreter lock. Otherwise the node's event loop would wait 5 ms for it.
            time.sleep(0)
    return pa.Table.from_arrays(arrays, schema=columns)


# Sampled HTTP requests, one in N: where each spent its time.
#
#     arrived → wait for an instance → chosen → connect → sent → server → answered
#
# Only the method, the status and times are kept. The path, query, headers and bodies are not
# recorded. A door spends one comparison per request:
#
#     samples.skip -= 1
#     if samples.skip <= 0:
#         samples.take(method, status, instance_id, (arrived, chosen, sent, answered))


# Monotonic times in seconds: arrived, chosen, sent, answered. A phase that did not happen, as in a
# refused request, has length 0: its time equals the next one.
Cuts = tuple[float, float, float, float]

# Other methods are recorded as "other". A client may send any text as a method, and methods are
# grouping keys.
_METHODS = frozenset(
    ("CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE")
)
_OTHER = "other"


class HttpRequestSamples:
    """The requests that were chosen since the last tick."""

    __slots__ = ("_sampler", "_taken", "skip")

    def __init__(self, sampler: AdaptiveSampler) -> None:
        self._sampler = sampler
        self._taken: list[tuple[str, int, int | None, int, Cuts]] = []
        # The number of requests until the next one is chosen.
        self.skip = sampler.skip

    def take(self, method: str, status: int, instance: int | None, cuts: Cuts) -> None:
        """Record the request that was just answered."""
        self._taken.append((method, status, instance, self._sampler.one_by_one(), cuts))
        self.skip = self._sampler.skip

    def tick(self, node: str, service: str, door: str, now: float, now_us: int) -> list[Row]:
        """End an interval, and return the rows of the requests chosen in it."""
        self._sampler.skip = self.skip
        self._sampler.tick()
        self.skip = self._sampler.skip
        taken, self._taken = self._taken, []
        return [
            (
                now_us - int(1e6 * (now - cuts[-1])),
                *(node, service, door, instance),
                *(method if method in _METHODS else _OTHER, status, float(weight)),
                *_phases_us(cuts),
            )
            for method, status, instance, weight, cuts in taken
        ]


def _phases_us(cuts: Cuts) -> Row:
    arrived_us, chosen_us, sent_us, answered_us = (1e6 * cut for cut in cuts)
    return (
        chosen_us - arrived_us,
        sent_us - chosen_us,
        answered_us - sent_us,
        answered_us - arrived_us,
    )


# The samples that a door process records: each second a row for itself and for each instance.
#
#     sampler = HttpSampler(recorder)                        when the door starts
#     sampler.take(await door.sample(), instances, 100)      each second
#     sampler.requests                                       where the door adds single requests
#
# Differences of consecutive totals give the counts of an interval (`core.services.sample_delta`).
# The length of the interval comes from the monotonic clock, because the wall clock may jump. The
# recorder never waits. If it drops rows, the door's next row reports how many.


KIND = "http_samples"
_NOTHING: list[tuple[int, int]] = []
_OF_NO_INSTANCE = (None, None, None, None)


class HttpSampler:
    """Makes rows from the samples of one door."""

    def __init__(self, recorder: Recorder, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._recorder = recorder
        self._monotonic = monotonic
        self._sampled_at = monotonic()
        self._before: DoorSample | None = None
        self._dropped_told = 0
        self.requests: HttpRequestSamples | None = None
        options = recorder.options
        if options.requests_per_s:
            self.requests = HttpRequestSamples(
                AdaptiveSampler(options.requests_per_s, interval_s=options.interval_s)
            )

    def record(
        self, sample: DoorSample, instances: Sequence[Instance] = (), concurrency: int | None = None
    ) -> None:
        """Record the counts since the previous sample.

        `concurrency` is the service's limit per instance, for instances without their own.
        """
        now = self._monotonic()
        interval_s, self._sampled_at = max(now - self._sampled_at, 1e-9), now
        between, self._before = sample_delta(self._before, sample), sample
        recorder = self._recorder
        dropped = recorder.rows_dropped
        rows = door_rows(between, interval_s, recorder.writer, instances, concurrency)
        if recorder.add(KIND, [(*rows[0][:-1], dropped - self._dropped_told), *rows[1:]]):
            # If these rows are dropped, too, the next row reports them.
            self._dropped_told = dropped
        if self.requests is not None:
            at_us = int(sample.at * 1e6)
            found = self.requests.tick(recorder.writer, sample.service, sample.door, now, at_us)
            recorder.add("http_requests", found)


def door_rows(
    between: DoorSample,
    interval_s: float,
    node: str,
    instances: Sequence[Instance],
    concurrency: int | None,
) -> list[Row]:
    """Return the row of a door, followed by a row for each instance."""
    begins = (int(between.at * 1e6), interval_s, node, between.service, between.door)
    of_door = (
        *(*begins, None, between.accepted, between.answered, between.refused, 0, 0, 0, 0),
        *(lake_buckets(between.response), _NOTHING, between.in_flight, between.waiting, 0),
        *(*_OF_NO_INSTANCE, "", between.trouble, 0),
    )
    known = {one.instance_id: one for one in instances}
    return [
        of_door,
        *(
            (*begins, *_of_instance(one, known.get(one.instance_id), concurrency))
            for one in between.instances
        ),
    ]


def _of_instance(seen: InstanceSample, known: Instance | None, concurrency: int | None) -> Row:
    stored: Row = _OF_NO_INSTANCE
    if known is not None:
        limit = concurrency if known.concurrency is None else known.concurrency
        stored = (known.version, known.weight, limit, known.free_memory_bytes)
    return (
        *(seen.instance_id, 0, 0, 0, seen.sent, seen.answered, seen.server_errors, seen.failed),
        *(_NOTHING, lake_buckets(seen.response), 0, 0, seen.outstanding),
        *(*stored, seen.ejected or "", "", 0),
    )


def lake_buckets(durations: Durations) -> list[tuple[int, int]]:
    """Return durations as counts per lake bucket, in ascending order."""
    counts: dict[int, int] = {}
    for bound_s, count in durations:
        bucket = bucket_up_to(bound_s)
        counts[bucket] = counts.get(bucket, 0) + count
    return sorted(counts.items())


# Maintenance of a lake: it starts rounds of compaction, each as a separate process.
#
# The recorder's thread asks every few seconds whether a round is due. It never waits for a round.
# The next round completes a round that was killed (compaction.py).


EVERY_S = 600.0
FIRST_S = 60.0
# An hour counts as over this long after its end. Rows are written some seconds late, and the clocks
# of machines differ.
GRACE_S = 600.0
# Replaced files are kept this long for readers that have listed them.
LINGER_S = 600.0
# A writer without new files in an hour for this long counts as gone.
ORPHANED_S = 86_400.0


class CompactionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one round."""

    lake: str
    writer: str
    # The run of the writer. Its hidden files are in progress and are not leftovers.
    run: str
    now_s: float
    # 0 keeps all hours.
    retention_s: float = 0.0
    grace_s: float = GRACE_S
    linger_s: float = LINGER_S
    orphaned_s: float = ORPHANED_S


class CompactionRound(msgspec.Struct):
    """The counts of one round."""

    hours_compacted: int = 0
    files_replaced: int = 0
    files_deleted: int = 0
    leftovers_deleted: int = 0
    hours_expired: int = 0
    # Files that are damaged or of an unknown version; they are left unchanged.
    files_left_out: int = 0
    failure: str = ""


class LakeMaintenance:
    """Starts rounds, one at a time, and logs their failures."""

    def __init__(self, lake: str, writer: str, run: str, retention_s: float) -> None:
        self._lake = lake
        self._writer = writer
        self._run = run
        self._retention_s = retention_s
        # A random first delay. Nodes often start together, and a round takes a hundred megabytes of
        # memory.
        self._due_at = time.monotonic() + random.uniform(FIRST_S, EVERY_S)
        self._process: subprocess.Popen[bytes] | None = None

    def tick(self) -> None:
        """Start a round if one is due; never wait."""
        if self._process is not None:
            if self._process.poll() is not None:
                self._hear(self._process)
                self._process = None
        elif time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + EVERY_S
            plan = CompactionPlan(
                lake=self._lake,
                writer=self._writer,
                run=self._run,
                now_s=time.time(),
                retention_s=self._retention_s,
            )
            try:
                self._process = start_round(plan)
            except OSError as failure:
                log.warning("old files of the lake are not looked after: %s", failure)

    @staticmethod
    def _hear(process: subprocess.Popen[bytes]) -> None:
        outcome, _ = process.communicate()
        try:
            failure = msgspec.json.decode(outcome, type=CompactionRound).failure
        except msgspec.DecodeError:
            failure = f"ended with {process.returncode}"
        if failure:
            log.warning("old files of the lake were not looked after: %s", failure)

    def stop(self) -> None:
        """Kill a running round; the next one completes its work."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def start_round(plan: CompactionPlan) -> subprocess.Popen[bytes]:
    """Start a round as a process; its result is JSON on stdout."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.telemetry.compaction"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    # The plan goes through stdin, because a lake location may contain a secret.
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    process.stdin = None
    return process
