"""Live meters of one HTTP server behind the gateway: counts, rates, response times."""

from __future__ import annotations

from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.meters import Rate


class ServerMeters:
    """What one server does, as the gateway sees it from outside."""

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
        # Requests of which it got the head; answers that came to their end.
        self.sent = Rate()
        self.answered = Rate()
        # Answers of 500 and above, and requests that got no whole answer.
        self.server_errors = Rate()
        self.failed = Rate()
        # Bodies to and from it.
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
