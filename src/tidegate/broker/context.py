"""The state that the parts of one replica share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tidegate.core.budget import Budget
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.model import DeathReason, QueueInfo, QueuePolicy
from tidegate.core.ports import Clock, Store
from tidegate.core.replication import logical_name
from tidegate.node.lifecycle_watch import LifecycleWatch
from tidegate.node.limits import Limits
from tidegate.node.pace import Pace
from tidegate.queueing.queue import Queue
from tidegate.queueing.span import Span
from tidegate.telemetry.meters import QueueMeters


class Holding:
    """The queue in memory, its epoch, limits and meters, shared by the parts of one replica.

    `Replica` creates it and sets the callbacks. After `fenced` is set no part changes the store.
    """

    __slots__ = (
        "budget",
        "clock",
        "epoch",
        "fence",
        "fenced",
        "give_up",
        "homes",
        "info",
        "limits",
        "made_room",
        "may_deliver",
        "meters",
        "pace",
        "producers",
        "queue",
        "spans_stores",
        "store",
        "watch",
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
        # Checked before every delivery: a paused process may resume after its lease has expired.
        self.may_deliver = may_deliver
        self.queue = Queue(budget)
        self.meters = QueueMeters()
        # Producers that have put since the recorder last asked; None: not recorded.
        self.producers: set[int] | None = None
        # Of a logical queue: the number of the assigned replica of each slot. None: not known.
        self.homes: Sequence[int] | None = None
        # Whether the replicas of the logical queue are in more than one store.
        self.spans_stores = False
        # Limits the delivery rate; None: no limit.
        self.pace: Pace | None = None
        # Messages whose lifecycle is recorded; None: none.
        self.watch: LifecycleWatch | None = None
        self.fenced = False
        # Set by the replica: drops the replica after the store has refused its epoch.
        self.fence: Callable[[TidegateError], None] = lambda error: None
        # Set by the replica: moves messages to the dead letters, for a reason.
        self.give_up: Callable[[list[Span], DeathReason, str | None], None]
        # Set by the replica: called when messages have left, since puts may wait for a queue limit.
        self.made_room: Callable[[], None] = lambda: None
        self.set_policy(info.policy)

    def set_policy(self, policy: QueuePolicy) -> None:
        """Apply a new policy to the queue in memory."""
        self.info = msgspec.structs.replace(self.info, policy=policy)
        self.queue.expiry.ttl_s = policy.ttl_s

    def set_elastic(self, elastic: bool) -> None:
        """Set whether the queue's messages are held by replicas."""
        self.info = msgspec.structs.replace(self.info, elastic=elastic)

    @property
    def logical_name(self) -> str:
        """The name that applications use; a replica's own name is derived from it."""
        return logical_name(self.info.name) if self.info.alias_id else self.info.name

    @property
    def policy(self) -> QueuePolicy:
        return self.info.policy

    @property
    def lease_s(self) -> float:
        """How long a consumer may hold a message without renewing its lease."""
        return self.info.policy.lease_s or self.limits.delivery_lease_s

    def note_ended(self, spans: list[Span], outcome: str) -> None:
        """Record how messages ended, for those whose lifecycle is recorded."""
        watch = self.watch
        if watch is not None:
            now = self.clock.monotonic()
            for span in spans:
                if span.segment.first_id in watch.segments:
                    watch.ended(span, outcome, now)

    def taken_over(self) -> StaleEpoch:
        """Return the error for requests after the store has refused this replica's epoch."""
        return StaleEpoch(f"queue {self.info.title} has a new owner")
