"""The user's own worker as the consumer of an experiment, with its handler and real messages.

The app runs as under `tidegate worker`, with this queue only, and the experiment sets its
prefetch. The app ends with the experiment. The messages it holds then are finished or go back to
the queue.
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

# Seconds to reconnect. A user is waiting, so a broker that is down must fail the experiment soon.
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
        # Read the queue during the sample: a round trip between samples would be time that no
        # sample measures.
        looking = asyncio.create_task(ready(self._app.engine, self._queue))
        try:
            was_live, interruptions = subscription.is_live, subscription.interruptions
            begun_at, before = loop.time(), subscription.delivered
            await asyncio.sleep(interval_s)
            now, after = loop.time(), subscription.delivered
            is_empty = await looking == 0
        finally:
            looking.cancel()
        # During an outage nothing arrives at any prefetch. Afterwards the worker may have another
        # subscription with a new counter.
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
        """Do nothing, because `user_worker` ends the app."""

    def _subscription(self) -> EngineSubscription:
        found = self._app.subscription(self._queue)
        if found is None:
            raise IoFailure(
                f"the worker of {self._queue} has ended while it was measured: its log says why"
            )
        return found


@contextlib.asynccontextmanager
async def own_worker(app: App, url: str, queue: str) -> AsyncIterator[OwnWorker]:
    """Run the app's worker of this queue, and yield it as a consumer.

    The queue must exist. Raises `InvalidValue` if the app has no worker for it, or if the nodes
    control its prefetch.
    """
    slots = [worker.concurrency for worker in app.workers if worker.queue == queue]
    if not slots:
        known = ", ".join(worker.queue for worker in app.workers) or "none at all"
        raise InvalidValue(f"the app has no worker for {queue}; it has workers for {known}")
    # An app creates missing queues; check first, so that a mistyped name does not create one.
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
    """Return the number of messages that wait for delivery."""
    if isinstance(client, Client):
        cluster = await client.stats(queue)
        return sum(one.waiting - one.delayed for node in cluster.nodes for one in node.queues)
    return int((await client.queue(queue)).messages)
