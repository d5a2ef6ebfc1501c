"""How long a process that starts is waited for: as long as it gets anywhere.

On a busy computer a start takes twenty times as long as on one that is idle. Whoever is ended then
begins from nothing, gets no further the next time, and never serves. So what counts is not the
time but whether the process works: one that hangs uses next to no processor time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tidegate.client.connect import URL_VARIABLE
from tidegate.client.connection import SCHEME, SCHEME_TLS
from tidegate.core.errors import Unavailable
from tidegate.core.runtime import crash_point
from tidegate.core.services import Engine
from tidegate.core.text import format_duration
from tidegate.core.topology import logical_name
from tidegate.fleet.process import (
    MACHINE_VARIABLE,
    READY_VARIABLE,
    Backoff,
    ChildProcess,
    child_environment,
    with_stores,
)

log = logging.getLogger(__name__)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class StartPatience:
    """Of one start."""

    # Without any work for so long, it hangs.
    IDLE_S = 20.0
    # So much processor time is work: of a process that gets a two-hundredth of a core.
    WORK_S = 0.1
    # However much it works: as long as a machine may take to join (FleetOptions.boot_deadline_s).
    MOST_S = 300.0

    def __init__(self, now: float) -> None:
        self._begun_at = self._worked_at = now
        self._used_s = 0.0

    def is_over(self, now: float, used_s: float | None) -> bool:
        """Return whether to stop waiting for the process; `used_s` is None if it has ended."""
        if used_s is not None and used_s - self._used_s >= self.WORK_S:
            self._used_s, self._worked_at = used_s, now
        return now - self._worked_at >= self.IDLE_S or now - self._begun_at >= self.MOST_S


def processor_s(pid: int) -> float | None:
    """Return the processor time that a process has used; None if no process has this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets that may hold anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


# A supervised child process that announces through a pipe that it serves, or why it does not.
#
# Theory of operation
# -------------------
#
# Nodes, doors and consoles are started in the same way:
#
# 1. The parent opens a pipe and starts the child with the pipe's number in its environment
#    (process.py).
# 2. The child writes one line: its addresses when it serves, or an error. Then it closes the pipe.
# 3. The parent reads this line with `line`, which waits _START_S seconds at most.
#
# `SupervisedProcess` starts, hears and ends one child at a time. `NodeProcess`, `DoorProcess` and
# `ConsoleProcess` build the command and decide when to restart. Workers and instances run users'
# code, and use `ChildProcess`, which also keeps their last output.
#
# Every child gets its parent's pid and ends with it, however the parent ends (process.py). The
# kernel ties the child to the thread that started it, so `start` must be called from the main
# thread.


# Seconds between two checks whether the child works.
_LOOK_S = 1.0
# Seconds in which a child that reported an error must end.
_END_S = 5.0
# Exit code of our commands for unusable arguments or settings (cli/command_line.py).
_USAGE_ERROR = 2


class StartRefused(Unavailable):
    """The child cannot use its arguments or settings; a restart does not help."""


