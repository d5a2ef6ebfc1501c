"""The processes that Tidegate starts and keeps running: nodes, doors, the console, workers.

Theory of operation
-------------------

A `ProcessSpec` says what to start; `node_spec`, `door_spec`, `console_spec` and `worker_spec` build
one. A `SupervisedProcess` starts it, hears it, restarts it and stops it:

1. The parent opens a pipe and starts the process with the pipe's number in its environment
   (process.py).
2. The process writes one line: its addresses when it serves, or an error. Then it closes the pipe.
3. The parent reads this line. It waits as long as the process works (`StartPatience`).
4. `watch` restarts a process that died, on the ports that it had, and as its `RestartPolicy` says.

Workers and HTTP applications run users' code. Their output goes through a pipe, so that the parent
knows the last lines. The parent waits for the process and never for the end of its output, because
processes that it started may hold the pipe open for longer.

Every process gets its parent's pid and ends with it, however the parent ends (process.py). The
kernel ties the process to the thread that started it, so `start` must be called from the main
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tidegate.client.address import SCHEME, SCHEME_TLS
from tidegate.client.connect import URL_VARIABLE
from tidegate.core.errors import Unavailable
from tidegate.core.runtime import crash_point
from tidegate.core.services import Engine
from tidegate.core.text import escape_control_characters, format_duration
from tidegate.core.topology import logical_name
from tidegate.fleet.process import (
    MACHINE_VARIABLE,
    READY_VARIABLE,
    Backoff,
    child_environment,
    with_stores,
    without_stores,
)

log = logging.getLogger(__name__)

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Seconds between two checks whether a process that starts works.
_LOOK_S = 1.0
# Seconds in which a process that reported an error must end.
_END_S = 5.0
# Seconds that the kernel may need to end a killed process.
_KILLED_S = 5.0
# Exit code of our commands for unusable arguments or settings (cli/command_line.py).
_USAGE_ERROR = 2
_MESSAGE_BYTES_MAX = 1 << 16
# Of the output of users' code: lines that are kept, bytes of a line, characters in a report.
_LINES_KEPT = 20
_LINE_BYTES_MAX = 1 << 16
_TOLD_MAX = 500
# Seconds after the end in which the last lines may still arrive.
_REST_S = 0.2
# Log lines at level debug or info (cli/output.py): they do not explain an end.
_ALL_WELL = re.compile(r'time=\S+ level=(debug|info) |\{"time":"[^"]*","level":"(debug|info)"')
_STDERR_FD = 2


class StartPatience:
    """The limit for one start: as long as the process works.

    On a busy computer a start takes twenty times as long as on an idle one. A process that is ended
    too early begins from nothing, gets no further the next time, and never serves. The limit is
    therefore not a time: a process that hangs uses next to no processor time.
    """

    # A process that does no work for so many seconds hangs.
    IDLE_S = 20.0
    # Seconds of processor time that are work: of a process that gets a two-hundredth of a core.
    WORK_S = 0.1
    # The limit for a process that works: as long as a machine may take to join
    # (FleetOptions.boot_deadline_s).
    MOST_S = 300.0

    def __init__(self, now: float) -> None:
        self._begun_at = self._worked_at = now
        self._used_s = 0.0

    def is_over(self, now: float, used_s: float | None) -> bool:
        """Return whether to wait no longer; `used_s` is its processor time, None after its end."""
        if used_s is not None and used_s - self._used_s >= self.WORK_S:
            self._used_s, self._worked_at = used_s, now
        return now - self._worked_at >= self.IDLE_S or now - self._begun_at >= self.MOST_S


def processor_s(pid: int) -> float | None:
    """Return the processor time that a process has used; None if no process has this pid."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets that may contain brackets itself.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


class StartRefused(Unavailable):
    """The process cannot use its arguments or settings; a restart does not help."""


