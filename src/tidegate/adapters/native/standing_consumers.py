"""The existing consumers of a queue, as the plant of `tidegate tune prefetch`.

The experiment sets the prefetch of all consumers of the queue through their node, and reads the
node's counters; client code takes no part. All consumers get the same prefetch. The measured rate
is the mean of one consumer.

The node restores the prefetch that each consumer asked for when the experiment ends, and also when
this process dies: the change lasts as long as the connection (`set_experiment_prefetch`). Only one
experiment can run at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

from tidegate.client.client import Client
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.prefetch import ConsumerSample
from tidegate.telemetry.numbers import ConsumerNumbers, QueueNumbers

# Queue id (of the queue or of a replica), client id, and number of the consumer.
Key = tuple[int, int, int]
TRIAL_OVER = 0


class NoConsumers(InvalidValue):
    """The queue has no consumer that acknowledges explicitly."""


class StandingConsumers:
    """The consumers of one queue of a cluster."""

    feeds_itself = False

    def __init__(self, client: Client, queue: str, consumers: list[Key]) -> None:
        self._client = client
        self._queue = queue
        self._consumers = consumers
        self._prefetch = math.nan
        count = len(consumers)
        self.says = (
            f"{'the consumer' if count == 1 else f'the {count} consumers'} of {queue}, as "
            f"{'it is' if count == 1 else 'they are'}"
        )
        self.leaves = (
            f"the consumers of {queue} have the prefetch again that they asked for"
            if count > 1
            else f"the consumer of {queue} has the prefetch again that it asked for"
        )

    @classmethod
    async def of(cls, client: Client, queue: str) -> StandingConsumers:
        """Return the present consumers of a queue.

        Raises NoConsumers if there are none. Raises InvalidValue if nodes control their prefetch
        already, or another experiment runs.
        """
        if (await client.queue(queue)).policy.prefetch is not None:
            # Two controllers of one prefetch would measure each other.
            raise InvalidValue(
                f"nodes steer the prefetch of {queue} already: switch that off first (`tidegate "
                f"policy {queue} --prefetch-off`), or measure with a probe of our own (--probe)"
            )
        found = _consumers(await _numbers(client, queue))
        if not found:
            raise NoConsumers(f"queue {queue} has no consumer that acknowledges")
        trying = {one.trial_by for one in found.values()} - {""}
        if trying:
            raise InvalidValue(
                f"{min(trying)} is trying out prefetches with the consumers of {queue} just now "
                "(`tidegate tune prefetch` does): wait until that has ended, or measure with a "
                "probe of our own (--probe)"
            )
        return cls(client, queue, list(found))

    async def set_prefetch(self, prefetch: int) -> None:
        # Set all of them each time: after a lost connection, a consumer has its own prefetch again.
        for key in self._consumers:
            await self._set(key, prefetch)
        self._prefetch = float(prefetch)

    async def measure(self, interval_s: float) -> ConsumerSample:
        loop = asyncio.get_running_loop()
        first = await _numbers(self._client, self._queue)
        begun_at = loop.time()
        await asyncio.sleep(interval_s)
        last = await _numbers(self._client, self._queue)
        now = loop.time()
        before, after = _consumers(first), _consumers(last)
        counted = [key for key in self._consumers if key in before and key in after]
        if not counted:
            raise InvalidValue(
                f"the consumers of {self._queue} have gone while they were measured: start them "
                "and try again"
            )
        arrived = sum(after[key].delivered - before[key].delivered for key in counted)
        return ConsumerSample(
            at=now,
            interval_s=now - begun_at,
            arrived_per_s=arrived / len(counted) / (now - begun_at),
            prefetch=self._prefetch,
            starved=_is_empty(first) or _is_empty(last),
        )

    async def close(self) -> None:
        """Restore the prefetch that each consumer asked for.

        A consumer that has left, or that another experiment uses, is skipped.
        """
        for key in self._consumers:
            with contextlib.suppress(InvalidValue):
                await self._set(key, TRIAL_OVER)

    async def _set(self, key: Key, prefetch: int) -> None:
        queue_id, client_id, consumer = key
        await self._client.set_consumer_prefetch(
            queue_id, client_id, consumer, prefetch, trial=True
        )


async def _numbers(client: Client, queue: str) -> list[QueueNumbers]:
    cluster = await client.stats(queue)
    found = [numbers for node in cluster.nodes for numbers in node.queues]
    if not found:
        raise TidegateError(f"no node has numbers of queue {queue} at the moment: try again")
    return found


def _consumers(queues: list[QueueNumbers]) -> dict[Key, ConsumerNumbers]:
    return {
        (queue.queue_id, one.client_id, one.consumer): one
        for queue in queues
        for one in queue.consumers
        if not one.automatic
    }


def _is_empty(queues: list[QueueNumbers]) -> bool:
    return sum(queue.waiting - queue.delayed for queue in queues) <= 0
