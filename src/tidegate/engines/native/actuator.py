"""The actuator of Tidegate's own nodes: actions in, store changes and requests to nodes out.

Theory of operation.

The leader calls `execute` for each action of a decision about a logical queue. An action takes one
of two ways:

    SetShares, Drain, CancelDrain, Retire   a change of the catalogue under the leader's epoch;
                                            the nodes read the catalogue and follow
    Exchange                                a `Pull` request to the owner of the target
    Migrate                                 a request to the owner of the alias, which tells clients
    KeepUp                                  a new policy, set by the owner of the alias

`add_replica` adds a row to the catalogue. A replica without a machine then needs an owner: the
actuator asks the least loaded node to claim it.

Invariants:

- Each action can be repeated. The law decides again in the next period, from what it then sees. So
  the actuator never retries, and a failure is only a text for people.
- A replica is retired only if no group or receiver is assigned to it and the store holds no message
  of it.

Failures:

- The leader's epoch is stale: the store raises StaleEpoch, which ends the caller's turn as leader.
- A node does not answer, or refuses: the text of the error is returned. This includes StaleEpoch
  from a node, which concerns the queue and not the leader.
- The process dies: the catalogue has the change or not, and the next leader decides from there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from tidegate.core.decisions import (
    Action,
    CancelDrain,
    Drain,
    Exchange,
    KeepUp,
    Migrate,
    Retire,
    SetShares,
)
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.runtime import crash_point
from tidegate.core.store import MemberInfo, Store
from tidegate.core.topology import ALIAS, ReplicaInfo, ReplicaState, Topology
from tidegate.protocol.catalogue import SetPolicy
from tidegate.protocol.cluster import MigrateClients, Pull, SetOwner
from tidegate.protocol.packet import Packet, Request

# Address of a node, the request, and the timeout in seconds: `NodeClients.request`.
Ask = Callable[[str, Request, float], Awaitable[Packet]]

# Longer than a commit of the moved messages, and short enough not to delay the loop.
_PULL_S = 3.0
_ANSWER_S = 2.0
# Names of the crash points in tests.
_POINTS: Mapping[type[Action], str] = {
    SetShares: "shares",
    Drain: "drain",
    CancelDrain: "drain",
    Retire: "retire",
    Exchange: "exchange-order",
    Migrate: "migrate",
    KeepUp: "keep-up",
}


class NativeActuator:
    """Executes the actions that were decided for a logical queue."""

    def __init__(self, store: Store, ask: Ask) -> None:
        self._store = store
        self._ask = ask

    async def execute(self, topology: Topology, action: Action, epoch: int) -> str | None:
        """Execute one action; return None if it was done, else a sentence that says why not.

        Raises StaleEpoch if `epoch` is no longer the leader's: the caller must then stop.
        """
        try:
            point = _POINTS[type(action)]
            crash_point(f"before-{point}")
            failure = await self._do(topology, action, epoch)
            if failure is None:
                crash_point(f"after-{point}")
            return failure
        except StaleEpoch:
            raise
        except TidegateError as failure:
            return str(failure)

    async def _do(self, topology: Topology, action: Action, epoch: int) -> str | None:
        store, queue_id = self._store, topology.queue_id
        match action:
            case SetShares(shares):
                done = await store.set_shares(queue_id, shares, epoch)
            case Drain(number):
                done = await store.set_replica_state(queue_id, number, ReplicaState.DRAINING, epoch)
            case CancelDrain(number):
                done = await store.set_replica_state(queue_id, number, ReplicaState.SERVING, epoch)
            case Retire(number):
                if topology.is_home(number):
                    return f"replica {number} is still the home of groups or receivers"
                done = await store.retire_replica(queue_id, number, epoch)
                return None if done else f"something is still stored in replica {number}"
            case Exchange(source, target, count):
                return await self._exchange(topology, source, target, count)
            case Migrate():
                return await self._migrate(topology, action)
            case KeepUp():
                return await self._keep_up(topology)
            case _:
                raise AssertionError(f"{action} is not about what is there already")
        return None if done else "the topology has changed meanwhile"

    async def add_replica(
        self, topology: Topology, epoch: int, machine_id: int | None
    ) -> ReplicaInfo | None:
        """Add a replica on a machine, or with None on the node that has the fewest replicas.

        Returns None if the store did not add it.
        """
        crash_point("before-replica-added")
        place = await self._store.add_replica(topology.queue_id, epoch, machine_id=machine_id)
        crash_point("after-replica-added")
        if place is not None and machine_id is None:
            await self._spread(topology, place)
        return place

    async def _spread(self, topology: Topology, place: ReplicaInfo) -> None:
        """Ask the least loaded node to claim a replica.

        If the request fails, the first node that sees the replica claims it.
        """
        member = least_loaded(await self._store.members(), topology)
        if member is not None:
            await self._told(member.address, SetOwner(place.queue_id, member.member_id))

    async def _exchange(
        self, topology: Topology, source: int, target: int, count: int
    ) -> str | None:
        taker, giver = _queue_id(topology, target), _queue_id(topology, source)
        if taker is None or giver is None:
            return f"replica {target if taker is None else source} is gone"
        if target == ALIAS:
            address = await self._alias_address(topology)
        else:
            place = topology.replica(target)
            address = None if place is None else place.address
        if address is None:
            return f"nobody serves {f'replica {target}' if target else 'the alias'} now"
        return await self._told(address, Pull(taker, giver, count), _PULL_S)

    async def _migrate(self, topology: Topology, action: Migrate) -> str | None:
        source, target = topology.replica(action.source), topology.replica(action.target)
        if source is None or target is None:
            return f"replica {action.source if source is None else action.target} is gone"
        address = await self._alias_address(topology)
        if address is None:
            return "nobody serves the alias now"
        return await self._told(
            address,
            MigrateClients(
                topology.queue_id, action.role, source.queue_id, target.queue_id, action.count
            ),
        )

    async def _keep_up(self, topology: Topology) -> str | None:
        """Switch on automatic prefetch for the consumers; keep a goal that a user has set."""
        queue = await self._store.find_queue(topology.queue_id, None)
        address = await self._alias_address(topology)
        if queue is None or address is None:
            return "nobody serves the alias now"
        if queue.policy.prefetch is not None:
            return "the prefetch of its consumers is steered already"
        policy = msgspec.structs.replace(queue.policy, prefetch=PrefetchGoal())
        return await self._told(address, SetPolicy(topology.queue_id, policy, queue.policy))

    async def _alias_address(self, topology: Topology) -> str | None:
        alias = await self._store.locate(topology.queue_id)
        return alias.address if alias is not None and alias.alive else None

    async def _told(
        self, address: str, request: Request, within_s: float = _ANSWER_S
    ) -> str | None:
        try:
            await self._ask(address, request, within_s)
        except TidegateError as failure:
            # This includes StaleEpoch: from a node it concerns the queue, not the leader.
            return str(failure)
        return None


def least_loaded(members: Sequence[MemberInfo], topology: Topology) -> MemberInfo | None:
    """Return the live node with the fewest replicas of the queue, then the fewest queues.

    Returns None if no node lives.
    """
    held = [place.address for place in topology.replicas]
    return min(
        (member for member in members if member.alive),
        key=lambda member: (held.count(member.address), member.queues, member.member_id),
        default=None,
    )


def _queue_id(topology: Topology, number: int) -> int | None:
    if number == ALIAS:
        return topology.queue_id
    place = topology.replica(number)
    return None if place is None else place.queue_id
