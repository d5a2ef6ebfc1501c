"""Which slots of machines are in use, by replicas and by instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tidegate.core.hosting import Instance, InstanceState
from tidegate.core.replication import ReplicaState, Topology


class Occupancy:
    """The number of used slots of each machine, by its id."""

    def __init__(self, topologies: Iterable[Topology], instances: Iterable[Instance]) -> None:
        self.used: Counter[int] = Counter()
        # Used slots whose replica or instance is draining.
        self.draining: Counter[int] = Counter()
        for topology in topologies:
            for place in topology.replicas:
                self._count(place.machine_id, place.state is ReplicaState.DRAINING)
        for instance in instances:
            self._count(instance.machine_id, instance.state is InstanceState.DRAINING)

    def _count(self, machine_id: int | None, is_leaving: bool) -> None:
        if machine_id is not None:
            self.used[machine_id] += 1
            self.draining[machine_id] += is_leaving
