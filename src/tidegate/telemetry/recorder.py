"""The recorder: rows come in cheaply, a thread of its own writes them to the lake.

Whoever records appends tuples and goes on; every few seconds the thread turns them into columns and
writes one file for each kind and hour. So a kill loses the last seconds, and never leaves a broken
file. A lake that cannot be written costs memory up to a bound and then rows, which are counted; it
never holds up a message.

Rows are tuples in the order of the columns of `schemas`; the first is the time, in microseconds
since 1970. Arrow is imported by the thread: whoever does not record need not have it.
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
# What waits for the disk: some minutes of a hundred queues, in some 40 MB.
ROWS_MAX = 50_000
# A column of so many is made in a tenth of a millisecond.
_ROWS_AT_A_STRETCH = 500
# After a lake was away, much comes at once; a column of so many holds the node's loop for 1 ms.
_ROWS_PER_GROUP = 5000
# How long the end of a process waits for its last file.
_STOP_S = 5.0


class RecorderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where to, and how much."""

    lake: str
    # Between samples, and between files.
    interval_s: float = 1.0
    flush_s: float = 5.0
    rows_max: int = ROWS_MAX
    # Hours older than this are deleted; 0: kept for ever.
    retention_s: float = 30 * 86400.0
    # About so many single requests and messages are recorded, however many there are.
    requests_per_s: float = 50.0
    lifecycles_per_s: float = 50.0


class Recorder:
    """Rows of one process on their way to a lake."""

    def __init__(self, options: RecorderOptions, *, filesystem: Any = None) -> None:
        self.options = options
        self.lake = options.lake
        self.rows_recorded = 0
        self.rows_dropped = 0
        self._rows_max = options.rows_max
        self._filesystem = filesystem
        self._writer = ""
        # One life of this process: what an earlier one left half written is not ours any more.
        self._run = uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], list[Row]] = {}
        self._waiting_rows = 0
        self._failing = False
        self._stopping = False
        self._wake = threading.Event()
        # Flushes that were asked for, and how many of them are done.
        self._flushed = threading.Condition()
        self._asked = 0
        self._done = 0
        self._thread: threading.Thread | None = None

    # For whoever records

    @property
    def writer(self) -> str:
        """Whose rows these are."""
        return self._writer

    def start(self, writer: str) -> None:
        """Begin; files carry the writer's name."""
        self._writer = writer
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def add(self, kind: str, rows: Sequence[Row]) -> bool:
        """Take rows of one kind; False: there is no room for them. Never waits for the disk."""
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
        """Something happened."""
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
        """A loop has decided: on what, by which law, and why."""
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
        """A probe has asked a service from outside; `failure` is why it is not content."""
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
        """A promise was warned of, breached, eased or is kept again (agreement.violations).

        A breach is the event `violation`; `before_s` is how long the verdict before had lasted.
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
        """What a warning set off helps now, so long after it was decided."""
        self.event("reconfigured", service, at_s=at_s, duration_s=took_s, detail=detail)

    def flush(self, timeout_s: float = _STOP_S) -> bool:
        """Write what waits now; whether that was done in time."""
        with self._flushed:
            self._asked += 1
            wanted = self._asked
            self._wake.set()
            return self._flushed.wait_for(lambda: self._done >= wanted, timeout_s)

    def stop(self) -> None:
        """Write what waits and end; a lake that hangs is left behind after some seconds."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            if self._thread.is_alive():
                log.warning("the lake %s hangs: its last rows are lost", self.lake)

    def abort(self) -> None:
        """End as a kill would: what waits is lost."""
        with self._lock:
            self._waiting.clear()
        self.stop()

    # The thread

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
                # Rows that Arrow does not take are our own bug, and would fail for ever.
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
        # Made when the file is open: a lake that cannot be written must not cost a second of
        # processor at each try.
        tables = (
            table_of(columns, rows[low : low + _ROWS_PER_GROUP])
            for low in range(0, len(rows), _ROWS_PER_GROUP)
        )
        lake.write(KINDS[kind], hour, tables, writer=self._writer, run=self._run)

    def _keep(self, kind: str, hour: int, rows: list[Row], failure: OSError) -> None:
        """Try again later, with what came meanwhile."""
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
        """Nobody will ever write: count what comes."""
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
    """Rows as an Arrow table."""
    import pyarrow as pa

    arrays = []
    for field, values in zip(columns, zip(*rows, strict=True), strict=True):
        arrays.append(pa.array(values, field.type))
        if len(rows) > _ROWS_AT_A_STRETCH:
            # Let go of the interpreter: the node's loop would wait 5 ms before it is taken away.
            time.sleep(0)
    return pa.Table.from_arrays(arrays, schema=columns)
