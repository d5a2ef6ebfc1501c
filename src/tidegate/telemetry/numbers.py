"""The live numbers that the stats verb returns: loops and consoles read these, nothing private."""

from __future__ import annotations

import msgspec

from tidegate.telemetry.histogram import Histogram


class Durations(msgspec.Struct):
    """A histogram as it travels: percentiles for people, buckets for machines."""

    count: int = 0
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0
    # Upper bound in seconds, count.
    buckets: list[tuple[float, int]] = []
    sum_s: float = 0.0


class UntoldDurations(Durations, omit_defaults=True):
    """Nobody has asked for them: they travel as nothing."""


def durations(histogram: Histogram) -> Durations:
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


class ControlNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """One step of what steers a consumer's prefetch; None: not known."""

    # Seconds since 1970; its end.
    at: float
    interval_s: float
    # automatic, held, fallback, manual
    mode: str
    # What was wanted and measured, and what the controller took for it.
    target_per_s: float | None
    rate_per_s: float | None
    used_per_s: float | None
    error_per_s: float | None
    # The terms, their sum, within limits, and in whole messages.
    proportional: float | None
    integral: float | None
    derivative: float | None
    wanted: float | None
    level: float
    output: float
    # "", low, high
    saturated: str
    acked_per_s: float
    # Waiting in the consumer, unbegun.
    held: float | None
    # The prefetch on average, and whether the queue had less for it than that.
    prefetch: float
    starved: bool
    notes: list[str] = []


class ConsumerNumbers(msgspec.Struct):
    """One subscription."""

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
    # The newest control step last, as many as were asked for; none: nobody steers it.
    control: list[ControlNumbers] = []
    # The client that tries out prefetches with it; empty: nobody.
    trial_by: str = ""


class QueueNumbers(msgspec.Struct):
    """One queue replica."""

    queue_id: int
    name: str
    durable: bool
    epoch: int
    waiting: int
    # Of those, in the store only.
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
    consumers: list[ConsumerNumbers]
    # Of those that wait, for their time to come.
    delayed: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    deduplicated: int = 0
    paused: bool = False
    # The name that users know, and which replica it is; 0: a plain queue, or the alias itself.
    logical: str = ""
    replica: int = 0
    # Of a replica, its alias; 0: it is none.
    alias_id: int = 0
    # Whether it is an alias: then `waiting` is what it has not handed over yet.
    elastic: bool = False
    # Of an alias those that have come to it; of a replica those that have put of late.
    producers: int = 0
    # Of an alias: number of a replica → producers and consumers that were sent there.
    members: dict[int, tuple[int, int]] = {}
    # Messages that went to a sibling, and that came from one; neither acknowledged nor put.
    handed_over: int = 0
    taken_over: int = 0
    # Homes of groups and receivers of which it has anything, or may have.
    homes_held: list[int] = []
    # Those of which it takes puts, or has what comes before all that is put from now on.
    homes_ahead: list[int] = []
    # What the prefetch of its consumers is steered to, in words; empty: nobody steers it.
    prefetch_goal: str = ""
    # Those of `consumers`, also when they are not listed, and the prefetch of all together.
    consumer_count: int = 0
    prefetch: int = 0


class BriefQueueNumbers(QueueNumbers, omit_defaults=True):
    """The same for who looks at all of them all the time: what is as usual does not travel."""


class PhaseNumbers(msgspec.Struct):
    """Where requests spend their time in a node: of clients that ask one thing at a time."""

    wait_client: Durations
    parse: Durations
    store: Durations
    respond: Durations
    total: Durations
    wait_message: Durations = msgspec.field(default_factory=Durations)


class NodeNumbers(msgspec.Struct):
    """One node."""

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
    queues: list[QueueNumbers]
    phases: PhaseNumbers
    # Owned as well, and not among `queues`.
    queues_left_out: int = 0
    # Where its /metrics are; empty: nowhere.
    metrics_address: str = ""
    # Where it records, empty: nowhere; rows that are there, and that could not be.
    lake: str = ""
    rows_recorded: int = 0
    rows_dropped: int = 0
    # How many commits may be under way at a time.
    writers: int = 1


class ClusterNumbers(msgspec.Struct):
    """All nodes that answered."""

    nodes: list[NodeNumbers]

    def queue(self, name: str) -> QueueNumbers | None:
        for node in self.nodes:
            for queue in node.queues:
                if queue.name == name:
                    return queue
        return None
