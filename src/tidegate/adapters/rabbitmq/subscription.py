"""A subscription on RabbitMQ: messages pushed on a channel of its own.

It stands on a leg, one consumer on one channel; of an elastic queue one for each replica, which it
follows as they come and go. When the channel ends (the broker was restarted,
the queue has moved, somebody held a message for too long), what it had delivered has gone back; a
task of the subscription stands on another one as soon as there is a connection. Whoever iterates
notices nothing. It ends when there is nothing to stand on: no queue, no permission.

`ack="automatic"` acknowledges a message as it is taken. RabbitMQ's own automatic mode knows no
prefetch: the whole queue would come at once.
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
    """Use with `async with`, then iterate."""

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
        # The only replica to consume from; None: all of them.
        self._bound = bound
        self._topology_changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] | None = None
        # Messages that have come to it since it began.
        self.delivered = 0
        # How often it has lost what it stood on.
        self.interruptions = 0
        self._leg: Leg | None = None
        self._arrived: deque[RabbitmqMessage] = deque()
        self._news = asyncio.Event()
        self._failure: TidegateError | None = None
        self._open = False
        self._drained = False
        self._keeping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    # Coming and going

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
        # To the end, even if cancelled meanwhile: a consumer that stays keeps messages from others.
        self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._open = False
        self._news.set()  # tasks that still iterate hear that it is over
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
        """A connection that is lost meanwhile comes back, as it does later.

        RabbitMQ itself has ended that of who came to a quorum queue which it was just making.
        """
        patience = Patience(self._client.lifeline)
        while True:
            # Of a client that was closed nothing comes back.
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
            # It may have been changed meanwhile.
            await leg.set_prefetch(self.prefetch)
        except BaseException:
            # Perhaps it is of another kind than it was, or has other replicas.
            self._client.queues.forget(self.queue)
            self._client.news.forget(self.queue)
            await leg.end()
            raise
        return leg

    async def _sources(self) -> list[Source]:
        """What there is to consume from: a replica may have gone since we heard of it."""
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
        """Be where the replicas are."""
        while True:
            await self._topology_changed.wait()
            self._topology_changed.clear()
            leg = self._leg
            if leg is None or leg.lost or self._drained:
                continue
            try:
                await leg.follow(await self._sources())
            except TidegateError as failure:
                # The channel is gone, and the next leg knows better; or it is tried again.
                log.info("%s: its replicas are looked for again: %s", self.queue, failure)
                self._client.news.forget(self.queue)
                if not leg.lost:
                    await asyncio.sleep(_BACKOFF_MAX_S)
                    self._topology_changed.set()

    async def _keep(self, leg: Leg) -> None:
        """Stand on another leg whenever one is lost."""
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
                    # News that came while it was made were for one that was lost.
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
        """What had come and was not looked at has gone back."""
        self._arrived = deque(message for message in self._arrived if not message.is_lost)

    # Taking

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
        """Messages that lie here, not yet taken by anybody."""
        return len(self._arrived)

    async def waiting(self) -> int | None:
        """Messages that are ready to be delivered; None: not known."""
        return await self._client.waiting(self.queue)

    @property
    def is_live(self) -> bool:
        """Whether messages can come now."""
        return self._leg is not None and not self._leg.lost

    @property
    def is_prefetch_costly(self) -> bool:
        """On quorum queues: another consumer begins with it, and the former ends."""
        return self._leg is not None and not self._leg.is_classic

    async def __aiter__(self) -> AsyncIterator[RabbitmqMessage]:
        """Message by message; several tasks may share a subscription, and go on after a break."""
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
        """Messages as they come together: on RabbitMQ one by one."""
        async for message in self:
            yield RabbitmqBatch(message)

    async def _wait_for_news(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._open:
            raise InvalidValue("the subscription is not open: use `async with mq.subscribe(...)`")
        self._news.clear()
        await self._news.wait()

    # Steering

    async def set_prefetch(self, prefetch: int) -> None:
        """Live: from now on so many may be on their way or in our hands."""
        check_count("prefetch", prefetch)
        self.prefetch = prefetch
        leg = self._leg
        if leg is not None and not leg.lost:
            # Without a connection the next leg begins with it.
            with contextlib.suppress(RetryLater):
                await leg.set_prefetch(prefetch)

    async def drain(self) -> None:
        """Take no more: what was not looked at goes back; what was taken stays ours."""
        self._drained = True
        leg = self._leg
        if leg is None or leg.lost:
            return
        # If it fails, the channel is gone, and everything has gone back.
        with contextlib.suppress(TidegateError):
            await leg.stop()
            unbegun, self._arrived = self._arrived, deque()
            await asyncio.gather(*(message.release() for message in unbegun))


async def _dropped(message: RabbitmqMessage) -> None:
    # If it fails, it comes again, and expires then.
    with contextlib.suppress(TidegateError):
        await message.expire()
