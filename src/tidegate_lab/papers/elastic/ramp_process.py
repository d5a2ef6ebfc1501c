"""The producer of a ramp: `python -m tidegate_lab.papers.elastic.ramp_process <ramp as JSON>`.

The producer is open-loop: at each time it puts the messages that the ramp requires, regardless of
the queue. It does not slow down when confirmations are missing.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
import uvloop

import tidegate
from tidegate_lab.loadgen.processes import answer

TICK_S = 0.02
PAYLOAD = bytes(100)


class Ramp(msgspec.Struct, frozen=True):
    """A rate that grows linearly to its maximum and stays there."""

    url: str
    queue: str
    growth_per_s2: float
    rate_max_per_s: float
    seconds: float

    def due(self, elapsed_s: float) -> int:
        """Return how many messages should have been put after `elapsed_s`."""
        growing_s = min(elapsed_s, self.rate_max_per_s / self.growth_per_s2)
        grown = 0.5 * self.growth_per_s2 * growing_s**2
        return int(grown + self.rate_max_per_s * max(elapsed_s - growing_s, 0.0))

    def rate_per_s(self, elapsed_s: float) -> float:
        return min(self.growth_per_s2 * elapsed_s, self.rate_max_per_s)


async def work(ramp: Ramp) -> int:
    """Put all messages of the ramp, and return how many were confirmed."""
    parent = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(parent), sys.stdin)
    async with tidegate.connect(ramp.url) as mq:
        answer("ready")
        if not await parent.readline():
            return 0
        begun_s = loop.time()
        sent = 0
        unconfirmed: set[asyncio.Future[int]] = set()
        confirmed = 0
        while (elapsed_s := loop.time() - begun_s) < ramp.seconds:
            due = ramp.due(elapsed_s)
            unconfirmed |= {mq.put(ramp.queue, PAYLOAD) for _ in range(due - sent)}
            sent = due
            done = {one for one in unconfirmed if one.done()}
            confirmed += sum(1 for one in done if one.result())
            unconfirmed -= done
            await asyncio.sleep(TICK_S)
        confirmed += len([one for one in await asyncio.gather(*unconfirmed) if one])
        return confirmed


if __name__ == "__main__":
    answer(uvloop.run(work(msgspec.json.decode(sys.argv[1], type=Ramp))))
