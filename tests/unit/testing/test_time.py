"""What a user's tests of time look like: an hour passes between two lines."""

from __future__ import annotations

import asyncio

import pytest

import tidegate
from tidegate.testing.broker import Broker
from tidegate.testing.virtual_time import run


async def test_no_time_passes_while_messages_travel(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    began_at = tidegate_broker.time()
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    assert (await mq.get("orders")).payload == b"one"
    assert tidegate_broker.time() == began_at


async def test_a_lease_that_lapses_returns_the_message_flagged(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    first = await mq.get("orders", lease=60)
    assert not first.redelivered

    await tidegate_broker.advance(59)
    assert await tidegate_broker.messages("orders") == []

    await tidegate_broker.advance(2)
    with pytest.raises(tidegate.LeaseLost):
        await first.ack_confirmed()
    again = await mq.get("orders")
    assert (again.payload, again.redelivered, again.delivery_count) == (b"one", True, 2)


async def test_a_lease_of_a_consumer_that_is_gone_returns_at_once(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    other = await tidegate_broker.connect()
    await other.get("orders", lease=3600)

    await other.close()
    await tidegate_broker.settle()

    assert [message.payload for message in await tidegate_broker.messages("orders")] == [b"one"]


async def test_a_read_times_out_after_just_the_time_it_waits(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    began_at = tidegate_broker.time()

    with pytest.raises(tidegate.NoMessagesInQueue):
        await mq.get("orders", wait=30)

    assert tidegate_broker.time() - began_at == pytest.approx(30, abs=0.01)


async def test_a_read_that_waits_is_served_before_its_time_is_up(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    waiting = asyncio.create_task(mq.get("orders", wait=30))

    await tidegate_broker.advance(29)
    assert not waiting.done()
    await mq.put("orders", b"just in time")
    await tidegate_broker.settle()

    assert waiting.done()
    assert (await waiting).payload == b"just in time"


async def test_a_request_without_an_answer_gives_up_after_its_timeout(
    tidegate_broker: Broker,
) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("questions")
    began_at = tidegate_broker.time()

    with pytest.raises(tidegate.NoReply):
        await mq.request("questions", b"anybody?", timeout=120)

    assert tidegate_broker.time() - began_at == pytest.approx(120, abs=0.01)


@pytest.mark.parametrize("back", ["lapse", "nack"])
async def test_returned_message_expires_after_its_time(tidegate_broker: Broker, back: str) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one", ttl=25)
    held = await mq.get("orders", lease=60)
    await tidegate_broker.advance(50)
    if back == "nack":
        await held.nack(delay=5)

    await tidegate_broker.advance(11)

    numbers = await tidegate_broker.queue("orders")
    assert (numbers.waiting, numbers.unacknowledged, numbers.expired) == (0, 0, 1)


async def test_everything_happens_in_order_on_the_way(tidegate_broker: Broker) -> None:
    seen: list[tuple[str, float]] = []

    async def chime(name: str, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while True:
            await asyncio.sleep(every_s)  # virtual time, which this test is about
            seen.append((name, round(loop.time() - start_s, 3)))

    await tidegate_broker.start()
    chimes = [asyncio.create_task(chime(name, s)) for name, s in (("three", 3), ("seven", 7))]
    await tidegate_broker.advance(15)
    for task in chimes:
        task.cancel()

    assert seen == [
        ("three", 3), ("three", 6), ("seven", 7), ("three", 9), ("three", 12), ("seven", 14),
        ("three", 15),
    ]  # fmt: skip


async def test_a_client_outlives_an_hour_of_silence(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")

    await tidegate_broker.advance(3600)

    assert mq.transport is not None
    assert mq.transport.alive
    await mq.put("orders", b"still here")


def test_a_test_that_waits_for_ever_is_told_so() -> None:
    async def story() -> None:
        async with Broker(patience_s=600) as broker:
            mq = await broker.connect()
            await mq.create_queue("orders")
            await broker.advance(1000)  # asked for: that is no hanging
            async with mq.subscribe("orders") as subscription:
                await anext(aiter(subscription))

    with pytest.raises(TimeoutError, match="600 s of virtual time"):
        run(story())


async def test_time_does_not_go_backwards(tidegate_broker: Broker) -> None:
    with pytest.raises(tidegate.InvalidValue):
        await tidegate_broker.advance(-1)


async def test_time_stands_still_while_a_thread_works(tidegate_broker: Broker) -> None:
    await tidegate_broker.start()
    began_at = tidegate_broker.time()
    loop = asyncio.get_running_loop()
    sleeping = asyncio.create_task(asyncio.sleep(5))  # virtual time, which stands still

    async def turn() -> None:
        await asyncio.sleep(0)

    def work() -> None:
        for _ in range(10):
            asyncio.run_coroutine_threadsafe(turn(), loop).result()

    await asyncio.to_thread(work)

    assert tidegate_broker.time() == began_at
    await sleeping
    assert tidegate_broker.time() == pytest.approx(began_at + 5, abs=0.001)
