"""The actuator of Tidegate's own nodes: actions in, orders to the store and to nodes out.

    shares, states, retirement   the catalogue, under the leader's epoch: nodes read it and follow
    exchange                     the target's owner pulls
    migration                    the alias's owner tells its clients
    prefetch                     the alias's owner sets the queue's policy

Every step can be asked for again: what failed now is decided anew in the next period, so a failure
is a sentence and no more. Only an order under an epoch that is no longer the leader's is an error:
whoever gave it has to stop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from tidegate.core.crash import crash_point
from tidegate.core.errors import StaleEpoch, TidegateError
from tidegate.core.ports import MemberInfo, Store
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.replication import ALIAS, ReplicaPlace, ReplicaState, Topology
from tidegate.core.steering import (
    Action,
    CancelDrain,
    Drain,
    Exchange,
    KeepUp,
    Migrate,
    Retire,
    SetShares,
)
from tidegate.wire.packet import Packet, Request
from tidegate.wire.packets.cluster import SetOwner
from tidegate.wire.packets.exchange import Pull
from tidegate.wire.packets.membership import MigrateClients
from tidegate.wire.packets.queues import SetPolicy

# Address of a node, what is asked of it, and for how long: neighbours.ask.
Ask = Callable[[str, Request, float], Awaitable[Packet]]

# Longer than one commit of what is moved; shorter than would hold up the loop.
_PULL_S = 3.0
_ANSWER_S = 2.0
# What its crash points are called.
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
    """Carries out what was decided about a logical queue."""

    def __init__(self, store: Store, ask: Ask) -> None:
        self._store = store
        self._ask = ask

    async def carry_out(self, topology: Topology, action: Action, epoch: int) -> str | None:
        """None: it was done; else a sentence that says why not."""
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
    ) -> ReplicaPlace | None:
        """A new replica on a machine, or on whichever node has the fewest of them."""
        crash_point("before-replica-added")
        place = await self._store.add_replica(topology.queue_id, epoch, machine_id=machine_id)
        crash_point("after-replica-added")
        if place is not None and machine_id is None:
            await self._spread(topology, place)
        return place

    async def _spread(self, topology: Topology, place: ReplicaPlace) -> None:
        """Have it claimed where the fewest are; whoever sees it first claims it otherwise."""
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
        """Steer the prefetch of all its consumers; a goal that somebody has set stays."""
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
            # A stale epoch too: here it is the queue's, and not the leader's.
            return str(failure)
        return None


def least_loaded(members: Sequence[MemberInfo], topology: Topology) -> MemberInfo | None:
    """The living member with the fewest replicas of a queue, then with the fewest queues."""
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
