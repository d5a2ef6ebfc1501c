"""The cable between client and node: cut, deaf, half open. Puts are resent and stored once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest
from waiting import LIMIT_S, eventually_async

import tidegate
from tidegate.client import connection
from tidegate.demo.evidence import stored_messages
from tidegate.demo.history import numbered, numbered_payload
from tidegate_lab.faults.deployment import joined_node
from tidegate_lab.faults.proxy import TcpProxy

_queue_numbers = count(1)


@pytest.fixture(scope="module")
def node(store: tuple[str, Path]) -> Iterator[tuple[str, str]]:
    """A node's address, and its store."""
    url, folder = store
    # The node, too, has to notice that a connection is only half there: by three beats.
    impatient = {"TIDEGATE_NODE__HEARTBEAT": "1s"}
    with joined_node(url, folder, environment=impatient) as node:
        yield node.address, url


@pytest.fixture
async def proxy(node: tuple[str, str]) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(node[0]) as proxy:
        yield proxy


@pytest.fixture
async def queue(node: tuple[str, str]) -> str:
    name = f"orders-{next(_queue_numbers)}"
    async with tidegate.connect(node[0]) as mq:
        await mq.create_queue(name)
    return name


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_HEARTBEAT_S", 0.2)


def stored_numbers(node: tuple[str, str], queue: str) -> list[int]:
    return [seq for name, _, seq in stored_messages(node[1]) if name == queue]


async def test_puts_over_a_link_that_is_cut_again_and_again_are_stored_once(
    proxy: TcpProxy, node: tuple[str, str], queue: str
) -> None:
    messages, cuts = 3000, 10
    async with tidegate.connect(proxy.url, name=f"cut-{queue}", reconnect_s=LIMIT_S) as mq:
        numbers = iter(range(1, messages + 1))
        confirmed = 0

        async def produce() -> None:
            nonlocal confirmed
            for seq in numbers:
                await mq.put(queue, numbered_payload("p", seq))
                confirmed += 1
                await asyncio.sleep(0.005)  # the cuts are to fall among the puts

        producing = asyncio.gather(*(produce() for _ in range(20)))
        for cut in range(1, cuts + 1):
            wanted = cut * messages // (2 * cuts)
            await eventually_async(lambda wanted=wanted: confirmed >= wanted)
            proxy.cut()
        await producing

    assert proxy.connections > cuts
    # In order, too: the ids in the store follow the numbers.
    assert stored_numbers(node, queue) == list(range(1, messages + 1))


async def test_a_put_whose_answer_was_swallowed_is_resent_and_stored_once(
    proxy: TcpProxy, node: tuple[str, str], queue: str
) -> None:
    async with tidegate.connect(proxy.url, reconnect_s=LIMIT_S) as mq:
        await mq.put(queue, numbered_payload("p", 1))
        # Given a put that reaches the node while its confirm does not come back
        proxy.set_mode("deaf")
        put = asyncio.ensure_future(mq.put(queue, numbered_payload("p", 2)))
        await eventually_async(lambda: stored_numbers(node, queue) == [1, 2])
        assert not put.done()

        # When the connection breaks and the next one is whole
        proxy.set_mode("passes")
        proxy.cut()
        message_id = await put

    # Then it is confirmed, under an unknown id, and there once
    assert message_id == 0
    assert stored_numbers(node, queue) == [1, 2]


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_half_open_link_is_noticed_and_left(
    proxy: TcpProxy, node: tuple[str, str], queue: str
) -> None:
    async with tidegate.connect(proxy.url, reconnect_s=LIMIT_S) as mq:
        await mq.put(queue, numbered_payload("p", 1))
        first = mq.transport
        assert first is not None
        # Given a link on which nothing passes, and nobody says so
        proxy.set_mode("frozen")
        put = asyncio.ensure_future(mq.put(queue, numbered_payload("p", 2)))
        # Then the client leaves it by itself; TCP would wait for minutes
        await eventually_async(lambda: not first.alive, "the client has left the half-open link")
        assert not put.done()

        # When it thaws, with all that was sent before
        proxy.set_mode("passes")
        await put

    assert stored_numbers(node, queue) == [1, 2]


async def test_a_consumer_behind_a_cut_link_gets_everything_and_repeats_are_flagged(
    proxy: TcpProxy, node: tuple[str, str], queue: str
) -> None:
    messages = 1000
    async with tidegate.connect(node[0]) as producer:
        await producer.put_many(queue, [numbered_payload("p", n) for n in range(1, messages + 1)])
    seen: set[int] = set()
    async with (
        tidegate.connect(proxy.url) as mq,
        mq.subscribe(queue, prefetch=50) as subscription,
    ):
        async for message in subscription:
            _, seq = numbered(message.payload)
            assert message.redelivered or seq not in seen
            message.ack()
            if seq not in seen and len(seen) % 200 == 100:
                proxy.cut()
            seen.add(seq)
            if len(seen) == messages:
                break
    assert seen == set(range(1, messages + 1))


async def test_the_node_takes_back_what_a_silent_consumer_held(
    proxy: TcpProxy, node: tuple[str, str], queue: str
) -> None:
    async with tidegate.connect(node[0]) as mq, tidegate.connect(proxy.url) as silent:
        await mq.put(queue, numbered_payload("p", 1))
        async with silent.subscribe(queue) as subscription:
            message = await anext(subscription.__aiter__())
            # When its link freezes, the node hears nothing for three heartbeats
            proxy.set_mode("frozen")
            again = await mq.get(queue, wait=LIMIT_S)
            proxy.set_mode("passes")
    assert again.message_id == message.message_id
    assert again.redelivered


async def consumers_of(mq: tidegate.Client, queue: str) -> int:
    return len((await mq.stats(queue)).nodes[0].queues[0].consumers)


async def test_a_subscription_survives_cuts_while_it_is_being_made(
    proxy: TcpProxy, node: tuple[str, str], queue: str
) -> None:
    # Given subscriptions whose connections break at any moment, also while they are made
    messages, subscriptions = 200, 20
    async with tidegate.connect(node[0]) as mq, tidegate.connect(proxy.url) as behind:
        seen: set[int] = set()

        async def consume() -> None:
            async with behind.subscribe(queue, prefetch=5) as subscription:
                async for message in subscription:
                    seen.add(numbered(message.payload)[1])
                    message.ack()

        consuming = [asyncio.create_task(consume()) for _ in range(subscriptions)]
        chance = random.Random(7)
        for _ in range(30):
            await asyncio.sleep(chance.uniform(0.0, 0.06))  # any moment of their making
            proxy.cut()
        # When it holds again, then all of them are there, and consume
        await mq.put_many(queue, [numbered_payload("p", n) for n in range(1, messages + 1)])
        await eventually_async(lambda: len(seen) >= messages, "every message is consumed")

        async def all_are_there() -> bool:
            return await consumers_of(mq, queue) >= subscriptions

        await eventually_async(all_are_there, "every subscription is made")
        assert [task for task in consuming if task.done()] == []
        for task in consuming:
            task.cancel()
        await asyncio.gather(*consuming, return_exceptions=True)
