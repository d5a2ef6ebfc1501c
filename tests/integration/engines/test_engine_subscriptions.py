"""Consuming, on every engine: prefetch, acknowledgement, what goes back, and to whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from engine_under_test import (
    Capability,
    Engine,
    dying_consumer,
    numbered,
    payloads_of,
    put_all,
    take,
    taken_until_last,
)
from waiting import eventually_async

import tidegate

# One RabbitMQ serves all tests of the engines.
pytestmark = pytest.mark.xdist_group("engines")


async def test_a_subscriber_gets_what_waits_and_what_comes(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", [b"1", b"2"])

    async with mq.subscribe("orders") as subscription:
        first = await take(subscription, 2)
        await mq.put("orders", b"3")
        second = await take(subscription, 1)

        assert payloads_of(first + second) == [b"1", b"2", b"3"]
        assert subscription.delivered == 3


async def test_no_more_than_the_prefetch_is_in_a_consumers_hands(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(10))

    async with mq.subscribe("orders", prefetch=4) as greedy:
        first = await take(greedy, 1)
        await eventually_async(lambda: greedy.held == 3)
        # Whoever comes second gets all that the first one was not given.
        async with mq.subscribe("orders", prefetch=100) as other:
            others = await take(other, 6)
            assert payloads_of(others) == numbered(6, start=4)
            for message in others:
                await message.ack_confirmed()
        assert greedy.delivered == 4
        assert payloads_of(first + await take(greedy, 3)) == numbered(4)


async def test_an_acknowledgement_makes_room_for_the_next(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(50))

    async with mq.subscribe("orders", prefetch=1) as subscription:
        for number in range(50):
            (message,) = await take(subscription, 1)
            assert message.payload == b"%d" % number
            assert subscription.held == 0
            message.ack()

    assert await taken_until_last(mq, "orders") == []


async def test_a_larger_prefetch_takes_effect_at_once(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(6))

    async with mq.subscribe("orders", prefetch=1) as subscription:
        held = await take(subscription, 1)
        await subscription.set_prefetch(6)
        held += await take(subscription, 5)

        assert subscription.prefetch == 6
        assert payloads_of(held) == numbered(6)
        for message in held:
            await message.ack_confirmed()
    assert await taken_until_last(mq, "orders") == []


async def test_a_smaller_prefetch_holds_as_soon_as_what_is_held_allows(
    engine: Engine, mq: Any
) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(5))

    async with mq.subscribe("orders", prefetch=5) as subscription:
        held = await take(subscription, 5)
        await subscription.set_prefetch(2)
        for message in held[:4]:
            await message.ack_confirmed()
        await put_all(mq, "orders", numbered(5, start=5))
        # One is held from before: beside it there is room for one, and where an engine begins
        # anew, for two.
        room = 1 if engine.can(Capability.PREFETCH_COUNTS_WHAT_IS_HELD) else 2
        held_now = held[4:] + await take(subscription, room)
        async with mq.subscribe("orders", prefetch=100) as other:
            others = await take(other, 5 - room)
            for message in others:
                await message.ack_confirmed()
        assert payloads_of(held_now + others) == numbered(6, start=4)
        assert subscription.held == 0
        for message in held_now:
            await message.ack_confirmed()

        # All is settled: now it is exact everywhere.
        await put_all(mq, "orders", numbered(4, start=10))
        async with mq.subscribe("orders", prefetch=100) as other:
            two = await take(subscription, 2)
            rest = await take(other, 2)
            assert sorted(map(int, payloads_of(two + rest))) == [10, 11, 12, 13]
            for message in two + rest:
                await message.ack_confirmed()
    assert await taken_until_last(mq, "orders") == []


async def test_a_prefetch_that_goes_up_and_down_loses_and_repeats_nothing(mq: Any) -> None:
    await mq.create_queue("orders")
    payloads = numbered(400)
    seen: list[bytes] = []
    flagged = 0

    def went_on_from(count: int) -> Callable[[], bool]:
        return lambda: len(seen) > count or len(seen) == len(payloads)

    async def turn(subscription: Any) -> None:
        for prefetch in [1, 7, 2, 30, 1, 3, 100, 5, 1, 50] * 2:
            await subscription.set_prefetch(prefetch)
            await eventually_async(went_on_from(len(seen)))

    async with mq.subscribe("orders", prefetch=10) as subscription:
        putting = asyncio.create_task(put_all(mq, "orders", payloads))
        turning = asyncio.create_task(turn(subscription))
        async for message in subscription:
            seen.append(message.payload)
            flagged += message.redelivered
            message.ack()
            if len(seen) == len(payloads):
                break
        await asyncio.gather(putting, turning)

    assert (seen, flagged) == (payloads, 0)
    assert await taken_until_last(mq, "orders") == []


async def test_a_prefetch_that_is_no_count_is_refused(mq: Any) -> None:
    await mq.create_queue("orders")

    async with mq.subscribe("orders", prefetch=3) as subscription:
        for prefetch in (0, -1, 1.5, "3"):
            with pytest.raises(tidegate.InvalidValue, match="prefetch"):
                mq.subscribe("orders", prefetch=prefetch)
            with pytest.raises(tidegate.InvalidValue, match="prefetch"):
                await subscription.set_prefetch(prefetch)
            assert subscription.prefetch == 3


async def test_automatic_acknowledgement_ends_a_message_on_delivery(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(30))

    async with mq.subscribe("orders", ack="automatic") as subscription:
        assert payloads_of(await take(subscription, 30)) == numbered(30)

    assert await taken_until_last(mq, "orders") == []


async def test_unacknowledged_message_returns_flagged(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(5))

    async with mq.subscribe("orders") as subscription:
        held = await take(subscription, 5)
        await held[1].ack_confirmed()
        await held[3].ack_confirmed()

    again = await taken_until_last(mq, "orders")
    assert payloads_of(again) == [b"0", b"2", b"4"]
    assert all(message.redelivered for message in again)


async def test_a_consumers_death_gives_its_messages_to_others(engine: Engine, mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(4))

    async with contextlib.AsyncExitStack() as survivors:
        async with dying_consumer(engine, "orders", prefetch=3) as dying:
            held = await take(dying, 3)
            survivor = await survivors.enter_async_context(mq.subscribe("orders"))
            assert payloads_of(await take(survivor, 1)) == [b"3"]
            await held[0].ack_confirmed()
        inherited = await take(survivor, 2)

        assert payloads_of(inherited) == [b"1", b"2"]
        assert all(message.redelivered for message in inherited)
        counts = {message.delivery_count for message in inherited}
        assert counts == {2}, "flagged, it was delivered at least once before"


async def test_several_consumers_share_a_queue_and_none_gets_anothers(
    engine: Engine, mq: Any
) -> None:
    await mq.create_queue("orders")
    seen: list[list[bytes]] = [[], [], []]
    all_at_work = asyncio.Event()

    async def consume(number: int, subscription: Any) -> None:
        async for message in subscription:
            assert not message.redelivered
            seen[number].append(message.payload)
            # A consumer that is quick leaves something to those that are slow.
            if all(seen):
                all_at_work.set()
            await all_at_work.wait()
            await message.ack_confirmed()

    async with (
        engine.connect() as second,
        mq.subscribe("orders", prefetch=2) as one,
        mq.subscribe("orders", prefetch=2) as two,
        second.subscribe("orders", prefetch=2) as three,
    ):
        tasks = [asyncio.create_task(consume(*each)) for each in enumerate([one, two, three])]
        await asyncio.gather(*(mq.put("orders", payload) for payload in numbered(120)))
        await eventually_async(lambda: sum(map(len, seen)) == 120)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert sorted(chain(*seen)) == sorted(numbered(120))


async def test_tasks_may_share_a_subscription(mq: Any) -> None:
    await mq.create_queue("orders")
    seen: list[bytes] = []

    async def consume(subscription: Any) -> None:
        async for message in subscription:
            seen.append(message.payload)
            await message.ack_confirmed()

    async with mq.subscribe("orders", prefetch=10) as subscription:
        tasks = [asyncio.create_task(consume(subscription)) for _ in range(4)]
        await put_all(mq, "orders", numbered(60))
        await eventually_async(lambda: len(seen) == 60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert sorted(seen) == sorted(numbered(60))


async def test_draining_gives_back_what_was_not_begun_and_keeps_what_was(mq: Any) -> None:
    await mq.create_queue("orders")
    await put_all(mq, "orders", numbered(6))

    async with mq.subscribe("orders", prefetch=6) as subscription:
        begun = await take(subscription, 2)
        await eventually_async(lambda: subscription.held == 4)
        await subscription.drain()
        assert subscription.held == 0
        async with mq.subscribe("orders") as other:
            rest = await take(other, 4)
            assert payloads_of(rest) == numbered(4, start=2)
            assert all(message.redelivered for message in rest)
            for message in rest:
                await message.ack_confirmed()
        for message in begun:
            await message.ack_confirmed()

    assert await taken_until_last(mq, "orders") == []


async def test_released_message_goes_to_another_consumer_at_once(engine: Engine, mq: Any) -> None:
    policy = tidegate.QueuePolicy(deliveries_max=1, retry_first_s=1000.0)
    await mq.create_queue("orders", policy=policy)
    await mq.put("orders", b"x", headers={"a": "b"})

    async with mq.subscribe("orders", prefetch=1) as subscription:
        (message,) = await take(subscription, 1)
        async with mq.subscribe("orders") as other:
            await subscription.drain()
            await message.release()
            (again,) = await take(other, 1)
            assert (again.payload, again.headers) == (b"x", {"a": "b"})
            assert again.redelivered
            await again.ack_confirmed()


async def test_settled_message_stays_settled(mq: Any) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x")

    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)
        await message.ack_confirmed()
        # Whether it is told or not: it stays done, and the subscription lives.
        with contextlib.suppress(tidegate.TidegateError):
            await message.nack(delay=0.0)
        with contextlib.suppress(tidegate.TidegateError):
            await message.ack_confirmed()
        message.ack()
        await mq.put("orders", b"y")
        assert payloads_of(await take(subscription, 1)) == [b"y"]


async def test_an_acknowledgement_after_the_end_is_refused_and_harms_nothing(mq: Any) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"x")

    async with mq.subscribe("orders") as subscription:
        (message,) = await take(subscription, 1)

    with pytest.raises(tidegate.LeaseLost):
        await message.ack_confirmed()
    message.ack()
    again = await taken_until_last(mq, "orders")
    assert payloads_of(again) == [b"x"]
    assert again[0].redelivered
