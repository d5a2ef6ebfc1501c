"""Records the telemetry of a node: samples each second, and events.

Queues are sampled in slices, between which the node delivers: sampling 500 queues at once would
stall delivery each second. The recorder writes the rows in its own thread.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from operator import sub
from typing import TYPE_CHECKING

from tidegate.broker.batch import Batch, SegmentBuilder
from tidegate.broker.stats import process_cpu_s, process_memory_bytes, ready_for_s
from tidegate.core.segment import Segment
from tidegate.core.store import Clock
from tidegate.queueing.spans import Span
from tidegate.telemetry.meters import BUCKETS, AdaptiveSampler, Histogram
from tidegate.telemetry.recorder import Recorder, Row

if TYPE_CHECKING:
    from tidegate.broker.context import NodeContext, ReplicaContext
    from tidegate.broker.dispatch import Consumer, Dispatch
    from tidegate.broker.listener import Sessions
    from tidegate.broker.replica import Replica


log = logging.getLogger(__name__)

# Queues that are sampled before the event loop runs; about half a millisecond.
_QUEUES_PER_TURN = 50


class NodeRecorder:
    """Records the rows of one node."""

    def __init__(
        self,
        context: NodeContext,
        recorder: Recorder,
        sessions: Sessions,
        replicas: Mapping[int, Replica],
    ) -> None:
        options = recorder.options
        self.recorder = recorder
        self._identity = context.identity
        self._clock = context.clock
        self._samplers: dict[Replica, QueueSampler] = {}
        self._node_sampler = NodeSampler(context, sessions, replicas)
        self._dropped_told = 0
        self._watched: WatchedCount | None = None
        # Collects single requests of all connections; None: not recorded.
        self.requests: RequestSamples | None = None
        if options.lifecycles_per_s:
            sampler = AdaptiveSampler(options.lifecycles_per_s, interval_s=options.interval_s)
            self._watched = WatchedCount(sampler, context.clock)
        if options.requests_per_s:
            sampler = AdaptiveSampler(options.requests_per_s, interval_s=options.interval_s)
            self.requests = RequestSamples(sampler)

    def start(self) -> None:
        self._node_sampler.start()
        self.recorder.start(self._identity.name)
        self.event("join", str(self._identity.member_id), {"address": self._identity.address})

    async def stop(self) -> None:
        """Record the last rows and stop the recorder."""
        self.event("leave", str(self._identity.member_id), {"address": self._identity.address})
        await self.sample()
        await asyncio.to_thread(self.recorder.stop)

    def abort(self) -> None:
        """Stop at once, as a kill would; unwritten rows are lost."""
        self.recorder.abort()

    # Samples

    async def run(self) -> None:
        """Sample at a steady interval forever; intervals that were missed are skipped."""
        interval_s = self.recorder.options.interval_s
        due = self._clock.monotonic() + interval_s
        while True:
            await asyncio.sleep(max(due - self._clock.monotonic(), 0.0))
            try:
                await self.sample()
            except Exception:
                # If this loop ended, no telemetry of this node would be recorded any more.
                log.exception("a bug while sampling")
            due = max(due + interval_s, self._clock.monotonic())

    async def sample(self) -> None:
        """Record one row for the node, for each queue and for each consumer."""
        samplers = list(self._samplers.values())
        for low in range(0, len(samplers), _QUEUES_PER_TURN):
            self._sample_queues(samplers[low : low + _QUEUES_PER_TURN])
            await asyncio.sleep(0)
        now, _, at_us = self._now()
        dropped = self.recorder.rows_dropped
        row = self._node_sampler.sample(at_us, now, dropped - self._dropped_told)
        if self.recorder.add("node_samples", [row]):
            # Otherwise this row is dropped too, and the next one reports it.
            self._dropped_told = dropped
        if self._watched is not None:
            self.recorder.add("lifecycles", self._watched.tick(self._identity.name, now, at_us))
        if self.requests is not None:
            self.recorder.add("requests", self.requests.tick(self._identity.name, now, at_us))

    def _sample_queues(self, samplers: list[QueueSampler]) -> None:
        now, wall_s, at_us = self._now()
        queues: list[Row] = []
        consumers: list[Row] = []
        for sampler in samplers:
            queues.append(sampler.sample(at_us, now, wall_s))
            consumers += sampler.sample_consumers(at_us, now)
            self._node_sampler.count(sampler)
        self.recorder.add("queue_samples", queues)
        self.recorder.add("consumer_samples", consumers)

    def _now(self) -> tuple[float, float, int]:
        wall_s = self._clock.wall()
        return self._clock.monotonic(), wall_s, int(wall_s * 1e6)

    # Events

    def event(
        self, event: str, subject: str, detail: Mapping[str, str], duration_s: float | None = None
    ) -> None:
        """Record an event of a node, a queue or another subject."""
        self.recorder.event(
            event, subject, at_s=self._clock.wall(), duration_s=duration_s, detail=detail
        )

    def owned(self, replica: Replica, from_member: int | None, duration_s: float) -> None:
        """Begin to sample a queue that this node has claimed."""
        context = replica.context
        now = self._clock.monotonic()
        interval_s = self.recorder.options.interval_s
        self._samplers[replica] = QueueSampler(
            self._identity.name, context, replica.dispatch, now, interval_s
        )
        watched = self._watched
        replica.set_recorder(
            lifecycles=None if watched is None else LifecycleRecorder(context.logical_name, watched)
        )
        taken = from_member not in (None, self._identity.member_id)
        detail = {"epoch": str(context.epoch)}
        if taken:
            detail["from_member"] = str(from_member)
        self.event("takeover" if taken else "own", context.info.name, detail, duration_s)

    def rejoined(self) -> None:
        """Record that this node, declared dead before, has a new member id."""
        identity = self._identity
        self.event("rejoin", str(identity.member_id), {"address": identity.address})

    def disowned(self, replica: Replica) -> None:
        """Record the last sample of a queue that this node no longer owns."""
        sampler = self._samplers.pop(replica, None)
        if sampler is not None:
            self._sample_queues([sampler])
            self.event("disown", replica.info.name, {"epoch": str(replica.epoch)})


# Samples of queues, consumers and the node: what an interval brought, and the state at its end.
#
# A sampler keeps the totals of its last sample, so that a row has what one interval brought. An
# idle queue costs a few comparisons: a histogram is read only after something was added. Intervals
# are measured by the monotonic clock.


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
        client = consumer.target.client_name
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
        self, node: str, context: ReplicaContext, dispatch: Dispatch, now: float, interval_s: float
    ) -> None:
        self._node = node
        self._interval_s = interval_s
        self._names = (node, context.logical_name, context.info.number, context.epoch)
        self._consumers: dict[Consumer, ConsumerSampler] = {}
        # What the last interval brought.
        self.since: tuple[int, ...] = ()
        self.consumers = 0
        self.readers = 0
        self._context = context
        self._dispatch = dispatch
        self._sampled_at = now
        self._totals = (0,) * len(self._read_totals())
        # Producers that have put within the last interval.
        self.producers: set[int] = set()
        self._wait = HistogramSampler(context.meters.wait)
        self._service = HistogramSampler(context.meters.service)

    def _read_totals(self) -> tuple[int, ...]:
        meters = self._context.meters
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
        context, dispatch = self._context, self._dispatch
        queue = context.queue
        totals = self._read_totals()
        interval_s = now - self._sampled_at
        if totals == self._totals and not len(queue) and dispatch.is_idle and not context.producers:
            self._sampled_at = now
            self.since, self.producers = _IDLE_SINCE, _NOBODY
            self.consumers = self.readers = 0
            return (
                at_us,
                interval_s,
                *self._names,
                *_IDLE,
                queue.in_memory.cost_bytes,
                *_IDLE_CLIENTS,
            )
        since = self.since = tuple(map(sub, totals, self._totals))
        self._totals, self._sampled_at = totals, now
        wait_s, wait = self._wait.take()
        service_s, service = self._service.take()
        if context.producers:
            self.producers, context.producers = context.producers, set()
        else:
            self.producers = _NOBODY
        brought = (at_us, interval_s, *self._names, *since, wait_s, service_s, wait, service)
        if context.fenced:
            # Another node samples the state of the queue by now.
            self.consumers = self.readers = 0
            return (*brought, 0, 0, 0, 0, 0.0, 0, 0, len(self.producers), 0, 0)
        oldest = queue.contents.oldest() if len(queue) else None
        consumers = dispatch.holders.consumers
        self.consumers, self.readers = len(consumers), dispatch.readers.count
        return (
            *brought,
            len(queue),
            queue.spilled.count,
            queue.delayed.count,
            dispatch.holders.unacknowledged,
            ready_for_s(oldest, wall_s) if oldest else 0.0,
            queue.in_memory.cost_bytes,
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
                self._node, self._context.logical_name, consumer, self._interval_s
            )
        return sampler


class NodeSampler:
    """Samples the process."""

    def __init__(
        self, context: NodeContext, sessions: Sessions, replicas: Mapping[int, Replica]
    ) -> None:
        self._context = context
        self._sessions = sessions
        self._replicas = replicas
        self._sampled_at = 0.0
        self._totals: tuple[float, ...] = ()
        # Sums over the queues that were sampled since.
        self._moved = [0, 0, 0]
        self._producers: set[int] = set()
        self._consumers = 0
        self._readers = 0

    def start(self) -> None:
        self._sampled_at = self._context.clock.monotonic()
        self._totals = self._read_totals()

    def count(self, sampler: QueueSampler) -> None:
        """Add a queue's sample to the sums of the node."""
        for place in range(3):
            self._moved[place] += sampler.since[place]
        self._producers |= sampler.producers
        self._consumers += sampler.consumers
        self._readers += sampler.readers

    def _read_totals(self) -> tuple[float, ...]:
        meters = self._context.meters
        return (
            meters.packets_in,
            meters.packets_out,
            meters.commits.count,
            meters.committed_messages,
            meters.commits.sum_s,
            process_cpu_s(),
        )

    def sample(self, at_us: int, now: float, rows_dropped: int) -> Row:
        """Return a row of `node_samples`."""
        context = self._context
        totals = self._read_totals()
        *since, cpu_s = map(sub, totals, self._totals)
        row = (
            at_us,
            now - self._sampled_at,
            context.identity.name,
            "node",
            context.identity.member_id,
            len(self._sessions),
            len(self._producers),
            self._consumers,
            self._readers,
            len(self._replicas),
            *self._moved,
            *since,
            process_memory_bytes(),
            cpu_s,
            context.budget.used_bytes,
            rows_dropped,
        )
        self._totals, self._sampled_at = totals, now
        self._moved, self._producers = [0, 0, 0], set()
        self._consumers = self._readers = 0
        return row


