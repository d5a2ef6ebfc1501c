"""What waits on a node waits as long as it was told, exactly: in virtual time.

`tests/integration/engines` shows on every engine that nothing comes too early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import tidegate
from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy
from tidegate.testing.broker import Broker
from tidegate.testing.virtual_time import run

AT_ONCE = QueuePolicy(retry_first_s=0.0, retry_jitter=0.0)
# Messages are gathered on their way for some milliseconds at most.
NEAR_S = 0.02


def now() -> float:
    return asyncio.get_running_loop().time()


def in_virtual_time(test: Callable[[Broker, Client], Coroutine[Any, Any, None]]) -> None:
    async def work() -> None:
        async with Broker() as broker:
            await test(broker, await broker.connect())

    run(work())


def test_a_failed_message_comes_again_after_the_delay_and_holds_up_nobody() -> None:
    async def test(broker: Broker, mq: Client) -> None:
        await mq.create_queue("orders", policy=AT_ONCE)
        await mq.put_many("orders", [b"fails", b"goes"])
        async with mq.subscribe("orders", prefetch=1) as subscription:
            messages = aiter(subscription)
            fails = await anext(messages)
            began_at = now()
            await fails.nack(delay=0.3, error="the bank is closed")
            goes = await anext(messages)
            assert goes.payload == b"goes"
            assert now() - began_at == pytest.approx(0.0, abs=NEAR_S)
            await goes.ack_confirmed()
            again = await anext(messages)
            assert again.payload == b"fails"
            assert now() - began_at == pytest.approx(0.3, abs=NEAR_S)

    in_virtual_time(test)


def test_a_delayed_put_comes_when_it_is_due() -> None:
    async def test(broker: Broker, mq: Client) -> None:
        await mq.create_queue("orders")
        began_at = now()
        await mq.put("orders", b"later", delay=0.4)
        await mq.put("orders", b"soon", deliver_at=broker.time() + 0.2)
        await mq.put("orders", b"now")
        due = {}
        async with mq.subscribe("orders") as subscription:
            messages = aiter(subscription)
            for _ in range(3):
                message = await anext(messages)
                due[message.payload] = now() - began_at
                await message.ack_confirmed()
        wanted = {b"now": 0.0, b"soon": 0.2, b"later": 0.4}
        assert due == pytest.approx(wanted, abs=NEAR_S)
        assert list(due) == list(wanted)

    in_virtual_time(test)


def test_a_handler_says_when_to_retry() -> None:
    calls: list[float] = []

    async def test(broker: Broker, mq: Client) -> None:
        app = tidegate.App(broker.url)

        @app.worker("orders", policy=QueuePolicy(retry_first_s=1000.0))
        async def later(payload: bytes) -> None:
            calls.append(now())
            if len(calls) == 1:
                raise tidegate.Retry("the bank is closed", after=0.3)

        async with broker.running(app):
            await mq.put("orders", b"x")
            await broker.advance(1.0)
        first, second = calls
        assert second - first == pytest.approx(0.3, abs=NEAR_S)

    in_virtual_time(test)
