"""Several tasks take from one subscription, and nothing falls between them."""

from __future__ import annotations

import asyncio

import pytest
from waiting import LIMIT_S

from tidegate.client.client import Client
from tidegate.core.runtime import cancel_and_wait

pytestmark = pytest.mark.parametrize("backing", ["memory"], indirect=True)

COUNT = 400


async def test_tasks_that_finish_a_batch_together_lose_none_of_the_next(mq: Client) -> None:
    await mq.create_queue("jobs", durable=False)
    taken: list[bytes] = []
    everything = asyncio.Event()

    async def work() -> None:
        async for message in subscription:
            taken.append(message.payload)
            await asyncio.sleep(0)
            message.ack()
            if len(taken) == COUNT:
                everything.set()

    async with mq.subscribe("jobs", prefetch=COUNT) as subscription:
        # Many small batches lie there before anybody looks.
        for number in range(COUNT):
            await mq.put("jobs", b"%d" % number)
        tasks = [asyncio.create_task(work()) for _ in range(4)]
        async with asyncio.timeout(LIMIT_S):
            await everything.wait()
        await cancel_and_wait(tasks)
    assert sorted(map(int, taken)) == list(range(COUNT))
