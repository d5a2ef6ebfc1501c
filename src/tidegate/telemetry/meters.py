"""Live meters of a queue replica and its consumers: exact counts, per-second rates."""

from __future__ import annotations

import math

from tidegate.telemetry.histogram import Histogram


class Rate:
    """Events per second over the last whole second, and in total."""

    __slots__ = ("_at_tick", "_ticked_at", "per_s", "total")

    def __init__(self) -> None:
        self.total = 0
        self.per_s = 0.0
        self._at_tick = 0
        self._ticked_at: float | None = None

    def add(self, count: int) -> None:
        self.total += count

    def tick(self, now: float) -> None:
        """Call about once a second."""
        if self._ticked_at is not None and now > self._ticked_at:
            self.per_s = (self.total - self._at_tick) / (now - self._ticked_at)
        self._at_tick = self.total
        self._ticked_at = now


class Probe:
    """How long messages took that were delivered between two moments, from delivery to ack."""

    __slots__ = ("count", "since", "sum_s", "until")

    def __init__(self, since: float) -> None:
        self.since = since
        self.until = math.inf
        self.count = 0
        self.sum_s = 0.0


class ConsumerMeters:
    """What one consumer does."""

    __slots__ = ("acked", "delivered", "probe", "service", "settlements")

    def __init__(self) -> None:
        self.delivered = Rate()
        self.acked = Rate()
        # From delivery to acknowledgement.
        self.service = Histogram()
        # How often it has acknowledged, one or many at a time.
        self.settlements = 0
        # Of some deliveries apart, while somebody wants to know; None: nobody does.
        self.probe: Probe | None = None

    def settled(self, granted_at: float, now: float, count: int) -> None:
        """Messages of one delivery are done."""
        self.service.add(now - granted_at, count)
        probe = self.probe
        if probe is not None and probe.since <= granted_at < probe.until:
            probe.count += count
            probe.sum_s += count * (now - granted_at)

    def tick(self, now: float) -> None:
        self.delivered.tick(now)
        self.acked.tick(now)


class QueueMeters:
    """What one queue replica does."""

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
        # Given up: to the dead letters, or for want of a queue for them.
        self.dead_lettered = Rate()
        self.dropped = Rate()
        self.expired = Rate()
        # Puts that were not stored since their dedup id was.
        self.deduplicated = Rate()
        # Messages that went to a sibling, and that came from one: neither done nor put.
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
    """Where the time goes of clients that ask one thing at a time (Telesto's table 5.3).

    The phases add up to the total, which runs from the end of one answer to that of the next.
    """

    __slots__ = ("parse", "respond", "store", "total", "wait_client", "wait_message")

    def __init__(self) -> None:
        self.wait_client = Histogram()
        self.parse = Histogram()
        self.store = Histogram()
        # A read that waits for a message to come waits for other clients, not for the node.
        self.wait_message = Histogram()
        self.respond = Histogram()
        self.total = Histogram()
