"""Named points at which a process dies when it is told to, for testing what survives.

    TIDEGATE_CRASH_POINT=after-commit-before-confirm:20      the 20th time that point is reached

Dying is SIGKILL to ourselves: no handler runs, no buffer is flushed, as in a real crash. The
points stand where a promise is about to be made or has just been kept; one is reached once per
commit, not per message. Without the variable a point is a call of an empty function.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "TIDEGATE_CRASH_POINT"
# On the way of every message.
PATH_POINTS = (
    "before-commit",
    "after-commit-before-confirm",
    "after-deliver-before-confirm",
    "after-confirm",
    "before-settle",
    "after-settle",
)
# When messages move to another queue.
MOVE_POINTS = ("before-move", "after-move")
# At the commit of a transaction, of a publication, and of a put to several queues.
JOINT_POINTS = ("before-joint-commit", "after-joint-commit")
# When telemetry is written, and when small files of it become one.
LAKE_POINTS = ("before-file-in-place", "after-file-in-place", "before-replaced-deleted")
# When `tidegate watch` stores what a batch found.
WATCH_POINTS = ("before-watch-batch", "after-watch-batch")
POINTS = (*PATH_POINTS, *MOVE_POINTS, *JOINT_POINTS, *LAKE_POINTS, *WATCH_POINTS)


def _never(name: str) -> None:
    """No crash was asked for."""


def _at(wanted: str) -> Callable[[str], None]:
    """A function that kills the process when it is called with that name for the nth time."""
    point, _, nth = wanted.partition(":")
    if point not in POINTS or not (nth or "1").isdigit():
        raise ValueError(f"{VARIABLE} is one of {', '.join(POINTS)} and :n, not {wanted!r}")
    left = int(nth or "1")

    def reached(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


crash_point = _at(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else _never
