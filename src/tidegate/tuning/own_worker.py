"""An application's own worker as the consumer: its handler, for real, on real messages.

The app runs as `tidegate worker` runs it, with this queue only, while its prefetch is set from
here. It ends with the experiment, and what it holds then is finished or goes back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tidegate.client.app import App
from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.client.engine import EngineClient, EngineSubscription
from tidegate.core.errors import InvalidValue, IoFailure
from tidegate.core.prefetch import ConsumerSample

# A person waits: not for a broker that is gone.
PATIENCE_S = 6.0


class OwnWorker:
    """The running worker of one queue of an app."""

    feeds_itself = False

    def __init__(self, app: App, queue: str) -> None:
        self._app = app
        self._queue = queue
        self.says = f"your own worker of {queue}, on its messages"
        self.leaves = f"your worker has finished what it had begun; the rest waits in {queue}"

    async def set_prefetch(self, prefetch: int) -> None:
        subscription = self._subscription()
        if subscription.prefetch != prefetch:
            await subscription.set_prefetch(prefetch)

    async def measure(self, interval_s: float) -> ConsumerSample:
        loop = asyncio.get_running_loop()
        subscription = self._subscription()
        # Meanwhile: a round trip to look would be a part of the sample that nobody measures.
        looking = asyncio.create_task(ready(self._app.engine, self._queue))
        try:
            was_live, interruptions = subscription.is_live, subscription.interruptions
            begun_at, before = loop.time(), subscription.delivered
            await asyncio.sleep(interval_s)
            now, after = loop.time(), subscription.delivered
            is_empty = await looking == 0
        finally:
            looking.cancel()
        # In an outage nothing comes, whatever the prefetch. After one the worker may have another
        # subscription, with a count of its own.
        interrupted = (
            self._subscription() is not subscription
            or subscription.interruptions != interruptions
            or not (was_live and subscription.is_live)
        )
        return ConsumerSample(
            at=now,
            interval_s=now - begun_at,
            arrived_per_s=(after - before) / (now - begun_at),
            held=float(subscription.held),
            prefetch=float(subscription.prefetch),
            starved=is_empty or interrupted,
        )

    async def close(self) -> None:
        """The app ends with its block."""

    def _subscription(self) -> EngineSubscription:
        found = self._app.subscription(self._queue)
        if found is None:
            raise IoFailure(
                f"the worker of {self._queue} has ended while it was measured: its log says why"
            )
        return found


@contextlib.asynccontextmanager
async def own_worker(app: App, url: str, queue: str) -> AsyncIterator[OwnWorker]:
    """Run the worker of this queue, on a broker that has the queue already."""
    slots = [worker.concurrency for worker in app.workers if worker.queue == queue]
    if not slots:
        known = ", ".join(worker.queue for worker in app.workers) or "none at all"
        raise InvalidValue(f"the app has no worker for {queue}; it has workers for {known}")
    # An app makes the queues that are missing; a name that was mistyped is none to make.
    async with connect(url, reconnect_s=PATIENCE_S) as looking:
        found = await looking.queue(queue)
        if isinstance(looking, Client) and found.policy.prefetch is not None:
            raise InvalidValue(
                f"nodes steer the prefetch of {queue} already, and would undo what is set here: "
                f"switch that off first (`tidegate policy {queue} --prefetch-off`)"
            )
    async with app.running(queues=[queue], prefetch=slots[0], url=url):
        yield OwnWorker(app, queue)


async def ready(client: EngineClient, queue: str) -> int:
    """Messages that wait for somebody to take them."""
    if isinstance(client, Client):
        cluster = await client.stats(queue)
        return sum(one.waiting - one.delayed for node in cluster.nodes for one in node.queues)
    return int((await client.queue(queue)).messages)
