"""Times the phases of requests of a client that sends one at a time (Telesto's table 5.3).

    last answer sent -> wait for client -> arrived -> parse -> parsed
        -> wait for the store, or for a message -> ready -> respond -> answer sent

A cycle runs from the end of one answer to the end of the next. It is cut at three instants, so the
phases add up to the total. Requests that overlap with others have no such cycle and are not
counted.
"""

from __future__ import annotations

from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.meters import PhaseMeters
from tidegate.telemetry.recorder import Row
from tidegate.telemetry.sampler import Sampler

# End of the previous answer, arrived, parsed, ready, and end of this answer; in seconds.
Cuts = tuple[float, float, float, float, float]


class RequestCycle:
    """Times the request that is being handled on one connection."""

    __slots__ = (
        "_answered_at",
        "_counts",
        "_phases",
        "_requests",
        "_unanswered",
        "_waited",
        "arrived_at",
        "parsed_at",
        "ready_at",
        "verb",
    )

    def __init__(self, phases: PhaseMeters, requests: RequestSamples | None = None) -> None:
        self._phases = phases
        # Collects single requests for the lake; None: not recorded.
        self._requests = requests
        # Type of the packet that is being handled.
        self.verb: type | None = None
        self._unanswered = 0
        self._counts = False
        self._answered_at = 0.0
        # When the last packet arrived, and when it was parsed.
        self.arrived_at = 0.0
        self.parsed_at = 0.0
        self._waited: Histogram | None = None
        # When the awaited commit or message was there; 0: when the answer began.
        self.ready_at = 0.0

    def asked(self, arrived_at: float, parsed_at: float) -> None:
        self._unanswered += 1
        self._counts = self._unanswered == 1 and self._answered_at > 0.0
        self.arrived_at = arrived_at
        self.parsed_at = parsed_at
        if self._counts:
            self._waited = None
            self.ready_at = 0.0

    def handled(self, reads: bool) -> None:
        """Note that the handler has returned; if there is no answer yet, it waits for something."""
        if self._counts:
            self._waited = self._phases.wait_message if reads else self._phases.store

    def unanswered(self) -> None:
        """Note that the request gets no answer, or gets it from another node."""
        self._unanswered -= 1
        self._counts = False

    def answered(self, began_at: float, ended_at: float) -> None:
        # Errors may answer packets that need no answer, and bytes that are no request.
        self._unanswered = max(self._unanswered - 1, 0)
        if self._counts:
            self._counts = False
            phases = self._phases
            phases.wait_client.add(self.arrived_at - self._answered_at)
            phases.parse.add(self.parsed_at - self.arrived_at)
            ready_at = self.parsed_at
            if self._waited is not None:
                ready_at = self.ready_at or began_at
                self._waited.add(ready_at - self.parsed_at)
            phases.respond.add(ended_at - ready_at)
            phases.total.add(ended_at - self._answered_at)
            requests = self._requests
            if requests is not None:
                requests.skip -= 1
                if requests.skip <= 0:
                    requests.take(
                        self.verb,
                        (self._answered_at, self.arrived_at, self.parsed_at, ready_at, ended_at),
                        for_message=self._waited is phases.wait_message,
                    )
        self._answered_at = ended_at


class RequestSamples:
    """Collects the phases of one in N requests for the lake."""

    __slots__ = ("_sampler", "_taken", "skip")

    def __init__(self, sampler: Sampler) -> None:
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
