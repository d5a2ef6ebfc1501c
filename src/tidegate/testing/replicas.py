"""Replicas as the leader makes them, for tests that set their number themselves.

The actions are the real ones, on the real store with the leader's epoch; only the decision is the
test's. A replica that is to be removed is emptied first, as in production: it gets no new messages
and no new clients, and its waiting messages move to another replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.replication import HOMES, ReplicaState, Topology
from tidegate.core.scaling import Range, Scaling, ScalingPolicy, Steering
from tidegate.node.meeting import insist
from tidegate.node.replica import Replica
from tidegate.node.server import Node

REPLICAS_MAX = 64
_MOVED_AT_ONCE = 10_000
# Clients join again every few seconds, and learn then that their replica is to be removed.
_STEP_S = 1.0
_STEPS_MAX = 30


class Replicas:
    """The replicas of one logical queue."""

    def __init__(self, node: Node, queue_id: int) -> None:
        self._node = node
        self._store = node.store
        self._queue_id = queue_id
        self._leader_epoch = 0

    async def become(self, count: int, pass_time: Callable[[float], Awaitable[None]]) -> Topology:
        """Create replicas, or remove the latest ones, until there are `count`."""
        if type(count) is not int or not 1 <= count <= REPLICAS_MAX:
            raise InvalidValue(f"a queue has from 1 to {REPLICAS_MAX} replicas, not {count!r}")
        leader_epoch = await self._store.lead(self._node.member_id)
        assert leader_epoch is not None
        self._leader_epoch = leader_epoch
        scaling = Scaling(
            replicas=Range(1, REPLICAS_MAX),
            policy=ScalingPolicy.FIXED,
            # No control loop may change the number that the test has set.
            steering=Steering.RECOMMEND,
        )
        if await self._store.topology(self._queue_id) is None:
            await self._store.set_scaling(self._queue_id, scaling)
        numbers = await self._numbers()
        while len(numbers) < count:
            numbers.append(await self._add())
        staying, going = numbers[:count], numbers[count:]
        for number in going:
            await self._set_state(number, ReplicaState.DRAINING)
        await self._share(staying, going)
        for number in going:
            await self._retire(number, staying[0], pass_time)
        topology = await self._store.topology(self._queue_id)
        assert topology is not None
        return topology

    async def _numbers(self) -> list[int]:
        topology = await self._store.topology(self._queue_id)
        return [] if topology is None else sorted(place.number for place in topology.replicas)

    async def _add(self) -> int:
        place = await self._store.add_replica(self._queue_id, self._leader_epoch)
        assert place is not None
        await self._bring_here(place.queue_id)
        await self._set_state(place.number, ReplicaState.SERVING)
        return place.number

    async def _bring_here(self, queue_id: int) -> Replica:
        """Make this node the owner of a queue, with retries while the queue moves."""
        return await insist(lambda: self._node.ownership.bring_here(queue_id))

    async def _set_state(self, number: int, state: ReplicaState) -> None:
        await self._store.set_replica_state(self._queue_id, number, state, self._leader_epoch)

    async def _share(self, staying: list[int], going: list[int]) -> None:
        shares = dict.fromkeys(going, 0.0) | dict.fromkeys(staying, 1 / len(staying))
        await self._store.set_shares(self._queue_id, shares, self._leader_epoch)
        homes = [staying[index % len(staying)] for index in range(HOMES)]
        await self._store.set_homes(self._queue_id, homes, self._leader_epoch)
        await self._node.aliases.look(again=True)

    async def _retire(
        self, number: int, heir: int, pass_time: Callable[[float], Awaitable[None]]
    ) -> None:
        topology = await self._store.topology(self._queue_id)
        assert topology is not None
        leaving, taking = topology.replica(number), topology.replica(heir)
        assert leaving is not None
        assert taking is not None
        for _ in range(_STEPS_MAX):
            if await self._store.retire_replica(self._queue_id, number, self._leader_epoch):
                await self._node.aliases.look(again=True)
                return
            taker = await self._bring_here(taking.queue_id)
            # The messages may be moving already.
            with contextlib.suppress(TidegateError):
                await self._node.exchange.pull(taker, leaving.queue_id, _MOVED_AT_ONCE)
            await pass_time(_STEP_S)
        raise TimeoutError(
            f"replica {number} did not become empty: does a consumer hold a message of it?"
        )
