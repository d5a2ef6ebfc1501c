"""Processes that end with the one that they belong to, however that one ends.

A child asks the kernel for a SIGTERM when its parent dies (`end_with_parent`): nothing has to be
running for that. Who runs users' code may not come to hear it, so a thread looks after the parent,
too, and ends the process when it has not ended by itself.

A machine outlives the node that has booted it, so it is told of a **keeper** instead, the
`tidegate up` on whose computer it is, and looks after it now and then. Both are named by pid; the
keeper with its time of start too, since a pid is given away again.
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
    """One process, and no later one with the same pid."""

    pid: int
    # Ticks from the boot of the computer to the start of the process.
    started: int

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}"

    @property
    def is_alive(self) -> bool:
        return identity_of(self.pid) == self


def identity_of(pid: int) -> ProcessIdentity | None:
    """Who has the pid now; None: nobody, or somebody who only waits to be buried."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is a name in brackets that may hold anything, brackets too.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == _ZOMBIE else ProcessIdentity(pid, int(fields[19]))


def for_child() -> dict[str, str]:
    """What a child's environment says of us."""
    return {PARENT_VARIABLE: str(os.getpid())}


def end_with_parent(patience_s: float | None = None) -> None:
    """When whoever has started us is killed without a chance to tell us, the kernel does.

    Whoever has not ended so long afterwards, because its loop is blocked, is ended; None: never.
    """
    # Taken out: a process that our own user starts has another parent.
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
    """By so long, and no longer."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    time.sleep(patience_s)
    os._exit(1)


def become_keeper() -> None:
    """Have the machines that are booted below this process end with it."""
    own = identity_of(os.getpid())
    assert own is not None
    os.environ[KEEPER_VARIABLE] = str(own)


def keeper() -> ProcessIdentity | None:
    """Whom this process is kept by; None: it stands on its own."""
    pid, _, started = os.environ.get(KEEPER_VARIABLE, "").partition(":")
    return ProcessIdentity(int(pid), int(started)) if pid.isdigit() and started.isdigit() else None
