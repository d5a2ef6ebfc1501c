"""Delayed messages, retries and dead letters, which RabbitMQ does not have by itself.

Delay queues. A delayed message goes to a queue `<queue>.delay.<ms>.<day>` without consumers, whose
time to live is the delay. RabbitMQ dead-letters expired messages back to the original queue.

- There is one queue per delay, because RabbitMQ expires messages at the head only. Delays are
  rounded up to two significant digits, to bound their number.
- RabbitMQ deletes a delay queue, with its messages, a fixed time after its declaration. A quorum
  queue without consumers counts as unused even if messages arrive, and another declaration does not
  renew it. So each day has its own queue, which outlives every message that can be sent to it.
- Since RabbitMQ 3.10 delay queues are quorum queues, which dead-letter with a confirm. Classic
  queues do not.
- A broker that is killed forgets quorum queues of the last half second, with their confirmed
  messages. So a message is acknowledged only when its delay queue is older than 0.75 seconds.

A message that failed is published elsewhere with a confirm first, and acknowledged then. So it may
arrive twice, and is never lost.
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

# How long a delay queue receives messages.
_DAY_MS = 86_400_000
# How much longer than its last message a delay queue lives at least: for a target queue that
# refuses messages for hours, and for clocks that differ.
_KEPT_MS = 86_400_000
# Age from which a killed broker remembers a quorum queue.
_REMEMBERED_S = 0.75
_JITTER_STEPS = 4
_QUORUM_DELAYS_SINCE = (3, 10)


class Failed(Protocol):
    """A message that is to be returned."""

    payload: bytes
    queue: str
    properties: p.Properties

    @property
    def message_id(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...


class Retries:
    """Returns failed messages of one client: later, or to the dead letters."""

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
        # Delay queues by name: the time of their first use by this client.
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
        # Create it each time, since it may have been deleted; dead letters are rare.
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
                # Neither a rejection nor an expiry is a failure of a worker.
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
        """Return since when the delay queue exists, as far as this client knows."""
        if name not in self._in_use:
            # Remove the queues of other days.
            day = f".{name.rpartition('.')[2]}"
            self._in_use = {one: at for one, at in self._in_use.items() if one.endswith(day)}
            self._in_use[name] = time.monotonic()
        return self._in_use[name]


def _backoff_s(policy: QueuePolicy, failed: int) -> float:
    """Return the backoff of the policy, with few steps of jitter: each delay needs a queue."""
    longest_s = retry_wait_s(structs.replace(policy, retry_jitter=0.0), failed)
    return longest_s * (1 - policy.retry_jitter * random.randrange(_JITTER_STEPS) / _JITTER_STEPS)


def rounded_up_ms(delay_s: float) -> int:
    """Round a delay up to milliseconds with two significant digits."""
    if delay_s <= 0.0:
        return 0
    # Ignore floating-point rounding errors, which would cause the next step.
    delay_ms = max(math.ceil(delay_s * 1e3 - 1e-6), 1)
    step: int = 10 ** max(len(str(delay_ms)) - 2, 0)
    return -(-delay_ms // step) * step


def delay_queue_name(queue: str, delay_ms: int, now: float) -> str:
    return f"{queue}.delay.{delay_ms}.{int(now * 1e3) // _DAY_MS}"


def delay_queue_lifetime_ms(delay_ms: int) -> int:
    """Return after how many milliseconds RabbitMQ deletes a delay queue."""
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
