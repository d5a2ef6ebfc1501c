"""The sensor of RabbitMQ: a sample of an elastic queue from AMQP and the management API.

    passive declaration   ready messages and consumers of each queue: exact, at this moment
    management API        rates and unacknowledged messages: up to 5 s old by default
    holders queue         Tidegate consumers that may hold messages of a replica

The management API's statistics are late and may be missing. The growth of the lengths gives an
immediate lower bound of the arrival rate. The policies load and length can work without the other
rates.

A value that could not be measured is 0 in the sample, and named in `unknown`, so that explanations
leave it out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from tidegate.core.decisions import QueueSample, ReplicaSample
from tidegate.core.errors import TidegateError
from tidegate.core.topology import ALIAS, ReplicaState, replica_name
from tidegate.engines.rabbitmq.management import ManagedQueue, ManagementApi
from tidegate.engines.rabbitmq.topology import (
    ControllerConnection,
    ElasticReplica,
    ElasticTopology,
    QueueLength,
    holders_name,
)

# Moved messages are spread over this interval, as RabbitMQ spreads its counts.
_MOVED_S = 5.0
# Minimum time between two sums that give a rate.
_SHORTEST_S = 0.2
_RATES = ("arrived_per_s", "consumed_per_s", "capacity_per_s")
# Values that RabbitMQ never provides.
UNKNOWN = ("resource_load",)


class RabbitmqSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample, and what it lacks."""

    sample: QueueSample
    # Names of the values that could not be measured.
    unknown: list[str]
    # Why they could not be measured; "" means that they could.
    trouble: str = ""
    # Replicas whose queue does not exist.
    missing: list[int] = []
    # Consumers of the queue itself, replica 0.
    alias_consumers: int = 0


class RabbitmqSensor:
    """Samples of one elastic queue."""

    def __init__(self, link: ControllerConnection, management: ManagementApi | None) -> None:
        self._link = link
        self._management = management
        self._serving_since: dict[int, float] = {}
        self._moved: deque[tuple[float, int, int]] = deque()
        # Time and sum of all lengths at the last sample, and their growth until then.
        self._sum_at: tuple[float, int] | None = None
        self._growth_per_s = 0.0

    async def poll(
        self,
        topology: ElasticTopology,
        now: Callable[[], float],
        moved: Mapping[int, int] | None = None,
    ) -> RabbitmqSample:
        """Poll the broker once.

        `moved` contains the messages moved to each replica since the previous call.
        """
        managed, trouble = await self._managed(topology.queue)
        at = now()
        for number, count in (moved or {}).items():
            self._moved.append((at, number, count))
        while self._moved and at - self._moved[0][0] > _MOVED_S:
            self._moved.popleft()
        alias = await self._link.length(topology.queue)
        replicas, missing = [], []
        for one in topology.replicas:
            length = await self._link.length(replica_name(topology.queue, one.number))
            if length is None:
                missing.append(one.number)
            holders = await self._link.length(holders_name(topology.queue, one.number))
            shown = managed.get(one.number)
            replicas.append(self._replica(topology, one, length, holders, shown, at))
        published = managed[ALIAS].message_stats.publish_details.rate if managed else 0.0
        arrived = max(published - self._brought_per_s(ALIAS), 0.0)
        unknown = [*UNKNOWN, "oldest_age_s"] if managed else [*UNKNOWN, "oldest_age_s", *_RATES]
        if any(one.oldest_age_s for one in replicas):
            unknown.remove("oldest_age_s")
        alias_waiting = 0 if alias is None else alias.ready
        growth_per_s = self._growth(at, alias_waiting + sum(one.waiting for one in replicas))
        sample = QueueSample(
            queue=topology.queue,
            at=at,
            replicas=replicas,
            arrived_per_s=max(arrived + sum(one.produced_per_s for one in replicas), growth_per_s),
            alias_waiting=alias_waiting,
            age_s=now() - at,
            # A consumer of the queue itself consumes from all replicas; a bound consumer from one.
            consumers_roam=alias is not None and alias.consumers > 0,
        )
        return RabbitmqSample(
            sample=sample,
            unknown=unknown,
            trouble=trouble,
            missing=missing,
            alias_consumers=0 if alias is None else alias.consumers,
        )

    def _brought_per_s(self, number: int) -> float:
        """Return the rate of moved messages, which the broker counts as published."""
        return sum(count for _, to, count in self._moved if to == number) / _MOVED_S

    def _growth(self, at: float, waiting: int) -> float:
        """Return the growth of all lengths per second: a lower bound of the arrival rate."""
        if self._sum_at is None:
            self._sum_at = (at, waiting)
        elif at - self._sum_at[0] >= _SHORTEST_S:
            before_at, before = self._sum_at
            self._growth_per_s = max(waiting - before, 0) / (at - before_at)
            self._sum_at = (at, waiting)
        return self._growth_per_s

    async def _managed(self, queue: str) -> tuple[dict[int, ManagedQueue], str]:
        """Return the statistics by number of the replica, or nothing and the reason.

        The queue itself has the number ALIAS.
        """
        if self._management is None:
            return {}, "no management API is asked"
        try:
            found = await self._management.queues(queue)
        except TidegateError as failure:
            return {}, str(failure)
        shown = {_number(one.name, queue): one for one in found}
        return (shown, "") if ALIAS in shown else ({}, "the statistics have yet to come")

    def _replica(
        self,
        topology: ElasticTopology,
        one: ElasticReplica,
        length: QueueLength | None,
        holders: QueueLength | None,
        shown: ManagedQueue | None,
        at: float,
    ) -> ReplicaSample:
        if one.state is ReplicaState.STARTING:
            self._serving_since.pop(one.number, None)
        else:
            self._serving_since.setdefault(one.number, at)
        age_s = at - self._serving_since.get(one.number, at)
        share = topology.shares[one.number]
        if length is None:
            return ReplicaSample(
                number=one.number, state=one.state, share=share, age_s=age_s, reachable=False
            )
        held_by = 0 if holders is None else holders.consumers
        stats = None if shown is None else shown.message_stats
        published = 0.0 if stats is None else stats.publish_details.rate
        unacknowledged = None if shown is None else shown.messages_unacknowledged
        return ReplicaSample(
            number=one.number,
            state=one.state,
            produced_per_s=max(published - self._brought_per_s(one.number), 0.0),
            consumed_per_s=0.0 if stats is None else max(stats.ack_details.rate, 0.0),
            waiting=length.ready,
            unacknowledged=unacknowledged or 0,
            oldest_age_s=_age_s(shown, length),
            # A consumer that stopped and still holds messages counts too.
            consumers=max(length.consumers, held_by if one.is_leaving else 0),
            share=share,
            age_s=age_s,
            waiting_consumers=_idle(length, unacknowledged or 0),
        )


def _idle(length: QueueLength, unacknowledged: int) -> int:
    """Return the number of consumers without a message, if nothing waits."""
    return 0 if length.ready else max(length.consumers - unacknowledged, 0)


def _age_s(shown: ManagedQueue | None, length: QueueLength) -> float:
    if shown is None or not shown.head_message_timestamp or not length.ready:
        return 0.0
    return max(time.time() - shown.head_message_timestamp, 0.0)


def _number(name: str, queue: str) -> int:
    return ALIAS if name == queue else int(name.removeprefix(f"{queue}#"))
