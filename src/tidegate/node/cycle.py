"""The cycle of a client that asks one thing at a time: where its time goes (Telesto's table 5.3).

    last answer gone → wait for client → arrived → parse → parsed
        → wait for the store, or for a message → ready → respond → answer gone

It runs from the end of one answer to the end of the next and is cut at three instants, so the
phases add up to the total. A client with several requests under way has no such cycle: its
requests overlap, and are not counted here.
"""

from __future__ import annotations

from tidegate.telemetry.histogram import Histogram
from tidegate.telemetry.meters import PhaseMeters


class RequestCycle:
    """The request under way on one connection."""

    __slots__ = (
        "_answered_at",
        "_arrived_at",
        "_counts",
        "_parsed_at",
        "_phases",
        "_unanswered",
        "_waited",
        "ready_at",
    )

    def __init__(self, phases: PhaseMeters) -> None:
        self._phases = phases
        self._unanswered = 0
        self._counts = False
        self._answered_at = 0.0
        self._arrived_at = 0.0
        self._parsed_at = 0.0
        self._waited: Histogram | None = None
        # When that for which it waited was there; 0 for: when the answer began.
        self.ready_at = 0.0

    def asked(self, arrived_at: float, parsed_at: float) -> None:
        self._unanswered += 1
        self._counts = self._unanswered == 1 and self._answered_at > 0.0
        if self._counts:
            self._arrived_at = arrived_at
            self._parsed_at = parsed_at
            self._waited = None
            self.ready_at = 0.0

    def handled(self, reads: bool) -> None:
        """The node has done what it could; if there is no answer yet, something is waited for."""
        if self._counts:
            self._waited = self._phases.wait_message if reads else self._phases.store

    def unanswered(self) -> None:
        """This one gets no answer, or gets it from another node."""
        self._unanswered -= 1
        self._counts = False

    def answered(self, began_at: float, ended_at: float) -> None:
        # An error may come for what needs no answer, or for bytes that are no request.
        self._unanswered = max(self._unanswered - 1, 0)
        if self._counts:
            self._counts = False
            phases = self._phases
            phases.wait_client.add(self._arrived_at - self._answered_at)
            phases.parse.add(self._parsed_at - self._arrived_at)
            ready_at = self._parsed_at
            if self._waited is not None:
                ready_at = self.ready_at or began_at
                self._waited.add(ready_at - self._parsed_at)
            phases.respond.add(ended_at - ready_at)
            phases.total.add(ended_at - self._answered_at)
        self._answered_at = ended_at
