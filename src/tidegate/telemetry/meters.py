"""Live meters of a queue replica and its consumers: exact counts and rates per second."""

from __future__ import annotations

import math

from tidegate.telemetry.histogram import Histogram


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


class Probe:
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
        self.probe: Probe | None = None

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
