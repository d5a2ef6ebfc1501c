"""Live meters of one HTTP server behind the gateway: counts, rates and response times."""

from __future__ import annotations

from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.meters import Rate


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