class SupervisedProcess:
    """One child process at a time, with its announcement."""

    def __init__(self, what: str, schemes: tuple[str, ...], log_file: IO[bytes] | None) -> None:
        # For people: "a node".
        self._what = what
        # Schemes of the address that the announcement begins with.
        self._schemes = schemes
        # Where its log goes; None means our stderr.
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        # Read end of the pipe; None if the line was read, or before the first start.
        self._ready_fd: int | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_died(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def is_unheard(self) -> bool:
        """Whether the child was started and its line has not been read yet."""
        return self._ready_fd is not None

    @property
    def has_spoken(self) -> bool:
        """Whether the child's line can be read without waiting, or will not come."""
        assert self._ready_fd is not None
        readable, _, _ = select.select([self._ready_fd], [], [], 0.0)
        return bool(readable)

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the child; raise `Unavailable` if the computer has no room for it.

        Call it from the main thread, since the child ends with the thread that started it.
        """
        try:
            ready_fd, child_fd = os.pipe()
        except OSError as failure:
            raise self._not_started(failure) from None
        try:
            self._process = subprocess.Popen(
                command,
                env={**environment, **child_environment(), READY_VARIABLE: str(child_fd)},
                pass_fds=(child_fd,),
                # A session of its own: Ctrl-C goes to the parent, which ends its children in order.
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                # Output of users' code must not mix with the parent's output either.
                stdout=self._log_file,
                stderr=self._log_file,
            )
        except OSError as failure:
            os.close(ready_fd)
            raise self._not_started(failure) from None
        finally:
            os.close(child_fd)
        self._ready_fd = ready_fd

    def _not_started(self, failure: OSError) -> Unavailable:
        return Unavailable(f"{self._what} cannot be started: {failure.strerror}")

    def line(self) -> str:
        """Return the announced line; call it once after each start.

        Wait for it as long as the child works. Raises `Unavailable` with the child's error, and
        `StartRefused` if its arguments or settings are unusable.
        """
        assert self._process is not None
        assert self._ready_fd is not None
        ready_fd, self._ready_fd = self._ready_fd, None
        with os.fdopen(ready_fd, "rb") as ready:
            has_spoken = self._speaks(ready)
            line = ready.readline().decode().strip() if has_spoken else ""
        if not line.startswith(self._schemes):
            code = self._code_at_end(_END_S if has_spoken else 0.0)
            if line and code == _USAGE_ERROR:
                raise StartRefused(line)
            if not has_spoken:
                raise Unavailable(f"{self._what} did not get anywhere as it started, and was ended")
            where = "what it printed" if self._log_file is None else self._log_file.name
            raise Unavailable(
                line or f"{self._what} did not start (exit code {code}): {where} says why"
            )
        return line

    def _speaks(self, ready: IO[bytes]) -> bool:
        """Wait for the child's line or the end of the pipe; return False if neither comes."""
        assert self._process is not None
        patience = StartPatience(time.monotonic())
        while True:
            readable, _, _ = select.select([ready], [], [], _LOOK_S)
            if readable:
                return True
            if patience.is_over(time.monotonic(), processor_s(self._process.pid)):
                return False

    def _code_at_end(self, within_s: float) -> int:
        assert self._process is not None
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def tell_of_death(self, address: str) -> None:
        assert self._process is not None
        log.error(
            "%s died and is started again",
            self._what,
            extra={"address": address, "code": self._process.returncode},
        )

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, within_s: float) -> None:
        """Wait until the child has ended; kill it after `within_s` seconds."""
        if self._process is None:
            return
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            log.error("%s did not stop and is killed", self._what, extra={"pid": self.pid})
            self._process.kill()
            self._process.wait()


_NODE_STOP_S = 15.0


