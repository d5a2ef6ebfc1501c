"""Nodes that ask each other over a way that is slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

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


@contextlib.asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[Node, Node]]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    asking, asked = (
        Node(store, host=f"{name}{DOMAIN}", limits=NodeLimits(), clock=clock)
        for name in ("asking", "asked")
    )
    await asking.start()
    await asked.start()
    yield asking, asked
    await asking.stop()
    await asked.stop()


@in_virtual_time
async def test_a_login_that_takes_longer_than_an_answer_does_not_begin_anew_each_time() -> None:
    # Given a way on which an answer is there in time, but not after a login
    async with two_nodes() as (asking, asked), cable(asked.address, 0.5) as way:
        neighbours = asking.node_clients
        with pytest.raises(Unavailable):
            await neighbours.request_with_body(way.url, STATS, ANSWER_S)

        # When several ask again
        again = [neighbours.request_with_body(way.url, STATS, ANSWER_S) for _ in range(3)]
        answers = await asyncio.gather(*again)

        # Then they are answered, over the one connection that was begun at first
        assert len(answers) == 3
        assert way.connections == 1


@in_virtual_time
async def test_request_during_the_nodes_end_fails_without_a_left_connection() -> None:
    async with two_nodes() as (asking, asked), cable(asked.address, 0.5) as way:
        # Given a question that waits for a login
        question = asyncio.create_task(asking.node_clients.request_with_body(way.url, STATS, 60.0))
        await asyncio.sleep(1.5)  # in virtual time: the login takes 3 s
        assert len(asked.sessions) == 1

        # When the connections are closed
        await asking.node_clients.close()

        # Then it fails as if the other node were away, and so do later ones
        for refused in (question, asking.node_clients.request_with_body(way.url, STATS, 60.0)):
            with pytest.raises(Unavailable, match="going away"):
                await refused
        await asyncio.sleep(1.5)  # in virtual time: the login takes 3 s
        assert len(asked.sessions) == 0


@in_virtual_time
async def test_request_after_a_cancelled_one_uses_its_connection() -> None:
    async with two_nodes() as (asking, asked), cable(asked.address, 0.5) as way:
        question = asyncio.create_task(asking.node_clients.request_with_body(way.url, STATS, 60.0))
        await asyncio.sleep(1.5)  # in virtual time: the login takes 3 s
        question.cancel()
        with pytest.raises(asyncio.CancelledError):
            await question

        await asking.node_clients.request_with_body(way.url, STATS, 60.0)
        assert way.connections == 1
