"""Worker processes that come with each replica on RabbitMQ, on the controller's own computer.

Each replica gets the configured number of workers. A worker is bound to its replica by the variable
TIDEGATE_REPLICA and ends with it. All workers drain and end when the controller ends. Users who
want workers to outlive the controller start them separately.
"""

from __future__ import annotations

import asyncio

from tidegate.adapters.rabbitmq.elastic.topology import ElasticTopology
from tidegate.core.replication import ReplicaState, replica_name
from tidegate.fleet.replica_workers import ReplicaWorkers

_DRAIN_S = 30.0
# There are no machines here, so workers have no machine id.
_NO_MACHINE = 0


class ReplicaCrew:
    """The local workers of all replicas of one queue."""

    def __init__(self, target: str, url: str, workers_per_replica: int) -> None:
        self._target = target
        self._url = url
        self._count = workers_per_replica
        self._workers: dict[int, ReplicaWorkers] = {}

    async def follow(self, topology: ElasticTopology) -> None:
        """Make one step towards workers at every replica that is not starting, and at no other."""
        there = {one.number for one in topology.replicas if one.state is not ReplicaState.STARTING}
        for number in there - self._workers.keys():
            name = replica_name(topology.queue, number)
            self._workers[number] = ReplicaWorkers(name, self._target, _NO_MACHINE, _DRAIN_S)
        for number, workers in list(self._workers.items()):
            await workers.adjust(self._count if number in there else 0, self._url, {})
            if number not in there and workers.are_gone:
                del self._workers[number]

    @property
    def trouble(self) -> str:
        """The workers' problems as one text; empty if there are none."""
        return "; ".join(filter(None, (workers.trouble for workers in self._workers.values())))

    async def end(self) -> None:
        """End all workers and wait for their drain."""
        await asyncio.gather(*(workers.end() for workers in self._workers.values()))
        self._workers.clear()
