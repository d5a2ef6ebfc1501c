"""Records the telemetry of a node: samples each second, and events.

Queues are sampled in slices, between which the node delivers: sampling 500 queues at once would
stall delivery each second. The recorder writes the rows in its own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidegate.node.cycle import RequestSamples
from tidegate.node.lifecycle_watch import LifecycleWatch, Watched
from tidegate.node.replica import Replica
from tidegate.node.sampling import NodeSampler, QueueSampler
from tidegate.telemetry.recorder import Recorder, Row
from tidegate.telemetry.sampler import Sampler

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# Queues that are sampled before the event loop runs; about half a millisecond.
_QUEUES_PER_TURN = 50


class Recording:
    """Records the rows of one node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        options = recorder.options
        self.recorder = recorder
        self._node = node
        self._clock = node.clock
        self._samplers: dict[Replica, QueueSampler] = {}
        self._node_sampler = NodeSampler(node)
        self._dropped_told = 0
        self._watched: Watched | None = None
        # Collects single requests of all connections; None: not recorded.
        self.requests: RequestSamples | None = None
        if options.lifecycles_per_s:
            sampler = Sampler(options.lifecycles_per_s, interval_s=options.interval_s)
            self._watched = Watched(sampler, node.clock)
        if options.requests_per_s:
            sampler = Sampler(options.requests_per_s, interval_s=options.interval_s)
            self.requests = RequestSamples(sampler)

    def start(self) -> None:
        self._node_sampler.start()
        self.recorder.start(self._node.name)
        self.event("join", str(self._node.member_id), {"address": self._node.address})

    async def stop(self) -> None:
        """Record the last rows and stop the recorder."""
        self.event("leave", str(self._node.member_id), {"address": self._node.address})
        await self.sample()
        await asyncio.to_thread(self.recorder.stop)

    def abort(self) -> None:
        """Stop at once, as a kill would; unwritten rows are lost."""
        self.recorder.abort()

    # Samples

    async def run(self) -> None:
        """Sample at a steady interval forever; intervals that were missed are skipped."""
        interval_s = self.recorder.options.interval_s
        due = self._clock.monotonic() + interval_s
        while True:
            await asyncio.sleep(max(due - self._clock.monotonic(), 0.0))
            try:
                await self.sample()
            except Exception:
                # If this loop ended, no telemetry of this node would be recorded any more.
                log.exception("a bug while sampling")
            due = max(due + interval_s, self._clock.monotonic())

    async def sample(self) -> None:
        """Record one row for the node, for each queue and for each consumer."""
        samplers = list(self._samplers.values())
        for low in range(0, len(samplers), _QUEUES_PER_TURN):
            self._sample_queues(samplers[low : low + _QUEUES_PER_TURN])
            await asyncio.sleep(0)
        now, _, at_us = self._now()
        dropped = self.recorder.rows_dropped
        row = self._node_sampler.sample(at_us, now, dropped - self._dropped_told)
        if self.recorder.add("node_samples", [row]):
            # Otherwise this row is dropped too, and the next one reports it.
            self._dropped_told = dropped
        if self._watched is not None:
            self.recorder.add("lifecycles", self._watched.tick(self._node.name, now, at_us))
        if self.requests is not None:
            self.recorder.add("requests", self.requests.tick(self._node.name, now, at_us))

    def _sample_queues(self, samplers: list[QueueSampler]) -> None:
        now, wall_s, at_us = self._now()
        queues: list[Row] = []
        consumers: list[Row] = []
        for sampler in samplers:
            queues.append(sampler.sample(at_us, now, wall_s))
            consumers += sampler.sample_consumers(at_us, now)
            self._node_sampler.count(sampler)
        self.recorder.add("queue_samples", queues)
        self.recorder.add("consumer_samples", consumers)

    def _now(self) -> tuple[float, float, int]:
        wall_s = self._clock.wall()
        return self._clock.monotonic(), wall_s, int(wall_s * 1e6)

    # Events

    def event(
        self, event: str, subject: str, detail: Mapping[str, str], duration_s: float | None = None
    ) -> None:
        """Record an event of a node, a queue or another subject."""
        self.recorder.event(
            event, subject, at_s=self._clock.wall(), duration_s=duration_s, detail=detail
        )

    def owned(self, replica: Replica, *, from_member: int | None, duration_s: float) -> None:
        """Begin to sample a queue that this node has claimed."""
        holding = replica.holding
        now = self._clock.monotonic()
        interval_s = self.recorder.options.interval_s
        self._samplers[replica] = QueueSampler(
            self._node.name, holding, replica.dispatch, now, interval_s
        )
        if self._watched is not None:
            holding.watch = LifecycleWatch(holding.logical_name, self._watched)
        taken = from_member not in (None, self._node.member_id)
        detail = {"epoch": str(holding.epoch)}
        if taken:
            detail["from_member"] = str(from_member)
        self.event("takeover" if taken else "own", holding.info.name, detail, duration_s)

    def disowned(self, replica: Replica) -> None:
        """Record the last sample of a queue that this node no longer owns."""
        sampler = self._samplers.pop(replica, None)
        if sampler is not None:
            self._sample_queues([sampler])
            self.event("disown", replica.info.name, {"epoch": str(replica.epoch)})
