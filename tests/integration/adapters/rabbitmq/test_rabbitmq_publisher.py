"""The order of one producer's puts, over connections that are lost.

Without RabbitMQ they run in virtual time: a publisher that pauses goes on when all others wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aiormq import spec
from rabbitmq import VirtualHost
from virtual_nodes import in_virtual_time
from waiting import LIMIT_S

from tidegate.client.connect import connect
from tidegate.core.errors import Unavailable
from tidegate.engines.rabbitmq.publisher import RabbitmqPublisher
from tidegate_lab.faults.proxy import TcpProxy


class Broker:
    """Hands out channels: the first is lost before it confirms anything, all others confirm."""

    reconnect_s = 10.0
    is_closed = False

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.channels: list[LostChannel | GoodChannel] = []

    async def channel(self, *, confirms: bool) -> Any:
        channel = GoodChannel(self.stored) if self.channels else LostChannel()
        self.channels.append(channel)
        await asyncio.sleep(0)
        return channel

    async def unblocked(self, patience: object) -> None: ...

    @contextlib.asynccontextmanager
    async def unless_blocked(self, patience: object) -> AsyncIterator[None]:
        yield


class GoodChannel:
    is_closed = False
    connection = SimpleNamespace(connection_tune=SimpleNamespace(frame_max=131_072))

    def __init__(self, stored: list[int]) -> None:
        self._stored = stored

    async def basic_publish(self, payload: bytes, **_: object) -> None:
        self._stored.append(int(payload))


class LostChannel(GoodChannel):
    """Each put hears by itself that the connection was lost."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._told: dict[int, asyncio.Event] = {}

    async def basic_publish(self, payload: bytes, **_: object) -> None:
        number = int(payload)
        self.came.append(number)
        told = self._told[number] = asyncio.Event()
        await told.wait()
        raise ConnectionResetError("lost")

    def tell(self, *numbers: int) -> None:
        self.is_closed = True
        for number in numbers:
            self._told[number].set()


class Producer:
    """Who puts and does not wait."""

    def __init__(self) -> None:
        self.broker = Broker()
        self._publisher = RabbitmqPublisher(self.broker)  # type: ignore[arg-type]
        self.puts: list[asyncio.Task[None]] = []

    async def put(self, count: int) -> None:
        for _ in range(count):
            payload, properties = b"%d" % len(self.puts), spec.Basic.Properties(headers={})
            putting = self._publisher.publish(payload, properties, "orders")
            self.puts.append(asyncio.create_task(putting))
        await several_turns()

    async def all_put(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self.puts)


async def several_turns() -> None:
    """Whoever can go on does, as far as the loop alone takes them."""
    for _ in range(30):
        await asyncio.sleep(0)


@in_virtual_time
async def test_puts_wait_for_their_own_confirmation_only() -> None:
    producer = Producer()

    await producer.put(5)

    [channel] = producer.broker.channels
    assert isinstance(channel, LostChannel)
    assert channel.came == [0, 1, 2, 3, 4]
    channel.tell(*range(5))
    await producer.all_put()


@in_virtual_time
async def test_puts_of_a_connection_that_was_lost_go_before_later_ones() -> None:
    producer = Producer()
    await producer.put(5)
    [channel] = producer.broker.channels
    assert isinstance(channel, LostChannel)

    # All pause before they try again, and there is a connection at once.
    channel.tell(*range(5))
    await several_turns()
    await producer.put(2)
    await producer.all_put()

    assert producer.broker.stored == [0, 1, 2, 3, 4, 5, 6]


@in_virtual_time
async def test_puts_that_have_not_heard_yet_that_theirs_was_lost_are_waited_for() -> None:
    producer = Producer()
    await producer.put(3)
    [channel] = producer.broker.channels
    assert isinstance(channel, LostChannel)

    channel.tell(0)
    await producer.put(1)
    async with asyncio.timeout(LIMIT_S):
        await producer.puts[0]
    await several_turns()
    channel.tell(1, 2)
    await producer.all_put()

    assert producer.broker.stored == [0, 1, 2, 3]


@in_virtual_time
async def test_a_cancelled_put_delays_no_other_put() -> None:
    producer = Producer()
    await producer.put(2)
    [channel] = producer.broker.channels
    assert isinstance(channel, LostChannel)
    channel.tell(0, 1)
    await several_turns()
    await producer.put(1)

    given_up = producer.puts.pop(0)
    given_up.cancel()
    await producer.all_put()

    assert producer.broker.stored == [1, 2]


@in_virtual_time
async def test_a_put_ends_with_its_client() -> None:
    producer = Producer()
    await producer.put(1)
    [channel] = producer.broker.channels
    assert isinstance(channel, LostChannel)

    producer.broker.is_closed = True

    async def closed(patience: object) -> None:
        raise Unavailable("the client is closed")

    producer.broker.unblocked = closed  # type: ignore[method-assign]
    channel.tell(0)

    await several_turns()
    assert producer.puts[0].done()
    with pytest.raises(Exception, match="whether it was stored is not known"):
        await producer.puts[0]


async def test_puts_that_are_not_waited_for_keep_their_order_over_a_cut_cable(
    rabbitmq: VirtualHost,
) -> None:
    puts: list[asyncio.Future[int]] = []
    async with TcpProxy(rabbitmq.url) as cable, connect(cable.url) as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"-1")
        for number in range(600):
            puts.append(asyncio.ensure_future(mq.put("orders", b"%d" % number)))
            if number % 10 == 9:
                await asyncio.sleep(0.001)  # some are confirmed meanwhile, others are under way
            if number % 200 == 100:
                cable.cut()
        await asyncio.gather(*puts)
        count = (await mq.queue("orders")).messages
        stored = [int((await mq.get("orders")).payload) for _ in range(count)]

    # What was stored and not confirmed comes twice.
    assert list(dict.fromkeys(stored)) == list(range(-1, 600))
