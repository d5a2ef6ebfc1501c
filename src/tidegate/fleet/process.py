"""What a process, its parent and its children agree on.

A child announces its start by one line through a pipe (`ReadyPipe`), and ends with its parent
(`end_with_parent`). A machine ends with its keeper, and all its processes carry a mark
(`ProcessTree`). Stores are named in the environment (`with_stores`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegate.core.errors import TidegateError

MACHINE_VARIABLE = "TIDEGATE_MACHINE"


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
