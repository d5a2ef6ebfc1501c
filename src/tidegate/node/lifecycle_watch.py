"""Records the lifecycles of sampled messages, from arrival to end.

    arrived -> parsed -> stored -> confirmed
                           |
                         ready -> delivered (again) -> ended

A watched message is found by the first id of its segment. That id stays the same when the segment
leaves memory and is read again as another object. Delivery and settling look it up in a dictionary
and nearly always find nothing.

If too many messages are watched, every second one is dropped, and the others count twice.
"""

from __future__ import annotations

from tidegate.core.ports import Clock
from tidegate.core.segment import Segment
from tidegate.node.batch import Batch, SegmentBuilder
from tidegate.queueing.span import Span
from tidegate.telemetry.recorder import Row
from tidegate.telemetry.sampler import Sampler

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


class Watched:
    """Counts the watched messages of a node; shared by its queues."""

    def __init__(self, sampler: Sampler, clock: Clock) -> None:
        self.sampler = sampler
        self.clock = clock
        # Ended since the last tick; rows are made for many at a time.
        self.ended: list[Lifecycle] = []
        self.count = 0
        self.every_least = 1
        self.watches: set[LifecycleWatch] = set()

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


class LifecycleWatch:
    """The watched messages of one replica."""

    def __init__(self, queue: str, watched: Watched) -> None:
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
