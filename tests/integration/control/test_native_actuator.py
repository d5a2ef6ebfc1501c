"""Orders reach the store and the nodes; one of a leader that is none any more does not."""

from __future__ import annotations

import pytest
from backing import StartNode

from tidegate.broker.node import Node
from tidegate.core.decisions import CancelDrain, Drain, Exchange, Retire, SetShares
from tidegate.core.errors import StaleEpoch
from tidegate.core.topology import ASSIGNMENT_SLOTS, Range, ReplicaState, Scaling, Topology
from tidegate.engines.native.actuator import NativeActuator

pytestmark = pytest.mark.asyncio


class Led:
    """A logical queue with replicas, and the node that leads."""

    def __init__(self, node: Node, queue_id: int, epoch: int) -> None:
        self.node = node
        self.queue_id = queue_id
        self.epoch = epoch
        self.actuator = NativeActuator(node.store, node.node_clients.request)

    @classmethod
    async def with_replicas(cls, node: Node, count: int) -> Led:
        queue = await node.store.create_queue("orders", True)
        assert queue is not None
        await node.store.set_scaling(queue.queue_id, Scaling(replicas=Range(1, 8)))
        epoch = await node.store.lead(node.member_id)
        assert epoch is not None
        led = cls(node, queue.queue_id, epoch)
        for _ in range(count):
            place = await led.actuator.add_replica(await led.topology(), epoch, None)
            assert place is not None
        return led

    async def topology(self) -> Topology:
        found = await self.node.store.topology(self.queue_id)
        assert found is not None
        return found


async def test_replicas_without_a_machine_are_spread_over_the_nodes(start_node: StartNode) -> None:
    nodes = [await start_node(), await start_node()]
    led = await Led.with_replicas(nodes[0], 4)
    owned = [place.address for place in (await led.topology()).replicas]
    assert sorted(owned) == sorted([node.address for node in nodes] * 2)


async def test_a_replica_drains_stays_after_all_drains_again_and_goes(node: Node) -> None:
    led = await Led.with_replicas(node, 2)
    for number in (1, 2):
        await node.store.set_replica_state(led.queue_id, number, ReplicaState.SERVING, led.epoch)
    for action, state in (
        (Drain(2), ReplicaState.DRAINING),
        (CancelDrain(2), ReplicaState.SERVING),
        (Drain(2), ReplicaState.DRAINING),
    ):
        assert await led.actuator.execute(await led.topology(), action, led.epoch) is None
        assert (await led.topology()).replicas[1].state is state
    assert await led.actuator.execute(await led.topology(), Retire(2), led.epoch) is None
    assert [place.number for place in (await led.topology()).replicas] == [1]


async def test_a_replica_that_is_a_home_does_not_go(node: Node) -> None:
    led = await Led.with_replicas(node, 1)
    await node.store.set_homes(led.queue_id, [1] * ASSIGNMENT_SLOTS, led.epoch)
    await node.store.set_replica_state(led.queue_id, 1, ReplicaState.DRAINING, led.epoch)
    why = await led.actuator.execute(await led.topology(), Retire(1), led.epoch)
    assert why is not None
    assert "home" in why


async def test_shares_are_what_they_were_set_to(node: Node) -> None:
    led = await Led.with_replicas(node, 2)
    shares = SetShares({1: 0.25, 2: 0.75})
    assert await led.actuator.execute(await led.topology(), shares, led.epoch) is None
    assert [place.share for place in (await led.topology()).replicas] == [0.25, 0.75]


@pytest.mark.parametrize(
    "action", [SetShares({1: 1.0}), Drain(1), CancelDrain(1), Retire(1)], ids=lambda one: repr(one)
)
async def test_an_order_of_an_older_epoch_is_refused(
    node: Node, action: SetShares | Drain | CancelDrain | Retire
) -> None:
    led = await Led.with_replicas(node, 1)
    before = await led.topology()
    with pytest.raises(StaleEpoch):
        await led.actuator.execute(before, action, led.epoch - 1)
    with pytest.raises(StaleEpoch):
        await led.actuator.add_replica(before, led.epoch - 1, None)
    assert await led.topology() == before


async def test_an_exchange_with_a_replica_that_is_gone_is_a_sentence_and_no_more(
    node: Node,
) -> None:
    led = await Led.with_replicas(node, 1)
    why = await led.actuator.execute(await led.topology(), Exchange(1, 7, 10), led.epoch)
    assert why == "replica 7 is gone"
