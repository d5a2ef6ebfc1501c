"""What the parts of a replica share: the queue in memory, its epoch, and the way out."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.core.budget import Budget
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.model import QueueInfo
from tidegate.core.ports import Clock, Store
from tidegate.node.limits import Limits
from tidegate.queueing.queue import Queue
from tidegate.telemetry.meters import QueueMeters


class Holding:
    """A queue in this node's hands, under one epoch."""

    __slots__ = (
        "budget",
        "clock",
        "epoch",
        "fence",
        "fenced",
        "info",
        "limits",
        "may_deliver",
        "meters",
        "queue",
        "store",
    )

    def __init__(
        self,
        info: QueueInfo,
        epoch: int,
        *,
        store: Store,
        budget: Budget,
        limits: Limits,
        clock: Clock,
        may_deliver: Callable[[], bool],
    ) -> None:
        self.info = info
        self.epoch = epoch
        self.store = store
        self.budget = budget
        self.limits = limits
        self.clock = clock
        # Asked before every delivery: a paused owner wakes up with its lease gone.
        self.may_deliver = may_deliver
        self.queue = Queue(budget)
        self.meters = QueueMeters()
        self.fenced = False
        # Set by the replica: what to do when the queue turns out to be somebody else's.
        self.fence: Callable[[TidegateError], None] = lambda error: None

    def taken_over(self) -> StaleEpoch:
        """The store has refused our epoch."""
        return StaleEpoch(f"queue {self.info.name!r} has a new owner")
