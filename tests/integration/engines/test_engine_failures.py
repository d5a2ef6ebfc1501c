"""What fails, on every engine: it comes again, flagged and counted, or in the end is kept."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from engine_under_test import (
    Capability,
    Engine,
    dead_letter,
    dying_consumer,
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

# What fails comes again without a wait that the test would have to sit out.
AT_ONCE = QueuePolicy(retry_first_s=0.0, retry_jitter=0.0)


async def test_a_failed_message_comes_again_flagged_and_counted(mq: Any) -> None:
    await mq.create_queue("orders", policy=AT_ONCE)
    await mq.put("orders", b"x", headers={"a": "b"}, content_type="text/plain", priority=7)

    seen = []
    async with mq.subscribe("orders") as subscription:
        for _ in range(3):
            (message,) = await take(subscription, 1)
            seen.append((message.delivery_count, message.redelivered))
            assert (message.payload, message.headers) == (b"x", {"a": "b"})
            assert (message.content_type, message.priority) == ("text/plain", 7)
            await message.nack(error="not yet")
        (message,) = await take(subscription, 1)
        seen.append((message.delivery_count, message.redelivered))
        await message.ack_confirmed()

    assert seen == [(1, False), (2, True), (3, True), (4, True)]
    assert await taken_until_last(mq, "orders") == []


async def test_a_failed_message_keeps_its_id_and_its_context(mq: Any) -> None:
    await mq.create_queue("orders", policy=AT_ONCE)
    message_id = await mq.put("orders", b"x", context=42)

    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        await message.nack()
        (again,) = await take(subscription, 1)
        assert (again.message_id, again.context) == (message_id, 42)
        await again.ack_confirmed()


async def test_a_failed_message_waits_as_long_as_it_was_told_and_holds_up_nobody(mq: Any) -> None:
    await mq.create_queue("orders", policy=AT_ONCE)
    await put_all(mq, "orders", [b"fails", b"goes"])

    async with mq.subscribe("orders", prefetch=1) as subscription:
        (fails,) = await take(subscription, 1)
        began = time.monotonic()
        await fails.nack(delay=0.3, error="the bank is closed")
        (goes,) = await take(subscription, 1)
        assert goes.payload == b"goes"
        await goes.ack_confirmed()
        (again,) = await take(subscription, 1)

        assert (again.payload, again.redelivered, again.delivery_count) == (b"fails", True, 2)
        assert time.monotonic() - began >= 0.3
        await again.ack_confirmed()
    assert await taken_until_last(mq, "orders") == []


async def test_the_queues_policy_backs_off(mq: Any) -> None:
    policy = QueuePolicy(retry_first_s=0.1, retry_factor=3.0, retry_jitter=0.0)
    await mq.create_queue("orders", policy=policy)
    await mq.put("orders", b"x")

    waits = []
    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        for _ in range(2):
            began = time.monotonic()
            await message.nack()
            (message,) = await take(subscription, 1)
            waits.append(time.monotonic() - began)
        await message.ack_confirmed()

    assert waits[0] >= 0.1
    assert waits[1] >= 0.3


async def test_a_short_wait_does_not_stand_behind_a_long_one(mq: Any) -> None:
    await mq.create_queue("orders", policy=AT_ONCE)
    await put_all(mq, "orders", [b"long", b"short"])

    async with mq.subscribe("orders") as subscription:
        long, short = await take(subscription, 2)
        await long.nack(delay=3600)
        await short.nack(delay=0.1)

        assert payloads_of(await take(subscription, 1)) == [b"short"]


async def test_rejected_message_is_a_dead_letter_with_the_reason(mq: Any) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x", headers={"a": "b"}, content_type="text/plain")

    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        await message.reject(error="no such customer")

    letter = await dead_letter(mq, "orders")
    (death,) = letter.deaths
    assert (letter.payload, letter.headers, letter.content_type) == (b"x", {"a": "b"}, "text/plain")
    assert (death.queue, death.reason, death.error) == ("orders", "rejected", "no such customer")
    assert death.deliveries == 1
    assert await taken_until_last(mq, "orders") == []


async def test_after_as_many_deliveries_as_the_queue_allows_it_is_given_up(mq: Any) -> None:
    policy = QueuePolicy(deliveries_max=3, retry_first_s=0.0, retry_jitter=0.0)
    await mq.create_queue("orders", policy=policy)
    await put_all(mq, "orders", [b"poison", b"fine"])

    calls = 0
    async with mq.subscribe("orders", prefetch=1) as subscription:
        while calls < 4:
            (message,) = await take(subscription, 1)
            calls += 1
            if message.payload == b"fine":
                await message.ack_confirmed()
            else:
                await message.nack(error=f"number {message.delivery_count}")

        letter = await dead_letter(mq, "orders")
        (death,) = letter.deaths
        assert (letter.payload, death.reason, death.deliveries) == (b"poison", "deliveries", 3)
        assert death.error == "number 3"
    assert await taken_until_last(mq, "orders") == []


async def test_message_that_kills_its_consumers_becomes_a_dead_letter(
    engine: Engine, mq: Any
) -> None:
    policy = QueuePolicy(deliveries_max=2, retry_first_s=0.0, retry_jitter=0.0)
    await mq.create_queue("orders", policy=policy)
    await mq.put("orders", b"poison")

    if engine.can(Capability.COUNTS_DEAD_CONSUMERS):
        letter = asyncio.create_task(dead_letter(mq, "orders"))
        deaths = 0
        while not letter.done():
            async with dying_consumer(engine, "orders", prefetch=1) as dying:
                taking = asyncio.create_task(take(dying, 1))
                await asyncio.wait({taking, letter}, return_when=asyncio.FIRST_COMPLETED)
                deaths += taking.done()
                taking.cancel()
                await asyncio.wait({taking})
        assert letter.result().deaths[-1].reason == "deliveries"
        # RabbitMQ counts what was given back unbegun as well, and so allows for some more.
        assert 2 <= deaths <= 25
        return
    for _ in range(3):
        async with dying_consumer(engine, "orders", prefetch=1) as dying:
            assert payloads_of(await take(dying, 1)) == [b"poison"]
    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        # More than that it was delivered before it cannot know; that counts.
        assert (message.redelivered, message.delivery_count) == (True, 2)
        await message.nack()
    assert (await dead_letter(mq, "orders")).deaths[-1].reason == "deliveries"


async def test_dead_letters_may_go_elsewhere_or_nowhere(mq: Any) -> None:
    await mq.create_queue("morgue")
    await mq.create_queue("kept", policy=QueuePolicy(dead_letter="morgue"))
    await mq.create_queue("dropped", policy=QueuePolicy(dead_letter=""))
    for queue in ("kept", "dropped"):
        await mq.put(queue, queue.encode())
        async with mq.subscribe(queue) as subscription:
            (message,) = await take(subscription, 1)
            await message.reject(error="hopeless")
        assert await taken_until_last(mq, queue) == []

    async with mq.subscribe("morgue") as subscription:
        (letter,) = await take(subscription, 1)
        assert letter.payload == b"kept"
    with pytest.raises(tidegate.QueueNotExisting):
        await mq.queue("dropped.dead")


async def test_failures_among_many_disturb_nothing_else(mq: Any) -> None:
    await mq.create_queue("orders", policy=AT_ONCE)
    payloads = numbered(100)
    done: list[bytes] = []
    async with mq.subscribe("orders", prefetch=8) as subscription:
        for payload in payloads:
            await mq.put("orders", payload)
        while len(done) < 100:
            (message,) = await take(subscription, 1)
            if int(message.payload) % 5 == 0 and not message.redelivered:
                await message.nack(delay=0.0)
            else:
                done.append(message.payload)
                message.ack()

    assert sorted(done) == sorted(payloads)
    assert await taken_until_last(mq, "orders") == []
