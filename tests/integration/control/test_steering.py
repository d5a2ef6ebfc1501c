"""Who leads acts, once in an epoch; who slept through its end finds every order refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from backing import StartNode
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.control.leader import ControlLoops
from tidegate.core.errors import Unavailable
from tidegate.core.store import Clock
from tidegate.core.topology import Range, ReplicaInfo, ReplicaState, Scaling, Topology
from tidegate.engines.native.actuator import NativeActuator
from tidegate.engines.native.sensor import NativeSensor
from tidegate.fleet.fleet import Fleet
from tidegate.fleet.providers import ProcessProvider

pytestmark = pytest.mark.asyncio

TWO = Scaling(replicas=Range(2, 2), polling_interval_s=0.1, step_max=2)


class Sleeper(NativeActuator):
    """The loops of one node, which can be made to sleep between a decision and its order."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.store, node.node_clients.request)
        self.node = node
        self.asleep = asyncio.Event()
        self.awake = asyncio.Event()
        self.awake.set()
        self.refusals = 0
        self._now = 0.0
        self.steering = ControlLoops(
            node.store,
            node,
            NativeSensor(node.store.members, node.node_clients.request_with_body),
            self,
            clock=Clock(monotonic=lambda: self._now),
        )

    async def add_replica(
        self, topology: Topology, epoch: int, machine_id: int | None
    ) -> ReplicaInfo | None:
        self.asleep.set()
        await self.awake.wait()
        if self.refusals:
            self.refusals -= 1
            raise Unavailable("the store is away")
        return await super().add_replica(topology, epoch, machine_id)

    async def step(self) -> None:
        """One period, of a clock that is turned."""
        self._now += 1.0
        await self.steering.run_once(self._now)


async def _topology(node: Node, queue_id: int) -> Topology:
    found = await node.store.topology(queue_id)
    assert found is not None
    return found


async def _logical(node: Node) -> int:
    queue = await node.store.create_queue("orders", True)
    assert queue is not None
    await node.store.set_scaling(queue.queue_id, TWO)
    # Its numbers are part of what is looked at.
    await node.ownership.route(queue.queue_id)
    return queue.queue_id


async def test_only_the_node_that_leads_acts(start_node: StartNode) -> None:
    first, second = Sleeper(await start_node()), Sleeper(await start_node())
    queue_id = await _logical(first.node)
    await second.step()
    assert not second.steering.leads
    assert (await _topology(first.node, queue_id)).replicas == []
    await first.step()
    assert first.steering.leads
    assert [one.number for one in (await _topology(first.node, queue_id)).replicas] == [1, 2]


async def test_another_polling_interval_holds_at_once(start_node: StartNode) -> None:
    leader = Sleeper(await start_node())
    queue_id = await _logical(leader.node)
    await leader.step()
    once_an_hour = msgspec.structs.replace(TWO, replicas=Range(3, 3), polling_interval_s=3600.0)
    await leader.node.store.set_scaling(queue_id, once_an_hour)
    # Its period is over by the interval that it had, and not by the one that it has.
    await leader.step()
    assert len((await _topology(leader.node, queue_id)).replicas) == 2

    often = msgspec.structs.replace(once_an_hour, polling_interval_s=0.1)
    await leader.node.store.set_scaling(queue_id, often)
    for _ in range(3):
        await leader.step()

    assert len((await _topology(leader.node, queue_id)).replicas) == 3


