"""Tuning on a real RabbitMQ: probes and workers are set and seen; rates are for benchmarks."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from rabbitmq import VirtualHost
from waiting import eventually_async

from tidegate.client.app import App
from tidegate.client.connect import connect
from tidegate.core.errors import Forbidden, QueueNotExisting
from tidegate.engines.rabbitmq import management
from tidegate.engines.rabbitmq.management import rabbitmq_probe
from tidegate.tuning.result import user_worker
from tidegate_lab.faults.proxy import TcpProxy

HANDLER_S = 0.005
ONE_WAY_S = 0.02
# With a prefetch of 1, one message comes for each round trip: no machine makes it more.
ONE_PER_S_MAX = 1.0 / (2 * ONE_WAY_S)


async def test_a_probe_on_rabbitmq_touches_nobodys_messages(rabbitmq: VirtualHost) -> None:
    async with connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=ONE_WAY_S) as cable:
        await mq.create_queue("orders")
        await mq.put("orders", b"mine")
        found = await rabbitmq_probe(cable.url, "orders", handler_s=HANDLER_S, size_bytes=100)

        async def is_faster_than_one() -> bool:
            return (await found.measure(0.5)).arrived_per_s > 1.2 * ONE_PER_S_MAX

        await found.set_prefetch(4)
        await eventually_async(is_faster_than_one)
        await found.close()

        assert (await mq.queue("orders")).messages == 1
        own = found.own_queue
        with pytest.raises(QueueNotExisting):
            await mq.queues.inspect(own)


async def test_ones_own_worker_on_rabbitmq_is_set_and_measured(rabbitmq: VirtualHost) -> None:
    app = App(rabbitmq.url)

    @app.worker("orders", concurrency=10)
    async def ship(order: bytes) -> None: ...

    async with connect(rabbitmq.url) as mq, TcpProxy(rabbitmq.url, delay_s=ONE_WAY_S) as cable:
        await mq.create_queue("orders")
        await mq.put_many("orders", [bytes(64)] * 2_000)
        async with user_worker(app, cable.url, "orders") as consumer:
            await consumer.set_prefetch(3)
            assert (await consumer.measure(0.1)).prefetch == 3.0

            async def arrives() -> bool:
                seen = await consumer.measure(0.2)
                return seen.arrived_per_s > 0.0 and not seen.starved

            await eventually_async(arrives)


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
        # RabbitMQ counts bytes in its own time.
        await eventually_async(lambda: rabbitmq.queues()["orders"].get("message_bytes"))

        found = await rabbitmq_probe(rabbitmq.url, "orders", handler_s=0.0, size_bytes=None)
        await found.close()

    assert found.size_bytes == 1000
