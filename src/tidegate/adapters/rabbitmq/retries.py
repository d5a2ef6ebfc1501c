"""What becomes of a message that failed: again later, or to the dead letters.

RabbitMQ has no delays. A message that is to wait goes to a queue `<queue>.delay.<ms>.<day>` that
nobody consumes from; its time to live is the delay, and what has expired there is dead-lettered
back to the queue. There is one for each length of wait (two significant digits, rounded up),
because a queue expires its messages from the head only. It is deleted by RabbitMQ, with whatever it
holds, so long after it was made: a quorum queue in which nobody consumes counts as unused whatever
is sent there, and declaring it again renews nothing. So every day has its own, which outlives
whatever can be sent there.

Published with a confirm first, acknowledged then: a message may come twice, but not never. Quorum
queues also hand over what has expired with a confirm, which classic ones do not: delay queues are
quorum queues wherever the broker has them so (3.10).

A broker that is killed forgets quorum queues that it made in the last half second, with what was
confirmed in them. A message is not acknowledged before its delay queue is older than that.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from aiormq.abc import AbstractChannel
from msgspec import structs

from tidegate.adapters.rabbitmq import properties as p
from tidegate.core.errors import TooLarge
from tidegate.core.model import DeathReason, QueuePolicy
from tidegate.node.retries import retry_wait_s

if TYPE_CHECKING:
    from tidegate.adapters.rabbitmq.publisher import Errands, Publisher
    from tidegate.adapters.rabbitmq.queues import Queues

# For how long a delay queue is used.
_DAY_MS = 86_400_000
# How long after the last message has left, at least, it is kept: for a queue that takes nothing
# back for hours, and for clocks that disagree.
_KEPT_MS = 86_400_000
# How old a quorum queue is when a broker that is killed remembers it.
_REMEMBERED_S = 0.75
_JITTER_STEPS = 4
_QUORUM_DELAYS_SINCE = (3, 10)


class Failed(Protocol):
    """The message that it is about."""

    payload: bytes
    queue: str
    properties: p.Properties

    @property
    def message_id(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...


class Retries:
    """One client's way of giving messages back."""

    def __init__(
        self,
        publisher: Publisher,
        errands: Errands,
        queues: Queues,
        policy_of: Callable[[str], QueuePolicy],
    ) -> None:
        self._publisher = publisher
        self._errands = errands
        self._queues = queues
        self._policy_of = policy_of
        # Delay queues by name: since when we have been using them.
        self._in_use: dict[str, float] = {}

    async def again(self, message: Failed, delay_s: float | None, error: str | None) -> None:
        policy = self._policy_of(message.queue)
        count = message.delivery_count
        if policy.deliveries_max and count >= policy.deliveries_max:
            await self.bury(message, DeathReason.DELIVERIES, error)
            return
        if delay_s is None:
            delay_s = _backoff_s(policy, count)
        failures = p.failures_with(message.properties, "nack", error)
        changes = {p.DELIVERIES: count, p.ERROR: error, p.FAILURES: failures}
        properties = p.again(message.properties, message.message_id, changes)
        try:
            await self.publish_later(message.payload, properties, message.queue, delay_s)
        except TooLarge:
            smaller = p.smaller(properties)
            await self.publish_later(message.payload, smaller, message.queue, delay_s)

    async def unbegun(self, message: Failed) -> None:
        count = message.delivery_count - 1
        changes = {p.DELIVERIES: count or None, p.RELEASED: True}
        properties = p.again(message.properties, message.message_id, changes)
        await self._publisher.publish(message.payload, properties, message.queue)

    async def bury(self, message: Failed, reason: DeathReason, error: str | None) -> None:
        dead_letters = self._policy_of(message.queue).dead_letter_queue(message.queue)
        if dead_letters is None:
            return
        # Each time, for somebody may have deleted it; it happens seldom.
        await self._queues.create(dead_letters, exist_ok=True)
        properties = p.again(
            message.properties,
            message.message_id,
            {
                p.DELIVERIES: message.delivery_count,
                p.ERROR: error,
                p.REASON: str(reason),
                p.DIED_IN: message.queue,
                p.DIED_AT: int(time.time() * 1e3),
                # A rejection is no failure, and an expiry none of a worker's.
                p.FAILURES: p.failures_with(message.properties, "nack", error)
                if reason is DeathReason.DELIVERIES
                else None,
            },
        )
        try:
            await self._publisher.publish(message.payload, properties, dead_letters)
        except TooLarge:
            smaller = p.smaller(properties)
            await self._publisher.publish(message.payload, smaller, dead_letters)

    async def expire(self, message: Failed) -> None:
        if self._policy_of(message.queue).keep_expired:
            await self.bury(message, DeathReason.EXPIRED, None)

    async def publish_later(
        self, payload: bytes, properties: p.Properties, queue: str, delay_s: float
    ) -> None:
        delay_ms = rounded_up_ms(delay_s)
        if not delay_ms:
            await self._publisher.publish(payload, properties, queue)
            return
        name = delay_queue_name(queue, delay_ms, time.time())
        await self._errands.run(f"queue {name!r}", _delaying(name, queue, delay_ms))
        since = self._used_since(name)
        await self._publisher.publish(payload, properties, name)
        await asyncio.sleep(max(since + _REMEMBERED_S - time.monotonic(), 0.0))

    def _used_since(self, name: str) -> float:
        """Since when the delay queue is there, for all that we know."""
        if name not in self._in_use:
            # Those of other days are over.
            day = f".{name.rpartition('.')[2]}"
            self._in_use = {one: at for one, at in self._in_use.items() if one.endswith(day)}
            self._in_use[name] = time.monotonic()
        return self._in_use[name]


def _backoff_s(policy: QueuePolicy, failed: int) -> float:
    """As nodes do, but of the jitter only a few steps: each is a queue."""
    longest_s = retry_wait_s(structs.replace(policy, retry_jitter=0.0), failed)
    return longest_s * (1 - policy.retry_jitter * random.randrange(_JITTER_STEPS) / _JITTER_STEPS)


def rounded_up_ms(delay_s: float) -> int:
    """Milliseconds of two significant digits, never less than asked for."""
    if delay_s <= 0.0:
        return 0
    # What is but a rounding error of a float is no reason for the next step.
    delay_ms = max(math.ceil(delay_s * 1e3 - 1e-6), 1)
    step: int = 10 ** max(len(str(delay_ms)) - 2, 0)
    return -(-delay_ms // step) * step


def delay_queue_name(queue: str, delay_ms: int, now: float) -> str:
    return f"{queue}.delay.{delay_ms}.{int(now * 1e3) // _DAY_MS}"


def delay_queue_lifetime_ms(delay_ms: int) -> int:
    """How long after it was made RabbitMQ deletes it."""
    return _DAY_MS + delay_ms + _KEPT_MS


def _delaying(name: str, queue: str, delay_ms: int) -> Callable[[AbstractChannel], Any]:
    async def declare(channel: AbstractChannel) -> None:
        arguments: dict[str, Any] = {
            "x-message-ttl": delay_ms,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
            "x-expires": delay_queue_lifetime_ms(delay_ms),
        }
        if _version(channel) >= _QUORUM_DELAYS_SINCE:
            arguments |= {
                "x-queue-type": "quorum",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            }
        await channel.queue_declare(name, durable=True, arguments=arguments)

    return declare


def _version(channel: AbstractChannel) -> tuple[int, ...]:
    version: Any = channel.connection.server_properties.get("version", "")
    text = version.decode() if isinstance(version, bytes) else str(version)
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