# Collects the phases of one in N requests for the lake.


# End of the previous answer, arrived, parsed, ready, and end of this answer; in seconds.
Cuts = tuple[float, float, float, float, float]


class RequestSamples:
    """Collects the phases of one in N requests for the lake."""

    __slots__ = ("_sampler", "_taken", "skip")

    def __init__(self, sampler: AdaptiveSampler) -> None:
        self._sampler = sampler
        # Collected since the last tick; rows are made for many at a time.
        self._taken: list[tuple[type | None, int, Cuts, bool]] = []
        # How many requests to skip before the next one is collected.
        self.skip = sampler.skip

    def take(self, verb: type | None, cuts: Cuts, *, for_message: bool) -> None:
        """Collect the request that was just answered."""
        self._taken.append((verb, self._sampler.one_by_one(), cuts, for_message))
        self.skip = self._sampler.skip

    def tick(self, node: str, now: float, now_us: int) -> list[Row]:
        """End an interval: return the rows of the collected requests."""
        self._sampler.skip = self.skip
        self._sampler.tick()
        self.skip = self._sampler.skip
        taken, self._taken = self._taken, []
        return [
            (now_us - int(1e6 * (now - cuts[-1])), node, *_phases(verb, weight, cuts, for_message))
            for verb, weight, cuts, for_message in taken
        ]


