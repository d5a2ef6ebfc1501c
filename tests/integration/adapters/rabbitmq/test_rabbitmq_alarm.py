"""A RabbitMQ that is short of memory blocks who publishes, and must not stop who acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from rabbitmq import VirtualHost, broker_or_skip

import tidegate
from tidegate.lab.peers.rabbitmq_server import RabbitmqServer

MemoryAlarm = Callable[[], AbstractAsyncContextManager[None]]


@pytest.fixture(scope="module")
def small_broker() -> Iterator[RabbitmqServer]:
    """One of its own: an alarm is the whole broker's, not a virtual host's."""
    with broker_or_skip() as server:
        yield server


@pytest.fixture
def small(small_broker: RabbitmqServer) -> Iterator[VirtualHost]:
    host = VirtualHost(small_broker)
    yield host
    host.delete()


@pytest.fixture
def memory_alarm(small_broker: RabbitmqServer) -> MemoryAlarm:
    """RabbitMQ blocks publishers for as long as the block lasts: what it may use is next to none.

    Filling it would raise the alarm, too, until it collects its garbage at a time of its own.
    """

    @contextlib.asynccontextmanager
    async def alarm() -> AsyncIterator[None]:
        watermark = functools.partial(small_broker.control, "set_vm_memory_high_watermark")
        await asyncio.to_thread(watermark, "absolute", "1MB")
        try:
            yield
        finally:
            await asyncio.to_thread(watermark, "0.4")

    return alarm


async def waiting(mq: Any, queue: str) -> int:
    count: int = await mq.waiting(queue)
    return count


async def test_a_worker_that_puts_goes_on_acknowledging_while_publishers_are_blocked(
    small: VirtualHost, memory_alarm: MemoryAlarm
) -> None:
    payloads = [b"%d" % number for number in range(50)]
    async with tidegate.connect(small.url) as mq:
        for name in ("orders", "bills"):
            await mq.create_queue(name)
        await mq.put_many("orders", payloads)
        puts: list[asyncio.Future[int]] = []
        async with memory_alarm():
            async with asyncio.timeout(20), mq.subscribe("orders", prefetch=5) as subscription:
                async for message in subscription:
                    puts.append(asyncio.ensure_future(mq.put("bills", message.payload)))
                    await message.ack_confirmed()
                    if len(puts) == len(payloads):
                        break
            assert await waiting(mq, "orders") == 0
            assert not puts[-1].done()
        async with asyncio.timeout(20):
            await asyncio.gather(*puts)
        billed = [(await mq.get("bills")).payload for _ in payloads]
        assert billed == payloads
        assert await waiting(mq, "bills") == 0


async def test_who_loses_patience_with_a_blocked_broker_is_told_so(
    small: VirtualHost, memory_alarm: MemoryAlarm
) -> None:
    async with tidegate.connect(small.url, reconnect_s=0.5) as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"before")
        async with memory_alarm(), asyncio.timeout(20):
            # It was sent before anybody knew.
            with pytest.raises(tidegate.IoFailure, match=r"blocked publishers.*not known"):
                await mq.put("orders", b"perhaps")
            with pytest.raises(tidegate.Unavailable, match="blocked publishers") as refused:
                await mq.put("orders", b"never")
            assert "not known" not in str(refused.value)
            with pytest.raises(tidegate.NoReply, match="blocked publishers"):
                await mq.request("orders", b"never", timeout=0.2)
            assert (await mq.get("orders")).payload == b"before"
        await mq.put("orders", b"after")
        left = [(await mq.get("orders")).payload for _ in range(await waiting(mq, "orders"))]
        assert [payload for payload in left if payload != b"perhaps"] == [b"after"]


async def test_a_client_has_a_second_connection_when_it_publishes(rabbitmq: VirtualHost) -> None:
    async def until_connections(count: int) -> None:
        async with asyncio.timeout(20):
            while len(rabbitmq.connections()) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        async with mq.subscribe("orders") as subscription:
            await until_connections(1)
            await mq.put("orders", b"x")
            async for message in subscription:
                await message.ack_confirmed()
                break
            await until_connections(2)
