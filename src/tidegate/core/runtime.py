"""Named points at which a test can kill the process.

    TIDEGATE_CRASH_POINT=after-commit-before-confirm:20      the 20th time that point is reached

The process kills itself with SIGKILL, so no handler runs and no buffer is flushed, as in a real
crash. The points are before and after steps that make or keep a promise. A point is reached once
per commit, not per message. Without the variable, a point is a call of an empty function.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tidegate.core.errors import InvalidValue

CRASH_VARIABLE = "TIDEGATE_CRASH_POINT"
# On the path of every message.
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
# When segments move to another store, and when the owner completes such a move.
STORE_POINTS = (
    "before-departure",
    "after-departure",
    "before-arrival",
    "after-arrival",
    "after-leaving",
    "after-asking",
)
# When a replica is created or deleted in another store than the catalogue.
REPLICA_POINTS = ("after-replica-noted", "after-end-noted", "after-replica-ended")
# When whole segments move between replicas: at the source around the move; at the target before the
# request, after the answer, and after reading the segments.
EXCHANGE_POINTS = (
    "before-pull",
    "before-exchange",
    "after-exchange",
    "after-pull-answer",
    "before-came-over",
)
# At the commit of a transaction, of a publication, and of a put to several queues.
JOINT_POINTS = ("before-joint-commit", "after-joint-commit")
# When a leader executes decisions about replicas and machines: around each action.
STEERING_POINTS = (
    *("before-drain", "after-drain"),
    *("before-shares", "after-shares"),
    *("before-exchange-order", "after-exchange-order"),
    *("before-migrate", "after-migrate"),
    *("before-retire", "after-retire"),
    *("before-replica-added", "after-replica-added"),
    *("before-serving", "after-serving"),
    *("before-boot-row", "after-boot-row", "before-boot", "after-boot"),
    *("before-halt-row", "after-halt-row", "before-halt", "after-halt", "after-machine-removed"),
)
# When a leader executes decisions about an HTTP service: after its state is stored, and around each
# action.
SERVICE_POINTS = ("after-service-kept", "before-service-order", "after-service-order")
# When the prefetch of a queue's consumers is controlled because its agreement is in danger.
AGREEMENT_POINTS = ("before-keep-up", "after-keep-up")
# On RabbitMQ: while the binding of a replica is replaced, and after a draining replica is marked,
# so that its consumers leave it.
RABBITMQ_POINTS = ("after-unbind", "after-let-go")
# When a machine stops a worker of a replica.
MACHINE_POINTS = ("before-worker-told", "after-worker-told", "after-worker-gone")
# When an instance of a service gets a slot, and when its machine has started it.
HOSTING_POINTS = ("before-instance-placed", "after-instance-placed", "after-instance-started")
# When telemetry files are written, and when small files are merged.
LAKE_POINTS = ("before-file-in-place", "after-file-in-place", "before-replaced-deleted")
# When `tidegate watch` stores the results of a batch.
WATCH_POINTS = ("before-watch-batch", "after-watch-batch")
POINTS = (
    *PATH_POINTS,
    *MOVE_POINTS,
    *EXCHANGE_POINTS,
    *STORE_POINTS,
    *REPLICA_POINTS,
    *JOINT_POINTS,
    *STEERING_POINTS,
    *HOSTING_POINTS,
    *SERVICE_POINTS,
    *AGREEMENT_POINTS,
    *RABBITMQ_POINTS,
    *MACHINE_POINTS,
    *LAKE_POINTS,
    *WATCH_POINTS,
)


def _never(name: str) -> None:
    """Do nothing, since no crash is configured."""


def _at(wanted: str) -> Callable[[str], None]:
    """Return a function that kills the process at its nth call with the configured name."""
    point, _, nth = wanted.partition(":")
    if point not in POINTS or not (nth or "1").isdigit():
        raise ValueError(f"{CRASH_VARIABLE} is one of {', '.join(POINTS)} and :n, not {wanted!r}")
    left = int(nth or "1")

    def reached(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


crash_point = _at(os.environ[CRASH_VARIABLE]) if os.environ.get(CRASH_VARIABLE) else _never


# Cancelling tasks reliably.
#
# A cancellation can get lost. psycopg, cancelled during a query, waits for the server's answer. If
# the server has just died, psycopg raises that error and not `CancelledError`. A loop that survives
# store outages then continues. So the cancellation is repeated until the task has ended.


_AGAIN_S = 0.5


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks repeatedly until all have ended; their exceptions are ignored."""
    left = {task for task in tasks if task is not asyncio.current_task()}
    while left:
        for task in left:
            task.cancel()
        over, left = await asyncio.wait(left, timeout=_AGAIN_S)
        for task in over:
            if not task.cancelled():
                task.exception()