def _phases(verb: type | None, weight: int, cuts: Cuts, for_message: bool) -> Row:
    before_us, arrived_us, parsed_us, ready_us, ended_us = (1e6 * cut for cut in cuts)
    waited_us = ready_us - parsed_us
    return (
        "" if verb is None else verb.__name__,
        float(weight),
        arrived_us - before_us,
        parsed_us - arrived_us,
        0.0 if for_message else waited_us,
        waited_us if for_message else 0.0,
        ended_us - ready_us,
        ended_us - before_us,
    )


# Records the lifecycles of sampled messages, from arrival to end.
#
#     arrived -> parsed -> stored -> confirmed
#                            |
#                          ready -> delivered (again) -> ended
#
# A watched message is found by the first id of its segment. That id stays the same when the segment
# leaves memory and is read again as another object. Delivery and settling look it up in a
# dictionary and nearly always find nothing.
#
# If too many messages are watched, every second one is dropped, and the others count twice.


# Upper bound over all queues of a node.
WATCHED_MAX = 20_000

ACKED = "acked"
DEAD = "dead"
DROPPED = "dropped"
EXPIRED = "expired"
MOVED = "moved"
PURGED = "purged"


class Lifecycle:
    """The times of one message, in seconds of the monotonic clock."""

    __slots__ = (
        "arrived_at",
        "batch",
        "confirmed_at",
        "delivered_at",
        "deliveries",
        "ended_at",
        "first_delivered_at",
        "message_id",
        "offset",
        "outcome",
        "parsed_at",
        "payload_bytes",
        "queue",
        "ready_at",
        "stored_at",
        "weight",
    )

    def __init__(self, queue: str, segment: Segment, offset: int, weight: int) -> None:
        self.queue = queue
        self.message_id = segment.first_id + offset
        self.offset = offset
        self.payload_bytes = segment.lengths[offset]
        self.weight = weight
        # The batch whose confirmation is awaited; None: there is none to await.
        self.batch: Batch | None = None
        self.arrived_at = self.stored_at = self.ready_at = 0.0
        self.parsed_at: float | None = None
        self.confirmed_at: float | None = None
        self.first_delivered_at: float | None = None
        self.delivered_at: float | None = None
        self.deliveries = 0
        self.ended_at: float | None = None
        self.outcome = ""

    def row(self, node: str, now: float, now_us: int) -> Row:
        """Return a row of `lifecycles`; the message must have ended."""
        assert self.ended_at is not None
        at_us = now_us - int(_us(self.ended_at, now))
        response_us = _us(self.arrived_at, self.ended_at)
        parsed_at = self.arrived_at if self.parsed_at is None else self.parsed_at
        waited_us = service_us = None
        if self.first_delivered_at is not None and self.delivered_at is not None:
            waited_us = _us(self.ready_at, self.first_delivered_at)
            service_us = _us(self.delivered_at, self.ended_at)
        return (
            at_us,
            node,
            self.queue,
            self.message_id,
            float(self.weight),
            self.payload_bytes,
            at_us - int(response_us),
            None if self.parsed_at is None else _us(self.arrived_at, self.parsed_at),
            _us(parsed_at, self.stored_at),
            None if self.confirmed_at is None else _us(self.stored_at, self.confirmed_at),
            waited_us,
            service_us,
            response_us,
            self.deliveries,
            self.outcome,
        )


