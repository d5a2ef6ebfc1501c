"""What a consumer says to its channel, and when, while RabbitMQ and its callers do other things."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiormq import spec
from aiormq.base import Base
from aiormq.channel import Channel
from waiting import LIMIT_S

from tidegate.core.errors import InvalidValue, LeaseLost, Unavailable
from tidegate.engines.rabbitmq import consumer as consumer_module
from tidegate.engines.rabbitmq.consumer import RabbitmqConsumer
from tidegate.engines.rabbitmq.topology import ReplicaSource

ORDERS = [ReplicaSource("orders")]


class SlowChannel:
    """Takes acks at once. Whatever else waits while it is not `open_`."""

    def __init__(self) -> None:
        self.on_consumer_cancel_callbacks: set[Any] = set()
        self.open_ = asyncio.Event()
        self.open_.set()
        self.asked = asyncio.Event()
        self.consumers: dict[str, Any] = {}
        self.prefetch = 0
        self.settled: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    def block(self) -> None:
        self.open_.clear()
        self.asked.clear()

    async def _turn(self) -> None:
        self.asked.set()
        await self.open_.wait()

    async def basic_qos(self, *, prefetch_count: int, global_: bool) -> None:
        self.prefetch = prefetch_count
        if global_:
            await self._turn()

    async def basic_consume(self, queue: str, delivered: Any, *, consumer_tag: str) -> None:
        self.consumers[consumer_tag] = delivered
        await self._turn()

    async def basic_cancel(self, consumer_tag: str) -> None:
        self.consumers.pop(consumer_tag, None)

    async def basic_nack(self, tag: int, *, requeue: bool, wait: bool) -> None:
        await self._turn()
        self.settled.put_nowait(("nack", tag))

    async def basic_ack(self, tag: int, *, multiple: bool = False, wait: bool) -> None:
        self.settled.put_nowait(("ack up to" if multiple else "ack", tag))

    async def deliver(self, tags: range) -> None:
        [(consumer, delivered)] = self.consumers.items()
        for tag in tags:
            await delivered(SimpleNamespace(delivery_tag=tag, consumer_tag=consumer))


async def leg_on(channel: Any, *, is_classic: bool = True, prefetch: int = 10) -> RabbitmqConsumer:
    consumer = RabbitmqConsumer(
        channel, "orders", is_classic=is_classic, prefetch=prefetch, on_arrived=lambda *_: None
    )
    await consumer.begin(ORDERS)
    return consumer


async def test_requeued_message_is_not_acknowledged_with_later_ones() -> None:
    channel = SlowChannel()
    consumer = await leg_on(channel)
    await channel.deliver(range(1, 4))
    channel.block()
    going_back = asyncio.create_task(consumer.requeue(1))
    await channel.asked.wait()

    consumer.ack(2)
    consumer.ack(3)
    acked = [await channel.settled.get() for _ in range(2)]
    channel.open_.set()
    await going_back
    await channel.deliver(range(4, 5))
    consumer.ack(4)

    assert acked == [("ack", 2), ("ack", 3)]
    assert await channel.settled.get() == ("nack", 1)
    assert await channel.settled.get() == ("ack up to", 4)


async def test_requeue_completes_after_its_caller_is_cancelled() -> None:
    channel = SlowChannel()
    consumer = await leg_on(channel)
    await channel.deliver(range(1, 2))
    channel.block()
    going_back = asyncio.create_task(consumer.requeue(1))
    await channel.asked.wait()

    going_back.cancel()
    await asyncio.wait({going_back})
    channel.open_.set()

    async with asyncio.timeout(LIMIT_S):
        assert await channel.settled.get() == ("nack", 1)
    with pytest.raises(LeaseLost, match="settled before"):
        await consumer.requeue(1)


async def test_cancelled_settlement_still_returns_the_message() -> None:
    channel = SlowChannel()
    consumer = await leg_on(channel)
    await channel.deliver(range(1, 2))
    failed = asyncio.Event()

    async def fails() -> None:
        failed.set()
        raise InvalidValue("no permission")

    giving_back = asyncio.create_task(consumer.settle_after(1, fails()))
    await failed.wait()
    giving_back.cancel()
    await asyncio.wait({giving_back})

    assert channel.settled.get_nowait() == ("nack", 1)
    assert consumer.unsettled == 0


@pytest.mark.parametrize("is_classic", [True, False])
async def test_a_prefetch_is_the_last_that_was_set_though_the_one_before_was_cancelled(
    is_classic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_FULL_S_MAX", 0.01)
    channel = SlowChannel()
    consumer = await leg_on(channel, is_classic=is_classic, prefetch=2)
    # So that a quorum queue's consumer is full, and may be turned.
    await channel.deliver(range(1, 3))
    channel.block()
    setting = asyncio.create_task(consumer.set_prefetch(4))
    await channel.asked.wait()

    setting.cancel()
    await asyncio.wait({setting})
    again = asyncio.create_task(consumer.set_prefetch(2))
    await asyncio.sleep(0)
    channel.open_.set()
    await again
    if not is_classic:
        # It counts when as many have come.
        [begun_second] = channel.consumers
        await channel.deliver(range(3, 7))
        await consumer.set_prefetch(2)
        assert list(channel.consumers) != [begun_second]

    assert len(channel.consumers) == 1
    assert channel.prefetch == 2


class Wire(Base):
    """What aiormq's own channel needs of a connection."""

    def __init__(self) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.connection_tune = SimpleNamespace(frame_max=131_072, heartbeat=1)
        self.write_queue: asyncio.Queue[Any] = asyncio.Queue()
        self.accept_consumer_cancel_ok = False
        self.is_opened = False

    async def _on_close(self, exc: Any = None) -> None:
        self._closing.set_result(None)

    def __str__(self) -> str:
        return "wire"


async def test_a_queue_that_goes_right_after_it_was_come_to_is_not_waited_at() -> None:
    wire: Any = Wire()
    channel = Channel(wire, 1, publisher_confirms=False)
    beginning = asyncio.create_task(leg_on(channel))
    await wire.write_queue.get()
    channel.frames.put_nowait((0, spec.Basic.QosOk()))
    await wire.write_queue.get()

    # Both in one segment.
    channel.frames.put_nowait((0, spec.Basic.ConsumeOk(consumer_tag="tidegate-1")))
    channel.frames.put_nowait((0, spec.Basic.Cancel(consumer_tag="tidegate-1", nowait=True)))

    with pytest.raises(Unavailable, match="'orders' has gone"):
        await beginning
    await wire.close()
