"""Giver or taker die while waiting messages go from one replica to another."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from waiting import LIMIT_S, eventually_async

from tidegate.client.address import parse_url
from tidegate.client.connection import Response, Transport
from tidegate.core.errors import CallerError, NoMessagesInQueue, NoMessagesRetrieved, RetryLater
from tidegate.core.model import ClientMode
from tidegate.core.runtime import CRASH_VARIABLE, EXCHANGE_POINTS
from tidegate.core.topology import ControlMode, Range, ReplicaInfo, ReplicaState, Scaling
from tidegate.protocol.catalogue import RegisterClient
from tidegate.protocol.cluster import Pull, SetOwner
from tidegate.protocol.messages import PutMessages, ReadMessage
from tidegate.protocol.packet import Packet, Request
from tidegate.storage.postgres.store import PostgresStore
from tidegate_lab.faults.deployment import JoinedNode, joined_node

MESSAGES = 60
# The one that dies is to be missed soon. The one that stays is not to be taken for dead.
SHORT, LONG = {"TIDEGATE_NODE__LEASE": "2s"}, {"TIDEGATE_NODE__LEASE": "10s"}
# Points of who gives; the others are of who takes.
GIVER_POINTS = ("before-exchange", "after-exchange")


@pytest.fixture(scope="module")
def place(store: tuple[str, Path]) -> Iterator[tuple[str, Path, JoinedNode]]:
    """A store, and a node that outlives all others."""
    url, folder = store
    with joined_node(url, folder, environment=LONG) as survivor:
        yield url, folder, survivor


@dataclass
class Siblings:
    """Two replicas of a logical queue, as somebody sees them who is connected to one node."""

    link: Transport
    giver: int
    taker: int

    async def ask(self, packet: Request, body: bytes | None = None) -> tuple[Packet, bytes]:
        """As often as it takes."""

        async def answer() -> Response | None:
            with contextlib.suppress(RetryLater):
                return await self.link.request(packet, None if body is None else [body])
            return None

        answered = await eventually_async(answer, f"an answer to {packet}")
        assert answered is not None
        return answered.packet, bytes(answered.body)

    async def waiting(self) -> list[bytes]:
        """Everything that both hold, which thereby is done."""
        found = []
        for queue_id in (self.giver, self.taker):
            with contextlib.suppress(NoMessagesInQueue, NoMessagesRetrieved):
                while True:
                    found.append((await self.ask(ReadMessage(queue_id)))[1])
        return found


async def is_handed_to(address: str, queue_id: int, link: Transport, store: PostgresStore) -> bool:
    """Whether the queue is there; where it is not, the node there is ordered to take it.

    A node that was too busy for its lease lives on under another number, without its queues.
    """
    location = await store.locate(queue_id)
    if location is not None and location.alive and location.address == address:
        return True
    living = (m for m in await store.members() if m.alive and m.address == address)
    with contextlib.suppress(RetryLater, CallerError):
        for member in living:
            await link.request(SetOwner(queue_id, member.member_id))
    return False


async def made(
    store: PostgresStore, node: JoinedNode, name: str, giver: str, taker: str
) -> Siblings:
    """A logical queue with a replica at each of two nodes, and what waits in one of them."""
    queue = await store.create_queue(name, True)
    assert queue is not None
    await store.set_scaling(
        queue.queue_id, Scaling(replicas=Range(2, 2), steering=ControlMode.RECOMMEND)
    )
    host, port = parse_url(node.address)[0]
    link = await Transport.open(host, port, lambda *_: None, lambda _: None, 10.0)
    await link.request(RegisterClient(f"asker-{name}", ClientMode.ADMIN))
    ids: list[int] = []

    async def epoch_of_leader() -> int | None:
        members = [m.member_id for m in await store.members() if m.alive]
        epochs = [await store.lead(member) for member in members]
        return next((each for each in epochs if each is not None), None)

    async def added() -> ReplicaInfo | None:
        epoch = await epoch_of_leader()
        return None if epoch is None else await store.add_replica(queue.queue_id, epoch)

    async def serves(number: int) -> bool:
        epoch = await epoch_of_leader()
        return epoch is not None and await store.set_replica_state(
            queue.queue_id, number, ReplicaState.SERVING, epoch
        )

    for address in (giver, taker):
        replica = await eventually_async(added, "a leader adds a replica")
        assert replica is not None
        ids.append(replica.queue_id)
        there = partial(is_handed_to, address, replica.queue_id, link, store)
        await eventually_async(there, f"{address} owns the replica")
        await eventually_async(partial(serves, replica.number), "a leader lets it serve")
    siblings = Siblings(link, *ids)
    for n in range(MESSAGES):
        await siblings.ask(PutMessages(ids[0], 5, n + 1, [3], [5]), b"%03d" % n)
    return siblings


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", EXCHANGE_POINTS)
def test_a_message_is_at_one_replica_whoever_dies_when(
    place: tuple[str, Path, JoinedNode], point: str
) -> None:
    url, folder, survivor = place

    async def run(store: PostgresStore) -> None:
        # Given replicas at two nodes, of which one will die the third time it gets to the point
        environment = {**SHORT, CRASH_VARIABLE: f"{point}:3"}
        with joined_node(url, folder, environment=environment) as victim:
            ends = (victim.address, survivor.address)
            giver, taker = ends if point in GIVER_POINTS else reversed(ends)
            siblings = await made(store, survivor, f"orders-{point}", giver, taker)
            of_victim = siblings.giver if point in GIVER_POINTS else siblings.taker
            # When messages go over until it does

            async def is_dead() -> bool:
                with contextlib.suppress(RetryLater, CallerError):
                    await siblings.link.request(Pull(siblings.taker, siblings.giver, 5))
                await is_handed_to(victim.address, of_victim, siblings.link, store)
                return victim.process.poll() is not None

            await eventually_async(is_dead, f"the victim dies at {point}")
            assert victim.process.wait(LIMIT_S) == -signal.SIGKILL
        # Then every message is there, and once
        found: list[bytes] = []

        async def all_are_found() -> bool:
            found.extend(await siblings.waiting())
            return len(found) >= MESSAGES

        await eventually_async(all_are_found, "every message is found")
        found += await siblings.waiting()
        assert sorted(found) == [b"%03d" % n for n in range(MESSAGES)]
        siblings.link.close()

    async def run_with_store() -> None:
        store = PostgresStore(url)
        await store.open()
        try:
            await run(store)
        finally:
            await store.close()

    asyncio.run(run_with_store())