def _us(begin_s: float, end_s: float) -> float:
    return max(end_s - begin_s, 0.0) * 1e6


class WatchedCount:
    """Counts the watched messages of a node; shared by its queues."""

    def __init__(self, sampler: AdaptiveSampler, clock: Clock) -> None:
        self.sampler = sampler
        self.clock = clock
        # Ended since the last tick; rows are made for many at a time.
        self.ended: list[Lifecycle] = []
        self.count = 0
        self.every_least = 1
        self.watches: set[LifecycleRecorder] = set()

    def tick(self, node: str, now: float, at_us: int) -> list[Row]:
        """End an interval: return the rows of messages that have ended."""
        self.sampler.tick()
        if self.every_least > 1 and self.count < WATCHED_MAX // 4:
            self.every_least //= 2
        ended, self.ended = self.ended, []
        return [lifecycle.row(node, now, at_us) for lifecycle in ended]

    def make_room(self) -> None:
        """Watch half as many messages."""
        self.every_least *= 2
        self.count = sum(watch.thin(self.every_least) for watch in self.watches)


class LifecycleRecorder:
    """The watched messages of one replica."""

    def __init__(self, queue: str, watched: WatchedCount) -> None:
        self._queue = queue
        self._watched = watched
        # By the first id of their segment.
        self.segments: dict[int, list[Lifecycle]] = {}
        watched.watches.add(self)

    def stored(self, segment: Segment, builder: SegmentBuilder | None, now: float) -> None:
        """Choose the messages of a stored segment that are watched."""
        watched = self._watched
        chosen = watched.sampler.among_ids(segment.first_id, segment.count)
        if not chosen:
            return
        while watched.count + len(chosen) > WATCHED_MAX:
            watched.make_room()
        weight = max(chosen.step, watched.every_least)
        wall_s = watched.clock.wall()
        ready_at = now + max((segment.due_at or 0.0) - wall_s, 0.0)
        arrived_at = now - max(wall_s - segment.arrived_at, 0.0)
        lifecycles = []
        for message_id in chosen:
            if message_id % weight:
                continue
            offset = message_id - segment.first_id
            lifecycle = Lifecycle(self._queue, segment, offset, weight)
            lifecycle.stored_at = now
            lifecycle.ready_at = ready_at
            lifecycle.arrived_at = arrived_at
            if builder is not None:
                self._came_in(lifecycle, builder, offset)
            lifecycles.append(lifecycle)
        if lifecycles:
            self.segments[segment.first_id] = lifecycles
            watched.count += len(lifecycles)

    @staticmethod
    def _came_in(lifecycle: Lifecycle, builder: SegmentBuilder, offset: int) -> None:
        """Take the arrival times from the batch that a message came in."""
        for batch in builder.batches:
            for part, first, indices in batch.parts:
                count = len(batch.packet.lengths) if indices is None else len(indices)
                if part is builder and first <= offset < first + count:
                    lifecycle.batch = batch
                    lifecycle.arrived_at = batch.arrived_at
                    lifecycle.parsed_at = batch.parsed_at
                    if batch.watched is None:
                        batch.watched = []
                    batch.watched.append(lifecycle)
                    return

    def confirmed(self, batch: Batch, now: float) -> None:
        """Note that the producer of these messages got its confirmation."""
        for lifecycle in batch.watched or ():
            lifecycle.batch = None
            lifecycle.confirmed_at = now
            if lifecycle.ended_at is not None:
                self._watched.ended.append(lifecycle)
        batch.watched = None

    def delivered(self, span: Span, now: float) -> None:
        """Note the delivery of watched messages in `span`."""
        low, high = span.low, span.high
        for lifecycle in self.segments[span.segment.first_id]:
            if not low <= lifecycle.offset < high:
                continue
            lifecycle.deliveries += 1
            lifecycle.delivered_at = now
            if lifecycle.first_delivered_at is None:
                lifecycle.first_delivered_at = now

    def ended(self, span: Span, outcome: str, now: float) -> None:
        """Note the end of watched messages in `span`."""
        first_id, low, high = span.segment.first_id, span.low, span.high
        lifecycles = self.segments[first_id]
        # Consumers acknowledge segments in parts, most of which contain no watched message.
        for lifecycle in lifecycles:
            if low <= lifecycle.offset < high:
                break
        else:
            return
        left = [each for each in lifecycles if not low <= each.offset < high]
        if left:
            self.segments[first_id] = left
        else:
            del self.segments[first_id]
        self._watched.count -= len(lifecycles) - len(left)
        self._end([each for each in lifecycles if low <= each.offset < high], outcome, now)

    def _end(self, lifecycles: list[Lifecycle], outcome: str, now: float) -> None:
        for lifecycle in lifecycles:
            lifecycle.ended_at = now
            lifecycle.outcome = outcome
            if lifecycle.batch is None:
                self._watched.ended.append(lifecycle)

    def thin(self, every: int) -> int:
        """Keep one in `every` messages; return how many are left."""
        for first_id, lifecycles in list(self.segments.items()):
            kept = [each for each in lifecycles if each.message_id % every == 0]
            for lifecycle in kept:
                lifecycle.weight = max(lifecycle.weight, every)
            if kept:
                self.segments[first_id] = kept
            else:
                del self.segments[first_id]
        return sum(map(len, self.segments.values()))

    def purged(self, spans: list[Span], kept: set[int], now: float) -> None:
        """End all watched messages but those of the segments in `kept` that were not dropped."""
        for span in spans:
            if span.segment.first_id in self.segments:
                self.ended(span, PURGED, now)
        for first_id in self.segments.keys() - kept:
            lifecycles = self.segments.pop(first_id)
            self._watched.count -= len(lifecycles)
            self._end(lifecycles, PURGED, now)

    def over(self) -> None:
        """Drop all watched messages: another node owns the queue and sees how they end."""
        self._watched.count -= sum(map(len, self.segments.values()))
        self._watched.watches.discard(self)
        self.segments.clear()
