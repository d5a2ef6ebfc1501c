"""The comparison of Tidegate with other brokers, in one run on one machine.

Theory of operation

A run has several rounds. In each round every server is started fresh, measured alone, and stopped.
No other server then takes processor time, and a slow drift of the machine affects all systems
alike.

In the first round, short runs find how many messages take the requested time; they also warm up
the server. Each further run uses this number of messages. The report has the medians over the
rounds. Every measurement is limited in messages and in time.

A system whose server is not installed is reported as skipped. A system that fails is reported as
failed and takes no part in later rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil
from rich.console import Console

from tidegate_lab.bench.compare_report import CompareReport, build_report, render
from tidegate_lab.loadgen.worker import (
    Latency,
    WorkerProcessFailed,
    measure_latency,
    measure_throughput,
)
from tidegate_lab.peers.contenders import CONTENDERS, SERVERS, Contender
from tidegate_lab.peers.servers import ServerFailed, ServerMissing

OFFERED_PER_S = 2000.0
CALIBRATION_MESSAGES = 1000
CALIBRATION_GROWTH = 8
CALIBRATION_SECONDS = 0.4

Progress = Callable[[str], None]


class CompareOptions(msgspec.Struct, frozen=True):
    """The systems to measure, and the length of the runs."""

    only: Sequence[str] = ()
    repeat: int = 3
    # Messages per run for every system; None finds a number for each system by calibration.
    messages: int | None = None
    seconds_per_run: float = 4.0
    messages_max: int = 1_000_000
    latency: bool = True
    latency_seconds: float = 10.0

    def contenders(self) -> list[Contender]:
        """Return the chosen systems, or raise `ValueError` for an unknown name."""
        for name in self.only:
            if name not in CONTENDERS:
                raise ValueError(
                    f"no system is called {name!r}; there are: {', '.join(CONTENDERS)}"
                )
        return [CONTENDERS[name] for name in self.only or CONTENDERS]


def run_compare(options: CompareOptions, progress: Progress = lambda line: None) -> CompareReport:
    """Measure every chosen system in interleaved rounds."""
    comparison = _Comparison(options, progress)
    with _terminated_like_interrupted():
        for round_number in range(1, options.repeat + 1):
            comparison.run_round(round_number)
    return comparison.report()


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that SIGTERM stops the servers too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Comparison:
    def __init__(self, options: CompareOptions, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._contenders = options.contenders()
        self._messages: dict[str, int] = {}
        self._rounds: dict[str, list[float]] = {one.name: [] for one in self._contenders}
        self._latency_rounds: dict[str, list[Latency]] = {
            one.name: [] for one in self._contenders if one.offers_rate and options.latency
        }
        self._skipped: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._notes: dict[str, None] = {}

    def run_round(self, round_number: int) -> None:
        for server_name, start in SERVERS.items():
            contenders = [
                contender
                for contender in self._contenders
                if contender.server == server_name and contender.name not in self._dropped
            ]
            if not contenders:
                continue
            self._progress(f"round {round_number}: starting {server_name}")
            try:
                with start() as server:
                    self._notes.update(dict.fromkeys(server.notes))
                    for contender in contenders:
                        self._measure(contender, server.port, round_number)
            except ServerMissing as missing:
                self._skipped.update({contender.name: str(missing) for contender in contenders})
                self._progress(str(missing))
            except ServerFailed as failure:
                self._failed.update({contender.name: str(failure) for contender in contenders})
                self._progress(str(failure))

    def report(self) -> CompareReport:
        return build_report(
            rounds=self._rounds,
            latency_rounds=self._latency_rounds,
            messages=self._messages,
            skipped=self._skipped,
            failed=self._failed,
            notes=list(self._notes),
            environment=describe_machine(),
        )

    @property
    def _dropped(self) -> set[str]:
        return {*self._skipped, *self._failed}

    def _measure(self, contender: Contender, port: int, round_number: int) -> None:
        name = contender.name
        try:
            if name not in self._messages:
                self._messages[name] = self._options.messages or self._calibrate(contender, port)
            throughput = measure_throughput(contender, port, self._messages[name])
            self._rounds[name].append(throughput.messages_per_s)
            self._progress(
                f"round {round_number}: {name}: {throughput.messages_per_s:,.0f} msg/s "
                f"({throughput.messages:,} messages in {throughput.seconds:.1f} s)"
            )
            if name in self._latency_rounds:
                latency = measure_latency(
                    contender, port, OFFERED_PER_S, self._options.latency_seconds
                )
                self._latency_rounds[name].append(latency)
                self._progress(
                    f"round {round_number}: {name}: confirm {latency.confirm_p50:.2f} / "
                    f"{latency.confirm_p99:.2f} ms, handler {latency.handler_p50:.2f} / "
                    f"{latency.handler_p99:.2f} ms (p50 / p99)"
                )
        except WorkerProcessFailed as failure:
            self._failed[name] = str(failure)
            self._progress(f"round {round_number}: {name} FAILED: {failure}")

    def _calibrate(self, contender: Contender, port: int) -> int:
        """Return how many messages take `seconds_per_run`."""
        messages_max = self._options.messages_max
        messages = CALIBRATION_MESSAGES
        while True:
            probe = measure_throughput(contender, port, messages)
            if probe.seconds >= CALIBRATION_SECONDS or messages >= messages_max:
                wanted = int(probe.messages_per_s * self._options.seconds_per_run)
                return max(CALIBRATION_MESSAGES, min(messages_max, wanted))
            messages = min(messages_max, messages * CALIBRATION_GROWTH)


def describe_machine() -> dict[str, str]:
    """Return the properties of the machine on which measurements depend."""
    return {
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "data_filesystem": _filesystem_of(Path(tempfile.gettempdir())),
    }


def _filesystem_of(folder: Path) -> str:
    """Return the filesystem type of a folder; on tmpfs a flush to disk costs nothing."""
    best_mount, best_type = "", "unknown"
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return best_type
    for line in mounts.read_text().splitlines():
        _, mount, filesystem, *_ = line.split()
        inside = folder.resolve().is_relative_to(mount)
        # Of two mounts at the same place, the later one covers the earlier one.
        if inside and len(mount) >= len(best_mount):
            best_mount, best_type = mount, filesystem
    return best_type


def _options_from(arguments: Sequence[str]) -> tuple[CompareOptions, bool]:
    parser = argparse.ArgumentParser(prog="python -m tidegate_lab.bench.compare")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--messages", type=int, help="messages per run, instead of calibrating")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--only", default="", help="systems to measure, separated by commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="wanted length of a run")
    parser.add_argument("--latency-seconds", type=float, default=10.0)
    parser.add_argument("--no-latency", action="store_true")
    chosen = parser.parse_args(arguments)
    options = CompareOptions(
        only=[name.strip() for name in chosen.only.split(",") if name.strip()],
        repeat=chosen.repeat,
        messages=chosen.messages,
        seconds_per_run=chosen.seconds,
        latency=not chosen.no_latency,
        latency_seconds=chosen.latency_seconds,
    )
    return options, bool(chosen.json)


def main(arguments: Sequence[str]) -> int:
    """Run a comparison from the command line and return its exit code.

    1 means that a system failed, and 2 that the options name an unknown system.
    """
    options, as_json = _options_from(arguments)
    try:
        options.contenders()
    except ValueError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    report = run_compare(options, lambda line: print(line, file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps(report.as_json(), indent=2))
    else:
        render(report, Console())
    return 1 if report.failed else 0


# Processor time that other processes used during a measurement.


# If other processes used more than this share of the machine, a report says so.
QUIET = 0.05


class Processors:
    """A stopwatch for processor time of the machine and of this process with its children."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._all_s = _busy_s()
        self._ours_s = _ours_s()

    def share_of_others(self) -> float:
        """Return the share of all processors that other processes used since the start."""
        capacity_s = (time.monotonic() - self._began_s) * (os.cpu_count() or 1)
        others_s = (_busy_s() - self._all_s) - (_ours_s() - self._ours_s)
        return min(max(others_s / capacity_s, 0.0), 1.0)


