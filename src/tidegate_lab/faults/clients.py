"""The producer and consumer processes of a fault run."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tidegate.demo.history import (
    CheckResult,
    HistoryEvent,
    HistoryFollower,
    MessageKey,
    Outstanding,
    check,
    merged,
    read_history,
)

# Histories of workers, which machines start and the run kills.
WORKERS = "worker-*.history"
_ASK_AGAIN_S = 0.1
_EXIT_S = 90.0
# Includes the start of the client processes, which takes long on a busy machine.
_CONFIRMS_S = 90.0


class Clients:
    """The producers and consumers of a run, each a process that writes its own history.

    The run follows the histories while they are written. It stops the producers, waits until the
    queues are drained, stops the consumers, and asks for the `verdict`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._producers: dict[str, subprocess.Popen[bytes]] = {}
        self._consumers: dict[str, subprocess.Popen[bytes]] = {}
        self._followers: list[HistoryFollower] = []
        self._worker_histories: set[Path] = set()
        self._outstanding = Outstanding()
        # Selects events to ignore, both for the drain and for the verdict.
        self.without: Callable[[HistoryEvent], bool] = lambda event: False
        self.confirmed = 0
        # Failures of the client processes themselves; a run never kills them.
        self.failures: list[str] = []

    def add_producer(self, name: str, url: str, queue: str, *options: str) -> None:
        self._producers[name] = self._start("producer", name, url, queue, options)

    def add_consumer(self, name: str, url: str, queue: str, *options: str) -> None:
        self._consumers[name] = self._start("consumer", name, url, queue, options)

    def _start(
        self, kind: str, name: str, url: str, queue: str, options: tuple[str, ...]
    ) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", f"tidegate_lab.faults.{kind}", "--url", url),
            *("--queue", queue, "--name", name, "--history", str(self._history(name)), *options),
        ]
        self._followers.append(HistoryFollower(self._history(name)))
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _history(self, name: str) -> Path:
        return self._folder / f"{name}.history"

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def follow(self) -> int:
        """Read new events and return how many confirmed messages are not acknowledged yet."""
        for path in self._folder.glob(WORKERS):
            if path not in self._worker_histories:
                self._worker_histories.add(path)
                self._followers.append(HistoryFollower(path))
        for follower in self._followers:
            for event in follower.news():
                if event.op == "put" and event.phase == "ok":
                    self.confirmed += 1
                if not self.without(event):
                    self._outstanding.feed(event)
        return len(self._outstanding)

    def wait_for_confirms(self, count: int, timeout_s: float = _CONFIRMS_S) -> None:
        """Wait until `count` more puts are confirmed."""
        self.follow()
        self.wait_for_confirms_in_all(self.confirmed + count, timeout_s)

    def wait_for_confirms_in_all(self, wanted: int, timeout_s: float = _CONFIRMS_S) -> None:
        """Wait until `wanted` puts are confirmed since the start of the run.

        `TimeoutError` means that they were not confirmed within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.confirmed < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.confirmed} of {wanted} confirms: {self.failures}")
            time.sleep(_ASK_AGAIN_S / 5)
            self.follow()

    def ended_early(self) -> list[str]:
        """Return the names of clients that ended before the run stopped them."""
        everyone = {**self._producers, **self._consumers}
        return [name for name, process in everyone.items() if process.poll() is not None]

    def finish_producers(self) -> None:
        """Stop the producers; each waits for the answers to its pending puts."""
        self._finish(self._producers)

    def drain(self, deadline_s: float) -> bool:
        """Wait until every confirmed message is acknowledged; return False at the deadline."""
        deadline = time.monotonic() + deadline_s
        while self.follow():
            if time.monotonic() > deadline:
                return False
            time.sleep(_ASK_AGAIN_S)
        return True

    def finish_consumers(self) -> None:
        self._finish(self._consumers)

    def _finish(self, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name, process in processes.items():
            try:
                code: int | str = process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                code = "killed: it did not end"
            # A process that is just ending receives the signal after its handler is removed.
            if code not in (0, -signal.SIGTERM):
                end = self._log(name).read_text(errors="replace")[-1500:]
                self.failures.append(f"{name} ended with {code}: {end}")
        processes.clear()

    def verdict(
        self,
        *,
        stored: Collection[MessageKey] | None,
        sole_consumer: Collection[str] = (),
        replicated: Collection[str] = (),
    ) -> CheckResult:
        """Return the checker's result for all histories without the ignored events."""
        paths = sorted(self._folder.glob("*.history"))
        histories = [read_history(path) for path in paths]
        events = (event for event in merged(histories) if not self.without(event))
        return check(events, stored=stored, sole_consumer=sole_consumer, replicated=replicated)


@contextlib.contextmanager
def clients_in(folder: Path) -> Iterator[Clients]:
    """Yield the clients of a run and kill their processes when the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    clients = Clients(folder)
    try:
        yield clients
    finally:
        for process in (*clients._producers.values(), *clients._consumers.values()):
            process.kill()
            process.wait()
