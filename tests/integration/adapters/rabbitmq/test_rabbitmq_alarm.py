"""A RabbitMQ that is short of memory blocks who publishes, and must not stop who acknowledges."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from rabbitmq import VirtualHost
from waiting import eventually_async

import tidegate
from tidegate_lab.peers.servers import RabbitmqServer

MemoryAlarm = Callable[[], AbstractAsyncContextManager[None]]
WATERMARK = ("set_vm_memory_high_watermark",)


@pytest.fixture
def small(mortal_broker: RabbitmqServer) -> Iterator[VirtualHost]:
    """On the broker that may be killed: an alarm is the whole broker's, not a virtual host's."""
    host = VirtualHost(mortal_broker)
    yield host
    host.delete()


@contextlib.asynccontextmanager
async def memory_alarm(broker: RabbitmqServer, scenes: int) -> AsyncIterator[MemoryAlarm]:
    """One alarm for several scenes, since each `rabbitmqctl` takes seconds.

    RabbitMQ blocks publishers from when all scenes have asked for it until all have had enough:
    what it may use is next to none. Filling it would raise the alarm, too, until it collects its
    garbage at a time of its own.
    """
    begin, end = asyncio.Barrier(scenes + 1), asyncio.Barrier(scenes + 1)
    over = asyncio.Event()

    async def raise_and_lift() -> None:
        await begin.wait()
        await asyncio.to_thread(broker.control, *WATERMARK, "absolute", "1MB")
        raised.set()
        await end.wait()
        await asyncio.to_thread(broker.control, *WATERMARK, "0.4")
        over.set()

    raised = asyncio.Event()

    @contextlib.asynccontextmanager
    async def alarm() -> AsyncIterator[None]:
        await begin.wait()
        await raised.wait()
        yield
        await end.wait()
        await over.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(raise_and_lift())
        yield alarm


async def waiting(mq: Any, queue: str) -> int:
    count: int = await mq.waiting(queue)
    return count


async def test_while_publishers_are_blocked_workers_acknowledge_and_callers_are_told(
    small: VirtualHost, mortal_broker: RabbitmqServer
) -> None:
    async with memory_alarm(mortal_broker, scenes=2) as alarm, asyncio.TaskGroup() as scenes:
        scenes.create_task(a_worker_that_puts_goes_on_acknowledging(small, alarm))
        scenes.create_task(a_caller_that_loses_patience_is_told_why(small, alarm))


async def a_worker_that_puts_goes_on_acknowledging(
    small: VirtualHost, memory_alarm: MemoryAlarm
) -> None:
    payloads = [b"%d" % number for number in range(50)]
    async with tidegate.connect(small.url) as mq:
        for name in ("orders", "bills"):
            await mq.create_queue(name)
        await mq.put_many("orders", payloads)
        puts: list[asyncio.Future[int]] = []
        async with memory_alarm():
            async with mq.subscribe("orders", prefetch=5) as subscription:
                async for message in subscription:
                    puts.append(asyncio.ensure_future(mq.put("bills", message.payload)))
                    await message.ack_confirmed()
                    if len(puts) == len(payloads):
                        break
            assert await waiting(mq, "orders") == 0
            assert not puts[-1].done()
        await asyncio.gather(*puts)
        billed = [(await mq.get("bills")).payload for _ in payloads]
        assert billed == payloads
        assert await waiting(mq, "bills") == 0


async def a_caller_that_loses_patience_is_told_why(
    small: VirtualHost, memory_alarm: MemoryAlarm
) -> None:
    async with tidegate.connect(small.url, reconnect_s=0.5) as mq:
        await mq.create_queue("patience")
        await mq.put("patience", b"before")
        async with memory_alarm():
            # It was sent before anybody knew.
            with pytest.raises(tidegate.IoFailure, match=r"blocked publishers.*not known"):
                await mq.put("patience", b"perhaps")
            with pytest.raises(tidegate.Unavailable, match="blocked publishers") as refused:
                await mq.put("patience", b"never")
            assert "not known" not in str(refused.value)
            with pytest.raises(tidegate.NoReply, match="blocked publishers"):
                await mq.request("patience", b"never", timeout=0.2)
            assert (await mq.get("patience")).payload == b"before"
        await mq.put("patience", b"after")
        left = [(await mq.get("patience")).payload for _ in range(await waiting(mq, "patience"))]
        assert [payload for payload in left if payload != b"perhaps"] == [b"after"]


async def test_a_client_has_a_second_connection_when_it_publishes(rabbitmq: VirtualHost) -> None:
    async def until_connections(count: int) -> None:
        await eventually_async(lambda: len(rabbitmq.connections()) == count)

    async with tidegate.connect(rabbitmq.url) as mq:
        await mq.create_queue("orders")
        async with mq.subscribe("orders") as subscription:
            await until_connections(1)
            await mq.put("orders", b"x")
            async for message in subscription:
                await message.ack_confirmed()
                break
            await until_connections(2)