def _busy_s() -> float:
    times = psutil.cpu_times()
    idle_s: float = times.idle + times.iowait
    return float(sum(times)) - idle_s - getattr(times, "guest", 0.0)


def _ours_s() -> float:
    """Return processor seconds of this process and its children, ended ones included."""
    me = psutil.Process()
    used_s = 0.0
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


LOOK_EVERY_S = 0.1
SETTLED_S = 1.0


class MemoryPeak:
    """Samples the memory ten times a second and keeps the maximum in `bytes_max`."""

    def __init__(self, without: frozenset[int] = frozenset()) -> None:
        """Prepare a measurement; `without` has the ids of processes that do not count."""
        self._without = without
        self._over = threading.Event()
        self.bytes_max = 0

    @contextlib.contextmanager
    def watched(self) -> Iterator[MemoryPeak]:
        """Sample while the block runs."""
        thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while True:
            self.bytes_max = max(self.bytes_max, self._look())
            if self._over.wait(LOOK_EVERY_S):
                return

    def _look(self) -> int:
        total = 0
        # A process that has just been forked to run a command appears as large as its parent.
        settled_s = time.time() - SETTLED_S
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            # A process that has just ended uses no memory.
            with contextlib.suppress(psutil.Error):
                if process.pid not in self._without and process.create_time() < settled_s:
                    total += process.memory_info().rss
        return total


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
