"""Named points at which a test can kill the process.

    TIDEGATE_CRASH_POINT=after-commit-before-confirm:20      the 20th time that point is reached

The process kills itself with SIGKILL, so no handler runs and no buffer is flushed, as in a real
crash. The points are before and after steps that make or keep a promise. A point is reached once
per commit, not per message. Without the variable, a point is a call of an empty function.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "TIDEGATE_CRASH_POINT"
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
