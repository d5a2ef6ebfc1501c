"""What the parts of a replica share: the queue in memory, its epoch, and the way out."""

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
    """A queue in this node's hands, under one epoch."""

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
        # Asked before every delivery: a paused owner wakes up with its lease gone.
        self.may_deliver = may_deliver
        self.queue = Queue(budget)
        self.meters = QueueMeters()
        # Who has put since somebody last asked; None: nobody does.
        self.producers: set[int] | None = None
        # Of a logical queue's: the numbers of the replicas where groups and receivers are at home.
        self.homes: Sequence[int] | None = None
        # Whether its siblings are in other stores than this one.
        self.spans_stores = False
        # How fast messages may go out; None: as fast as they can.
        self.pace: Pace | None = None
        # Messages whose ways are recorded; None: none are.
        self.watch: LifecycleWatch | None = None
        self.fenced = False
        # Set by the replica: what to do when the queue turns out to be somebody else's.
        self.fence: Callable[[TidegateError], None] = lambda error: None
        # The same: where messages go that are given up, and why.
        self.give_up: Callable[[list[Span], DeathReason, str | None], None]
        # The same: told when messages have left, and a limit may allow new ones.
        self.made_room: Callable[[], None] = lambda: None
        self.set_policy(info.policy)

    def set_policy(self, policy: QueuePolicy) -> None:
        """Promise this from now on."""
        self.info = msgspec.structs.replace(self.info, policy=policy)
        self.queue.expiry.ttl_s = policy.ttl_s

    def set_elastic(self, elastic: bool) -> None:
        """Whether replicas hold its messages."""
        self.info = msgspec.structs.replace(self.info, elastic=elastic)

    @property
    def logical_name(self) -> str:
        """The name that users know."""
        return logical_name(self.info.name) if self.info.alias_id else self.info.name

    @property
    def policy(self) -> QueuePolicy:
        return self.info.policy

    @property
    def lease_s(self) -> float:
        """How long a consumer may hold a message without a sign of life."""
        return self.info.policy.lease_s or self.limits.delivery_lease_s

    def note_ended(self, spans: list[Span], outcome: str) -> None:
        """For the record: how messages ended."""
        watch = self.watch
        if watch is not None:
            now = self.clock.monotonic()
            for span in spans:
                if span.segment.first_id in watch.segments:
                    watch.ended(span, outcome, now)

    def taken_over(self) -> StaleEpoch:
        """The store has refused our epoch."""
        return StaleEpoch(f"queue {self.info.title} has a new owner")