@dataclass(frozen=True)
class RestartPolicy:
    """When a process that died is started again."""

    # The wait after a failed start, in seconds; it doubles with each failure up to `most_s`.
    first_s: float = 0.0
    most_s: float = 0.0
    # Seconds from one start to the next, at least.
    interval_s: float = 0.0
    # A death counts as a failure, and as the first one after serving for this many seconds. None
    # means that only a failed start counts.
    settled_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """What to start, and how to hear, restart and stop it."""

    # For people: "a node".
    name: str
    command: Sequence[str]
    # Added to our own environment, of which no process inherits the stores.
    environment: Mapping[str, str]
    # The port options, in the order of the addresses that the process announces. None leaves the
    # option out. A restart uses the announced ports, so that clients find the process again.
    ports: Mapping[str, int | None] = field(default_factory=dict)
    # Arguments of starts before it has served for the first time, and of starts after that.
    first_arguments: Sequence[str] = ()
    restart_arguments: Sequence[str] = ()
    # Schemes of the address that its line begins with; another line is an error.
    schemes: tuple[str, ...] = ()
    # Working folder; None means ours.
    folder: Path | None = None
    # Where its log goes; None means our stderr.
    log_file: IO[bytes] | None = None
    # Whether to keep the last lines of its stderr, as for users' code.
    keeps_output: bool = False
    # Seconds from the request to end until it is killed.
    stop_s: float
    restart: RestartPolicy = RestartPolicy()

    def command_line(self, addresses: Sequence[str]) -> list[str]:
        """Return the command; `addresses` are those of the previous run, empty if there is none."""
        kept = [int(address.rpartition(":")[2]) for address in addresses]
        ports = {**self.ports, **dict(zip(self.ports, kept, strict=False))}
        words = list(self.command)
        for option, port in ports.items():
            words += [] if port is None else [option, str(port)]
        return [*words, *(self.restart_arguments if addresses else self.first_arguments)]


