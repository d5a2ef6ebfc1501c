"""What parts share: `NodeContext` for the parts of a node, `ReplicaContext` for those of a replica.

Theory of operation

`Node` creates each part of the broker once. A part takes the `NodeContext` and, by name, the parts
that it calls. No part takes the node, so a test can build one part without the others.

Calls between parts go one way. Where two parts would call each other, the one that is created first
announces an event (`NodeEvents`) and the other one listens. `Node` sets the listeners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.model import DeathReason, QueueInfo, QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.core.segment import Budget, Segment
from tidegate.core.store import Clock, Store
from tidegate.core.topology import logical_name
from tidegate.protocol.packet import Run
from tidegate.queueing.leases import Lease
from tidegate.queueing.queue import Queue
from tidegate.queueing.spans import Span
from tidegate.telemetry.meters import NodeMeters, QueueMeters

if TYPE_CHECKING:
    from tidegate.broker.recording import LifecycleRecorder
    from tidegate.broker.replica import Replica
    from tidegate.broker.session import Session


class NodeIdentity:
    """How a node is known: its name, addresses, and number in the membership table."""

    __slots__ = ("address", "machine_id", "member_id", "metrics_address", "name")

    def __init__(self, name: str = "", machine_id: int | None = None) -> None:
        # Empty until the node listens, if the user chose no name.
        self.name = name
        # The machine that the node runs on; None: the node belongs to no machine.
        self.machine_id = machine_id
        # Known when the node listens.
        self.address = ""
        # Where the HTTP pages (metrics, health) are served; empty if they are not.
        self.metrics_address = ""
        # Set by `NodeLease`; changes after the node was declared dead.
        self.member_id = 0


class NodeTasks:
    """The tasks of a node that no caller waits for, and whether the node is about to stop."""

    def __init__(self) -> None:
        self.stopping = False
        self._running: set[asyncio.Task[None]] = set()

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """The node cancels them when it stops."""
        return list(self._running)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def do_soon(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` as a task that no caller waits for; a stopping node does not run it."""
        if self.stopping:
            work.close()
        else:
            self.start(work)


