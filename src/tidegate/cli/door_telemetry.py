"""The telemetry of a door process: /metrics on a second port, and rows in the lake."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegate.core.errors import Unavailable

if TYPE_CHECKING:
    from tidegate.cli.settings.settings import Settings
    from tidegate.core.hosting import DoorSample, HostingStore, Instance
    from tidegate.telemetry.door_exposition import StandingNumbers
    from tidegate.telemetry.door_pages import DoorPages
    from tidegate.telemetry.http_requests import HttpRequestSamples
    from tidegate.telemetry.http_sampler import HttpSampler
    from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)


class DoorTelemetry:
    """Receives the samples of one door, and serves and records them."""

    def __init__(
        self, settings: Settings, service: str, store: HostingStore, metrics_port: int | None
    ) -> None:
        self._settings = settings
        self._service = service
        self._store = store
        self._metrics_port = metrics_port
        self._recorder: Recorder | None = None
        self._sampler: HttpSampler | None = None
        self._pages: DoorPages | None = None
        self._standings: list[StandingNumbers] = []

    @property
    def address(self) -> str:
        """The base URL of /metrics; empty if it is disabled."""
        return "" if self._pages is None else self._pages.address

    @property
    def requests(self) -> HttpRequestSamples | None:
        """Where the door adds single requests; None if they are not recorded."""
        return None if self._sampler is None else self._sampler.requests

    async def start(self, door_port: int) -> None:
        from tidegate.cli.node_wiring import recorder_of
        from tidegate.telemetry.http_sampler import HttpSampler

        if self._settings.metrics.enabled:
            self._pages = await self._opened_pages(door_port)
        self._recorder = recorder_of(self._settings)
        if self._recorder is not None:
            self._recorder.start(f"door-{self._service}-{socket.gethostname()}-{os.getpid()}")
            self._sampler = HttpSampler(self._recorder)

    async def _opened_pages(self, door_port: int) -> DoorPages:
        """Start the server of /metrics on the requested port, a derived port, or a free one."""
        from tidegate.cli.settings.metrics import METRICS_PORT_OFFSET
        from tidegate.telemetry.door_pages import DoorPages

        asked = self._metrics_port
        derived = door_port + METRICS_PORT_OFFSET
        ports = [asked] if asked is not None else [derived, 0] if derived < 2**16 else [0]
        while True:
            pages = DoorPages(host=self._settings.metrics.host, port=ports.pop(0))
            try:
                await pages.start()
            except Unavailable as failure:
                # The user did not choose this port, so a free one serves as well.
                if not ports:
                    raise
                log.info("%s; on a free port then", failure)
            else:
                return pages

    def take(self, sample: DoorSample, instances: Sequence[Instance], concurrency: int) -> None:
        if self._sampler is not None:
            self._sampler.take(sample, instances, concurrency)
        if self._pages is not None:
            self._pages.take(sample, self._standings)

    async def refresh_standings(self) -> None:
        """Read the status of the service's agreements as last stored by the leader."""
        from tidegate.agreement.kept_standing import KeptStanding
        from tidegate.telemetry.door_exposition import StandingNumbers

        found = map(KeptStanding.from_json, (await self._store.standings()).values())
        self._standings = [
            StandingNumbers(
                agreement=one.agreement,
                verdict=one.verdict.value,
                budget_left=one.standing.budget_left,
                burn_rate=one.standing.burn_hour,
            )
            for one in found
            if one is not None and one.http == self._service
        ]

    async def stop(self) -> None:
        if self._pages is not None:
            await self._pages.stop()
        if self._recorder is not None:
            self._recorder.stop()
