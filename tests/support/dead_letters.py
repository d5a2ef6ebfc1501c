"""A message that dies, for whoever looks at it."""

from __future__ import annotations

from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy


async def dead_letter(mq: Client, queue: str, error: str) -> None:
    """In `queue`.dead when this returns."""
    await mq.create_queue(queue, policy=QueuePolicy(deliveries_max=1))
    await mq.create_queue(f"{queue}.dead")
    await mq.put(queue, b"bad")
    async with mq.subscribe(queue) as messages, mq.subscribe(f"{queue}.dead") as dead:
        await (await anext(aiter(messages))).nack(error=error)
        # Seen, and given back.
        await anext(aiter(dead))
