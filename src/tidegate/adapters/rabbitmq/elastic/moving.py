"""Waiting messages from one queue of a broker to another: published, confirmed, then acknowledged.

    basic.get → basic.publish to the other, mandatory → its confirm → basic.ack

What the other refuses goes back at once: nothing stays in our hands. Killed in between, a message
is in both, never in none. The copy says from the beginning that it may not be the first (header
`x-tidegate-resent`), for the one that stayed may be delivered first; our consumers show it as
redelivered. All else of a message is as it was, but for what the broker would act on again: copies
to other queues (CC), and who is said to have published it (user_id).
"""

from __future__ import annotations

import asyncio
import time

from aiormq import spec
from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.adapters.rabbitmq.elastic.refusal import told
from tidegate.adapters.rabbitmq.properties import resent
from tidegate.core.crash import crash_point

# So many are on their way at once.
_ABREAST = 100
_ANSWER_S = 10.0


async def move(
    channel: AbstractChannel, source: str, target: str, count: int, within_s: float
) -> int:
    """At most so many, for at most so long; how many went over."""
    deadline = time.monotonic() + within_s
    moved = 0
    while moved < count and time.monotonic() < deadline:
        taken = await _taken(channel, source, min(count - moved, _ABREAST))
        if not taken:
            break
        failures = await asyncio.gather(
            *(_publish(channel, message, target) for message in taken), return_exceptions=True
        )
        crash_point("before-move")
        with told(f"queue {target!r}"):
            for message, failure in zip(taken, failures, strict=True):
                tag = message.delivery_tag or 0
                if failure is None:
                    await channel.basic_ack(tag)
                    moved += 1
                elif not channel.is_closed:
                    await channel.basic_nack(tag, requeue=True)
            for failure in failures:
                if failure is not None:
                    raise failure
    return moved


async def _taken(channel: AbstractChannel, source: str, count: int) -> list[DeliveredMessage]:
    with told(f"queue {source!r}"):
        found = await asyncio.gather(
            *(channel.basic_get(source, timeout=_ANSWER_S) for _ in range(count))
        )
    return [one for one in found if isinstance(one.delivery, spec.Basic.GetOk)]


async def _publish(channel: AbstractChannel, message: DeliveredMessage, target: str) -> None:
    properties = message.header.properties
    headers = properties.headers or {}
    properties.headers = {name: value for name, value in headers.items() if name != "CC"}
    properties.user_id = None
    await channel.basic_publish(
        message.body,
        routing_key=target,
        properties=resent(properties),
        mandatory=True,
        timeout=_ANSWER_S,
    )
