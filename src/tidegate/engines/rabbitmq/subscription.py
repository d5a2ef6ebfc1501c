"""A subscription on RabbitMQ: messages arrive on a channel of its own.

Theory of operation.

A `RabbitmqSubscription` uses one `RabbitmqConsumer` at a time: one channel with one AMQP consumer,
or with one for each replica of an elastic queue.

Two tasks run while it is open:

- `_stay_subscribed` waits for the end of the channel (the broker restarted, the queue moved, a
  message was held too long). It then makes another `RabbitmqConsumer`, with growing pauses while
  there is no connection. The channel's unsettled messages have returned to their queues; buffered
  ones are dropped.
- `_follow` adjusts the sources when the topology of an elastic queue changes.

The application iterates and notices no interruption, except that `interruptions` grows and messages
may come again. The iteration ends with an error only if the failure is permanent: no such queue, or
no permission.

`drain` cancels the consumers and returns the buffered messages. Messages that the application holds
stay its own.

`ack="automatic"` acknowledges each message as the application takes it. RabbitMQ's own automatic
mode has no prefetch, so the whole queue would arrive at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

from aiormq.abc import AbstractChannel, DeliveredMessage
from msgspec import structs

from tidegate.broker.settling import retry_wait_s
from tidegate.client.message import check_count
from tidegate.core.errors import (
    InvalidValue,
    QueueNotExisting,
    RetryLater,
    TidegateError,
    TooLarge,
    Unavailable,
)
from tidegate.core.model import DeathReason, QueuePolicy
from tidegate.engines.rabbitmq import message as p
from tidegate.engines.rabbitmq.connection import ReconnectPolicy
from tidegate.engines.rabbitmq.consumer import RabbitmqConsumer
from tidegate.engines.rabbitmq.message import RabbitmqBatch, RabbitmqMessage, is_expired
from tidegate.engines.rabbitmq.topology import sources_of

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.client import RabbitmqClient
    from tidegate.engines.rabbitmq.publisher import AdminChannel, RabbitmqPublisher
    from tidegate.engines.rabbitmq.queues import RabbitmqQueues
    from tidegate.engines.rabbitmq.topology import ReplicaSource


log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0


class RabbitmqSubscription:
    """A subscription: use it with `async with`, then iterate."""

    def __init__(
        self,
        client: RabbitmqClient,
        queue: str,
        prefetch: int,
        *,
        automatic: bool,
        bound: int | None = None,
    ) -> None:
        self._client = client
        self.queue = queue
        self.prefetch = prefetch
        self.automatic = automatic
        # The only replica to consume from; None means all of them.
        self._bound = bound
        self._topology_changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] | None = None
        # Messages received since it began.
        self.delivered = 0
        # How often its channel has ended.
        self.interruptions = 0
        self._consumer: RabbitmqConsumer | None = None
        self._arrived: deque[RabbitmqMessage] = deque()
        self._news = asyncio.Event()
        self._failure: TidegateError | None = None
        self._open = False
        self._drained = False
        self._keeping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # Lifetime

    async def __aenter__(self) -> Self:
        self._deaf = self._client.news.on_news(self.queue, self._topology_changed.set)
        try:
            self._consumer = await self._first_consumer()
        except BaseException:
            self._deaf()
            raise
        self._open = True
        self._following = self._client.spawn(self._follow())
        self._keeping = self._client.spawn(self._stay_subscribed(self._consumer))
        return self

    async def __aexit__(self, *_: object) -> None:
        # Complete the close even if cancelled: a remaining consumer would keep messages from
        # others.
        self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._open = False
        self._news.set()  # wakes tasks that still iterate
        if self._deaf is not None:
            self._deaf()
        tasks = {task for task in (self._keeping, self._following) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._consumer is not None:
            await self._consumer.end()
        self._forget_lost()

    async def _first_consumer(self) -> RabbitmqConsumer:
        """Make the first consumer, and retry while the connection is lost.

        RabbitMQ closes the connection of a consumer that comes while it creates a quorum queue.
        """
        patience = ReconnectPolicy(self._client.connection)
        while True:
            # Raises at once if the client is closed.
            await self._client.connection.connected()
            try:
                return await self._new_consumer()
            except Unavailable as lost:
                await patience.wait(lost)

    async def _new_consumer(self) -> RabbitmqConsumer:
        topology = await self._client.news.topology(self.queue)
        is_classic = await self._client.queues.is_classic(self.queue)
        if topology is not None:
            is_classic = is_classic and topology.is_classic
        channel = await self._client.connection.channel()
        consumer = RabbitmqConsumer(
            channel,
            self.queue,
            is_classic=is_classic,
            prefetch=self.prefetch,
            on_arrived=self._receive,
        )
        try:
            await consumer.begin(await self._sources())
            # The prefetch may have changed meanwhile.
            await consumer.set_prefetch(self.prefetch)
        except BaseException:
            # The queue may have another type or other replicas by now.
            self._client.queues.remove(self.queue)
            self._client.news.invalidate(self.queue)
            await consumer.end()
            raise
        return consumer

    async def _sources(self) -> list[ReplicaSource]:
        """Return the existing sources; a replica may be gone since the last topology."""
        topology = await self._client.news.topology(self.queue)
        found = []
        for source in sources_of(topology, self.queue, self._bound):
            try:
                if source.holders is not None:
                    await self._client.queues.inspect(source.name)
                    await self._client.queues.inspect(source.holders)
            except QueueNotExisting:
                continue
            found.append(source)
        return found

    async def _follow(self) -> None:
        """Consume from the replicas of the newest topology, whenever it changes."""
        while True:
            await self._topology_changed.wait()
            self._topology_changed.clear()
            consumer = self._consumer
            if consumer is None or consumer.lost or self._drained:
                continue
            try:
                await consumer.follow(await self._sources())
            except TidegateError as failure:
                # Either the channel is lost, and the next consumer reads the topology, or it is
                # tried again.
                log.info("%s: its replicas are looked for again: %s", self.queue, failure)
                self._client.news.invalidate(self.queue)
                if not consumer.lost:
                    await asyncio.sleep(_BACKOFF_MAX_S)
                    self._topology_changed.set()

    async def _stay_subscribed(self, consumer: RabbitmqConsumer) -> None:
        """Make another consumer whenever the channel has ended."""
        while True:
            reason = await consumer.wait_closed()
            self.interruptions += 1
            self._forget_lost()
            log.info(
                "a subscription was interrupted",
                extra={"queue": self.queue, "reason": str(reason)},
            )
            backoff_s = _BACKOFF_FIRST_S
            while consumer.lost:
                if self._drained:
                    return
                try:
                    consumer = self._consumer = await self._new_consumer()
                    # Changes of the topology meanwhile were applied to the lost consumer.
                    self._topology_changed.set()
                except RetryLater:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                except TidegateError as failure:
                    self._failure = failure
                    self._news.set()
                    return
            if self._drained:
                await consumer.end()

    def _forget_lost(self) -> None:
        """Drop buffered messages that have returned to their queue."""
        self._arrived = deque(message for message in self._arrived if not message.is_lost)

    # Messages

    def _receive(self, consumer: RabbitmqConsumer, delivered: DeliveredMessage) -> None:
        message = RabbitmqMessage(delivered, self.queue, consumer, self._client.retries)
        if is_expired(message.properties):
            self._client.spawn(_dropped(message))
            return
        self.delivered += 1
        self._arrived.append(message)
        self._news.set()

    @property
    def held(self) -> int:
        """Number of buffered messages that the application has not taken."""
        return len(self._arrived)

    async def waiting(self) -> int | None:
        """Return the number of ready messages in the queue; None means unknown."""
        return await self._client.waiting(self.queue)

    @property
    def is_live(self) -> bool:
        """Whether messages can arrive now."""
        return self._consumer is not None and not self._consumer.lost

    @property
    def is_prefetch_costly(self) -> bool:
        """Whether a change of the prefetch replaces the consumer, as on quorum queues."""
        return self._consumer is not None and not self._consumer.is_classic

    async def __aiter__(self) -> AsyncIterator[RabbitmqMessage]:
        """Yield messages.

        Several tasks may share the subscription, and each may iterate again after a break.
        """
        while True:
            while self._arrived:
                message = self._arrived.popleft()
                if message.is_lost:
                    continue
                if self.automatic:
                    message.ack()
                yield message
            await self._wait_for_news()

    async def batches(self) -> AsyncIterator[RabbitmqBatch]:
        """Yield batches; on RabbitMQ each has one message."""
        async for message in self:
            yield RabbitmqBatch(message)

    async def _wait_for_news(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._open:
            raise InvalidValue("the subscription is not open: use `async with mq.subscribe(...)`")
        self._news.clear()
        await self._news.wait()

    # Control

    async def set_prefetch(self, prefetch: int) -> None:
        """Set the maximum of unacknowledged messages, live."""
        check_count("prefetch", prefetch)
        self.prefetch = prefetch
        consumer = self._consumer
        if consumer is not None and not consumer.lost:
            # Without a connection, the next consumer begins with it.
            with contextlib.suppress(RetryLater):
                await consumer.set_prefetch(prefetch)

    async def drain(self) -> None:
        """Stop receiving: return the buffered messages, and keep those already taken."""
        self._drained = True
        consumer = self._consumer
        if consumer is None or consumer.lost:
            return
        # If it fails, the channel is lost, and all messages have returned to the queue.
        with contextlib.suppress(TidegateError):
            await consumer.stop()
            unbegun, self._arrived = self._arrived, deque()
            await asyncio.gather(*(message.release() for message in unbegun))


async def _dropped(message: RabbitmqMessage) -> None:
    # If it fails, the message comes again and expires then.
    with contextlib.suppress(TidegateError):
        await message.expire()


# Delayed messages, retries and dead letters, which RabbitMQ does not have by itself.
#
# Delay queues. A delayed message goes to a queue `<queue>.delay.<ms>.<day>` without consumers,
# whose time to live is the delay. RabbitMQ dead-letters expired messages back to the original
# queue.
#
# - There is one queue per delay, because RabbitMQ expires messages at the head only. Delays are
#   rounded up to two significant digits, to bound their number.
# - RabbitMQ deletes a delay queue, with its messages, a fixed time after its declaration. A quorum
#   queue without consumers counts as unused even if messages arrive, and another declaration does
#   not
#   renew it. So each day has its own queue, which outlives every message that can be sent to it.
# - Since RabbitMQ 3.10 delay queues are quorum queues, which dead-letter with a confirm. Classic
#   queues do not.
# - A broker that is killed forgets quorum queues of the last half second, with their confirmed
#   messages. So a message is acknowledged only when its delay queue is older than 0.75 seconds.
#
# A message that failed is published elsewhere with a confirm first, and acknowledged then. So it
# may arrive twice, and is never lost.


# How long a delay queue receives messages.
_DAY_MS = 86_400_000
# How much longer than its last message a delay queue lives at least: for a target queue that
# refuses messages for hours, and for clocks that differ.
_KEPT_MS = 86_400_000
# Age from which a killed broker remembers a quorum queue.
_REMEMBERED_S = 0.75
_JITTER_STEPS = 4
_QUORUM_DELAYS_SINCE = (3, 10)


class FailedMessage(Protocol):
    """A message that is to be returned."""

    payload: bytes
    queue: str
    properties: p.Properties

    @property
    def message_id(self) -> int: ...
    @property
    def delivery_count(self) -> int: ...


class RetryQueues:
    """Returns failed messages of one client: later, or to the dead letters."""

    def __init__(
        self,
        publisher: RabbitmqPublisher,
        admin: AdminChannel,
        queues: RabbitmqQueues,
        policy_of: Callable[[str], QueuePolicy],
    ) -> None:
        self._publisher = publisher
        self._admin = admin
        self._queues = queues
        self._policy_of = policy_of
        # Delay queues by name: the time of their first use by this client.
        self._in_use: dict[str, float] = {}

    async def again(self, message: FailedMessage, delay_s: float | None, error: str | None) -> None:
        policy = self._policy_of(message.queue)
        count = message.delivery_count
        if policy.deliveries_max and count >= policy.deliveries_max:
            await self.bury(message, DeathReason.DELIVERIES, error)
            return
        if delay_s is None:
            delay_s = _backoff_s(policy, count)
        failures = p.failures_with(message.properties, "nack", error)
        changes = {p.DELIVERIES: count, p.ERROR: error, p.FAILURES: failures}
        properties = p.republished(message.properties, message.message_id, changes)
        try:
            await self.publish_later(message.payload, properties, message.queue, delay_s)
        except TooLarge:
            smaller = p.without_failures(properties)
            await self.publish_later(message.payload, smaller, message.queue, delay_s)

    async def unbegun(self, message: FailedMessage) -> None:
        count = message.delivery_count - 1
        changes = {p.DELIVERIES: count or None, p.RELEASED: True}
        properties = p.republished(message.properties, message.message_id, changes)
        await self._publisher.publish(message.payload, properties, message.queue)

    async def bury(self, message: FailedMessage, reason: DeathReason, error: str | None) -> None:
        dead_letters = self._policy_of(message.queue).dead_letter_queue(message.queue)
        if dead_letters is None:
            return
        # Create it each time, since it may have been deleted; dead letters are rare.
        await self._queues.create(dead_letters, exist_ok=True)
        properties = p.republished(
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
            smaller = p.without_failures(properties)
            await self._publisher.publish(message.payload, smaller, dead_letters)

    async def expire(self, message: FailedMessage) -> None:
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
        await self._admin.run(f"queue {name!r}", _delaying(name, queue, delay_ms))
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
