"""What a node records of itself: samples each second, and what happens in between.

Sampling goes in slices, between which the node goes on delivering: five hundred queues must not be
a stall each second. Rows go to the recorder, which writes them in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidegate.node.replica import Replica
from tidegate.node.sampling import QueueSampler
from tidegate.telemetry.recorder import Recorder, Row

if TYPE_CHECKING:
    from tidegate.node.server import Node

log = logging.getLogger(__name__)

# Queues that are sampled before others have their turn: half a millisecond or so.
_QUEUES_PER_TURN = 50


class Recording:
    """The rows of one node."""

    def __init__(self, node: Node, recorder: Recorder) -> None:
        self.recorder = recorder
        self._node = node
        self._clock = node.clock
        self._samplers: dict[Replica, QueueSampler] = {}

    def start(self) -> None:
        self.recorder.start(self._node.name)

    async def stop(self) -> None:
        """The last rows, and then the end."""
        await self.sample()
        await asyncio.to_thread(self.recorder.stop)

    def abort(self) -> None:
        """As a kill would: what was not written is lost."""
        self.recorder.abort()

    async def run(self) -> None:
        """For ever: sample at a steady beat; what could not be kept up with is left out."""
        interval_s = self.recorder.options.interval_s
        due = self._clock.monotonic() + interval_s
        while True:
            await asyncio.sleep(max(due - self._clock.monotonic(), 0.0))
            try:
                await self.sample()
            except Exception:
                # Without this loop nothing would be known of this node any more.
                log.exception("a bug while sampling")
            due = max(due + interval_s, self._clock.monotonic())

    async def sample(self) -> None:
        """One row for everything that there is now."""
        samplers = list(self._samplers.values())
        for low in range(0, len(samplers), _QUEUES_PER_TURN):
            self._sample_queues(samplers[low : low + _QUEUES_PER_TURN])
            await asyncio.sleep(0)

    def _sample_queues(self, samplers: list[QueueSampler]) -> None:
        now, wall_s = self._clock.monotonic(), self._clock.wall()
        at_us = int(wall_s * 1e6)
        rows: list[Row] = [sampler.sample(at_us, now, wall_s) for sampler in samplers]
        self.recorder.add("queue_samples", rows)

    # What happens

    def owned(self, replica: Replica) -> None:
        """A queue has become ours."""
        self._samplers[replica] = QueueSampler(
            self._node.name, replica.holding, replica.dispatch, self._clock.monotonic()
        )

    def disowned(self, replica: Replica) -> None:
        """A queue is no longer ours: what it did since its last sample is not forgotten."""
        sampler = self._samplers.pop(replica, None)
        if sampler is not None:
            self._sample_queues([sampler])
