"""Workers under test, as the documentation shows it: put, let it settle, look."""

from __future__ import annotations

import asyncio
import threading

import pytest

import tidegate
from tidegate import QueuePolicy
from tidegate.testing.broker import BlockingBroker, Broker

# Nothing answers there, and nothing is asked there.
ELSEWHERE = "tidegate://mq.example.com:7411"


class Warehouse:
    """What the workers of these tests work on."""

    def __init__(self) -> None:
        self.is_open = True
        self.shipped: list[str] = []
        self.tries_at: list[float] = []

    def ship(self, order: str) -> None:
        if not self.is_open:
            raise ConnectionError("the warehouse is closed")
        self.shipped.append(order)


async def test_a_worker_gets_what_is_put(tidegate_broker: Broker) -> None:
    app, warehouse = tidegate.App(ELSEWHERE), Warehouse()

    @app.worker("orders", concurrency=4)
    async def ship(order: str) -> None:
        warehouse.ship(order)

    mq = await tidegate_broker.connect()
    async with tidegate_broker.running(app):
        await mq.put("orders", b"ann")
        await mq.put("orders", b"bob")
        await tidegate_broker.settle()

        assert warehouse.shipped == ["ann", "bob"]
        numbers = await tidegate_broker.queue("orders")
        assert (numbers.waiting, numbers.unacknowledged, numbers.acked) == (0, 0, 2)
    assert app.url == ELSEWHERE


async def test_failed_message_is_retried_at_growing_intervals(tidegate_broker: Broker) -> None:
    app, warehouse = tidegate.App(ELSEWHERE), Warehouse()
    policy = QueuePolicy(retry_first_s=1, retry_factor=2, retry_max_s=300, retry_jitter=0)

    @app.worker("orders", policy=policy)
    async def ship(order: str) -> None:
        warehouse.tries_at.append(tidegate_broker.time())
        warehouse.ship(order)

    mq = await tidegate_broker.connect()
    warehouse.is_open = False
    async with tidegate_broker.running(app):
        await mq.put("orders", b"ann")
        await tidegate_broker.advance(7 + 0.5)
        waits_s = [
            round(later - earlier, 2)
            for earlier, later in zip(warehouse.tries_at, warehouse.tries_at[1:], strict=False)
        ]
        assert waits_s == [1, 2, 4]

        warehouse.is_open = True
        await tidegate_broker.advance(8)
        assert warehouse.shipped == ["ann"]


async def test_after_ten_tries_it_is_a_dead_letter_with_its_history(
    tidegate_broker: Broker,
) -> None:
    app, warehouse = tidegate.App(ELSEWHERE), Warehouse()

    @app.worker("orders")
    async def ship(order: str) -> None:
        warehouse.ship(order)

    mq = await tidegate_broker.connect()
    warehouse.is_open = False
    async with tidegate_broker.running(app):
        await mq.put("orders", b"ann")
        await tidegate_broker.advance(1000)  # 1 + 2 + 4 + … + 256 s, less the jitter

        [letter] = await tidegate_broker.dead("orders")
        [death] = letter.deaths
        assert (letter.payload, death.reason.value, death.deliveries) == (b"ann", "deliveries", 10)
        assert "the warehouse is closed" in str(death.error)
        assert [delivery.delivery_count for delivery in tidegate_broker.deliveries] == [
            *range(1, 11)
        ]

        warehouse.is_open = True
        assert await mq.redrive("orders.dead") == 1
        await tidegate_broker.settle()
        assert warehouse.shipped == ["ann"]


async def test_a_worker_that_takes_an_hour_keeps_its_message(tidegate_broker: Broker) -> None:
    app = tidegate.App(ELSEWHERE)
    finished: list[str] = []

    @app.worker("films")
    async def encode(film: str) -> None:
        await asyncio.sleep(3600)  # the work, in virtual time
        finished.append(film)

    mq = await tidegate_broker.connect()
    async with tidegate_broker.running(app):
        await mq.put("films", b"metropolis")
        await tidegate_broker.advance(3599)
        assert finished == []
        await tidegate_broker.advance(2)
        assert finished == ["metropolis"]
    assert [delivery.delivery_count for delivery in tidegate_broker.deliveries] == [1]


async def test_a_worker_that_blocks_runs_in_a_thread_and_time_waits_for_it(
    tidegate_broker: Broker,
) -> None:
    app = tidegate.App(ELSEWHERE)
    threads: list[threading.Thread] = []

    @app.worker("orders", concurrency=2)
    def ship(order: str) -> None:
        threads.append(threading.current_thread())
        app.wait(app.put("mails", f"{order} is on its way"))

    mq = await tidegate_broker.connect()
    await mq.create_queue("mails")
    async with tidegate_broker.running(app):
        await mq.put("orders", b"ann")
        await tidegate_broker.settle()

    assert threads != [threading.current_thread()]
    assert [m.payload for m in await tidegate_broker.messages("mails")] == [b"ann is on its way"]


async def test_a_worker_that_blocks_may_wait_for_what_only_time_brings(
    tidegate_broker: Broker,
) -> None:
    app = tidegate.App(ELSEWHERE)
    outcomes: list[str] = []

    @app.worker("orders")
    def ship(order: str) -> None:
        try:
            app.wait(app.request("prices", order, timeout=30))
        except tidegate.NoReply:
            outcomes.append("nobody knows the price")

    mq = await tidegate_broker.connect()
    await mq.create_queue("prices")
    async with tidegate_broker.running(app):
        await mq.put("orders", b"ann")
        await tidegate_broker.advance(31)
        assert outcomes == ["nobody knows the price"]


async def test_run_works_off_what_is_there(tidegate_broker: Broker) -> None:
    app, warehouse = tidegate.App(ELSEWHERE), Warehouse()

    @app.worker("orders")
    async def ship(order: str) -> None:
        warehouse.ship(order)

    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % number for number in range(100)])

    await tidegate_broker.run(app)

    assert len(warehouse.shipped) == 100


def test_workers_are_tested_without_async_too() -> None:
    app, warehouse = tidegate.App(ELSEWHERE), Warehouse()

    @app.worker("orders")
    async def ship(order: str) -> None:
        warehouse.ship(order)

    with BlockingBroker() as broker:
        mq = broker.connect()
        mq.create_queue("orders")
        mq.put("orders", b"ann")
        broker.run(app)
    assert warehouse.shipped == ["ann"]


async def test_a_worker_that_puts_what_it_takes_never_settles_and_that_is_said(
    tidegate_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.testing.virtual_time.TURNS_MAX", 10_000)
    app = tidegate.App(ELSEWHERE)

    @app.worker("orders")
    async def again(order: str) -> None:
        await app.put("orders", order)

    mq = await tidegate_broker.connect()
    async with tidegate_broker.running(app):
        await mq.put("orders", b"round and round")
        with pytest.raises(TimeoutError, match="for ever"):
            await tidegate_broker.settle()