class SupervisedProcess:
    """One process at a time: started, heard, restarted and stopped."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        # What it announced when it last began to serve.
        self.addresses: list[str] = []
        self.started_at = float("-inf")
        # When it was asked to end; None if it was not.
        self.asked_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # Our end of the pipe, until its line has been read.
        self._ready_fd: int | None = None
        self._ready_message: str | None = None
        self._is_starting = False
        self._serves_since: float | None = None
        self._patience = StartPatience(0.0)
        self._backoff = Backoff(spec.restart.first_s, spec.restart.most_s)
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._partial_line = b""
        self._output_ended = asyncio.Event()

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def address(self) -> str:
        """The first address that it announced; empty if it has never served."""
        return self.addresses[0] if self.addresses else ""

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, and before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def has_died(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def is_due(self) -> bool:
        """Whether it does not run and may be started now."""
        now = time.monotonic()
        return (
            self.has_died
            and self._backoff.is_due(now)
            and now - self.started_at >= self.spec.restart.interval_s
        )

    def start(self) -> None:
        """Start the process; raise `Unavailable` if the computer has no room for it.

        Call it from the main thread, since the process ends with the thread that started it.
        """
        spec = self.spec
        # Also for a failed start, so that it is not repeated at once.
        self.started_at = time.monotonic()
        self.asked_at = self._serves_since = self._ready_message = None
        try:
            self._ready_fd, child_fd = os.pipe()
        except OSError as failure:
            raise self._not_started(failure) from None
        os.set_blocking(self._ready_fd, False)
        environment = without_stores(os.environ) | dict(spec.environment) | child_environment()
        try:
            self._process = subprocess.Popen(
                spec.command_line(self.addresses),
                env=environment | {READY_VARIABLE: str(child_fd)},
                cwd=spec.folder,
                pass_fds=(child_fd,),
                # A session of its own: Ctrl-C goes to the parent, which ends its children in order.
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                # Output of users' code must not mix with the parent's output either.
                stdout=spec.log_file,
                stderr=subprocess.PIPE if spec.keeps_output else spec.log_file,
            )
        except OSError as failure:
            self._close_pipe()
            raise self._not_started(failure) from None
        finally:
            os.close(child_fd)
        self._is_starting = True
        self._patience = StartPatience(self.started_at)
        if self._process.stderr is not None:
            self._output_ended.clear()
            os.set_blocking(self._process.stderr.fileno(), False)
            asyncio.get_running_loop().add_reader(self._process.stderr.fileno(), self._read_output)

    def _not_started(self, failure: OSError) -> Unavailable:
        self._backoff.failed(time.monotonic())
        return Unavailable(f"{self.spec.name} cannot be started: {failure.strerror}")

    # Its announcement

    @property
    def ready_message(self) -> str | None:
        """The announced line; empty if none will come, None if none has come yet."""
        if self._ready_fd is not None:
            with contextlib.suppress(BlockingIOError):
                # The line has come, or the pipe was closed: there is nothing more to read.
                line = os.read(self._ready_fd, _MESSAGE_BYTES_MAX)
                self._ready_message = line.decode(errors="replace").strip()
                self._close_pipe()
        return self._ready_message

    def _close_pipe(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    def wait_until_ready(self) -> None:
        """Wait until it serves; call it once after each start.

        Wait as long as the process works. Raises `Unavailable` with the process's error, and
        `StartRefused` if its arguments or settings are unusable.
        """
        while self._is_waited_for(_LOOK_S):
            pass
        self._is_starting = False
        line = self.ready_message
        self._close_pipe()
        now = time.monotonic()
        if line and line.startswith(self.spec.schemes):
            self.addresses = line.split()
            self._serves_since = now
            if self.spec.restart.settled_s is None:
                self._backoff.succeeded()
            return
        self._backoff.failed(now)
        code = self._code_at_end(0.0 if line is None else _END_S)
        if line is None:
            raise Unavailable(f"{self.spec.name} did not get anywhere as it started, and was ended")
        if line and code == _USAGE_ERROR:
            raise StartRefused(line)
        log_file = self.spec.log_file
        where = "what it printed" if log_file is None else log_file.name
        raise Unavailable(
            line or f"{self.spec.name} did not start (exit code {code}): {where} says why"
        )

    def _is_waited_for(self, within_s: float) -> bool:
        """Wait `within_s` seconds; return whether its line is missing and it still works."""
        if self._ready_fd is not None:
            select.select([self._ready_fd], [], [], within_s)
        return self.ready_message is None and not self._patience.is_over(
            time.monotonic(), processor_s(self.pid)
        )

    def _code_at_end(self, within_s: float) -> int:
        assert self._process is not None
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def watch(self) -> bool:
        """Start it again if it has died; return whether it has just begun to serve.

        Never waits, because the caller watches other processes, too. A failure is logged.
        """
        try:
            if self._is_starting:
                if self._is_waited_for(0.0):
                    return False
                self.wait_until_ready()
                return True
            self._note_death()
            if self.is_due:
                if self._process is not None:
                    log.error(
                        "%s died and is started again",
                        self.spec.name,
                        extra={"address": self.address, "code": self.exit_code},
                    )
                self.start()
        except Unavailable as failure:
            log.error("start failed: %s", failure, extra={"of": self.spec.name})
        return False

    def _note_death(self) -> None:
        """Record the end of a process that served, if its policy counts it as a failure."""
        settled_s = self.spec.restart.settled_s
        if settled_s is None or self._serves_since is None or not self.has_died:
            return
        now = time.monotonic()
        if now - self._serves_since >= settled_s:
            self._backoff.succeeded()
        self._backoff.failed(now)
        self._serves_since = None

    # Its end

    def terminate(self) -> None:
        """Ask it to finish the work it has begun and return the rest."""
        self.asked_at = time.monotonic()
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def wait(self) -> None:
        """Wait until it has ended; kill it if that takes too long."""
        self._close_pipe()
        if self._process is None:
            return
        try:
            self._process.wait(self.spec.stop_s)
        except subprocess.TimeoutExpired:
            self._kill_late()
            self._process.wait()

    def _kill_late(self) -> None:
        log.error("%s did not stop and is killed", self.spec.name, extra={"pid": self.pid})
        self.kill()

    async def stop(self) -> None:
        """Ask it to end unless it was asked, and wait; kill it if that takes too long.

        A process that even a kill does not end is left behind.
        """
        if self.asked_at is None:
            self.terminate()
        if not await self.ends_within(self.spec.stop_s):
            self._kill_late()
            if not await self.ends_within(_KILLED_S):
                return
        await self.ended()

    async def ends_within(self, seconds: float | None) -> bool:
        """Wait up to `seconds`, None means without limit; return whether it has ended."""
        if self.has_died:
            return True
        has_ended = asyncio.Event()
        handle = os.pidfd_open(self.pid)
        loop = asyncio.get_running_loop()
        loop.add_reader(handle, has_ended.set)
        try:
            async with asyncio.timeout(seconds):
                await has_ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(handle)
            os.close(handle)
        return self.has_died

    async def ended(self) -> None:
        """Wait until it has ended and its last lines have been read."""
        await self.ends_within(None)
        self._close_pipe()
        if self._process is None or self._process.stderr is None or self._process.stderr.closed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REST_S):
                await self._output_ended.wait()
        # Otherwise the pipe stays open as long as another process holds its other end.
        asyncio.get_running_loop().remove_reader(self._process.stderr.fileno())
        self._process.stderr.close()

    # Its last lines

    @property
    def last_output(self) -> str:
        """Its last error if it reported one, else the last line that is not about normal work."""
        errors = [line for line in self._lines if line.startswith("tidegate: ")]
        if errors:
            return errors[-1].removeprefix("tidegate: ")[:_TOLD_MAX]
        return self._lines[-1][:_TOLD_MAX] if self._lines else "it said nothing"

    @property
    def exit_text(self) -> str:
        code = self.exit_code
        if code is None or code >= 0:
            return f"ended with code {code}: {self.last_output}"
        how = f"was ended by signal {-code}"
        with contextlib.suppress(ValueError):
            how += f" ({signal.Signals(-code).name})"
        return f"{how}: {self.last_output}" if self._lines else how

    def _read_output(self) -> None:
        """Copy what has come to our stderr, and keep the last lines."""
        assert self._process is not None
        assert self._process.stderr is not None
        output_fd = self._process.stderr.fileno()
        try:
            chunk = os.read(output_fd, _LINE_BYTES_MAX)
        except BlockingIOError:
            return
        *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
        if not chunk:
            asyncio.get_running_loop().remove_reader(output_fd)
            self._output_ended.set()
            lines = [self._partial_line]
        if len(self._partial_line) > _LINE_BYTES_MAX:
            # A line longer than the limit is skipped.
            self._partial_line = b""
        for line in lines:
            # Ignore a full disk or a closed stderr, and keep reading: a process blocks on a full
            # pipe. Write without a buffer, which would keep what it cannot write.
            with contextlib.suppress(OSError):
                os.write(_STDERR_FD, line + b"\n" if chunk else line)
            text = escape_control_characters(line.decode(errors="replace").strip())
            if text and not _ALL_WELL.match(text):
                self._lines.append(text)


# The processes of Tidegate: what each is started with.


_NODE_STOP_S = 15.0
_DOOR_STOP_S = 20.0
_CONSOLE_STOP_S = 10.0
_NODE_RESTART = RestartPolicy(interval_s=1.0)
_MACHINE_NODE_RESTART = RestartPolicy(0.5, 10.0)
_DOOR_RESTART = RestartPolicy(0.2, 5.0)
_CONSOLE_RESTART = RestartPolicy(0.2, 10.0, settled_s=30.0)
DOOR_SCHEME = "http://"
REPLICA_VARIABLE = "TIDEGATE_REPLICA"
INSTALL_COMMAND = "pip install 'tidegate[console]'"


def _tidegate(command: str, *arguments: str, config: Path | None) -> list[str]:
    """Return the command line of a `tidegate` command."""
    words = [sys.executable, "-m", "tidegate", command, *arguments]
    return words if config is None else [*words, "--config", str(config)]


def node_spec(
    store_urls: Sequence[str],
    port: int,
    *,
    config: Path | None = None,
    metrics_port: int | None = None,
    machine_id: int | None = None,
    # Use a free port if the port is taken. Set only if the user did not choose the port.
    is_derived: bool = False,
    environment: Mapping[str, str] | None = None,
    log_file: IO[bytes] | None = None,
) -> ProcessSpec:
    """Return the spec of a `tidegate node`."""
    # A restart must not declare queues: it would restore deleted ones. The node of a machine joins
    # a cluster that was started before.
    of_machine = [] if machine_id is None else ["--machine", str(machine_id), "--no-declare"]
    return ProcessSpec(
        name="a node",
        command=_tidegate("node", *of_machine, config=config),
        environment={**with_stores({}, store_urls), **(environment or {})},
        ports={"--port": port, "--metrics-port": metrics_port},
        first_arguments=["--or-free"] if is_derived else (),
        restart_arguments=["--no-declare"] if machine_id is None else (),
        schemes=(SCHEME, SCHEME_TLS),
        log_file=log_file,
        stop_s=_NODE_STOP_S,
        restart=_NODE_RESTART if machine_id is None else _MACHINE_NODE_RESTART,
    )


def door_spec(
    store_urls: Sequence[str],
    service: str,
    *,
    host: str,
    port: int,
    engine: Engine | None = None,
    # Networks that are trusted to say who the client is.
    trusted: Sequence[str] = (),
    drain_s: float = 30.0,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log_file: IO[bytes] | None = None,
) -> ProcessSpec:
    """Return the spec of a `tidegate door`."""
    arguments = [service, "--host", host, "--drain", f"{drain_s:g}s"]
    if engine is not None:
        arguments += ["--engine", engine.value]
    for network in trusted:
        arguments += ["--trust", network]
    return ProcessSpec(
        name="a door",
        command=_tidegate("door", *arguments, config=config),
        environment={**with_stores({}, store_urls), **(environment or {})},
        ports={"--port": port},
        schemes=(DOOR_SCHEME,),
        log_file=log_file,
        stop_s=drain_s + _DOOR_STOP_S,
        restart=_DOOR_RESTART,
    )


def is_installed() -> bool:
    """Return whether the packages that the console needs are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("litestar", "uvicorn"))


