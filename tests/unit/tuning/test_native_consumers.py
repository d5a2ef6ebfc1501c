"""Tuning on a node: consumers that are there, workers of an app, probes of our own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tidegate.broker.node import Node
from tidegate.client.app import App
from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.core.errors import InvalidValue, QueueNotExisting
from tidegate.core.prefetch import TunableConsumer
from tidegate.engines import probe
from tidegate.engines.native.prefetch import PREFIX, ExistingConsumers, NoConsumers, native_probe
from tidegate.tuning import EXCITED_SAMPLES_MIN, ExperimentOrigin, TuningGoal
from tidegate.tuning.experiment import TuningResult, tune
from tidegate.tuning.result import user_worker

# 40 ms there and back, 5 ms of work: 22 msg/s a unit, and 200 is the most.
WISH = TuningGoal(
    target_per_s=100.0,
    settle_s=8.0,
    high=24,
    sample_s=0.2,
    excited_samples=EXCITED_SAMPLES_MIN,
)
HANDLER_S = 0.005
ENOUGH = 10_000


async def tuned(consumer: TunableConsumer) -> TuningResult:
    return await tune(
        consumer, WISH, lambda *_: None, ExperimentOrigin("real", "orders", made_at=1.0)
    )


def check_plant(found: TuningResult) -> None:
    """That of the cable and the handler."""
    model = found.model
    assert model.r2_test >= 0.95
    # 25 by the cable alone, 22 with the handler.
    assert model.worth_per_s == pytest.approx(22.0, rel=0.1)
    assert model.ceiling_per_s == pytest.approx(200.0, rel=0.03)
    assert model.controller.settle_s <= WISH.settle_s


@contextlib.asynccontextmanager
async def consuming(url: str, prefetch: int) -> AsyncIterator[Client]:
    """Somebody who has nothing to do with tuning."""
    handler = probe.PacedHandler(HANDLER_S)

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


async def test_a_consumer_that_is_there_is_modelled_by_its_node_and_left_as_it_was(
    node: Node, mq: Client, far_away: str
) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [bytes(64)] * ENOUGH)
    async with consuming(far_away, prefetch=17), connect(node.address, mode="admin") as admin:
        consumer = await ExistingConsumers.find(admin, "orders")

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
            await ExistingConsumers.find(admin, "orders")


async def test_consumers_that_leave_end_the_experiment(
    node: Node, mq: Client, far_away: str
) -> None:
    await mq.create_queue("orders")
    async with connect(node.address, mode="admin") as admin:
        async with consuming(far_away, prefetch=3):
            consumer = await ExistingConsumers.find(admin, "orders")

        with pytest.raises(InvalidValue, match="have gone"):
            await consumer.measure(0.01)
        await consumer.close()


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
    assert slow.arrived_per_s == pytest.approx(22.0, abs=2.0)
    assert fast.arrived_per_s == pytest.approx(4 * 22.0, rel=0.1)
    assert not slow.starved
    assert [queue.name for queue in await mq.queues()] == ["orders"]
    assert len(await mq.browse("orders")) == 10


async def test_a_probe_that_is_killed_leaves_no_queue_behind(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    async with connect(node.address) as client:
        found = await native_probe(client, "orders", handler_s=HANDLER_S, size_bytes=1)
        during = len(await mq.queues())
        [session] = [one for one in node.sessions if one.client_id == client.client_id]
        # As one that was killed: nothing is said any more.
        session.abort()
        await asyncio.sleep(1.0)  # in virtual time: nothing waits
        left = [queue.name for queue in await mq.queues()]
        await found.close()

    assert during == 2
    assert left == ["orders"]


async def test_ones_own_worker_is_modelled(node: Node, mq: Client, far_away: str) -> None:
    handler = probe.PacedHandler(HANDLER_S)
    app = App(node.address)

    @app.worker("orders", concurrency=100)
    async def ship(order: bytes) -> None:
        await handler.turn()

    await mq.create_queue("orders")
    await mq.put_many("orders", [bytes(64)] * ENOUGH)
    async with user_worker(app, far_away, "orders") as consumer:
        found = await tuned(consumer)

    check_plant(found)


async def test_a_worker_is_not_given_a_queue_that_was_mistyped(node: Node, mq: Client) -> None:
    app = App(node.address)

    @app.worker("ordres")
    async def ship(order: bytes) -> None: ...

    with pytest.raises(QueueNotExisting):
        async with user_worker(app, node.address, "ordres"):
            pass
    with pytest.raises(InvalidValue, match="it has workers for ordres"):
        async with user_worker(app, node.address, "orders"):
            pass
    assert await mq.queues() == []
