"""Tuning with real brokers: consumers that are there, workers of an app, probes of our own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from rabbitmq import VirtualHost

from tidegate.adapters.native.probe import PREFIX, native_probe
from tidegate.adapters.native.standing_consumers import NoConsumers, StandingConsumers
from tidegate.adapters.probe import PacedHandler
from tidegate.adapters.rabbitmq import management
from tidegate.adapters.rabbitmq.probe import rabbitmq_probe
from tidegate.client.app import App
from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.core.errors import Forbidden, InvalidValue, QueueNotExisting
from tidegate.core.tunable import TunableConsumer
from tidegate.lab.faults.proxy import TcpProxy
from tidegate.node.server import Node
from tidegate.tuning.origin import Origin
from tidegate.tuning.own_worker import own_worker
from tidegate.tuning.procedure import Tuned, tune
from tidegate.tuning.wish import EXCITED_SAMPLES_MIN, Wish

# 40 ms there and back, 5 ms of work: 22 msg/s a unit, and 200 is the most.
WISH = Wish(
    target_per_s=100.0,
    settle_s=8.0,
    high=24,
    sample_s=0.2,
    excited_samples=EXCITED_SAMPLES_MIN,
)
HANDLER_S = 0.005
ENOUGH = 10_000


async def tuned(consumer: TunableConsumer) -> Tuned:
    return await tune(consumer, WISH, lambda *_: None, Origin("real", "orders", made_at=1.0))


def check_plant(found: Tuned) -> None:
    """That of the cable and the handler."""
    model = found.model
    assert model.r2_test >= 0.8
    # 25 by the cable alone, 22 with the handler.
    assert 12.0 < model.worth_per_s < 30.0
    assert WISH.target_per_s < model.ceiling_per_s < 260.0
    assert model.controller.settle_s <= WISH.settle_s


@contextlib.asynccontextmanager
async def consuming(url: str, prefetch: int) -> AsyncIterator[Client]:
    """Somebody who has nothing to do with tuning."""
    handler = PacedHandler(HANDLER_S)

    async with connect(url) as client, client.subscribe("orders", prefetch=prefetch) as messages:

        async def consume() -> None:
            async with asyncio.TaskGroup() as turns:

                async def handle(message: object) -> None:
                    await handler.turn()
                    message.ack()  # type: ignore[attr-defined]

                async for message in messages:
                    turns.create_task(handle(message))

        task = asyncio.create_task(consume())
        yield client
        task.cancel()
        await asyncio.wait({task})


async def prefetches(mq: Client) -> list[int]:
    cluster = await mq.stats("orders")
    return [
        one.prefetch for node in cluster.nodes for queue in node.queues for one in queue.consumers
    ]


@pytest.mark.paced
async def test_a_consumer_that_is_there_is_modelled_by_its_node_and_left_as_it_was(
    node: Node, mq: Client, far_away: str
) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [bytes(64)] * ENOUGH)
    async with consuming(far_away, prefetch=17), connect(node.address, mode="admin") as admin:
        consumer = await StandingConsumers.of(admin, "orders")

        found = await tuned(consumer)
        during = await prefetches(mq)
        await consumer.close()

        check_plant(found)
        assert during != [17]
        assert await prefetches(mq) == [17]


async def test_a_queue_without_consumers_says_so(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    async with connect(node.address, mode="admin") as admin:
        with pytest.raises(NoConsumers, match="no consumer"):
            await StandingConsumers.of(admin, "orders")


async def test_consumers_that_leave_end_the_experiment(
    node: Node, mq: Client, far_away: str
) -> None:
    await mq.create_queue("orders")
    async with connect(node.address, mode="admin") as admin:
        async with consuming(far_away, prefetch=3):
            consumer = await StandingConsumers.of(admin, "orders")

        with pytest.raises(InvalidValue, match="have gone"):
            await consumer.measure(0.01)
        await consumer.close()


@pytest.mark.paced
async def test_a_probe_on_a_node_touches_nobodys_messages(mq: Client, far_away: str) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [bytes(1000)] * 10)
    async with connect(far_away) as client:
        found = await native_probe(client, "orders", handler_s=HANDLER_S, size_bytes=None)
        names = [queue.name for queue in await mq.queues()]

        await found.set_prefetch(1)
        slow = await found.measure(0.5)
        await found.set_prefetch(4)
        fast = await found.measure(0.5)
        await found.close()

    assert found.size_bytes == 1000
    assert any(name.startswith(PREFIX) for name in names)
    assert fast.arrived_per_s > 2.0 * slow.arrived_per_s
    assert not slow.starved
    assert [queue.name for queue in await mq.queues()] == ["orders"]
    assert len(await mq.browse("orders")) == 10


async def test_a_probe_that_is_killed_leaves_no_queue_behind(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    async with connect(node.address) as client:
        probe = await native_probe(client, "orders", handler_s=HANDLER_S, size_bytes=1)
        during = len(await mq.queues())
        [session] = [one for one in node.sessions if one.client_id == client.client_id]
        # As one that was killed: nothing is said any more.
        session.abort()
        async with asyncio.timeout(10):
            while len(await mq.queues()) > 1:  # noqa: ASYNC110  nobody announces it
                await asyncio.sleep(0.01)
        await probe.close()

    assert during == 2
    assert [queue.name for queue in await mq.queues()] == ["orders"]


@pytest.mark.paced
async def test_a_probe_on_rabbitmq_touches_nobodys_messages(rabbitmq: VirtualHost) -> None:
    async with connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=0.02) as cable:
        await mq.create_queue("orders")
        await mq.put("orders", b"mine")
        found = await rabbitmq_probe(cable.url, "orders", handler_s=HANDLER_S, size_bytes=100)

        slow = await found.measure(0.5)
        await found.set_prefetch(4)
        fast = await found.measure(0.5)
        await found.close()

        assert fast.arrived_per_s > 2.0 * slow.arrived_per_s
        assert (await mq.queue("orders")).messages == 1
        own = found.own_queue
        with pytest.raises(QueueNotExisting):
            await mq.queues.look(own)


@pytest.mark.paced
async def test_ones_own_worker_on_rabbitmq_is_modelled(rabbitmq: VirtualHost) -> None:
    handler = PacedHandler(HANDLER_S)
    app = App(rabbitmq.url)

    @app.worker("orders", concurrency=100)
    async def ship(order: bytes) -> None:
        await handler.turn()

    async with connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=0.02) as cable:
        await mq.create_queue("orders")
        await mq.put_many("orders", [bytes(64)] * ENOUGH)
        async with own_worker(app, cable.url, "orders") as consumer:
            found = await tuned(consumer)

    check_plant(found)


async def test_a_worker_is_not_given_a_queue_that_was_mistyped(node: Node, mq: Client) -> None:
    app = App(node.address)

    @app.worker("ordres")
    async def ship(order: bytes) -> None: ...

    with pytest.raises(QueueNotExisting):
        async with own_worker(app, node.address, "ordres"):
            pass
    with pytest.raises(InvalidValue, match="it has workers for ordres"):
        async with own_worker(app, node.address, "orders"):
            pass
    assert await mq.queues() == []


async def test_a_user_who_may_not_make_a_queue_is_told_what_to_do(rabbitmq: VirtualHost) -> None:
    async with connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
    url = rabbitmq.user(read="orders", configure="orders")

    with pytest.raises(Forbidden, match="--worker"):
        await rabbitmq_probe(url, "orders", handler_s=0.0, size_bytes=1)


async def test_the_size_of_messages_is_asked_of_the_management_api(
    rabbitmq: VirtualHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "PORT", urlsplit(rabbitmq.management_url).port)
    async with connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        await mq.put_many("orders", [bytes(1000)] * 3)
        while not rabbitmq.queues()["orders"].get("message_bytes"):  # noqa: ASYNC110  its own time
            await asyncio.sleep(0.05)

        found = await rabbitmq_probe(rabbitmq.url, "orders", handler_s=0.0, size_bytes=None)
        await found.close()

    assert found.size_bytes == 1000
