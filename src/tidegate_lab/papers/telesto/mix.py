"""Counters of clients: messages, packets, and response times per type of request.

A packet is an answer of the node, as in Telesto's metrics (§5.4 of the report). Counters only grow.
The difference of two samples is a window; windows of several processes add up. Each second also
leaves a row for the figures over time.
"""

from __future__ import annotations

import math
import time

import msgspec

from tidegate.telemetry.histogram import BUCKETS, Histogram, bucket_of

PUT = "put"
READ_HIT = "read hit"
READ_MISS = "read miss"
WAITING_READ = "waiting read"
REQUEST = "request"
TYPES = (PUT, READ_HIT, READ_MISS, WAITING_READ, REQUEST)
# Bins of one millisecond, as in figure 5.3; the last bin holds all longer times.
BIN_S = 1e-3
BINS = 1001


class Timing(msgspec.Struct):
    """Response times of one type: moments, buckets for percentiles, and bins for the figure."""

    count: int = 0
    sum_s: float = 0.0
    sum_of_squares: float = 0.0
    max_s: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKETS)
    bins: list[int] = msgspec.field(default_factory=lambda: [0] * BINS)

    def add(self, duration_s: float) -> None:
        self.count += 1
        self.sum_s += duration_s
        self.sum_of_squares += duration_s * duration_s
        if duration_s > self.max_s:
            self.max_s = duration_s
        self.buckets[bucket_of(duration_s)] += 1
        self.bins[min(int(duration_s / BIN_S), BINS - 1)] += 1

    def plus(self, other: Timing, sign: int = 1) -> Timing:
        """Return the sum with `other`, or the difference if `sign` is −1.

        `max_s` is the larger of both in either case.
        """
        return Timing(
            count=self.count + sign * other.count,
            sum_s=self.sum_s + sign * other.sum_s,
            sum_of_squares=self.sum_of_squares + sign * other.sum_of_squares,
            max_s=max(self.max_s, other.max_s),
            buckets=[a + sign * b for a, b in zip(self.buckets, other.buckets, strict=True)],
            bins=[a + sign * b for a, b in zip(self.bins, other.bins, strict=True)],
        )

    @property
    def mean_s(self) -> float:
        return self.sum_s / self.count if self.count else 0.0

    @property
    def deviation_s(self) -> float:
        """The standard deviation."""
        if not self.count:
            return 0.0
        return math.sqrt(max(self.sum_of_squares / self.count - self.mean_s**2, 0.0))

    def percentile_s(self, fraction: float) -> float:
        histogram = Histogram()
        histogram.counts = self.buckets
        histogram.count = self.count
        histogram.max_s = self.max_s
        return histogram.percentile_s(fraction)


class Row(msgspec.Struct):
    """One second of one process, or of all processes."""

    second: int
    messages: int = 0
    packets: int = 0
    # Type → number of requests, and the sum of their response times in seconds.
    responses: dict[str, tuple[int, float]] = msgspec.field(default_factory=dict)

    def plus(self, other: Row) -> Row:
        responses = dict(self.responses)
        for kind, (count, sum_s) in other.responses.items():
            before = responses.get(kind, (0, 0.0))
            responses[kind] = (before[0] + count, before[1] + sum_s)
        return Row(
            self.second, self.messages + other.messages, self.packets + other.packets, responses
        )


class Sample(msgspec.Struct):
    """All counters so far, and the rows of whole seconds since the last sample."""

    at_s: float
    puts: int = 0
    messages: int = 0
    packets: int = 0
    misses: int = 0
    timings: dict[str, Timing] = msgspec.field(default_factory=dict)
    rows: list[Row] = msgspec.field(default_factory=list)


class Window(msgspec.Struct):
    """The events between two samples, in all processes."""

    seconds: float
    puts: int
    messages: int
    packets: int
    misses: int
    timings: dict[str, Timing]
    rows: list[Row]

    @property
    def messages_per_s(self) -> float:
        return self.messages / self.seconds

    @property
    def packets_per_s(self) -> float:
        return self.packets / self.seconds

    @property
    def packets_per_message(self) -> float:
        return self.packets / self.messages if self.messages else math.nan

    def mean_ms(self, kind: str) -> float | None:
        timing = self.timings.get(kind)
        return 1e3 * timing.mean_s if timing is not None and timing.count else None


def window_of(before: list[Sample], after: list[Sample]) -> Window:
    """Return the sum over processes of the difference between their two samples."""
    pairs = list(zip(before, after, strict=True))
    timings: dict[str, Timing] = {}
    rows: dict[int, Row] = {}
    for earlier, later in pairs:
        for kind, timing in later.timings.items():
            change = timing.plus(earlier.timings.get(kind, Timing()), -1)
            timings[kind] = timings[kind].plus(change) if kind in timings else change
        for row in later.rows:
            rows[row.second] = rows[row.second].plus(row) if row.second in rows else row
    return Window(
        # Processes answer within milliseconds of each other; the mean of their windows serves for
        # all.
        seconds=sum(later.at_s - earlier.at_s for earlier, later in pairs) / len(pairs),
        puts=sum(later.puts - earlier.puts for earlier, later in pairs),
        messages=sum(later.messages - earlier.messages for earlier, later in pairs),
        packets=sum(later.packets - earlier.packets for earlier, later in pairs),
        misses=sum(later.misses - earlier.misses for earlier, later in pairs),
        timings=timings,
        rows=[rows[second] for second in sorted(rows)],
    )


class Tally:
    """The counters of one process's clients."""

    def __init__(self) -> None:
        self.puts = 0
        self.messages = 0
        self.packets = 0
        self.misses = 0
        self._timings = {kind: Timing() for kind in TYPES}
        self._rows: list[Row] = []
        self._ticked = self._state()

    def put(self, duration_s: float) -> None:
        self.puts += 1
        self.packets += 1
        self._timings[PUT].add(duration_s)

    def hit(self, duration_s: float, *, waited: bool) -> None:
        self.messages += 1
        self.packets += 1
        self._timings[WAITING_READ if waited else READ_HIT].add(duration_s)

    def miss(self, duration_s: float, *, waited: bool) -> None:
        self.misses += 1
        self.packets += 1
        if not waited:
            self._timings[READ_MISS].add(duration_s)

    def request(self, duration_s: float) -> None:
        """Count a put and its reply, made by one call."""
        self.puts += 1
        self.messages += 1
        self.packets += 2
        self._timings[REQUEST].add(duration_s)

    def _state(self) -> Row:
        return Row(
            0,
            self.messages,
            self.packets,
            {kind: (timing.count, timing.sum_s) for kind, timing in self._timings.items()},
        )

    def tick(self, second: int) -> None:
        """End a second of the monotonic clock, which all processes share."""
        before, now = self._ticked, self._state()
        self._ticked = now
        self._rows.append(
            Row(
                second,
                now.messages - before.messages,
                now.packets - before.packets,
                {
                    kind: (count - before.responses[kind][0], sum_s - before.responses[kind][1])
                    for kind, (count, sum_s) in now.responses.items()
                },
            )
        )

    def sample(self) -> Sample:
        rows, self._rows = self._rows, []
        return Sample(
            time.monotonic(),
            self.puts,
            self.messages,
            self.packets,
            self.misses,
            {kind: timing for kind, timing in self._timings.items() if timing.count},
            rows,
        )
