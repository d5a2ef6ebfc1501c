"""Processes that end with their parent, however the parent ends.

A child asks the kernel for a SIGTERM when its parent dies (`end_with_parent`); this works even if
the parent is killed. A process that runs users' code may be blocked and not react. A thread
therefore watches the parent too, and ends the process if it does not end by itself.

A machine outlives the node that booted it. It has a **keeper** instead: the `tidegate up` on its
computer, which the machine checks from time to time. Parent and keeper are identified by pid, the
keeper also by its start time, because the kernel reuses pids.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tidegate.core.errors import TidegateError

PARENT_VARIABLE = "TIDEGATE_PARENT_PID"
KEEPER_VARIABLE = "TIDEGATE_KEEPER"
_PR_SET_PDEATHSIG = 1
_ZOMBIE = "Z"
_LOOK_S = 1.0


class ProcessIdentity(NamedTuple):
    """One process; a later process with the same pid is different."""

    pid: int
    # Clock ticks from the boot of the computer to the start of the process.
    started: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @property
    def is_alive(self) -> bool:
        return identity_of(self.pid) == self


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the process that has the pid; None if there is none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets, which may contain brackets itself.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == _ZOMBIE else ProcessIdentity(pid, int(fields[19]))


def for_child() -> dict[str, str]:
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
        time.sleep(_LOOK_S)
    time.sleep(patience_s)
    os._exit(1)


def become_keeper() -> None:
    """End the machines that are booted below this process together with it."""
    own = identity_of(os.getpid())
    assert own is not None
    os.environ[KEEPER_VARIABLE] = str(own)


def keeper() -> ProcessIdentity | None:
    """Return the keeper of this process; None if it has none."""
    pid, _, started = os.environ.get(KEEPER_VARIABLE, "").partition(":")
    return ProcessIdentity(int(pid), int(started)) if pid.isdigit() and started.isdigit() else None
