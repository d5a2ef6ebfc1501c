"""Two nodes on one store: one relays to the other, one dies or is paused, the other takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from waiting import LIMIT_S, eventually

import tidegate
from tidegate.core.errors import TidegateError
from tidegate.demo.evidence import stored_messages
from tidegate.demo.history import HistoryEvent, MessageKey, numbered_payload
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import JoinedNode, joined_node, kill_process

# The owner is to be missed soon: Tidegate's own default. The other is not to be taken for dead.
SHORT, LONG = {"TIDEGATE_NODE__LEASE": "3s"}, {"TIDEGATE_NODE__LEASE": "6s"}
PREFETCH = 20


@dataclass
class TwoNodes:
    folder: Path
    store_url: str
    owner: JoinedNode
    other: JoinedNode

    def owner_name_of(self, queue: str) -> str | None:
        """The address of the member that owns the queue, as the store has it."""
        with psycopg.connect(self.store_url) as connection:
            row = connection.execute(
                "select m.address from replica r join queue q using (queue_id)"
                " left join member m on m.member_id = r.owner where q.queue_name = %s",
                [queue],
            ).fetchone()
        return row[0] if row else None

    def stored_in(self, queue: str) -> list[MessageKey]:
        return [key for key in stored_messages(self.store_url) if key[0] == queue]

    def wait_for_owner(self, queue: str, node: JoinedNode) -> None:
        eventually(
            lambda: self.owner_name_of(queue) == node.address, f"{node.address} owns {queue}"
        )


@pytest.fixture
def two_nodes(store: tuple[str, Path]) -> Iterator[TwoNodes]:
    url, folder = store
    with (
        joined_node(url, folder, environment=SHORT) as owner,
        joined_node(url, folder, environment=LONG) as other,
    ):
        yield TwoNodes(folder, url, owner, other)


async def make_queue(url: str, queue: str) -> None:
    """Whoever makes a queue owns it."""
    async with tidegate.connect(url) as mq:
        await mq.create_queue(queue)


@pytest.mark.timeout(300)
def test_the_other_node_serves_the_queues_of_a_killed_owner(two_nodes: TwoNodes) -> None:
    # Given a queue of one node, and clients of the other that write to it and read from it
    queue = "orders"
    asyncio.run(make_queue(two_nodes.owner.address, queue))
    assert two_nodes.owner_name_of(queue) == two_nodes.owner.address
    with clients_in(two_nodes.folder / "killed") as clients:
        clients.add_consumer("c1", two_nodes.other.address, queue)
        clients.add_producer("p1", two_nodes.other.address, queue, "--rate", "500")
        clients.wait_for_confirms(300)

        # When the owner dies without a word
        kill_process(two_nodes.owner.pid)
        # Then the other takes over
        two_nodes.wait_for_owner(queue, two_nodes.other)
        clients.wait_for_confirms(300)
        clients.finish_producers()
        drained = clients.drain(LIMIT_S)
        clients.finish_consumers()

    # And nothing confirmed is lost
    stored = two_nodes.stored_in(queue)
    verdict = clients.verdict(stored=stored if drained else None, sole_consumer=[queue])
    print(verdict)
    assert two_nodes.owner_name_of(queue) == two_nodes.other.address
    assert clients.failures == []
    assert verdict.outcome == "pass", str(verdict)


@pytest.mark.timeout(300)
def test_an_owner_that_was_paused_past_its_lease_is_fenced(two_nodes: TwoNodes) -> None:
    # Given an owner with clients of its own, under load
    queue = "paused"
    asyncio.run(make_queue(two_nodes.owner.address, queue))
    with clients_in(two_nodes.folder / "paused") as clients:
        clients.add_consumer("c1", two_nodes.owner.address, queue, "--prefetch", str(PREFETCH))
        clients.add_consumer("c2", two_nodes.other.address, queue, "--prefetch", str(PREFETCH))
        clients.add_producer("p1", two_nodes.owner.address, queue, "--rate", "500")
        clients.add_producer("p2", two_nodes.other.address, queue, "--rate", "500")
        clients.wait_for_confirms(300)

        # When it sleeps until the other has its queue, and wakes up
        stopped_at = time.monotonic()
        os.kill(two_nodes.owner.pid, signal.SIGSTOP)
        try:
            two_nodes.wait_for_owner(queue, two_nodes.other)
            clients.wait_for_confirms(100)
        finally:
            woke_at = time.monotonic()
            os.kill(two_nodes.owner.pid, signal.SIGCONT)
        clients.wait_for_confirms(500)
        clients.finish_producers()
        eventually(lambda: not two_nodes.stored_in(queue), "every message is acknowledged")
        clients.finish_consumers()

    # Then nothing that it had in hand counts: no loss, no repeat without a flag
    late = clients.without = LateDeliveries("c1", stopped_at, woke_at)
    verdict = clients.verdict(stored=two_nodes.stored_in(queue))
    print(verdict)
    print(f"{late.count} deliveries were on their way when it was stopped")
    assert late.count <= PREFETCH
    assert clients.failures == []
    assert verdict.outcome == "pass", str(verdict)


class LateDeliveries:
    """What a node had handed to its socket in the very turn in which it was stopped.

    It leaves when the node wakes up, long after another one has delivered the same, and nobody
    can call it back. So the promise is about what counts: its acknowledgement is refused. They come
    before all that the consumer gets from a node that is awake.
    """

    def __init__(self, process: str, stopped_at: float, woke_at: float) -> None:
        self._process = process
        self._stopped_at = stopped_at
        self._woke_at = woke_at
        self._delivered: set[MessageKey] = set()
        self._is_over = False
        self.count = 0

    def __call__(self, event: HistoryEvent) -> bool:
        """Whether it is one; events come in the order of their times."""
        if event.op != "deliver":
            return False
        is_repeat = event.key in self._delivered and not event.redelivered
        self._delivered.add(event.key)
        if event.process != self._process or event.t < self._stopped_at:
            return False
        is_late = is_repeat and not self._is_over
        self._is_over = self._is_over or (event.t > self._woke_at and not is_late)
        self.count += is_late
        return is_late


@pytest.mark.timeout(300)
async def test_acks_and_waiting_messages_of_a_paused_owner_are_worth_nothing(
    two_nodes: TwoNodes,
) -> None:
    # Given an owner that has given out two messages and holds more in memory
    queue = "fenced"
    async with (
        tidegate.connect(two_nodes.owner.address) as mq,
        tidegate.connect(two_nodes.other.address) as other_mq,
    ):
        await mq.create_queue(queue)
        payloads = [numbered_payload("p", seq) for seq in range(1, 11)]
        await mq.put_many(queue, payloads)
        async with mq.subscribe(queue, prefetch=2) as subscription:
            messages = subscription.__aiter__()
            held = [await anext(messages), await anext(messages)]

            # When it is paused, the other takes over and a consumer there settles half
            os.kill(two_nodes.owner.pid, signal.SIGSTOP)
            try:
                await asyncio.to_thread(two_nodes.wait_for_owner, queue, two_nodes.other)
                elsewhere = [await other_mq.get(queue, wait=LIMIT_S) for _ in range(5)]
            finally:
                os.kill(two_nodes.owner.pid, signal.SIGCONT)

            # Then its acks are refused, not left without an answer
            for message in held:
                with pytest.raises(TidegateError):
                    async with asyncio.timeout(LIMIT_S):
                        await message.ack_confirmed()

            # And what its consumer gets next is the other's, flagged, and none of the settled
            again = [await anext(messages) for _ in range(2)]
            for message in again:
                assert message.redelivered
                assert message.message_id not in {m.message_id for m in elsewhere}
                await message.ack_confirmed()

        rest = [await other_mq.get(queue, wait=LIMIT_S) for _ in range(3)]
    # Each message was settled once, wherever
    settled = [m.message_id for m in (*elsewhere, *again, *rest)]
    assert sorted(settled) == sorted(set(settled))
    assert len(settled) == 10
    assert {m.payload for m in (*elsewhere, *again, *rest)} == set(payloads)
    assert all(m.redelivered for m in elsewhere)


@pytest.mark.timeout(300)
async def test_an_owner_that_wakes_up_forgets_what_it_had_in_memory(two_nodes: TwoNodes) -> None:
    # Given an owner with messages in memory that nobody has asked for yet
    queue = "forgotten"
    owner, other = two_nodes.owner, two_nodes.other
    async with tidegate.connect(owner.address) as mq, tidegate.connect(other.address) as other_mq:
        await mq.create_queue(queue)
        await mq.put_many(queue, [numbered_payload("p", seq) for seq in range(1, 11)])

        # When it is paused, half is taken at the other, and it wakes up and is a member again
        os.kill(owner.pid, signal.SIGSTOP)
        try:
            await asyncio.to_thread(two_nodes.wait_for_owner, queue, other)
            elsewhere = [await other_mq.get(queue, wait=LIMIT_S) for _ in range(5)]
        finally:
            os.kill(owner.pid, signal.SIGCONT)
        await asyncio.to_thread(wait_until_alive, two_nodes, owner.address)

        # Then it gives out the other half, and says that it may have been given out before
        here = [await mq.get(queue, wait=LIMIT_S) for _ in range(5)]
    assert not {m.message_id for m in here} & {m.message_id for m in elsewhere}
    assert all(m.redelivered for m in here)


def wait_until_alive(two_nodes: TwoNodes, address: str) -> None:
    question = "select 1 from list_members() where address = %s and alive"
    with psycopg.connect(two_nodes.store_url, autocommit=True) as connection:
        eventually(
            lambda: connection.execute(question, [address]).fetchone(), f"{address} is alive"
        )
