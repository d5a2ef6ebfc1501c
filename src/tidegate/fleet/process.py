"""A child process that runs users' code, with its last lines of output.

It ends with its parent (fleet/process.py) and announces its start by one line through a pipe
(fleet/process.py). It is asked to end before it is killed.

We wait for the process and never for the end of its output: processes that it started may hold its
pipes open for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate.core.errors import TidegateError
from tidegate.core.text import escape_control_characters

MACHINE_VARIABLE = "TIDEGATE_MACHINE"
_LINES_KEPT = 20
_LINE_BYTES_MAX = 1 << 16
_WORD_BYTES_MAX = 1 << 10
# Characters of its last output in a report.
_TOLD_MAX = 500
# Log lines at level debug or info (cli/output.py): they do not explain an end.
_ALL_WELL = re.compile(r'time=\S+ level=(debug|info) |\{"time":"[^"]*","level":"(debug|info)"')
# Seconds after the end in which the last lines may still arrive.
_REST_S = 0.2
# Seconds between two checks for the end of a process whose pipes others hold open.
_CHILD_POLL_S = 0.05
_STDERR_FD = 2


async def exit_code_of(process: asyncio.subprocess.Process) -> int:
    """Return the exit code as soon as the process ends.

    asyncio's `wait` also waits for the end of its pipes, which others may hold open.
    """
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait({waiting}, timeout=_CHILD_POLL_S)
        return process.returncode
    finally:
        waiting.cancel()


class ChildProcess:
    """One process that a machine supervises."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
    ) -> None:
        self._command = command
        self._environment = environment
        # Working directory; None means ours.
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading: asyncio.Task[None] | None = None
        self._ready_fd: int | None = None
        self._word: str | None = None
        self.started_at = 0.0
        # When it was asked to end, by the loop's clock; None if it was not.
        self.asked_at: float | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self._process is None else self._process.returncode

    async def start(self) -> None:
        """Start the process; raise `OSError` if the computer has no room for it."""
        self._ready_fd, child_fd = os.pipe()
        os.set_blocking(self._ready_fd, False)
        environment = without_stores(os.environ) | dict(self._environment) | child_environment()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment | {READY_VARIABLE: str(child_fd)},
                cwd=self._folder,
                pass_fds=(child_fd,),
                limit=_LINE_BYTES_MAX,
                # Ctrl-C goes to the parent, which ends its children in order.
                start_new_session=True,
            )
        except OSError:
            self._close_pipe()
            raise
        finally:
            os.close(child_fd)
        self.started_at = asyncio.get_running_loop().time()
        assert self._process.stderr is not None
        self._reading = asyncio.create_task(self._read(self._process.stderr))

    @property
    def ready_message(self) -> str | None:
        """Its announcement; "" if none will come, None if none has come yet."""
        if self._ready_fd is not None:
            with contextlib.suppress(BlockingIOError):
                # The line has come, or the pipe was closed: there is nothing more to read.
                self._word = os.read(self._ready_fd, _WORD_BYTES_MAX).decode().strip()
                self._close_pipe()
        return self._word

    def _close_pipe(self) -> None:
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    def terminate(self) -> None:
        """Ask it to finish the work it has begun and return the rest."""
        self.asked_at = asyncio.get_running_loop().time()
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.exit_code is None:
                self._process.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self.exit_code is None:
                self._process.kill()

    async def wait(self) -> None:
        """Wait until it has ended and its last lines have been read."""
        if self._process is not None:
            await exit_code_of(self._process)
        self._close_pipe()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_REST_S)
            self._reading.cancel()
        if self._process is not None:
            # Otherwise the pipe stays open as long as another process holds its other end.
            self._process._transport.close()  # type: ignore[attr-defined]

    async def ends_within(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether it has ended."""
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                await exit_code_of(self._process)
        except TimeoutError:
            return False
        return True

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

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Copy its output to our stderr, and keep the last lines."""
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                # A line longer than the limit is skipped.
                continue
            if not line:
                return
            # Ignore a full disk or a closed stderr, and keep reading: a child blocks on a full
            # pipe. Write without a buffer, which would keep what it cannot write.
            with contextlib.suppress(OSError):
                os.write(_STDERR_FD, line)
            text = escape_control_characters(line.decode(errors="replace").strip())
            if text and not _ALL_WELL.match(text):
                self._lines.append(text)


READY_VARIABLE = "TIDEGATE_READY_FD"


class ReadyPipe:
    """The child's end of the pipe; without a parent that listens it does nothing."""

    def __init__(self) -> None:
        # Remove the variable, so that our own children do not use the pipe.
        descriptor = os.environ.pop(READY_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)

    def report(self, text: str) -> bool:
        """Send the line once; return False if the parent does not listen, or no longer."""
        if self._descriptor is None:
            return False
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(" ".join(text.split()) + "\n")
        self._descriptor = None
        return True


# Processes that end with their parent, however the parent ends.
#
# A child asks the kernel for a SIGTERM when its parent dies (`end_with_parent`); this works even if
# the parent is killed. A process that runs users' code may be blocked and not react. A thread
# therefore watches the parent too, and ends the process if it does not end by itself.
#
# A machine outlives the node that booted it. It has a **keeper** instead: the `tidegate up` on its
# computer, which the machine checks from time to time. Parent and keeper are identified by pid, the
# keeper also by its start time, because the kernel reuses pids.


PARENT_VARIABLE = "TIDEGATE_PARENT_PID"
KEEPER_VARIABLE = "TIDEGATE_KEEPER"
_PR_SET_PDEATHSIG = 1
_ZOMBIE = "Z"
_PARENT_POLL_S = 1.0


class ProcessIdentity(NamedTuple):
    """One process; a later process with the same pid is different."""

    pid: int
    # Clock ticks from the boot of the computer to the start of the process.
    started: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @property
    def is_alive(self) -> bool:
        return process_identity(self.pid) == self


def process_identity(pid: int) -> ProcessIdentity | None:
    """Return the process that has the pid; None if there is none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets, which may contain brackets itself.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == _ZOMBIE else ProcessIdentity(pid, int(fields[19]))


def child_environment() -> dict[str, str]:
    """Return the environment that tells a child its parent."""
    return {PARENT_VARIABLE: str(os.getpid())}


def end_with_parent(patience_s: float | None = None) -> None:
    """Have the kernel send SIGTERM to this process when its parent dies.

    After the parent's death the process has `patience_s` seconds to end, in case its loop is
    blocked; then it is ended. None means that it is never forced. Raises `TidegateError` if the
    parent is already gone.
    """
    # Remove the variable: processes that our user starts have another parent.
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise TidegateError("the process that started this one is gone")
    if patience_s is not None:
        watching = threading.Thread(
            target=_outlive, args=(int(parent), patience_s), name="tidegate-parent", daemon=True
        )
        watching.start()


def _outlive(parent: int, patience_s: float) -> None:
    """End the process `patience_s` seconds after the parent."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    time.sleep(patience_s)
    os._exit(1)


def become_keeper() -> None:
    """End the machines that are booted below this process together with it."""
    own = process_identity(os.getpid())
    assert own is not None
    os.environ[KEEPER_VARIABLE] = str(own)


def keeper() -> ProcessIdentity | None:
    """Return the keeper of this process; None if it has none."""
    pid, _, started = os.environ.get(KEEPER_VARIABLE, "").partition(":")
    return ProcessIdentity(int(pid), int(started)) if pid.isdigit() and started.isdigit() else None


# All processes of one machine on this computer, found by a mark and ended together.
#
# Each process of a machine has the mark in its environment. Children inherit it, however often they
# fork, change their session or lose their parent. Any process that knows the mark can therefore
# find the whole tree again, even after parts of it were killed.
#
# No other process is ever signalled. The mark is read from the process itself through a handle
# (pidfd), and a process that reuses a pid does not have the mark.


_TREE_POLL_S = 0.02
# Seconds that the kernel may take to end killed processes.
_KILLED_S = 10.0


class ProcessTree:
    """The living processes whose environment contains `variable=value`."""

    def __init__(self, variable: str, value: str) -> None:
        self.environment = {variable: value}
        self._mark = f"{variable}={value}".encode()

    def members(self) -> list[ProcessIdentity]:
        """Return the processes, the oldest first, without this one."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            pid = int(entry.name)
            if self._is_marked(pid) and (identity := process_identity(pid)) is not None:
                found.append(identity)
        return sorted(found, key=lambda one: (one.started, one.pid))

    def send(self, number: signal.Signals, only: ProcessIdentity | None = None) -> None:
        """Send a signal to all of them, or to `only` if it belongs to them."""
        for member in self.members() if only is None else [only]:
            with self._handle(member.pid) as handle:
                if handle is not None and process_identity(member.pid) == member:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(handle, number)

    async def end(self, grace_s: float, first: ProcessIdentity | None = None) -> bool:
        """Send SIGTERM, wait, then kill; return False if a process is left even then.

        If `first` is alive, only it gets the SIGTERM, because it ends the others in good order.
        """
        if first is not None and first.is_alive:
            self.send(signal.SIGTERM, first)
        else:
            self.send(signal.SIGTERM)
        if await self._gone(grace_s):
            return True
        deadline = time.monotonic() + _KILLED_S
        # Repeat: a process that is being killed may just have started a child.
        while time.monotonic() < deadline:
            self.send(signal.SIGKILL)
            if await self._gone(_TREE_POLL_S):
                return True
        return False

    async def _gone(self, patience_s: float) -> bool:
        deadline = time.monotonic() + patience_s
        while self.members():
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_TREE_POLL_S)
        return True

    def _is_marked(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            # The process is gone, or belongs to another user.
            return False
        return self._mark in environment.split(b"\0")

    @contextlib.contextmanager
    def _handle(self, pid: int) -> Iterator[int | None]:
        """Open a handle on the process if it has the mark; else None."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            yield None
            return
        try:
            yield handle if self._is_marked(pid) else None
        finally:
            os.close(handle)


class Backoff:
    """The waits between attempts of one thing."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.failures = 0
        self.next_at = 0.0

    def failed(self, now: float) -> float:
        """Record a failure and return the seconds to wait."""
        # Limit the exponent: 2.0**1100 overflows.
        wait_s = min(self._first_s * 2.0 ** min(self.failures, 60), self._most_s)
        self.failures += 1
        self.next_at = now + wait_s
        return wait_s

    def succeeded(self) -> None:
        self.failures = 0
        self.next_at = 0.0

    def is_due(self, now: float) -> bool:
        return now >= self.next_at


# Store URLs in the environment of child processes, since URLs may contain passwords.


STORE_URL = "TIDEGATE_STORE__URL"
STORE_URLS = "TIDEGATE_STORE__URLS"


def with_stores(environment: Mapping[str, str], urls: Sequence[str]) -> dict[str, str]:
    """Return the environment with exactly these stores."""
    changed = without_stores(environment)
    if len(urls) == 1:
        # Unchanged: one libpq URL may name several hosts, separated by commas.
        return changed | {STORE_URL: urls[0]}
    return changed | {STORE_URLS: ",".join(urls)}


def without_stores(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without stores, for children that must not use them."""
    return {key: text for key, text in environment.items() if key not in (STORE_URL, STORE_URLS)}