class NodeEvents:
    """The events of a node. Each is a list of listeners, which are called in order."""

    __slots__ = (
        "forwarding_due",
        "lease_lost",
        "lease_renewed",
        "messages_given_up",
        "policy_changed",
        "queue_claimed",
        "queue_released",
        "queue_served",
        "rejoined",
        "session_ended",
        "users_changed",
    )

    def __init__(self) -> None:
        # A queue was claimed and loaded. Its listeners end before the node serves it.
        self.queue_claimed: list[Callable[[Replica], Awaitable[None]]] = []
        # The node serves a queue. With the former owner, if any, and the seconds since the claim.
        self.queue_served: list[Callable[[Replica, int | None, float], None]] = []
        # The node serves the queue no more.
        self.queue_released: list[Callable[[Replica], None]] = []
        self.policy_changed: list[Callable[[Replica], None]] = []
        # A queue of this node may have messages that belong to another replica.
        self.forwarding_due: list[Callable[[Replica], None]] = []
        # Messages were taken out of a queue and are to become dead letters. One listener moves
        # them.
        self.messages_given_up: list[
            Callable[[Replica, list[Span], DeathReason, str | None], None]
        ] = []
        # The node's lease was renewed, or the node has joined again.
        self.lease_renewed: list[Callable[[], Awaitable[None]]] = []
        # The node was declared dead: other nodes may own its queues by now.
        self.lease_lost: list[Callable[[], None]] = []
        # The node has joined again, under a new member id.
        self.rejoined: list[Callable[[], None]] = []
        self.session_ended: list[Callable[[Session], None]] = []
        # Users were added, removed or changed.
        self.users_changed: list[Callable[[], None]] = []


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the parts of one node share; none of it is replaced while the node lives."""

    store: Store
    clock: Clock
    limits: NodeLimits
    budget: Budget
    identity: NodeIdentity
    meters: NodeMeters
    tasks: NodeTasks
    events: NodeEvents


class ReplicaListener(Protocol):
    """What the parts of a replica ask of the whole; `Replica` implements it."""

    def admit(self, segment: Segment) -> None:
        """Add a stored segment to the queue."""
        ...

    def dead_letter(self, spans: list[Span], reason: DeathReason, error: str | None) -> None:
        """Move messages that were given up to the dead letters."""
        ...

    def fence(self, error: TidegateError) -> None:
        """Drop the replica: the store has refused its epoch."""
        ...


class ReplicaContext:
    """The queue in memory, its epoch, limits and meters, shared by the parts of one replica.

    Only `Replica` changes it. After `fenced` is set no part changes the store.
    """

    __slots__ = (
        "assignments",
        "budget",
        "clock",
        "epoch",
        "fenced",
        "info",
        "limits",
        "listener",
        "may_deliver",
        "meters",
        "policy",
        "producers",
        "queue",
        "rate_limiter",
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
        limits: NodeLimits,
        clock: Clock,
        may_deliver: Callable[[], bool],
        listener: ReplicaListener,
    ) -> None:
        self.info = info
        self.epoch = epoch
        self.store = store
        self.budget = budget
        self.limits = limits
        self.clock = clock
        # Checked before every delivery: a paused process may resume after its lease has expired.
        self.may_deliver = may_deliver
        self.listener = listener
        self.queue = Queue(budget)
        self.meters = QueueMeters()
        # Producers that have put since the recorder last asked; None: not recorded.
        self.producers: set[int] | None = None
        # Of a logical queue: the number of the assigned replica of each slot. None: not known.
        self.assignments: Sequence[int] | None = None
        # Whether the replicas of the logical queue are in more than one store.
        self.spans_stores = False
        # Limits the delivery rate; None: no limit.
        self.rate_limiter: RateLimiter | None = None
        # Messages whose lifecycle is recorded; None: none.
        self.watch: LifecycleRecorder | None = None
        self.fenced = False
        self.set_policy(info.policy)

    def set_policy(self, policy: QueuePolicy) -> None:
        """Apply a new policy to the queue in memory."""
        self.policy = policy
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
    def lease_s(self) -> float:
        """How long a consumer may hold a message without renewing its lease."""
        return self.policy.lease_s or self.limits.delivery_lease_s

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


# A token bucket that limits messages per second.
#
#     allowed(now) = min(burst, tokens + rate * elapsed)
#
# The burst is normally what 20 ms bring. If messages had to wait for a token and the node is
# scheduled late, the burst is what one second brings. Otherwise a busy machine would deliver less
# than the stated rate.
#
# Experiments use it to make a replica as slow as a slower machine. A replica without a limit has no
# bucket and computes nothing.


# What may be delivered at once after a pause, in seconds of the rate. Small enough for smooth
# delivery, and large enough that not every message needs a timer of its own.
BURST_S = 0.02
# Upper bound, in seconds of the rate, on the delivery that is made up for after a wait.
MADE_UP_S = 1.0
# Shortest timer. Rounding can leave a fraction of a token that is shorter than a clock step. The
# timer would then fire too early again and again.
WAIT_S_MIN = 0.0001


class RateLimiter:
    """A token bucket; each delivered message takes one token."""

    __slots__ = ("_burst", "_filled_at", "_is_awaited", "_tokens", "per_s")

    def __init__(self, per_s: float, now: float) -> None:
        self.per_s = per_s
        self._burst = max(1.0, BURST_S * per_s)
        self._tokens = 1.0
        self._filled_at = now
        # Whether messages wait for a token since `allowed` last returned 0.
        self._is_awaited = False

    def allowed(self, now: float) -> int:
        """Return how many messages may be delivered now."""
        filled = self._tokens + self.per_s * max(now - self._filled_at, 0.0)
        most = MADE_UP_S * self.per_s if self._is_awaited else self._burst
        self._tokens, self._filled_at = min(filled, max(most, self._burst)), now
        self._is_awaited = self._tokens < 1.0
        return int(self._tokens)

    def spend(self, count: int) -> None:
        """Take the tokens of `count` delivered messages."""
        self._tokens -= count

    @property
    def wait_s(self) -> float:
        """Seconds until the next message may be delivered; 0 if one may now."""
        lacking = 1.0 - self._tokens
        return max(lacking / self.per_s, WAIT_S_MIN) if lacking > 0.0 else 0.0


# Holds back messages of a replica with a delivery rate limit.


class RateGate:
    """Applies the rate limit of one replica and calls `may_go` when a message may be delivered."""

    __slots__ = ("_alarm", "_context", "_may_go")

    def __init__(self, context: ReplicaContext, may_go: Callable[[], None]) -> None:
        self._context = context
        self._may_go = may_go
        # Fires when the limit allows the next message; None: not set.
        self._alarm: asyncio.TimerHandle | None = None

    def allowed(self, pace: RateLimiter) -> int:
        """Return how many messages may be delivered now.

        If none may, a timer calls `may_go` as soon as one may.
        """
        allowed = pace.allowed(self._context.clock.monotonic())
        if not allowed and self._alarm is None:
            self._alarm = asyncio.get_running_loop().call_later(pace.wait_s, self._ring)
        return allowed

    def _ring(self) -> None:
        self._alarm = None
        if not self._context.fenced:
            self._may_go()


# Turns spans of a queue into runs of a packet, by slicing columns.


Entry = TypeVar("Entry")


def make_run(span: Span, tag: int) -> Run:
    """Return a span as a run with tags from `tag`; 0 for messages that are not leased."""
    segment = span.segment
    low, high = span.low, span.high
    attempts = segment.attempts
    now = 1 if tag else 0
    if attempts is None:
        deliveries = [now]
    else:
        deliveries = [attempts.get(offset, 0) + now for offset in range(low, high)]
    return Run(
        tag=tag,
        message_id=segment.first_id + low,
        lengths=segment.lengths if high - low == segment.count else segment.lengths[low:high],
        senders=_cut(segment.senders, low, high),
        priority=segment.priority,
        arrived_at=segment.arrived_at,
        receivers=None if segment.receivers is None else _cut(segment.receivers, low, high),
        contexts=None if segment.contexts is None else segment.contexts[low:high],
        attributes=None if segment.attributes is None else segment.attributes[low:high],
        redelivered=segment.reloaded,
        deliveries=deliveries,
    )


def make_counted_run(context: ReplicaContext, lease: Lease) -> Run:
    """Return a leased span as a run, and count its delivery."""
    span = lease.span
    segment = span.segment
    meters = context.meters
    meters.delivered.add(len(span))
    watch = context.watch
    if watch is not None and segment.first_id in watch.segments:
        watch.delivered(span, lease.granted_at)
    if segment.reloaded or segment.attempts is not None:
        meters.redelivered.add(len(span))
    else:
        # A requested delay is no wait.
        waited_s = context.clock.wall() - (segment.due_at or segment.arrived_at)
        meters.wait.add(max(waited_s, 0.0), len(span))
    return make_run(span, lease.tag)


def _cut(column: list[Entry], low: int, high: int) -> list[Entry]:
    """Slice a column; one with a single element applies to all messages and stays as it is."""
    return column if len(column) in (1, high - low) else column[low:high]
