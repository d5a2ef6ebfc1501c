"""Nodes that ask each other over a way that is slow."""

from __future__ import annotations

import asyncio

import pytest
from virtual_nodes import VirtualClock, cable, in_virtual_time

from tidegate.broker.node import Node
from tidegate.core.errors import Unavailable
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.cluster import Stats
from tidegate.storage.memory import MemoryStore
from tidegate.testing.network import DOMAIN

# As long as the sensor waits for the numbers of a node.
ANSWER_S = 2.0
STATS = Stats(None, cluster=False)


@in_virtual_time
async def test_a_login_that_takes_longer_than_an_answer_does_not_begin_anew_each_time() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    asking, asked = (
        Node(store, host=f"{name}{DOMAIN}", limits=NodeLimits(), clock=clock)
        for name in ("asking", "asked")
    )
    await asking.start()
    await asked.start()
    # Given a way on which an answer is there in time, but not after a login
    async with cable(asked.address, 0.5) as way:
        neighbours = asking.neighbours
        with pytest.raises(Unavailable):
            await neighbours.asked(way.url, STATS, ANSWER_S)

        # When several ask again
        again = [neighbours.asked(way.url, STATS, ANSWER_S) for _ in range(3)]
        answers = await asyncio.gather(*again)

        # Then they are answered, over the one connection that was begun at first
        assert len(answers) == 3
        assert way.connections == 1
        await asking.stop()
    await asked.stop()
