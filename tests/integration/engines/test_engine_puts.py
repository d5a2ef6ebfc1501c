"""Putting, on every engine: confirmed, in order, kept bit for bit, refused where nobody is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from engine_under_test import (
    Capability,
    Engine,
    dead_letter,
    numbered,
    payloads_of,
    put_all,
    take,
    taken_until_last,
)

import tidegate
from tidegate.core.model import QueuePolicy

# One RabbitMQ serves all tests of the engines.
pytestmark = pytest.mark.xdist_group("engines")

EVERY_BYTE = bytes(range(256))


async def test_a_confirmed_put_is_there_for_whoever_comes_later(engine: Engine) -> None:
    async with engine.connect() as producer:
        await producer.create_queue("orders")
        await producer.put("orders", b"x")

    async with engine.connect() as consumer, consumer.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        assert (message.payload, message.queue) == (b"x", "orders")
        assert (message.delivery_count, message.redelivered) == (1, False)
        await message.ack_confirmed()


async def test_messages_of_one_producer_arrive_in_order(mq: Any) -> None:
    await mq.create_queue("orders")
    payloads = numbered(300)

    await asyncio.gather(*(mq.put("orders", payload) for payload in payloads[:200]))
    await put_all(mq, "orders", payloads[200:])

    assert payloads_of(await taken_until_last(mq, "orders")) == payloads


async def test_a_put_passes_none_that_still_learns_where_the_queue_is(engine: Engine) -> None:
    async with engine.connect() as mq:
        await mq.create_queue("orders")
    payloads = numbered(300)

    async with engine.connect() as newcomer:
        puts = []
        for payload in payloads:
            puts.append(asyncio.ensure_future(newcomer.put("orders", payload)))
            # They begin while the first are answered.
            await asyncio.sleep(0)
        await asyncio.gather(*puts)
        assert payloads_of(await taken_until_last(newcomer, "orders")) == payloads


async def test_ids_of_messages_are_numbers_of_their_own(mq: Any) -> None:
    await mq.create_queue("orders")

    ids = [await mq.put("orders", payload) for payload in numbered(20)]

    assert all(type(one) is int for one in ids)
    assert len(set(ids)) == 20
    assert [message.message_id for message in await taken_until_last(mq, "orders")] == ids


async def test_a_payload_arrives_bit_for_bit(mq: Any) -> None:
    await mq.create_queue("orders")
    payloads = [b"", EVERY_BYTE, b"x" * 1_000_000]

    await put_all(mq, "orders", payloads)

    assert payloads_of(await taken_until_last(mq, "orders")) == payloads


async def test_headers_content_type_context_and_priority_travel_with_it(mq: Any) -> None:
    await mq.create_queue("orders")
    headers = {"trace": "4f", "größe": "0", "": "no name"}

    await mq.put(
        "orders", b"{}", headers=headers, content_type="application/json", context=-7, priority=9
    )
    await mq.put("orders", b"plain")

    special, plain = await taken_until_last(mq, "orders")
    assert (special.headers, special.content_type) == (headers, "application/json")
    assert (special.context, special.priority) == (-7, 9)
    assert (plain.headers, plain.content_type, plain.context, plain.priority) == ({}, None, None, 5)


async def test_a_higher_priority_overtakes_where_the_engine_has_priorities(
    engine: Engine, mq: Any
) -> None:
    await mq.create_queue("orders")
    for priority in (1, 5, 10, 3):
        await mq.put("orders", b"%d" % priority, priority=priority)

    async with mq.subscribe("orders", prefetch=1) as subscription:
        seen = []
        for _ in range(4):
            (message,) = await take(subscription, 1)
            seen.append(message.priority)
            await message.ack_confirmed()

    overtakes = engine.can(Capability.PRIORITY_OVERTAKES)
    assert seen == ([10, 5, 3, 1] if overtakes else [1, 5, 10, 3])


async def test_a_put_to_a_queue_that_does_not_exist_says_so_and_the_connection_lives(
    mq: Any,
) -> None:
    await mq.create_queue("orders")

    with pytest.raises(tidegate.QueueNotExisting, match="nowhere"):
        await mq.put("nowhere", b"x")
    with pytest.raises(tidegate.QueueNotExisting, match="nowhere"):
        await mq.queue("nowhere")
    with pytest.raises(tidegate.QueueNotExisting, match="nowhere"):
        async with mq.subscribe("nowhere"):
            pass

    await mq.put("orders", b"x")
    assert payloads_of(await taken_until_last(mq, "orders")) == [b"x"]


async def test_a_queue_is_made_once_and_found_again(mq: Any) -> None:
    await mq.create_queue("orders")

    with pytest.raises(tidegate.QueueNameNotUnique, match="orders"):
        await mq.create_queue("orders")

    await mq.create_queue("orders", exist_ok=True)
    assert (await mq.queue("orders")).name == "orders"


async def test_a_delayed_put_comes_when_it_is_due_and_not_before(mq: Any) -> None:
    await mq.create_queue("orders")
    began = time.monotonic()

    await mq.put("orders", b"later", delay=0.4)
    await mq.put("orders", b"soon", deliver_at=time.time() + 0.2)
    await mq.put("orders", b"now")

    async with mq.subscribe("orders") as subscription:
        due = {}
        for message in await take(subscription, 3):
            due[message.payload] = time.monotonic() - began
            assert not message.redelivered
            await message.ack_confirmed()
    assert due.keys() == {b"now", b"soon", b"later"}
    assert due[b"later"] >= 0.4
    # The clock of deliver_at is another one, with whole milliseconds in places.
    assert due[b"soon"] >= 0.19


async def test_of_delayed_puts_none_waits_for_a_longer_one(mq: Any) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"in an hour", delay=3600)

    await mq.put("orders", b"soon", delay=0.1)

    async with mq.subscribe("orders") as subscription:
        assert payloads_of(await take(subscription, 1)) == [b"soon"]


async def test_expired_message_is_not_delivered(mq: Any) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(keep_expired=True))
    await mq.put("orders", b"an hour", ttl=3600)
    await mq.put("orders", b"short", ttl=0.05)

    async with mq.subscribe("orders", prefetch=1) as subscription:
        (lives,) = await take(subscription, 1)  # it holds the only place while the other one ages
        dead = await dead_letter(mq, "orders")
        assert dead.payload == b"short"
        assert dead.deaths[-1].reason == "expired"
        await lives.ack_confirmed()
    assert await taken_until_last(mq, "orders") == []


async def test_a_bad_option_is_refused_at_the_call(mq: Any) -> None:
    await mq.create_queue("orders")

    bad: list[dict[str, Any]] = [
        {"priority": 11},
        {"priority": 0},
        {"delay": -1},
        {"ttl": 0},
        {"headers": {"a": 1}},
        {"context": 2**70},
        {"delay": 1, "deliver_at": 5.0},
    ]
    for options in bad:
        with pytest.raises(tidegate.InvalidValue):
            await mq.put("orders", b"x", **options)

    assert await taken_until_last(mq, "orders") == []


async def test_without_async_it_is_the_same(engine: Engine) -> None:
    def produce_and_consume() -> bytes:
        with engine.connect() as mq:
            mq.create_queue("orders")
            mq.put("orders", b"x", headers={"a": "b"})
            with mq.subscribe("orders") as subscription:
                for message in subscription:
                    assert message.headers == {"a": "b"}
                    message.ack_confirmed()
                    return bytes(message.payload)
        raise AssertionError("nothing came")

    assert await asyncio.to_thread(produce_and_consume) == b"x"


async def test_engine_refuses_missing_capabilities_with_an_alternative(
    engine: Engine, mq: Any
) -> None:
    await mq.create_queue("orders")

    for name, value in {"dedup_id": "a", "group": "a", "tenant": "a", "receiver": 1}.items():
        if engine.can(Capability.ADDRESSES_AND_GROUPS):
            await mq.put("orders", b"x", **{name: value})
            continue
        instead = rf"{name}.*(Tidegate's own nodes|tidegate://)"
        with pytest.raises(tidegate.InvalidValue, match=instead):
            await mq.put("orders", b"x", **{name: value})
    if not engine.can(Capability.ADDRESSES_AND_GROUPS):
        assert await taken_until_last(mq, "orders") == []
