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
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.telemetry.housekeeping import Housekeeping

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
        housekeeping = Housekeeping(self.lake, self._writer, self._run, self.options.retention_s)
        while not self._stopping:
            housekeeping.look_after()
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
                self._let_go(rows, dropped=True)
            else:
                self._let_go(rows, dropped=False)
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

    def _let_go(self, rows: list[Row], *, dropped: bool) -> None:
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
