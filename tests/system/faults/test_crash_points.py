"""A node dies at the worst moments around commit, confirm, delivery and settlement."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from free_ports import free_ports
from waiting import LIMIT_S

import tidegate
from tidegate.core.runtime import CRASH_VARIABLE, MOVE_POINTS, PATH_POINTS
from tidegate.demo.evidence import stored_messages
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import joined_node

QUEUE = "orders"


async def make_queue(url: str, name: str) -> None:
    async with tidegate.connect(url) as mq:
        await mq.create_queue(name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", PATH_POINTS)
def test_crash_loses_no_confirmed_message(store: tuple[str, Path], point: str) -> None:
    # Given a node that will die the 30th time it comes to this point, under load
    url, folder = store
    queue = f"{QUEUE}-{point}"
    port = free_ports()
    with clients_in(folder / point) as clients:
        crashing = {CRASH_VARIABLE: f"{point}:30"}
        with joined_node(url, folder, port=port, environment=crashing) as node:
            asyncio.run(make_queue(node.address, queue))
            clients.add_consumer("c1", node.address, queue)
            clients.add_producer("p1", node.address, queue, "--rate", "500", "--tasks", "20")
            # When it does
            assert node.process.wait(LIMIT_S) == -signal.SIGKILL

        # And another one takes its place, which lives
        with joined_node(url, folder, port=port):
            clients.wait_for_confirms(200)
            clients.finish_producers()
            drained = clients.drain(LIMIT_S)
            clients.finish_consumers()

    # Then the checker finds nothing
    stored = [key for key in stored_messages(url) if key[0] == queue]
    verdict = clients.verdict(stored=stored if drained else None, sole_consumer=[queue])
    print(point, verdict)
    assert clients.failures == []
    assert verdict.outcome == "pass", str(verdict)
    assert verdict.confirmed > 200


async def reject_half(url: str, queue: str) -> None:
    """Put a hundred, acknowledge the odd ones, reject the others, as long as the node lives."""
    async with tidegate.connect(url, reconnect_s=0.1) as mq:
        await mq.put_many(queue, [b"%d" % n for n in range(100)])
        async with mq.subscribe(queue, prefetch=100) as subscription:
            async for message in subscription:
                if int(message.payload) % 2:
                    await message.ack_confirmed()
                else:
                    await message.reject(error="even")


async def what_is_there(url: str, queue: str) -> tuple[list[bytes], list[bytes]]:
    async with tidegate.connect(url) as mq:
        waiting = [m.payload for m in await mq.browse(queue, limit=1000)]
        try:
            dead = [m.payload for m in await mq.browse(f"{queue}.dead", limit=1000)]
        except tidegate.QueueNotExisting:
            dead = []
        return waiting, dead


@pytest.mark.timeout(300)
@pytest.mark.parametrize("point", MOVE_POINTS)
def test_a_dead_letter_is_in_one_queue_and_not_in_two(store: tuple[str, Path], point: str) -> None:
    url, folder = store
    queue = f"{QUEUE}-{point}"
    port = free_ports()
    # Given a node that will die while it moves dead letters
    crashing = {CRASH_VARIABLE: f"{point}:3"}
    with joined_node(url, folder, port=port, environment=crashing) as node:
        asyncio.run(make_queue(node.address, queue))
        with pytest.raises(tidegate.TidegateError):
            asyncio.run(reject_half(node.address, queue))
        assert node.process.wait(LIMIT_S) == -signal.SIGKILL
    # When another one takes its place
    with joined_node(url, folder, port=port) as node:
        waiting, dead = asyncio.run(what_is_there(node.address, queue))
    # Then every message that was rejected is there once
    assert len(waiting) == len(set(waiting))
    assert len(dead) == len(set(dead))
    assert set(waiting).isdisjoint(dead)
    assert {b"%d" % n for n in range(0, 100, 2)} <= {*waiting, *dead}
    assert dead, "some had moved before"
