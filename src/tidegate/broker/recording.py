"""Samples of queues, consumers and the node: what an interval brought, and the state at its end.

A sampler keeps the totals of its last sample, so that a row has what one interval brought. An idle
queue costs a few comparisons: a histogram is read only after something was added. Intervals are
measured by the monotonic clock.
"""

from __future__ import annotations

import re
from operator import sub
from typing import TYPE_CHECKING

from tidegate.node.consumer import Consumer
from tidegate.node.dispatch import Dispatch
from tidegate.node.figures import process_cpu_s, process_memory_bytes
from tidegate.node.holding import Holding
from tidegate.node.waiting_time import ready_for_s
from tidegate.telemetry.histogram import BUCKETS, Histogram
from tidegate.telemetry.recorder import Row

if TYPE_CHECKING:
    from tidegate.node.server import Node

_NOTHING: list[tuple[int, int]] = []
_NOBODY: set[int] = set()
_UNKNOWN = (None, None)
# The row of an empty queue without clients and changes, as most of many queues are.
_IDLE_SINCE = (0,) * 10
_IDLE = (*_IDLE_SINCE, 0.0, 0.0, _NOTHING, _NOTHING, 0, 0, 0, 0, 0.0)
_IDLE_CLIENTS = (0, 0, 0, 0)
# The part of a client's name before these characters names its consumer group.
_GROUP_ENDS = re.compile("[#@]")
Added = tuple[float, list[tuple[int, int]]]


class HistogramSampler:
    """Returns what was added to a histogram since the last call."""

    __slots__ = ("_counts", "_histogram", "_sum_s", "_touched")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._counts = [0] * BUCKETS
        self._sum_s = 0.0
        # What was added before the first call counts too.
        found = {bucket for bucket, count in enumerate(histogram.counts) if count}
        self._touched = histogram.touched = found

    def take(self) -> Added:
        """Return the sum of the added values, and the count added to each bucket."""
        touched = self._touched
        if not touched:
            return 0.0, _NOTHING
        histogram, before, now = self._histogram, self._counts, self._histogram.counts
        added = [(bucket, now[bucket] - before[bucket]) for bucket in sorted(touched)]
        for bucket in touched:
            before[bucket] = now[bucket]
        touched.clear()
        sum_s = histogram.sum_s - self._sum_s
        self._sum_s = histogram.sum_s
        return sum_s, added


class ConsumerSampler:
    """Samples one consumer."""

    def __init__(self, node: str, queue: str, consumer: Consumer, interval_s: float) -> None:
        client = consumer.outlet.client_name
        self._names = (node, queue, f"{queue}/{_GROUP_ENDS.split(client, 1)[0]}", client)
        self._consumer = consumer
        self._sampled_at = consumer.since
        self._delivered = 0
        self._acked = 0
        self._service = HistogramSampler(consumer.meters.service)
        # An interval of about this length follows the previous one directly; any other is a gap.
        self._shortest_s, self._longest_s = 0.5 * interval_s, 1.5 * interval_s
        self._before: tuple[float | None, int | None] = (None, None)

    def sample(self, at_us: int, now: float) -> Row:
        """Return a row of `consumer_samples`."""
        consumer = self._consumer
        delivered, acked = consumer.meters.delivered.total, consumer.meters.acked.total
        interval_s = max(now - self._sampled_at, 1e-9)
        service_s, service = self._service.take()
        arrival_per_s = (delivered - self._delivered) / interval_s
        is_whole = self._shortest_s <= interval_s <= self._longest_s
        row = (
            at_us,
            interval_s,
            *self._names,
            consumer.consumer,
            consumer.automatic,
            delivered - self._delivered,
            acked - self._acked,
            service_s,
            service,
            consumer.prefetch,
            consumer.book.outstanding,
            arrival_per_s,
            *(self._before if is_whole else _UNKNOWN),
        )
        self._delivered, self._acked, self._sampled_at = delivered, acked, now
        self._before = (arrival_per_s, consumer.prefetch) if is_whole else _UNKNOWN
        return row


