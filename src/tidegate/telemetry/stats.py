"""The schema of live stats, which a node returns in its `Stats` answer.

Control loops and consoles read these numbers only, and no private state of a node.
"""

from __future__ import annotations

import msgspec

from tidegate.telemetry.meters import Histogram


class Durations(msgspec.Struct):
    """A histogram in a packet: percentiles for people, and buckets for programs."""

    count: int = 0
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    # Upper bound in seconds, and count.
    buckets: list[tuple[float, int]] = []
    sum_s: float = 0.0


class DurationsSummary(Durations, omit_defaults=True):
    """A histogram that was not requested: it is encoded without any fields."""


def make_durations(histogram: Histogram) -> Durations:
    if not histogram.count:
        return Durations()
    p50_s, p95_s, p99_s = histogram.percentiles_s(0.50, 0.95, 0.99)
    return Durations(
        count=histogram.count,
        mean_ms=1e3 * histogram.sum_s / histogram.count,
        p50_ms=1e3 * p50_s,
        p95_ms=1e3 * p95_s,
        p99_ms=1e3 * p99_s,
        max_ms=1e3 * histogram.max_s,
        buckets=histogram.sparse(),
        sum_s=histogram.sum_s,
    )


class ControlStats(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the controller that sets a consumer's prefetch. None means unknown."""

    # The end of the step, in seconds since 1970.
    at: float
    interval_s: float
    # One of "automatic", "held", "fallback" and "manual".
    mode: str
    # The target, the measured rate, and the rate that the controller used.
    target_per_s: float | None
    rate_per_s: float | None
    used_per_s: float | None
    error_per_s: float | None
    # The terms of the controller, their sum, the sum within limits, and the result as whole
    # messages.
    proportional: float | None
    integral: float | None
    derivative: float | None
    wanted: float | None
    level: float
    output: float
    # Empty, "low" or "high".
    saturated: str
    acked_per_s: float
    # Messages that wait in the consumer, not yet handled.
    held: float | None
    # The average prefetch, and whether the queue had fewer messages than that for the consumer.
    prefetch: float
    starved: bool
    notes: list[str] = []


class ConsumerStats(msgspec.Struct):
    """The stats of one consumer."""

    consumer: int
    client_id: int
    client_name: str
    prefetch: int
    unacknowledged: int
    delivered: int
    acked: int
    delivered_per_s: float
    acked_per_s: float
    automatic: bool
    service: Durations
    # The requested number of control steps, the newest last; empty if the prefetch is not
    # controlled.
    control: list[ControlStats] = []
    # The client that runs a prefetch experiment with this consumer; empty if there is none.
    trial_by: str = ""


class QueueStats(msgspec.Struct):
    """The stats of one queue replica."""

    queue_id: int
    name: str
    durable: bool
    epoch: int
    waiting: int
    # The part of `waiting` that is only in the store.
    waiting_in_store: int
    unacknowledged: int
    oldest_age_s: float
    resident_bytes: int
    put: int
    delivered: int
    acked: int
    returned: int
    redelivered: int
    refused: int
    put_per_s: float
    delivered_per_s: float
    acked_per_s: float
    readers_waiting: int
    wait: Durations
    service: Durations
    consumers: list[ConsumerStats]
    # The part of `waiting` that is not yet due.
    delayed: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    deduplicated: int = 0
    paused: bool = False
    # The logical queue's name and the number of the replica; 0 for a plain queue or the logical
    # queue.
    logical: str = ""
    replica: int = 0
    # The queue id of a replica's logical queue; 0 if the queue is not a replica.
    alias_id: int = 0
    # Whether this is a logical queue. Then `waiting` counts messages not yet forwarded to replicas.
    elastic: bool = False
    # The number of producers: known to the logical queue, or with recent puts to the replica.
    producers: int = 0
    # For a logical queue: replica number → producers and consumers assigned to the replica.
    members: dict[int, tuple[int, int]] = {}
    # Messages transferred to and from another replica; neither acknowledged nor put.
    handed_over: int = 0
    taken_over: int = 0
    # Assignment slots for which the replica holds messages, or may hold them.
    homes_held: list[int] = []
    # Assignment slots for which it accepts puts, or holds messages that precede all future puts.
    homes_ahead: list[int] = []
    # The goal of the automatic prefetch, as text; empty if the prefetch is not controlled.
    prefetch_goal: str = ""
    # The number of consumers even if `consumers` is empty, and the sum of their prefetch.
    consumer_count: int = 0
    prefetch: int = 0


class QueueSummaryStats(QueueStats, omit_defaults=True):
    """Queue stats for frequent polling: fields with their default values are not encoded."""


class PhaseStats(msgspec.Struct):
    """The time that requests spend in each phase in a node (see `PhaseMeters`)."""

    wait_client: Durations
    parse: Durations
    store: Durations
    respond: Durations
    total: Durations
    wait_message: Durations = msgspec.field(default_factory=Durations)


class NodeStats(msgspec.Struct):
    """The stats of one node."""

    member_id: int
    name: str
    address: str
    uptime_s: float
    connections: int
    memory_bound_bytes: int
    memory_resident_bytes: int
    process_memory_bytes: int
    process_cpu_s: float
    commits: int
    commit: Durations
    messages_per_commit: float
    packets_in: int
    packets_out: int
    queues: list[QueueStats]
    phases: PhaseStats
    # Owned queues that are not in `queues`.
    queues_left_out: int = 0
    # The base URL of its /metrics; empty if it serves none.
    metrics_address: str = ""
    # The location of its lake, empty if it does not record; rows written, and rows lost.
    lake: str = ""
    rows_recorded: int = 0
    rows_dropped: int = 0
    # The number of commits that may run at the same time.
    writers: int = 1


class ClusterStats(msgspec.Struct):
    """The stats of all nodes that answered."""

    nodes: list[NodeStats]

    def queue(self, name: str) -> QueueStats | None:
        for node in self.nodes:
            for queue in node.queues:
                if queue.name == name:
                    return queue
        return None
