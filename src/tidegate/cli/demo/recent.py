"""What the live numbers were in the last second or so.

The stats verb counts since the start of a node. Rates and percentiles of a moment are differences
of two such readings: of totals, and of histograms bucket by bucket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.telemetry.numbers import ClusterNumbers, Durations, NodeNumbers, QueueNumbers

# Readings that a difference spans: rates over a whole second are calmer than over half a one.
_SPAN = 2
_HISTORY = 120


@dataclass(frozen=True)
class QueueMoment:
    """One queue, now."""

    name: str
    in_per_s: float
    out_per_s: float
    waiting: int
    unacknowledged: int
    oldest_age_s: float
    wait_p50_ms: float
    wait_p99_ms: float
    prefetch: int


@dataclass(frozen=True)
class WorkerMoment:
    """One consumer, now."""

    name: str
    queue: str
    prefetch: int
    unacknowledged: int
    handled_per_s: float
    handled: int
    service_p50_ms: float


@dataclass(frozen=True)
class Moment:
    """Everything, now."""

    queues: list[QueueMoment]
    workers: list[WorkerMoment]
    connections: int
    memory_bytes: int
    commits_per_s: float
    messages_per_commit: float
    commit_p50_ms: float
    commit_p99_ms: float

    @property
    def in_per_s(self) -> float:
        return sum(queue.in_per_s for queue in self.queues)

    @property
    def out_per_s(self) -> float:
        return sum(queue.out_per_s for queue in self.queues)

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.queues)

    @property
    def unacknowledged(self) -> int:
        return sum(queue.unacknowledged for queue in self.queues)


@dataclass
class History:
    """Rates of one queue over time, for a sparkline."""

    in_per_s: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    waiting: deque[float] = field(default_factory=lambda: deque(maxlen=_HISTORY))


class Recent:
    """Takes readings, gives moments."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.history = {name: History() for name in queues}
        self.peak_in_per_s = 0.0
        self.peak_out_per_s = 0.0
        self._queues = queues
        self._readings: deque[tuple[float, ClusterNumbers]] = deque(maxlen=_SPAN + 1)

    def read(self, now_s: float, cluster: ClusterNumbers) -> Moment:
        """The moment of this reading."""
        self._readings.append((now_s, cluster))
        before_s, before = self._readings[0]
        span_s = max(now_s - before_s, 1e-3)
        queues = [
            _queue_moment(queue, before.queue(queue.name), span_s)
            for name in self._queues
            if (queue := cluster.queue(name)) is not None
        ]
        commits = _since([node.commit for node in cluster.nodes], before.nodes)
        count = sum(commits.values())
        moment = Moment(
            queues=queues,
            workers=_worker_moments(cluster, before, span_s),
            connections=sum(node.connections for node in cluster.nodes),
            memory_bytes=sum(node.process_memory_bytes for node in cluster.nodes),
            commits_per_s=count / span_s,
            messages_per_commit=sum(queue.in_per_s for queue in queues) * span_s / max(count, 1),
            commit_p50_ms=_percentile_ms(commits, 0.50),
            commit_p99_ms=_percentile_ms(commits, 0.99),
        )
        if len(self._readings) > 1:
            self._remember(moment)
        return moment

    def _remember(self, moment: Moment) -> None:
        self.peak_in_per_s = max(self.peak_in_per_s, moment.in_per_s)
        self.peak_out_per_s = max(self.peak_out_per_s, moment.out_per_s)
        for queue in moment.queues:
            self.history[queue.name].in_per_s.append(queue.in_per_s)
            self.history[queue.name].waiting.append(queue.waiting + queue.unacknowledged)


def _queue_moment(now: QueueNumbers, before: QueueNumbers | None, span_s: float) -> QueueMoment:
    waits = _difference([now.wait], [before.wait] if before is not None else [])
    return QueueMoment(
        name=now.name,
        in_per_s=(now.put - (before.put if before else 0)) / span_s,
        out_per_s=(now.acked - (before.acked if before else 0)) / span_s,
        waiting=now.waiting,
        unacknowledged=now.unacknowledged,
        oldest_age_s=now.oldest_age_s,
        wait_p50_ms=_percentile_ms(waits, 0.50),
        wait_p99_ms=_percentile_ms(waits, 0.99),
        prefetch=sum(consumer.prefetch for consumer in now.consumers),
    )


def _worker_moments(
    now: ClusterNumbers, before: ClusterNumbers, span_s: float
) -> list[WorkerMoment]:
    earlier = {
        (queue.queue_id, consumer.client_id): consumer
        for node in before.nodes
        for queue in node.queues
        for consumer in queue.consumers
    }
    moments = []
    for node in now.nodes:
        for queue in node.queues:
            for consumer in queue.consumers:
                was = earlier.get((queue.queue_id, consumer.client_id))
                services = _difference([consumer.service], [was.service] if was else [])
                moments.append(
                    WorkerMoment(
                        name=consumer.client_name,
                        queue=queue.name,
                        prefetch=consumer.prefetch,
                        unacknowledged=consumer.unacknowledged,
                        handled_per_s=(consumer.acked - (was.acked if was else 0)) / span_s,
                        handled=consumer.acked,
                        service_p50_ms=_percentile_ms(services, 0.50),
                    )
                )
    return moments


def _since(now: list[Durations], nodes_before: list[NodeNumbers]) -> dict[float, int]:
    return _difference(now, [node.commit for node in nodes_before])


def _difference(now: list[Durations], before: list[Durations]) -> dict[float, int]:
    """Durations added since: upper bound in seconds, and how many."""
    counts: dict[float, int] = {}
    for sign, readings in ((1, now), (-1, before)):
        for reading in readings:
            for upper_s, count in reading.buckets:
                counts[upper_s] = counts.get(upper_s, 0) + sign * count
    return {upper_s: count for upper_s, count in counts.items() if count > 0}


def _percentile_ms(counts: dict[float, int], share: float) -> float:
    rank = share * sum(counts.values())
    seen = 0
    for upper_s in sorted(counts):
        seen += counts[upper_s]
        if seen >= rank:
            return 1e3 * upper_s
    return 0.0
