"""What an application's own worker is seen to do while its broker is away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidegate.broker.node import Node
from tidegate.client.app import App
from tidegate.client.client import Client
from tidegate.tuning.result import UserWorker, user_worker

SAMPLE_S = 0.01


class Engine:
    """A queue with enough in it, and whatever happens while somebody looks."""

    def __init__(self, subscription: Any, **happens: object) -> None:
        self._subscription = subscription
        self._happens = happens

    async def queue(self, name: str) -> Any:
        vars(self._subscription).update(self._happens)
        return SimpleNamespace(messages=1000)


async def is_starved(*, was_live: bool = True, **happens: object) -> bool:
    subscription = SimpleNamespace(
        prefetch=10, delivered=0, held=0, interruptions=3, is_live=was_live
    )
    app: Any = SimpleNamespace(
        engine=Engine(subscription, **happens), subscription=lambda queue: subscription
    )
    return (await UserWorker(app, "orders").measure(SAMPLE_S)).starved


async def test_a_rate_is_low_for_want_of_prefetch_only_if_nothing_was_interrupted() -> None:
    assert not await is_starved(delivered=1)
    assert await is_starved(interruptions=4)
    assert await is_starved(is_live=False)
    assert await is_starved(was_live=False, is_live=True)


async def test_a_worker_that_loses_its_node_within_a_sample_was_interrupted(
    node: Node, mq: Client
) -> None:
    app = App(node.address)
    handled = asyncio.Event()

    @app.worker("orders", concurrency=1)
    async def ship(order: bytes) -> None:
        handled.set()
        await asyncio.sleep(0.01)  # the handler's work

    await mq.create_queue("orders")
    await mq.put_many("orders", [bytes(8)] * 1_000)
    async with user_worker(app, node.address, "orders") as consumer:
        await handled.wait()
        measuring = asyncio.create_task(consumer.measure(0.3))
        await asyncio.sleep(0)
        for session in node.sessions:
            if session.client_id != mq.client_id:
                session.abort()
        sample = await measuring

    assert sample.starved