# Imports a user's module from the working directory.
#
# If the import fails, the traceback begins at the user's own file, without our frames. The error
# then says in one sentence what was tried.


_PACKAGE = Path(__file__).parent.parent
# With the separator: a package named tidegate_shop is the user's. Also if installed by a link.
_OURS = tuple(f"{folder}{os.sep}" for folder in (_PACKAGE, _PACKAGE.resolve()))
_IMPORTING = ("<frozen importlib", importlib.__file__)
# Characters of the last line of a traceback.
_REASON_MAX = 500


def user_module(name: str) -> ModuleType:
    """Import a module; raise `InvalidValue` if it does not exist or fails."""
    here = str(Path.cwd())
    if here not in sys.path:
        # As Python itself does for a script: modules in the working directory can be imported.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as failure:
        missing = failure.name or ""
        if name == missing or name.startswith(missing + "."):
            raise InvalidValue(
                f"no module {name!r}: looked in {here} and where Python finds packages"
            ) from None
        print_from_users_file(failure)
        raise InvalidValue(
            f"{name!r} was found, but imports {missing!r}, which is not installed"
        ) from None
    except (Exception, SystemExit) as failure:
        # A script without `if __name__ == "__main__"` may exit while it is imported.
        print_from_users_file(failure)
        raise InvalidValue(f"{name!r} fails when imported: {_last_line(failure)}") from None


def print_from_users_file(failure: BaseException) -> None:
    """Print a traceback without our frames and those of the import system."""
    told = traceback.TracebackException.from_exception(failure)
    frames = [frame for frame in told.stack if not frame.filename.startswith(_IMPORTING)]
    while frames and frames[0].filename.startswith(_OURS):
        del frames[0]
    told.stack = traceback.StackSummary.from_list(frames)
    # A syntax error has no frames, and names its place itself.
    lines = told.format() if frames else told.format_exception_only()
    sys.stderr.write("".join(lines))


def _last_line(failure: BaseException) -> str:
    lines = "".join(traceback.format_exception_only(failure)).strip().splitlines()
    return lines[-1].strip()[:_REASON_MAX]


MIB = 1024 * 1024


class NodeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a node, filled by the CLI from the configuration."""

    memory_bytes: int = 512 * MIB
    message_bytes_max: int = 16 * MIB
    frame_before_login_bytes: int = 8 * 1024
    connections_max: int = 5000
    connections_per_address_max: int = 5000
    connections_per_user_max: int = 2000
    handshake_s: float = 10.0
    # A session from which nothing came for three heartbeats is closed.
    heartbeat_s: float = 10.0
    # A session whose client has read none of its pending data for this long is closed.
    slow_reader_s: float = 30.0
    # A node that does not renew its lease in this time loses its queues.
    lease_s: float = 3.0
    # How long a consumer may hold a message without renewing its lease.
    delivery_lease_s: float = 60.0
    prefetch_max: int = 100_000
    name_bytes_max: int = 255
    header_count_max: int = 64
    header_bytes_max: int = 16 * 1024
    writers: int = 1
    settle_linger_s: float = 0.05
    # How long the batch numbers of a silent producer are remembered.
    dedup_window_s: float = 3600.0
    drain_s: float = 10.0