class NodeProcess:
    """A `tidegate node` process, and its addresses while it serves."""

    def __init__(
        self,
        store_urls: Sequence[str],
        port: int,
        config: Path | None,
        log_file: IO[bytes] | None = None,
        metrics_port: int | None = None,
        lake: str | None = None,
        machine_id: int | None = None,
        knowledge: str | None = None,
        data: str | None = None,
        # Use a free port if the port is taken. Set only if the user did not choose the port.
        is_derived: bool = False,
    ) -> None:
        self._store_urls = store_urls
        self._lake = lake
        self._knowledge = knowledge
        self._data = data
        self._port = port
        self._is_derived = is_derived
        self._metrics_port = metrics_port
        self._config = config
        self._machine_id = machine_id
        self._child = SupervisedProcess("a node", (SCHEME, SCHEME_TLS), log_file)
        self._started_at = 0.0
        self.address = ""
        self.metrics_address = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def start(self) -> None:
        """Start the node; call it from the main thread, since the child ends with its thread."""
        command = [sys.executable, "-m", "tidegate", "node", "--port", str(self._port)]
        if self._is_derived and not self.address:
            command += ["--or-free"]
        if self._metrics_port is not None:
            command += ["--metrics-port", str(self._metrics_port)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        if self._machine_id is not None:
            command += ["--machine", str(self._machine_id)]
        if self._machine_id is not None or self.address:
            # The cluster was started before: declaring queues again would restore deleted ones.
            command += ["--no-declare"]
        environment = with_stores(os.environ, self._store_urls)
        if self._lake is not None:
            environment["TIDEGATE_TELEMETRY__LAKE"] = self._lake
        if self._data is not None:
            environment["TIDEGATE_STORE__DATA"] = self._data
        if self._knowledge is not None:
            environment["TIDEGATE_PIPELINE__KNOWLEDGE"] = self._knowledge
        # Also for a failed start, so that it is not retried at once.
        self._started_at = time.monotonic()
        self._child.start(command, environment)

    def wait_until_ready(self) -> None:
        """Wait until the node serves; raise `Unavailable` with its error if it does not."""
        line = self._child.line()
        self.address, _, self.metrics_address = line.partition(" ")
        # Keep the port, so that clients find the node after a restart.
        self._port = int(self.address.rpartition(":")[2])
        if self.metrics_address:
            self._metrics_port = int(self.metrics_address.rpartition(":")[2])

    @property
    def has_died(self) -> bool:
        return self._child.has_died

    def ensure_running(self) -> None:
        """Restart the node if it has died, once a second at most; log a failure."""
        if not self.has_died or time.monotonic() - self._started_at < 1.0:
            return
        self._child.tell_of_death(self.address)
        try:
            self.start()
            self.wait_until_ready()
        except Unavailable as failure:
            log.error("%s", failure)

    def terminate(self) -> None:
        self._child.terminate()

    def wait(self) -> None:
        self._child.wait(_NODE_STOP_S)


_DOOR_STOP_S = 20.0
_DOOR_BACKOFF_S = (0.2, 5.0)
DOOR_SCHEME = "http://"


class DoorProcess:
    """A `tidegate door` process, and its address while it serves."""

    def __init__(
        self,
        store_urls: Sequence[str],
        service: str,
        *,
        host: str,
        port: int,
        engine: Engine | None = None,
        # Networks that are trusted to say who the client is.
        trusted: Sequence[str] = (),
        config: Path | None = None,
        log_file: IO[bytes] | None = None,
        drain_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._store_urls = store_urls
        self._service = service
        self._host = host
        self._port = port
        self._engine = engine
        self._trusted = trusted
        self._config = config
        self._drain_s = drain_s
        # Added to our own environment.
        self._environment = dict(environment or {})
        self._child = SupervisedProcess("a door", (DOOR_SCHEME,), log_file)
        self._backoff = Backoff(*_DOOR_BACKOFF_S)
        self.address = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def has_died(self) -> bool:
        return self._child.has_died

    def start(self) -> None:
        """Start the door; call it from the main thread, since the child ends with its thread."""
        command = [sys.executable, "-m", "tidegate", "door", self._service]
        command += ["--host", self._host, "--port", str(self._port)]
        command += ["--drain", f"{self._drain_s:g}s"]
        if self._engine is not None:
            command += ["--engine", self._engine.value]
        for network in self._trusted:
            command += ["--trust", network]
        if self._config is not None:
            command += ["--config", str(self._config)]
        environment = {
            **with_stores(os.environ, self._store_urls),
            **self._environment,
        }
        self._child.start(command, environment)

    def wait_until_ready(self) -> None:
        """Wait until the door listens; raise `Unavailable` with its error if it does not."""
        self.address = self._child.line()
        # Keep the port, so that clients find the door after a restart.
        self._port = int(self.address.rpartition(":")[2])

    def ensure_running(self) -> bool:
        """Restart the door if it has died; return whether it was restarted."""
        now = time.monotonic()
        if not self.has_died or not self._backoff.is_due(now):
            return False
        self._child.tell_of_death(self.address)
        try:
            self.start()
            self.wait_until_ready()
        except Unavailable as failure:
            self._backoff.failed(time.monotonic())
            log.error("%s", failure)
            return False
        self._backoff.succeeded()
        return True

    def terminate(self) -> None:
        self._child.terminate()

    def wait(self) -> None:
        self._child.wait(self._drain_s + _DOOR_STOP_S)


# The console in its own process: started, awaited, and restarted on the same port.


_CONSOLE_STOP_S = 10.0
_CONSOLE_BACKOFF_S = (0.2, 10.0)
# After serving for this many seconds, a death is not caused by the start.
_SETTLED_S = 30.0
_SCHEMES = ("http://", "https://")
INSTALL_COMMAND = "pip install 'tidegate[console]'"


def is_installed() -> bool:
    """Return whether the packages that the console needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("litestar", "uvicorn"))


class ConsoleProcess:
    """A `tidegate console` process, and its address while it serves."""

    def __init__(
        self,
        nodes: Sequence[str],
        store_urls: Sequence[str],
        *,
        host: str,
        port: int,
        # Use a free port if the port is taken. Set only if the user did not choose the port.
        is_derived: bool = False,
        config: Path | None = None,
        log_file: IO[bytes] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._nodes = nodes
        self._store_urls = store_urls
        self._host = host
        self._port = port
        self._is_derived = is_derived
        self._config = config
        self._environment = dict(environment or {})
        self._child = SupervisedProcess("the console", _SCHEMES, log_file)
        self._backoff = Backoff(*_CONSOLE_BACKOFF_S)
        self._serves_since: float | None = None
        self.address = ""

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def has_died(self) -> bool:
        return self._child.has_died

    def start(self) -> None:
        """Start the console; if there is no room for a process now, `watch` tries again.

        Call it from the main thread, since the child ends with its thread.
        """
        command = [sys.executable, "-m", "tidegate", "console"]
        command += ["--host", self._host, "--port", str(self._port)]
        if self._is_derived and not self.address:
            command += ["--or-free"]
        if self._config is not None:
            command += ["--config", str(self._config)]
        environment = {**with_stores(os.environ, self._store_urls), **self._environment}
        environment["TIDEGATE_URL"] = _joined(self._nodes)
        try:
            self._child.start(command, environment)
        except Unavailable as failure:
            self._note_failure(failure)

    def wait_until_ready(self) -> None:
        """Wait until the console listens; raise `Unavailable` with its error if it does not."""
        self.address = self._child.line()
        # Keep the port, so that browsers find the console after a restart.
        self._port = int(self.address.rpartition(":")[2])

    def watch(self) -> str | None:
        """Restart the console if it has died; return its address when it has just begun to serve.

        Never waits, because the caller has nodes to watch.
        """
        if self._child.is_unheard:
            if not self._child.has_spoken:
                return None
            try:
                self.wait_until_ready()
            except Unavailable as failure:
                self._note_failure(failure)
                return None
            self._serves_since = time.monotonic()
            return self.address
        if self.has_died:
            self._note_death()
        if self.has_died and self._backoff.is_due(time.monotonic()):
            if self.pid is not None:
                self._child.tell_of_death(self.address)
            self.start()
        return None

    def _note_failure(self, failure: Unavailable) -> None:
        self._backoff.failed(time.monotonic())
        log.error("no console: %s", failure)

    def _note_death(self) -> None:
        """Record the end of a console that served; soon after its start it counts as a failure."""
        if self._serves_since is None:
            return
        now = time.monotonic()
        if now - self._serves_since >= _SETTLED_S:
            self._backoff.succeeded()
        self._backoff.failed(now)
        self._serves_since = None

    def terminate(self) -> None:
        self._child.terminate()

    def wait(self) -> None:
        self._child.wait(_CONSOLE_STOP_S)


def _joined(nodes: Sequence[str]) -> str:
    """Join node URLs to one URL."""
    first, *others = nodes
    return ",".join([first, *(one.partition("://")[2] for one in others)])


REPLICA_VARIABLE = "TIDEGATE_REPLICA"


class WorkerProcess(ChildProcess):
    """A `tidegate worker` that is bound to one replica."""

    def __init__(self, replica: str, target: str, node: str, machine_id: int, drain_s: float):
        self.replica = replica
        command = [sys.executable, "-m", "tidegate", "worker", target]
        command += ["--queues", logical_name(replica), "--drain", f"{drain_s:g}s"]
        environment = {
            REPLICA_VARIABLE: replica,
            MACHINE_VARIABLE: str(machine_id),
            URL_VARIABLE: node,
        }
        super().__init__(command, environment)

    @property
    def has_imported(self) -> bool:
        """Whether the user's module has been imported, or its import will not be announced."""
        return self.ready_message is not None


# The worker processes of one replica: the wanted number, restarted when they die.
#
# If there are too many, the least busy ends first. A worker that dies is restarted with a backoff,
# because a module that cannot be imported would otherwise keep a core busy. Its last output is kept
# for the machine's report. An import that hangs is reported too, because it prints nothing.


_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0
# Seconds after which a worker's death is not a failed start.
_GOT_SOMEWHERE_S = 10.0
# Seconds after which an unfinished import is reported.
_IMPORT_S = 10.0
# Seconds that a worker may need after its drain, for hooks and its exit.
_EXIT_S = 10.0
# Seconds that the kernel may need to end a killed worker.
_KILLED_S = 5.0


class ReplicaWorkers:
    """The workers of one replica on one machine."""

    def __init__(self, replica: str, target: str, machine_id: int, drain_s: float) -> None:
        self.replica = replica
        self.target = target
        self._machine_id = machine_id
        self._drain_s = drain_s
        self._workers: list[WorkerProcess] = []
        self._backoff = Backoff(_BACKOFF_FIRST_S, _BACKOFF_MOST_S)
        # Why the last worker died or hangs; empty if all is well.
        self.trouble = ""

    @property
    def pids(self) -> list[int]:
        """Pids of workers that were not asked to end, the oldest first."""
        return [worker.pid for worker in self._working]

    @property
    def are_gone(self) -> bool:
        return not self._workers

    @property
    def _working(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.asked_at is None]

    async def adjust(self, wanted: int, node: str, busy: Mapping[int, int]) -> None:
        """Move one step towards `wanted` workers; `busy` has the held messages of each pid."""
        now = asyncio.get_running_loop().time()
        await self._bury(now)
        working = self._working
        if len(working) > wanted:
            self._release(working, len(working) - wanted, busy)
        elif len(working) < wanted and self._backoff.is_due(now):
            for _ in range(wanted - len(working)):
                await self._start(node, now)
        elif wanted and working and not self._is_young(working[-1], now):
            self._backoff.succeeded()
            self.trouble = ""
        self._notice_late(now)

    async def stop(self) -> None:
        """End all workers, each with its drain; kill those that take too long."""
        for worker in self._working:
            worker.terminate()
        if not self._workers:
            return
        ending = [asyncio.create_task(worker.wait()) for worker in self._workers]
        _, late = await asyncio.wait(ending, timeout=self._drain_s + _EXIT_S)
        for worker in self._workers:
            worker.kill()
        if late:
            _, late = await asyncio.wait(late, timeout=_KILLED_S)
        for waiting in late:
            waiting.cancel()
        self._workers.clear()

    async def _start(self, node: str, now: float) -> None:
        worker = WorkerProcess(self.replica, self.target, node, self._machine_id, self._drain_s)
        try:
            await worker.start()
        except OSError as failure:
            self._backoff.failed(now)
            self.trouble = f"{self.replica}: a worker cannot be started: {failure}"
            log.error("%s", self.trouble, extra=self._where)
            return
        self._workers.append(worker)
        log.info("worker started", extra={**self._where, "pid": worker.pid})

    def _release(self, working: list[WorkerProcess], count: int, busy: Mapping[int, int]) -> None:
        # One at a time: messages that the first returns may go to the next one.
        if any(worker.asked_at is not None for worker in self._workers):
            return
        # Among equals end the youngest; the others have warm caches.
        idlest = min(working, key=lambda worker: (busy.get(worker.pid, 0), -worker.started_at))
        log.info(
            "worker is let go",
            extra={
                **self._where,
                "pid": idlest.pid,
                "holds": busy.get(idlest.pid, 0),
                "of": len(working),
            },
        )
        crash_point("before-worker-told")
        idlest.terminate()
        crash_point("after-worker-told")

    async def _bury(self, now: float) -> None:
        for worker in list(self._workers):
            late_s = None if worker.asked_at is None else now - worker.asked_at
            if worker.exit_code is None:
                if late_s is not None and late_s > self._drain_s + _EXIT_S:
                    log.error(
                        "a worker did not end and is killed",
                        extra={**self._where, "pid": worker.pid},
                    )
                    worker.kill()
                continue
            await worker.wait()
            self._workers.remove(worker)
            if worker.asked_at is None:
                self._mourn(worker, now)
            else:
                crash_point("after-worker-gone")

    def _mourn(self, worker: WorkerProcess, now: float) -> None:
        if not self._is_young(worker, now):
            self._backoff.succeeded()
        wait_s = self._backoff.failed(now)
        self.trouble = f"{self.replica}: worker {self.target} {worker.exit_text}"
        log.error(
            "a worker died and is started again",
            extra={
                **self._where,
                "code": worker.exit_code,
                "in_s": round(wait_s, 1),
                "said": worker.last_output,
            },
        )

    def _notice_late(self, now: float) -> None:
        for worker in self._working:
            if now - worker.started_at >= _IMPORT_S and not worker.has_imported:
                self.trouble = (
                    f"{self.replica}: worker {self.target} (pid {worker.pid}) still imports its "
                    f"module after {format_duration(_IMPORT_S)}: it may hang there"
                )
                return

    def _is_young(self, worker: WorkerProcess, now: float) -> bool:
        return now - worker.started_at < _GOT_SOMEWHERE_S

    @property
    def _where(self) -> dict[str, object]:
        return {"machine": self._machine_id, "replica": self.replica}
