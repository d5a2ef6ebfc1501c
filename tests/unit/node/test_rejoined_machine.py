"""A machine's node that was declared dead comes back, also while the store comes and goes."""

from __future__ import annotations

import asyncio

import pytest
from virtual_nodes import VirtualClock, in_virtual_time

from tidegate.broker.node import Node
from tidegate.core.errors import Unavailable
from tidegate.core.runtime import NodeLimits
from tidegate.storage.memory import MemoryStore
from tidegate.testing.network import DOMAIN

LEASE_S = 2.0


@in_virtual_time
async def test_the_machine_of_a_node_that_came_back_is_known_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    # Given a machine with a node, and another node beside it
    other = Node(store, host="other" + DOMAIN, limits=NodeLimits(lease_s=60.0), clock=clock)
    await other.start()
    epoch = await store.lead(other.member_id)
    assert epoch is not None
    machine = await store.add_machine("process", 1, None, epoch)
    node = Node(
        store,
        host="node" + DOMAIN,
        limits=NodeLimits(lease_s=LEASE_S),
        clock=clock,
        machine_id=machine.machine_id,
    )
    await node.start()
    assert (await store.machines())[0].alive

    # When it is declared dead, and the store goes away while it comes back
    joined, refused = store.machine_joined, 0

    async def refuses_once(machine_id: int, member_id: int) -> bool:
        nonlocal refused
        if not refused:
            refused += 1
            raise Unavailable("the store went away")
        return await joined(machine_id, member_id)

    monkeypatch.setattr(store, "machine_joined", refuses_once)
    before = node.member_id
    await store.leave(before)
    await asyncio.sleep(LEASE_S)  # in virtual time: nothing waits

    # Then the machine is a living one, and nobody gives it up
    assert node.member_id != before
    assert refused == 1
    (seen,) = await store.machines()
    assert seen.member_id == node.member_id
    assert seen.alive
    await node.stop()
    await other.stop()
