"""The broker as a user's test meets it: queues, looking into them, several clients, any loop."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
import uvloop

import tidegate
from tidegate.core.runtime import NodeLimits
from tidegate.testing.broker import BlockingBroker, Broker
from tidegate.testing.virtual_time import VirtualTimeLoop, run


async def test_broker_messages_lists_without_taking(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one", headers={"region": "eu"})
    await mq.put("orders", b"two")

    for _ in range(2):
        found = await tidegate_broker.messages("orders")
        assert [(m.payload, m.headers) for m in found] == [(b"one", {"region": "eu"}), (b"two", {})]
    assert tidegate_broker.deliveries == []
    assert (await tidegate_broker.queue("orders")).waiting == 2


async def test_a_queue_that_nobody_made_is_empty_and_has_no_numbers(
    tidegate_broker: Broker,
) -> None:
    assert await tidegate_broker.messages("orders") == []
    assert await tidegate_broker.dead("orders") == []
    with pytest.raises(tidegate.QueueNotExisting):
        await tidegate_broker.queue("orders")


async def test_deliveries_say_who_got_what_and_how_often(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"one", b"two"])
    read = await mq.get("orders", lease=10)
    async with mq.subscribe("orders") as subscription:
        stream = aiter(subscription)
        assert (await anext(stream)).payload == b"two"
        await read.release()
        assert (await anext(stream)).payload == b"one"

    seen = [(d.queue, d.payload) for d in tidegate_broker.deliveries]
    assert seen == [("orders", b"one"), ("orders", b"two"), ("orders", b"one")]
    assert {d.at for d in tidegate_broker.deliveries} == {tidegate_broker.time()}


async def test_an_ack_has_arrived_when_everything_has_settled(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"%d" % number for number in range(10)])
    async with mq.subscribe("orders") as subscription:
        message = await anext(aiter(subscription))
        message.ack()
        await tidegate_broker.settle()
        numbers = await tidegate_broker.queue("orders")
        assert (numbers.unacknowledged, numbers.acked) == (9, 1)


async def test_tidegate_connect_finds_the_broker_by_its_url(tidegate_broker: Broker) -> None:
    await tidegate_broker.start()
    async with tidegate.connect(tidegate_broker.url, name="shop") as mq:
        await mq.create_queue("orders")
        await mq.put("orders", b"one")
    assert len(await tidegate_broker.messages("orders")) == 1


async def test_a_large_message_crosses_in_pieces(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("films")
    film = bytes(range(256)) * 20_000
    await mq.put("films", film)
    await mq.put("films", b"trailer")
    assert (await mq.get("films")).payload == film
    assert (await mq.get("films")).payload == b"trailer"


async def test_client_that_does_not_read_is_sent_a_bounded_amount(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("films")
    slow = await tidegate_broker.connect()
    async with slow.subscribe("films", prefetch=1000) as subscription:
        transport = slow.transport._transport  # type: ignore[union-attr]
        assert transport is not None
        transport.pause_reading()
        for _ in range(30):
            await mq.put("films", bytes(500_000))
        held = (await tidegate_broker.queue("films")).unacknowledged
        assert 8 <= held < 30
        transport.resume_reading()
        stream = aiter(subscription)
        for _ in range(30):
            (await anext(stream)).ack()
    await tidegate_broker.settle()
    assert (await tidegate_broker.queue("films")).acked == 30


async def test_a_broken_connection_heals_and_its_messages_come_again(
    tidegate_broker: Broker,
) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    async with mq.subscribe("orders") as subscription:
        stream = aiter(subscription)
        first = await anext(stream)
        assert mq.transport is not None
        mq.transport.abort()
        again = await anext(stream)
        assert (again.payload, again.redelivered) == (first.payload, True)


async def test_a_broker_that_restarts_gives_back_what_was_held(tidegate_broker: Broker) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    async with mq.subscribe("orders") as subscription:
        stream = aiter(subscription)
        assert not (await anext(stream)).redelivered

        await tidegate_broker.restart()

        again = await anext(stream)
        assert (again.payload, again.redelivered) == (b"one", True)


@pytest.mark.parametrize("put_for_later_s", [0.0, 7.0])
async def test_a_retry_that_waits_waits_on_after_a_restart(
    tidegate_broker: Broker, put_for_later_s: float
) -> None:
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one", delay=put_for_later_s)
    await (await mq.get("orders", lease=60, wait=10)).nack(delay=60)

    await tidegate_broker.restart()

    with pytest.raises(tidegate.NoMessagesRetrieved):
        await mq.get("orders")
    assert (await mq.get("orders", wait=61)).delivery_count == 2


async def test_two_brokers_in_one_test_do_not_know_each_other() -> None:
    async with Broker() as one, Broker() as other:
        assert one.url != other.url
        await (await one.connect()).create_queue("orders")
        assert await (await other.connect()).queues() == []


async def test_the_loop_gets_its_own_time_back() -> None:
    loop = asyncio.get_running_loop()
    async with Broker():
        assert isinstance(loop, VirtualTimeLoop)
    assert type(loop) is asyncio.SelectorEventLoop
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_broker_opens_no_socket_and_no_thread(
    tidegate_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "bind", no_socket)
    monkeypatch.setattr(socket.socket, "connect", no_socket)
    threads = threading.active_count()
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    await mq.get("orders")
    assert threading.active_count() == threads


async def test_a_server_of_the_users_own_still_works_beside_it(tidegate_broker: Broker) -> None:
    await tidegate_broker.start()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.close()
    server.close()


async def test_the_limits_of_a_node_can_be_chosen() -> None:
    async with Broker(limits=NodeLimits(message_bytes_max=10)) as broker:
        mq = await broker.connect()
        await mq.create_queue("orders")
        with pytest.raises(tidegate.TooLarge):
            await mq.put("orders", bytes(11))


def test_without_any_plugin_a_test_runs_with_run(tidegate_broker: Broker) -> None:
    async def story() -> str:
        mq = await tidegate_broker.connect()
        await mq.create_queue("orders")
        await mq.put("orders", b"one")
        await tidegate_broker.advance(60)
        return (await mq.get("orders")).payload.decode()

    assert run(story()) == "one"


def test_a_loop_whose_time_cannot_be_turned_is_refused_with_advice() -> None:
    async def story() -> None:
        async with Broker():
            pass

    with pytest.raises(tidegate.InvalidValue, match=r"tidegate\.testing\.run"):
        uvloop.run(story())


def test_a_broker_belongs_to_one_test(tidegate_broker: Broker) -> None:
    async def story() -> None:
        await tidegate_broker.connect()

    run(story())
    with pytest.raises(tidegate.InvalidValue, match="one for each test"):
        run(story())


def test_code_that_blocks_is_tested_without_threads() -> None:
    threads = threading.active_count()
    with BlockingBroker() as broker:
        mq = broker.connect()
        mq.create_queue("orders")
        mq.put("orders", b"one")
        mq.get("orders", lease=60)
        broker.advance(61)
        again = mq.get("orders", lease=60)
        assert again.redelivered
        again.ack_confirmed()
        began_at = broker.time()
        with pytest.raises(tidegate.NoMessagesInQueue):
            mq.get("orders", wait=30)
        assert broker.time() - began_at == pytest.approx(30, abs=0.01)
        assert broker.queue("orders").acked == 1
        assert [delivery.delivery_count for delivery in broker.deliveries] == [1, 2]
        assert threading.active_count() == threads
