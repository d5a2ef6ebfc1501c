"""Samples of queues and consumers: what happened since the last one, and how things stand.

A sampler remembers the totals of its last sample, so that a row says what one interval brought. An
idle queue costs a few comparisons: histograms are looked at only when something was added to them.
Lengths of intervals come from the monotonic clock, whatever the wall clock does meanwhile.
"""

from __future__ import annotations

from itertools import compress
from operator import ne, sub

from tidegate.node.dispatch import Dispatch
from tidegate.node.holding import Holding
from tidegate.node.replica import ready_for_s
from tidegate.telemetry.histogram import BUCKETS, Histogram
from tidegate.telemetry.recorder import Row

_ALL_BUCKETS = range(BUCKETS)
_NOTHING: list[tuple[int, int]] = []
_NOBODY: set[int] = set()
Added = tuple[float, list[tuple[int, int]]]


class HistogramSampler:
    """What was added to a histogram since it was last looked at."""

    __slots__ = ("_count", "_counts", "_histogram", "_sum_s")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._counts = [0] * BUCKETS
        self._count = 0
        self._sum_s = 0.0

    def take(self) -> Added:
        """The sum of what was added, and how many came to each bucket."""
        histogram = self._histogram
        if histogram.count == self._count:
            return 0.0, _NOTHING
        before, now = self._counts, histogram.counts[:]
        changed = compress(_ALL_BUCKETS, map(ne, now, before))
        added = [(bucket, now[bucket] - before[bucket]) for bucket in changed]
        sum_s = histogram.sum_s - self._sum_s
        self._counts, self._count, self._sum_s = now, histogram.count, histogram.sum_s
        return sum_s, added


class QueueSampler:
    """Samples of one queue replica."""

    def __init__(self, node: str, holding: Holding, dispatch: Dispatch, now: float) -> None:
        self._names = (node, holding.info.name, 0, holding.epoch)
        self._holding = holding
        self._dispatch = dispatch
        self._sampled_at = now
        self._totals = (0,) * len(self._read_totals())
        holding.producers = set()
        # Of those who have put within the last interval.
        self.producers: set[int] = set()
        self._wait = HistogramSampler(holding.meters.wait)
        self._service = HistogramSampler(holding.meters.service)

    def _read_totals(self) -> tuple[int, ...]:
        meters = self._holding.meters
        return (
            meters.put.total,
            meters.delivered.total,
            meters.acked.total,
            meters.returned.total,
            meters.redelivered.total,
            meters.refused.total,
            meters.dead_lettered.total,
            meters.dropped.total,
            meters.expired.total,
            meters.deduplicated.total,
        )

    def sample(self, at_us: int, now: float, wall_s: float) -> Row:
        """A row of `queue_samples`."""
        holding, dispatch = self._holding, self._dispatch
        queue = holding.queue
        totals = self._read_totals()
        interval_s = now - self._sampled_at
        since = tuple(map(sub, totals, self._totals))
        self._totals, self._sampled_at = totals, now
        wait_s, wait = self._wait.take()
        service_s, service = self._service.take()
        if holding.producers:
            self.producers, holding.producers = holding.producers, set()
        else:
            self.producers = _NOBODY
        if holding.fenced:
            # Another node says how things stand there.
            gone = (0, 0, 0, 0, 0.0, 0, 0, len(self.producers), 0, 0)
            return (
                at_us,
                interval_s,
                *self._names,
                *since,
                wait_s,
                service_s,
                wait,
                service,
                *gone,
            )
        oldest = queue.oldest() if len(queue) else None
        consumers = dispatch.consumers
        return (
            at_us,
            interval_s,
            *self._names,
            *since,
            wait_s,
            service_s,
            wait,
            service,
            len(queue),
            queue.tail_count,
            queue.later_count,
            dispatch.unacknowledged,
            ready_for_s(oldest, wall_s) if oldest else 0.0,
            queue.resident_bytes,
            sum([consumer.prefetch for consumer in consumers]),
            len(self.producers),
            len(consumers),
            dispatch.readers_waiting,
        )
