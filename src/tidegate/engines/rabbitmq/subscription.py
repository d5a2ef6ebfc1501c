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
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Self

from aiormq.abc import DeliveredMessage

from tidegate.adapters.rabbitmq.elastic.sources import Source, sources_of
from tidegate.adapters.rabbitmq.leg import Leg
from tidegate.adapters.rabbitmq.lifeline import Patience
from tidegate.adapters.rabbitmq.message import RabbitmqBatch, RabbitmqMessage
from tidegate.adapters.rabbitmq.properties import is_expired
from tidegate.client.checks import check_count
from tidegate.core.errors import (
    InvalidValue,
    QueueNotExisting,
    RetryLater,
    TidegateError,
    Unavailable,
)

if TYPE_CHECKING:
    from tidegate.adapters.rabbitmq.client import RabbitmqClient

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
        self._leg: Leg | None = None
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
            self._leg = await self._first_leg()
        except BaseException:
            self._deaf()
            raise
        self._open = True
        self._following = self._client.spawn(self._follow())
        self._keeping = self._client.spawn(self._keep(self._leg))
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
        if self._leg is not None:
            await self._leg.end()
        self._forget_lost()

    async def _first_leg(self) -> Leg:
        """Make the first consumer, and retry while the connection is lost.

        RabbitMQ closes the connection of a consumer that comes while it creates a quorum queue.
        """
        patience = Patience(self._client.lifeline)
        while True:
            # Raises at once if the client is closed.
            await self._client.lifeline.connected()
            try:
                return await self._new_leg()
            except Unavailable as lost:
                await patience.wait(lost)

    async def _new_leg(self) -> Leg:
        topology = await self._client.news.topology(self.queue)
        is_classic = await self._client.queues.is_classic(self.queue)
        if topology is not None:
            is_classic = is_classic and topology.is_classic
        channel = await self._client.lifeline.channel()
        leg = Leg(
            channel,
            self.queue,
            is_classic=is_classic,
            prefetch=self.prefetch,
            on_arrived=self._take_in,
        )
        try:
            await leg.begin(await self._sources())
            # The prefetch may have changed meanwhile.
            await leg.set_prefetch(self.prefetch)
        except BaseException:
            # The queue may have another type or other replicas by now.
            self._client.queues.forget(self.queue)
            self._client.news.forget(self.queue)
            await leg.end()
            raise
        return leg

    async def _sources(self) -> list[Source]:
        """Return the existing sources; a replica may be gone since the last topology."""
        topology = await self._client.news.topology(self.queue)
        found = []
        for source in sources_of(topology, self.queue, self._bound):
            try:
                if source.holders is not None:
                    await self._client.queues.look(source.name)
                    await self._client.queues.look(source.holders)
            except QueueNotExisting:
                continue
            found.append(source)
        return found

    async def _follow(self) -> None:
        """Consume from the replicas of the newest topology, whenever it changes."""
        while True:
            await self._topology_changed.wait()
            self._topology_changed.clear()
            leg = self._leg
            if leg is None or leg.lost or self._drained:
                continue
            try:
                await leg.follow(await self._sources())
            except TidegateError as failure:
                # Either the channel is lost, and the next consumer reads the topology, or it is
                # tried again.
                log.info("%s: its replicas are looked for again: %s", self.queue, failure)
                self._client.news.forget(self.queue)
                if not leg.lost:
                    await asyncio.sleep(_BACKOFF_MAX_S)
                    self._topology_changed.set()

    async def _keep(self, leg: Leg) -> None:
        """Make another consumer whenever the channel has ended."""
        while True:
            reason = await leg.ended()
            self.interruptions += 1
            self._forget_lost()
            log.info(
                "a subscription was interrupted",
                extra={"queue": self.queue, "reason": str(reason)},
            )
            backoff_s = _BACKOFF_FIRST_S
            while leg.lost:
                if self._drained:
                    return
                try:
                    leg = self._leg = await self._new_leg()
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
                await leg.end()

    def _forget_lost(self) -> None:
        """Drop buffered messages that have returned to their queue."""
        self._arrived = deque(message for message in self._arrived if not message.is_lost)

    # Messages

    def _take_in(self, leg: Leg, delivered: DeliveredMessage) -> None:
        message = RabbitmqMessage(delivered, self.queue, leg, self._client.retries)
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
        return self._leg is not None and not self._leg.lost

    @property
    def is_prefetch_costly(self) -> bool:
        """Whether a change of the prefetch replaces the consumer, as on quorum queues."""
        return self._leg is not None and not self._leg.is_classic

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
        leg = self._leg
        if leg is not None and not leg.lost:
            # Without a connection, the next consumer begins with it.
            with contextlib.suppress(RetryLater):
                await leg.set_prefetch(prefetch)

    async def drain(self) -> None:
        """Stop receiving: return the buffered messages, and keep those already taken."""
        self._drained = True
        leg = self._leg
        if leg is None or leg.lost:
            return
        # If it fails, the channel is lost, and all messages have returned to the queue.
        with contextlib.suppress(TidegateError):
            await leg.stop()
            unbegun, self._arrived = self._arrived, deque()
            await asyncio.gather(*(message.release() for message in unbegun))


async def _dropped(message: RabbitmqMessage) -> None:
    # If it fails, the message comes again and expires then.
    with contextlib.suppress(TidegateError):
        await message.expire()