class QueueSampler:
    """Samples one replica and its consumers."""

    def __init__(
        self, node: str, holding: Holding, dispatch: Dispatch, now: float, interval_s: float
    ) -> None:
        self._node = node
        self._interval_s = interval_s
        self._names = (node, holding.logical_name, holding.info.number, holding.epoch)
        self._consumers: dict[Consumer, ConsumerSampler] = {}
        dispatch.holders.departed = []
        # What the last interval brought.
        self.since: tuple[int, ...] = ()
        self.consumers = 0
        self.readers = 0
        self._holding = holding
        self._dispatch = dispatch
        self._sampled_at = now
        self._totals = (0,) * len(self._read_totals())
        holding.producers = set()
        # Producers that have put within the last interval.
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
        """Return a row of `queue_samples`."""
        holding, dispatch = self._holding, self._dispatch
        queue = holding.queue
        totals = self._read_totals()
        interval_s = now - self._sampled_at
        if totals == self._totals and not len(queue) and dispatch.is_idle and not holding.producers:
            self._sampled_at = now
            self.since, self.producers = _IDLE_SINCE, _NOBODY
            self.consumers = self.readers = 0
            return (
                at_us,
                interval_s,
                *self._names,
                *_IDLE,
                queue.residents.cost_bytes,
                *_IDLE_CLIENTS,
            )
        since = self.since = tuple(map(sub, totals, self._totals))
        self._totals, self._sampled_at = totals, now
        wait_s, wait = self._wait.take()
        service_s, service = self._service.take()
        if holding.producers:
            self.producers, holding.producers = holding.producers, set()
        else:
            self.producers = _NOBODY
        brought = (at_us, interval_s, *self._names, *since, wait_s, service_s, wait, service)
        if holding.fenced:
            # Another node samples the state of the queue by now.
            self.consumers = self.readers = 0
            return (*brought, 0, 0, 0, 0, 0.0, 0, 0, len(self.producers), 0, 0)
        oldest = queue.contents.oldest() if len(queue) else None
        consumers = dispatch.holders.consumers
        self.consumers, self.readers = len(consumers), dispatch.readers.count
        return (
            *brought,
            len(queue),
            queue.tails.count,
            queue.delayed.count,
            dispatch.holders.unacknowledged,
            ready_for_s(oldest, wall_s) if oldest else 0.0,
            queue.residents.cost_bytes,
            sum([consumer.prefetch for consumer in consumers]),
            len(self.producers),
            self.consumers,
            self.readers,
        )

    def sample_consumers(self, at_us: int, now: float) -> list[Row]:
        """Return a row for each consumer, including consumers that left since the last one."""
        known, holders = self._consumers, self._dispatch.holders
        present, departed = holders.consumers, holders.departed or []
        if not present and not departed:
            return []
        rows = [self._sampler_of(each).sample(at_us, now) for each in (*present, *departed)]
        for consumer in departed:
            known.pop(consumer, None)
        holders.departed = []
        return rows

    def _sampler_of(self, consumer: Consumer) -> ConsumerSampler:
        sampler = self._consumers.get(consumer)
        if sampler is None:
            sampler = self._consumers[consumer] = ConsumerSampler(
                self._node, self._holding.logical_name, consumer, self._interval_s
            )
        return sampler


class NodeSampler:
    """Samples the process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sampled_at = 0.0
        self._totals: tuple[float, ...] = ()
        # Sums over the queues that were sampled since.
        self._moved = [0, 0, 0]
        self._producers: set[int] = set()
        self._consumers = 0
        self._readers = 0

    def start(self) -> None:
        self._sampled_at = self._node.clock.monotonic()
        self._totals = self._read_totals()

    def count(self, sampler: QueueSampler) -> None:
        """Add a queue's sample to the sums of the node."""
        for place in range(3):
            self._moved[place] += sampler.since[place]
        self._producers |= sampler.producers
        self._consumers += sampler.consumers
        self._readers += sampler.readers

    def _read_totals(self) -> tuple[float, ...]:
        node = self._node
        commits, messages, commit_s = node.figures.committed
        return (
            node.packets_in,
            node.packets_out,
            commits,
            messages,
            commit_s,
            process_cpu_s(),
        )

    def sample(self, at_us: int, now: float, rows_dropped: int) -> Row:
        """Return a row of `node_samples`."""
        node = self._node
        totals = self._read_totals()
        *since, cpu_s = map(sub, totals, self._totals)
        row = (
            at_us,
            now - self._sampled_at,
            node.name,
            "node",
            node.member_id,
            len(node.sessions),
            len(self._producers),
            self._consumers,
            self._readers,
            len(node.replicas),
            *self._moved,
            *since,
            process_memory_bytes(),
            cpu_s,
            node.budget.used_bytes,
            rows_dropped,
        )
        self._totals, self._sampled_at = totals, now
        self._moved, self._producers = [0, 0, 0], set()
        self._consumers = self._readers = 0
        return row
