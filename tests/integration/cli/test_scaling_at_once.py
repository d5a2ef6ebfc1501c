"""Several people change how a queue scales at the same time: what each has said holds."""

from __future__ import annotations

import asyncio

from tidegate.cli.scaling import change_scaling
from tidegate.client.client import Client
from tidegate.core.topology import Range


async def test_concurrent_scaling_changes_are_all_kept(mq: Client) -> None:
    await mq.create_queue("orders")
    await change_scaling(mq, "orders", {"min": 1, "max": 3})
    said = [{"max": 6}, {"max_load": 300}, {"inhibition": "2s"}, {"shares": {1: 1.0}}]

    # All of them read before any of them writes.
    await asyncio.gather(*(change_scaling(mq, "orders", one) for one in said))

    scaling = (await mq.topology("orders")).scaling
    assert (scaling.replicas, scaling.max_load) == (Range(1, 6), 300.0)
    assert (scaling.inhibition_s, scaling.shares) == (2.0, {1: 1.0})
