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
# When segments go over to another store; and when whoever finds them on their way ends it.
STORE_POINTS = (
    "before-departure",
    "after-departure",
    "before-arrival",
    "after-arrival",
    "after-leaving",
    "after-asking",
)
# When a replica begins or ends in another store than the catalogue.
REPLICA_POINTS = ("after-replica-noted", "after-end-noted", "after-replica-ended")
# When whole segments go from a queue to its sibling: at the giver around the move, and at the taker
# before it asks, when it was answered, and when it has read what came.
EXCHANGE_POINTS = (
    "before-pull",
    "before-exchange",
    "after-exchange",
    "after-pull-answer",
    "before-came-over",
)
# At the commit of a transaction, of a publication, and of a put to several queues.
JOINT_POINTS = ("before-joint-commit", "after-joint-commit")
# When a leader carries out what was decided about replicas and machines: around each order.
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
# When a leader carries out what was decided about an HTTP service: it is kept for the next leader,
# then around each order.
SERVICE_POINTS = ("after-service-kept", "before-service-order", "after-service-order")
# When the prefetch of a queue's consumers is steered because its agreement is in danger.
AGREEMENT_POINTS = ("before-keep-up", "after-keep-up")
# When an elastic queue on RabbitMQ is steered: off the ring and not on it again; consumers told.
RABBITMQ_POINTS = ("after-unbind", "after-let-go")
# When a machine lets a worker of a replica go.
MACHINE_POINTS = ("before-worker-told", "after-worker-told", "after-worker-gone")
# When an instance of a service is given a slot, and when its machine has started it.
HOSTING_POINTS = ("before-instance-placed", "after-instance-placed", "after-instance-started")
# When telemetry is written, and when small files of it become one.
LAKE_POINTS = ("before-file-in-place", "after-file-in-place", "before-replaced-deleted")
# When `tidegate watch` stores what a batch found.
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
