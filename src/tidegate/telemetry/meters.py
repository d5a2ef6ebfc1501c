"""Live meters of a queue replica and its consumers: exact counts and rates per second."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

from tidegate.core.text import Term


class Rate:
    """A counter of events with their rate per second between the last two ticks."""

    __slots__ = ("_at_tick", "_ticked_at", "per_s", "total")

    def __init__(self) -> None:
        self.total = 0
        self.per_s = 0.0
        self._at_tick = 0
        self._ticked_at: float | None = None

    def add(self, count: int) -> None:
        self.total += count

    def tick(self, now: float) -> None:
        """Compute the rate since the previous call; call about once per second."""
        if self._ticked_at is not None and now > self._ticked_at:
            self.per_s = (self.total - self._at_tick) / (now - self._ticked_at)
        self._at_tick = self.total
        self._ticked_at = now


class ServiceTimeProbe:
    """The service time of messages that were delivered between two moments.

    Times are monotonic, in seconds. The service time runs from delivery to acknowledgement.
    """

    __slots__ = ("count", "since", "sum_s", "until")

    def __init__(self, since: float) -> None:
        self.since = since
        self.until = math.inf
        self.count = 0
        self.sum_s = 0.0


class ConsumerMeters:
    """The meters of one consumer."""

    __slots__ = ("acked", "delivered", "probe", "service", "settlements")

    def __init__(self) -> None:
        self.delivered = Rate()
        self.acked = Rate()
        # From delivery to acknowledgement.
        self.service = Histogram()
        # The number of acknowledgement calls; one call may settle many messages.
        self.settlements = 0
        # Measures selected deliveries during a prefetch experiment; None at other times.
        self.probe: ServiceTimeProbe | None = None

    def settled(self, granted_at: float, now: float, count: int) -> None:
        """Record that `count` messages of one delivery were acknowledged."""
        self.service.add(now - granted_at, count)
        probe = self.probe
        if probe is not None and probe.since <= granted_at < probe.until:
            probe.count += count
            probe.sum_s += count * (now - granted_at)

    def tick(self, now: float) -> None:
        self.delivered.tick(now)
        self.acked.tick(now)


class QueueMeters:
    """The meters of one queue replica."""

    __slots__ = (
        "acked",
        "dead_lettered",
        "deduplicated",
        "delivered",
        "dropped",
        "expired",
        "handed_over",
        "put",
        "redelivered",
        "refused",
        "returned",
        "service",
        "taken_over",
        "wait",
    )

    def __init__(self) -> None:
        self.put = Rate()
        self.delivered = Rate()
        self.acked = Rate()
        self.returned = Rate()
        self.redelivered = Rate()
        self.refused = Rate()
        # Messages that failed for good: moved to the dead letters, or dropped without a dead-letter
        # queue.
        self.dead_lettered = Rate()
        self.dropped = Rate()
        self.expired = Rate()
        # Puts that were not stored, because a message with the same dedup id already was.
        self.deduplicated = Rate()
        # Messages transferred to and from another replica. They count as neither acknowledged nor
        # put.
        self.handed_over = Rate()
        self.taken_over = Rate()
        # From arrival to first delivery, and from delivery to acknowledgement.
        self.wait = Histogram()
        self.service = Histogram()

    def tick(self, now: float) -> None:
        for rate in (
            self.put,
            self.delivered,
            self.acked,
            self.returned,
            self.redelivered,
            self.refused,
        ):
            rate.tick(now)


class PhaseMeters:
    """The time per request phase, for clients that send one request at a time (Telesto, table 5.3).

    The phases add up to the total, which runs from the end of one answer to the end of the next.
    """

    __slots__ = ("parse", "respond", "store", "total", "wait_client", "wait_message")

    def __init__(self) -> None:
        self.wait_client = Histogram()
        self.parse = Histogram()
        self.store = Histogram()
        # A read that waits for a message waits for other clients and not for the node.
        self.wait_message = Histogram()
        self.respond = Histogram()
        self.total = Histogram()


class NodeMeters:
    """The meters of one node: packets, request phases, and commits of puts."""

    __slots__ = ("commits", "committed_messages", "packets_in", "packets_out", "phases")

    def __init__(self) -> None:
        self.packets_in = 0
        self.packets_out = 0
        self.phases = PhaseMeters()
        # The seconds of each transaction that stored messages.
        self.commits = Histogram()
        self.committed_messages = 0

    def count_commit(self, duration_s: float, messages: int) -> None:
        self.commits.add(duration_s)
        self.committed_messages += messages


class ServerMeters:
    """The meters of one server, measured by the gateway."""

    __slots__ = (
        "answered",
        "failed",
        "in_bytes",
        "out_bytes",
        "response_time",
        "sent",
        "server_errors",
    )

    def __init__(self) -> None:
        # Requests whose head was sent to the server, and complete answers from it.
        self.sent = Rate()
        self.answered = Rate()
        # Answers with status 500 or above, and requests without a complete answer.
        self.server_errors = Rate()
        self.failed = Rate()
        # Bytes of bodies to and from the server.
        self.out_bytes = Rate()
        self.in_bytes = Rate()
        # From sending the head to the end of the answer.
        self.response_time = Histogram()

    def tick(self, now: float) -> None:
        for rate in (
            self.sent,
            self.answered,
            self.server_errors,
            self.failed,
            self.out_bytes,
            self.in_bytes,
        ):
            rate.tick(now)


# A histogram of durations with bounded relative error and bounded size.
#
# The buckets grow by the eighth root of two. A percentile is therefore off by at most about 4.5 %,
# and 248 counters cover one microsecond to half an hour. Adding a thousand equal durations costs as
# much as adding one, which suits segments of messages.


_STEPS_PER_DOUBLING = 8
_SMALLEST_S = 1e-6
LARGEST_S = 1800.0
BUCKETS = math.ceil(math.log2(LARGEST_S / _SMALLEST_S) * _STEPS_PER_DOUBLING) + 2


def bucket_of(duration_s: float) -> int:
    """Return the bucket of a duration; durations out of range go to the first or last bucket."""
    if duration_s <= _SMALLEST_S:
        return 0
    if duration_s > LARGEST_S:
        return BUCKETS - 1
    return int(math.log2(duration_s / _SMALLEST_S) * _STEPS_PER_DOUBLING) + 1


def upper_bound_s(bucket: int) -> float:
    """Return the longest duration in a bucket, in seconds."""
    return float(ends_at_s(bucket))


def ends_at_s(bucket: Term) -> Term:
    """Return the upper bound of buckets given as a number, an array or a Spark Column."""
    return _SMALLEST_S * 2.0 ** (bucket / _STEPS_PER_DOUBLING)


def bucket_up_to(bound_s: float) -> int:
    """Return the first bucket that reaches a bound; for the bound of a bucket, that bucket."""
    if bound_s <= _SMALLEST_S:
        return 0
    if not math.isfinite(bound_s):
        return BUCKETS - 1
    # The tolerance assigns a rounded bucket bound to the bucket it ends, not to the next one.
    steps = math.log2(bound_s / _SMALLEST_S) * _STEPS_PER_DOUBLING - 1e-6
    return min(math.ceil(steps), BUCKETS - 1)


class Histogram:
    """Counts per bucket, with the sum for the mean and the maximum."""

    __slots__ = ("count", "counts", "max_s", "sum_s", "touched")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.count = 0
        self.sum_s = 0.0
        self.max_s = 0.0
        # Buckets changed since the owner last cleared the set; None disables the tracking.
        self.touched: set[int] | None = None

    def add(self, duration_s: float, times: int = 1) -> None:
        bucket = bucket_of(duration_s)
        self.counts[bucket] += times
        if self.touched is not None:
            self.touched.add(bucket)
        self.count += times
        self.sum_s += duration_s * times
        if duration_s > self.max_s:
            self.max_s = duration_s

    def merge(self, other: Histogram) -> None:
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.count += other.count
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    def percentile_s(self, fraction: float) -> float:
        """Return the duration below which this fraction lies; 0 if the histogram is empty."""
        return self.percentiles_s(fraction)[0]

    def percentiles_s(self, *fractions: float) -> list[float]:
        """Return the percentiles of several fractions, given in ascending order, in one pass."""
        if not self.count:
            return [0.0] * len(fractions)
        found: list[float] = []
        seen = 0
        for bucket, count in enumerate(self.counts):
            if not count:
                continue
            seen += count
            while len(found) < len(fractions) and seen >= fractions[len(found)] * self.count:
                found.append(min(upper_bound_s(bucket), self.max_s))
        return found + [self.max_s] * (len(fractions) - len(found))

    def sparse(self) -> list[tuple[float, int]]:
        """Return the upper bound in seconds and the count of every non-empty bucket."""
        return [(upper_bound_s(i), count) for i, count in enumerate(self.counts) if count]


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.merge(histogram)
    return total


# Sampling of one in N events, for records that would cost too much for every event.
#
# N is a power of two that follows the load, so that about a constant number per second is taken.
# Each taken event stands for N events, so that sums of weights stay correct while N changes. N
# doubles as soon as an interval's share was taken, so that a burst does not exceed the share until
# the next tick.


_EVERY_MAX = 1 << 40


class AdaptiveSampler:
    """Chooses the events to record."""

    def __init__(
        self, per_s: float, *, interval_s: float = 1.0, randomness: random.Random | None = None
    ) -> None:
        self.every = 1
        self._share = max(int(per_s * interval_s), 1)
        self._taken = 0
        self._seen = 0
        self._random = randomness or random.Random()
        # For `one_by_one`: the number of events to skip, and the weight of the next chosen one.
        self.skip = 1
        self._weight = 1

    def among_ids(self, first_id: int, count: int) -> range:
        """Return the chosen ids among `count` consecutive ids; each stands for `every` ids."""
        self._seen += count
        while count // self.every > self._share:
            self.every *= 2
        # The choice depends on the id only, so that it does not depend on how puts are split into
        # batches.
        start = first_id + -first_id % self.every
        chosen = range(start, first_id + count, self.every)
        if chosen:
            self._take(len(chosen))
        return chosen

    def one_by_one(self) -> int:
        """Choose the present event, and return the number of events it stands for.

        The caller counts `skip` down for each event, and calls this when it reaches 0.
        """
        weight = self._weight
        self._seen += weight
        self._take(1)
        self._draw()
        return weight

    def _take(self, count: int) -> None:
        self._taken += count
        if self._taken >= self._share and self.every < _EVERY_MAX:
            self._taken = 0
            self.every *= 2

    def _draw(self) -> None:
        # A random skip avoids aliasing. With a fixed skip of two, a client that alternates puts and
        # reads would have only its puts recorded.
        self._weight = self.every
        self.skip = self._random.randrange(1, 2 * self.every)

    def tick(self) -> None:
        """End an interval, and adapt N to the load that was seen in it."""
        every = 1
        while self._seen // every > self._share:
            every *= 2
        if every < self.every:
            # Reduce N by half at most, because the next burst may follow soon.
            self.every = max(every, self.every // 2)
            if self.skip > 2 * self.every:
                self._draw()
        else:
            self.every = every
        self._taken = self._seen = 0
