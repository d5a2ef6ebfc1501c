"""The HTTP pages of a node: /metrics for Prometheus, /healthz and /readyz for probes.

Stats are read and rendered in slices, between which the node delivers. No page asks the store, so
scraping causes no load there.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from tidegate.telemetry.http_pages import (
    ANSWER_S_MAX,
    REQUEST_S_MAX,
    PageResponse,
    PageServer,
    error_response,
)
from tidegate.telemetry.prometheus import CONTENT_TYPE, QUEUES_MAX, NodeMetrics
from tidegate.telemetry.stats import NodeStats, QueueStats

if TYPE_CHECKING:
    from tidegate.broker.ownership import NodeLease
    from tidegate.broker.stats import NodeStatsCollector

# Queues that are read before the event loop runs; about a millisecond.
_QUEUES_PER_TURN = 16


class NodePages(PageServer):
    """Serves the pages of one node."""

    def __init__(
        self,
        stats: NodeStatsCollector,
        lease: NodeLease,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        queues_max: int = QUEUES_MAX,
        request_s_max: float = REQUEST_S_MAX,
        answer_s_max: float = ANSWER_S_MAX,
    ) -> None:
        super().__init__(
            host=host, port=port, request_s_max=request_s_max, answer_s_max=answer_s_max
        )
        self._stats = stats
        self._lease = lease
        self._queues_max = queues_max
        self._exposition = NodeMetrics()
        # One at a time: many scrapers must not take all time of the event loop.
        self._writing = asyncio.Lock()

    async def start(self) -> None:
        await super().start()
        self._stats.identity.metrics_address = self.address

    async def page(self, path: str) -> PageResponse:
        if path == "/metrics":
            async with self._writing:
                return PageResponse(HTTPStatus.OK, await self._metrics(), CONTENT_TYPE)
        if path == "/healthz":
            return PageResponse(HTTPStatus.OK, b"alive\n")
        if path == "/readyz":
            reason = self._lease.why_not_ready()
            if reason is None:
                return PageResponse(HTTPStatus.OK, b"ready\n")
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        return error_response(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz and /readyz")

    # Metrics

    async def _metrics(self) -> bytes:
        pieces = []
        for piece in self._exposition.pieces(await self._numbers()):
            pieces.append(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)

    async def _numbers(self) -> NodeStats:
        # The queues with the lowest ids: the choice must not change between scrapes.
        owned = sorted(self._stats.replicas.items())
        chosen = owned[: self._queues_max]
        queues: list[QueueStats] = []
        for _, replica in chosen:
            queues.append(replica.numbers())
            if len(queues) % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        numbers = self._stats.of_node(queues)
        numbers.queues_left_out = len(owned) - len(chosen)
        return numbers
