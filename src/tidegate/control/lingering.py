"""Why a replica that is to go is still there, for `tidegate explain`, once that takes long.

A drain that goes well is over within seconds, and nothing is said of it.
"""

from __future__ import annotations

from tidegate.control.clients import NO_SHARE, own_workers
from tidegate.core.replication import ReplicaState, Topology
from tidegate.core.steering import QueueSample, ReplicaSample

# Producers that have just heard of it put to it for some seconds more.
PATIENCE_S = 15.0


class Lingering:
    """Looks after the drains of one logical queue."""

    def __init__(self) -> None:
        # By number of the replica: since when it has been about to go.
        self._since: dict[int, float] = {}

    def words(self, topology: Topology, sample: QueueSample) -> list[str]:
        """A sentence for each that has been about to go for long."""
        going = [one for one in sample.replicas if one.state is ReplicaState.DRAINING]
        self._since = {one.number: self._since.get(one.number, sample.at) for one in going}
        return [
            f"replica {one.number} is still to go: {', '.join(found)}"
            for one in going
            if sample.at - self._since[one.number] >= PATIENCE_S
            and (found := _what_keeps(one, topology))
        ]


def _what_keeps(one: ReplicaSample, topology: Topology) -> list[str]:
    """Without numbers: they change with every look, and each other sentence is written down."""
    if not one.reachable:
        return ["it cannot be reached"]
    keeps = {
        "it still gets new messages": one.share > NO_SHARE,
        "messages wait in it": one.waiting > 0,
        "messages are with its consumers": one.unacknowledged > 0,
        "producers have put to it in the last seconds": one.producers > 0,
        "consumers that are not its own workers are there": one.consumers
        > own_workers(topology.scaling),
        "it is the home of groups or receivers": topology.is_home(one.number),
    }
    return [words for words, is_so in keeps.items() if is_so]