def console_spec(
    nodes: Sequence[str],
    store_urls: Sequence[str],
    *,
    host: str,
    port: int,
    # Use a free port if the port is taken. Set only if the user did not choose the port.
    is_derived: bool = False,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log_file: IO[bytes] | None = None,
) -> ProcessSpec:
    """Return the spec of a `tidegate console` of these nodes."""
    first, *others = nodes
    url = ",".join([first, *(one.partition("://")[2] for one in others)])
    return ProcessSpec(
        name="the console",
        command=_tidegate("console", "--host", host, config=config),
        environment={**with_stores({}, store_urls), **(environment or {}), URL_VARIABLE: url},
        ports={"--port": port},
        first_arguments=["--or-free"] if is_derived else (),
        schemes=("http://", "https://"),
        log_file=log_file,
        stop_s=_CONSOLE_STOP_S,
        restart=_CONSOLE_RESTART,
    )


def worker_spec(
    replica: str, target: str, node: str, machine_id: int, drain_s: float
) -> ProcessSpec:
    """Return the spec of a `tidegate worker` that is bound to one replica."""
    queue = logical_name(replica)
    return ProcessSpec(
        name="a worker",
        command=_tidegate(
            "worker", target, "--queues", queue, "--drain", f"{drain_s:g}s", config=None
        ),
        environment={
            REPLICA_VARIABLE: replica,
            MACHINE_VARIABLE: str(machine_id),
            URL_VARIABLE: node,
        },
        keeps_output=True,
        stop_s=drain_s + _EXIT_S,
    )


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


