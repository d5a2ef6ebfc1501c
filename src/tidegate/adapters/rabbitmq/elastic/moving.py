"""Transfer of waiting messages between two queues of a broker.

    basic.get → basic.publish to the target, mandatory → its confirm → basic.ack

A message that the target refuses is requeued at once. If the process is killed in between, a
message is in both queues, and never in neither.

The copy carries the header `x-tidegate-resent` from the start, because the original may be
delivered first. Tidegate consumers report a message with this header as redelivered. All other
properties stay, except two that the broker would act on again: the list of further queues (CC) and
the claimed publisher (user_id).
"""

from __future__ import annotations

import asyncio
import time

from aiormq import spec
from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.adapters.rabbitmq.elastic.refusal import told
from tidegate.adapters.rabbitmq.properties import resent
from tidegate.core.crash import crash_point

# Messages under way at a time.
_ABREAST = 100
_ANSWER_S = 10.0


async def move(
    channel: AbstractChannel, source: str, target: str, count: int, within_s: float
) -> int:
    """Move at most `count` messages within about `within_s` seconds; return how many were moved."""
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
