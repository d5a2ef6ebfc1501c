"""What becomes of a message that is on its way to a `get` whose caller was cancelled."""

from __future__ import annotations

import asyncio

import pytest
from virtual_nodes import cable, in_virtual_time, virtual_node
from waiting import eventually_async

from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy


@in_virtual_time
async def test_cancelled_get_counts_no_failed_delivery_when_the_message_is_on_its_way() -> None:
    async with virtual_node() as there:
        mq = await there.connect(name="near")
        queue = await mq.create_queue("orders", policy=QueuePolicy(deliveries_max=1))
        readers = there.node.replicas[queue.queue_id].dispatch.readers
        async with cable(there.node.address, 1.0) as slow, Client(slow.url, name="far") as far:
            reading = asyncio.create_task(far.get("orders", wait=60.0))
            await eventually_async(lambda: readers.count == 1)
            await mq.put("orders", b"x")
            assert readers.count == 0, "the answer is on the cable"
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

            assert (await mq.get("orders", wait=60.0)).payload == b"x"