class ReplicaWorkers:
    """The workers of one replica on one machine."""

    def __init__(self, replica: str, target: str, machine_id: int, drain_s: float) -> None:
        self.replica = replica
        self.target = target
        self._machine_id = machine_id
        self._drain_s = drain_s
        self._workers: list[SupervisedProcess] = []
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
    def _working(self) -> list[SupervisedProcess]:
        return [worker for worker in self._workers if worker.asked_at is None]

    async def adjust(self, wanted: int, node: str, busy: Mapping[int, int]) -> None:
        """Move one step towards `wanted` workers; `busy` has the held messages of each pid."""
        now = time.monotonic()
        await self._bury(now)
        working = self._working
        if len(working) > wanted:
            self._release(working, len(working) - wanted, busy)
        elif len(working) < wanted and self._backoff.is_due(now):
            for _ in range(wanted - len(working)):
                self._start(node, now)
        elif wanted and working and not self._is_young(working[-1], now):
            self._backoff.succeeded()
            self.trouble = ""
        self._notice_late(now)

    async def stop(self) -> None:
        """End all workers, each with its drain; kill those that take too long."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))
        self._workers.clear()

    def _start(self, node: str, now: float) -> None:
        worker = SupervisedProcess(
            worker_spec(self.replica, self.target, node, self._machine_id, self._drain_s)
        )
        try:
            worker.start()
        except Unavailable as failure:
            self._backoff.failed(now)
            self.trouble = f"{self.replica}: {failure}"
            log.error("%s", self.trouble, extra=self._where)
            return
        self._workers.append(worker)
        log.info("worker started", extra={**self._where, "pid": worker.pid})

    def _release(
        self, working: list[SupervisedProcess], count: int, busy: Mapping[int, int]
    ) -> None:
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
                if late_s is not None and late_s > worker.spec.stop_s:
                    log.error(
                        "a worker did not end and is killed",
                        extra={**self._where, "pid": worker.pid},
                    )
                    worker.kill()
                continue
            await worker.ended()
            self._workers.remove(worker)
            if worker.asked_at is None:
                self._mourn(worker, now)
            else:
                crash_point("after-worker-gone")

    def _mourn(self, worker: SupervisedProcess, now: float) -> None:
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
            # A worker announces that its module is imported, or closes the pipe.
            if now - worker.started_at >= _IMPORT_S and worker.ready_message is None:
                self.trouble = (
                    f"{self.replica}: worker {self.target} (pid {worker.pid}) still imports its "
                    f"module after {format_duration(_IMPORT_S)}: it may hang there"
                )
                return

    def _is_young(self, worker: SupervisedProcess, now: float) -> bool:
        return now - worker.started_at < _GOT_SOMEWHERE_S

    @property
    def _where(self) -> dict[str, object]:
        return {"machine": self._machine_id, "replica": self.replica}