async def test_an_order_of_a_leader_that_slept_is_refused(
    start_node: StartNode,
) -> None:
    sleeper, heir = Sleeper(await start_node()), Sleeper(await start_node())
    queue_id = await _logical(sleeper.node)
    sleeper.awake.clear()
    period = asyncio.create_task(sleeper.step())
    await sleeper.asleep.wait()

    # It was declared dead meanwhile, and another leads.
    await sleeper.node.store.leave(sleeper.node.member_id)
    await heir.node.ownership.route(queue_id)
    await heir.step()
    assert heir.steering.leads
    # It measures for a period before it decides.
    assert (await _topology(heir.node, queue_id)).replicas == []

    # The period is over when the node that counts says so, by its own clock.
    async def heir_acted() -> bool:
        await heir.step()
        return bool((await _topology(heir.node, queue_id)).replicas)

    await eventually_async(heir_acted, "the heir adds replicas")
    assert [one.number for one in (await _topology(heir.node, queue_id)).replicas] == [1, 2]

    sleeper.awake.set()
    await period
    assert not sleeper.steering.leads
    assert [one.number for one in (await _topology(heir.node, queue_id)).replicas] == [1, 2]


async def test_a_topology_that_names_a_queue_that_is_gone_heals(start_node: StartNode) -> None:
    leader = Sleeper(await start_node())
    queue_id = await _logical(leader.node)
    await leader.step()
    lost = (await _topology(leader.node, queue_id)).replicas[0]
    await leader.node.store.delete_queue(lost.queue_id)

    for _ in range(3):
        await leader.step()

    replicas = (await _topology(leader.node, queue_id)).replicas
    assert [one.number for one in replicas] == [2, 3]


async def test_a_replica_that_could_not_be_added_is_ordered_again(start_node: StartNode) -> None:
    leader = Sleeper(await start_node())
    queue_id = await _logical(leader.node)
    leader.refusals = 1
    await leader.step()
    assert (await _topology(leader.node, queue_id)).replicas == []

    await leader.step()

    assert [one.number for one in (await _topology(leader.node, queue_id)).replicas] == [1, 2]


@pytest.mark.parametrize("backing", ["memory"], indirect=True)
async def test_draining_completes_among_many_replicas(start_node: StartNode) -> None:
    """A step of its share is smaller the more there are, and is taken all the same."""
    leader = Sleeper(await start_node())
    queue_id = await _logical(leader.node)
    many = msgspec.structs.replace(TWO, replicas=Range(30, 30), step_max=30, cooldown_period_s=0.0)
    await leader.node.store.set_scaling(queue_id, many)

    async def step_until(count: int) -> None:
        for _ in range(100):
            await leader.step()
            # A home leaves who goes once all know that it was there.
            await leader.node.aliases.poll()
            places = (await _topology(leader.node, queue_id)).replicas
            if len(places) == count and all(one.state is ReplicaState.SERVING for one in places):
                return
        raise AssertionError([(one.number, one.state, one.share) for one in places])

    await step_until(30)
    fewer = msgspec.structs.replace(many, replicas=Range(29, 29))
    await leader.node.store.set_scaling(queue_id, fewer)

    await step_until(29)


class CountedFleet(Fleet):
    """How often it has stood down."""

    stood_down = 0

    async def reset(self) -> None:
        self.stood_down += 1
        await super().reset()


@pytest.mark.parametrize("backing", ["memory"], indirect=True)
async def test_leader_forgets_its_state_after_another_led(
    start_node: StartNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept while another led, and never saw that it did not lead itself."""
    node = await start_node()
    fleet = CountedFleet(node.store, ProcessProvider(tmp_path, store_urls=[]))
    sensor = NativeSensor(node.store.members, node.node_clients.request_with_body)
    actuator = NativeActuator(node.store, node.node_clients.request)
    steering = ControlLoops(node.store, node, sensor, actuator, fleet=fleet)
    epochs = iter([1, 1, 3, 3])

    async def lead(member_id: int) -> int:
        return next(epochs)

    said = []

    async def bound_machines(machines_max: int, epoch: int) -> None:
        said.append((machines_max, epoch))

    monkeypatch.setattr(node.store, "lead", lead)
    monkeypatch.setattr(node.store, "bound_machines", bound_machines)
    stood_down = []
    for now in (1.0, 1.1, 1.2, 1.3):
        await steering.run_once(now)
        stood_down.append(fleet.stood_down)

    assert stood_down == [1, 1, 2, 2]
    assert said == [(256, 1), (256, 3)], "how many machines there may be, once in each"
