"""The operational pages of a door process: /metrics, /healthz and /readyz, on a separate port.

The pages show the newest sample that the door process passes in every second. A request for a page
therefore costs the door nothing. A door is ready while at least one instance is not ejected and the
door reports no trouble.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

from tidegate.core.hosting import DoorSample
from tidegate.telemetry.door_exposition import DoorExposition, StandingNumbers
from tidegate.telemetry.exposition import CONTENT_TYPE
from tidegate.telemetry.page_server import Answer, PageServer, refusal


class DoorPages(PageServer):
    """The pages of one door."""

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host=host, port=port)
        self._exposition = DoorExposition()
        self._sample: DoorSample | None = None

    def take(self, sample: DoorSample, standings: Iterable[StandingNumbers] = ()) -> None:
        """Store the newest sample and agreement statuses, for all following requests."""
        self._sample = sample
        self._exposition.take(sample, standings)

    async def page(self, path: str) -> Answer:
        if path == "/metrics":
            return Answer(HTTPStatus.OK, self._exposition.text(), CONTENT_TYPE)
        if path == "/healthz":
            return Answer(HTTPStatus.OK, b"alive\n")
        if path == "/readyz":
            reason = self._why_not_ready()
            if not reason:
                return Answer(HTTPStatus.OK, b"ready\n")
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return refusal(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    def _why_not_ready(self) -> str:
        if self._sample is None:
            return "the door has not begun yet"
        if self._sample.trouble:
            return self._sample.trouble
        if not any(one.ejected is None for one in self._sample.instances):
            return f"there is no instance of {self._sample.service} that could answer"
        return ""
