"""The test broker's logical queues: real replicas, as many as the test says."""

from __future__ import annotations

import tidegate
from tidegate.testing.broker import Broker


async def test_a_queue_scales_out_and_in_under_a_worker() -> None:
    app = tidegate.App()
    shipped: list[bytes] = []

    @app.worker("orders", concurrency=4)
    async def ship(payload: bytes) -> None:
        shipped.append(payload)

    async with Broker() as broker:
        mq = await broker.connect()
        await mq.create_queue("orders")
        async with broker.running(app):
            await mq.put("orders", b"plain")
            await broker.settle()
            await broker.scale("orders", 1)
            await mq.put("orders", b"one")
            await broker.advance(5)
            assert shipped == [b"plain", b"one"]

            await broker.scale("orders", 3)
            await mq.put_many("orders", [b"%d" % n for n in range(9)])
            await broker.scale("orders", 1)
            await broker.advance(5)

    assert sorted(shipped[2:]) == [b"%d" % n for n in range(9)]
    assert {delivery.queue for delivery in broker.deliveries} == {"orders"}
