"""A subscription: messages pushed by the node, acknowledged in ranges.

Every connection is a generation. What was delivered in an earlier one has gone back to the
queue and will come again, so what is left of it here is dropped, and a late ack is too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.client import tracing
from tidegate.client.message import Comeback, Message, MessageBatch, batches_of
from tidegate.client.verdict import error_text
from tidegate.core.errors import (
    InvalidValue,
    LeaseLost,
    RetryLater,
    TidegateError,
    UniqueConstraint,
    from_code,
)
from tidegate.core.model import Order
from tidegate.wire import packets as w

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.link import Link

log = logging.getLogger(__name__)

# Acknowledgements that leave the node enough credit may wait for company this long: a packet
# each would cost the node more than the messages do.
_ACK_LINGER_S = 0.003
_UNSTARTED = Comeback(unstarted=True)


class Subscription:
    """Use with `async with`, then iterate."""

    def __init__(
        self,
        client: Client,
        queue: str,
        consumer: int,
        prefetch: int,
        order: Order,
        automatic: bool,
    ) -> None:
        self._client = client
        self.queue = queue
        self.consumer = consumer
        self.prefetch = prefetch
        self.automatic = automatic
        self._order = order
        self._queue_id: int | None = None
        self._generation = 0
        self._arrived: deque[MessageBatch] = deque()
        # The rest of the batch that is being taken message by message.
        self._opened: Iterator[Message] = iter(())
        self._news = asyncio.Event()
        self._failure: TidegateError | None = None
        self._open = False
        self._drained = False
        self._ack_low = 0
        self._ack_high = -1
        self._acks: list[tuple[int, int]] = []
        self._acks_scheduled = False
        self._acks_pending = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._lease_s = 60.0
        self._subscribing = False
        self._ended_meanwhile = False
        self._renewal: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    # Coming and going

    async def __aenter__(self) -> Subscription:
        self._queue_id = await self._client.queue_id(self.queue)
        self._open = True
        self._client.add_subscription(self)
        try:
            await self._subscribe()
        except BaseException:
            self._open = False
            self._client.drop_subscription(self)
            link = self._client.link
            if link is not None:
                # It may stand already, or be about to.
                link.submit(
                    w.Unsubscribe(self._queue_id, self.consumer), None, lambda answer, body: None
                )
            raise
        self._renewal = self._client.spawn(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        self._news.set()  # tasks that still iterate hear that it is over
        self._client.drop_subscription(self)
        if self._renewal is not None:
            self._renewal.cancel()
        link = self._client.link
        if link is not None and link.alive and self._queue_id is not None:
            self._flush_acks()
            await self._unsubscribe(link)

    async def _unsubscribe(self, link: Link) -> None:
        assert self._queue_id is not None
        # If it fails, the connection or the queue is gone, and the subscription with it.
        with contextlib.suppress(TidegateError):
            await link.ask(w.Unsubscribe(self._queue_id, self.consumer))

    async def _subscribe(self) -> None:
        """(Re)establish on the present connection, as often as it takes; one at a time."""
        assert self._queue_id is not None
        backoff_s = 0.02
        self._subscribing = True
        try:
            while self._open and not self._drained:
                link = await self._client.connected()
                self._new_generation()
                self._ended_meanwhile = False
                try:
                    answered = await link.ask(
                        w.Subscribe(
                            self._queue_id,
                            self.consumer,
                            self.prefetch,
                            self._order,
                            self.automatic,
                        )
                    )
                except RetryLater:
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, 1.0)
                    continue
                except UniqueConstraint:
                    # The end that we heard was an older one's: what stands there is ours.
                    await self._unsubscribe(link)
                    continue
                if self._ended_meanwhile:
                    continue
                assert isinstance(answered.packet, w.SubscribeResponse)
                self._lease_s = answered.packet.lease_ms / 1e3
                return
        finally:
            self._subscribing = False

    def _new_generation(self) -> None:
        self._generation += 1
        self._arrived.clear()
        self._acks.clear()
        self._ack_low, self._ack_high = 0, -1

    def resubscribe(self, queue_id: int | None = None) -> None:
        """The client has a new connection, or the queue a new owner, or was made anew."""
        if not self._open or self._drained:
            return
        self._queue_id = queue_id or self._queue_id
        if self._subscribing:
            # Whoever is at it meets the new connection by itself; a second one would be refused
            # for having the same number.
            self._ended_meanwhile = True
            return
        self._subscribing = True

        async def again() -> None:
            try:
                await self._subscribe()
            except TidegateError as error:
                self.fail(error)

        self._new_generation()
        self._client.spawn(again())

    def fail(self, error: TidegateError) -> None:
        self._failure = error
        self._news.set()

    # Pushes

    def delivered(self, packet: w.Deliver, body: memoryview) -> None:
        self._arrived.extend(batches_of(packet.runs, body, self, self._generation))
        self._news.set()

    def ended(self, packet: w.ConsumerEnded) -> None:
        error = from_code(packet.code, packet.text)
        if isinstance(error, RetryLater):
            self.resubscribe()
        else:
            self.fail(error)

    def prefetch_changed(self, prefetch: int) -> None:
        self.prefetch = prefetch

    # Taking

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Messages as they come together."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            await self._wait_for_news()

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Message by message; several tasks may share a subscription, and go on after a break."""
        while True:
            for message in self._opened:
                if message._generation != self._generation:
                    break
                yield message
            if self._arrived:
                self._opened = iter(self._arrived.popleft())
                self._news.set()  # whoever shares the subscription may help with it
                # Between batches, so that acknowledgements and other tasks get their turn.
                await asyncio.sleep(0)
            else:
                await self._wait_for_news()

    async def _wait_for_news(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._open:
            raise InvalidValue("the subscription is not open: use `async with mq.subscribe(...)`")
        self._news.clear()
        await self._news.wait()

    async def run(
        self,
        handler: Callable[[Message], Awaitable[Any]],
        *,
        on_error: Callable[[Message, Exception], Any] | None = None,
    ) -> None:
        """Call the handler for each message: acked when it returns, given back when it raises."""
        handler = tracing.traced_handler(handler)
        async for message in self:
            try:
                await handler(message)
            except Exception as error:
                log.warning(
                    "a handler failed, the message goes back",
                    extra={"queue": self.queue, "message_id": message.message_id},
                    exc_info=on_error is None,
                )
                if not self.automatic:
                    # Lost with its connection, it goes back by itself.
                    with contextlib.suppress(LeaseLost):
                        await message.nack(error=error_text(error))
                if on_error is not None:
                    on_error(message, error)
            else:
                if not self.automatic:
                    message.ack()

    # Settling

    def lease_of(self, generation: int) -> tuple[Link, int, int]:
        """Connection, queue and consumer; LeaseLost when the connection was another one."""
        if self.automatic:
            raise InvalidValue("this subscription acknowledges by itself")
        link = self._client.link
        if generation != self._generation or not self._open or link is None or not link.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        assert self._queue_id is not None
        return link, self._queue_id, self.consumer

    def ack_tag(self, tag: int, generation: int) -> None:
        self.ack_range(tag, tag, generation)

    def ack_range(self, first: int, last: int, generation: int) -> None:
        if generation != self._generation or self.automatic:
            return  # it has gone back to the queue, and will come again flagged
        if first == self._ack_high + 1:
            self._ack_high = last
        else:
            if self._ack_high >= self._ack_low:
                self._acks.append((self._ack_low, self._ack_high))
            self._ack_low, self._ack_high = first, last
        self._acks_pending += last - first + 1
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_LINGER_S, self._flush_acks)
        # A quarter of the prefetch: the node still has work for us while they travel.
        if not self._acks_scheduled and 4 * self._acks_pending >= self.prefetch:
            self._acks_scheduled = True
            self._loop.call_soon(self._flush_acks)

    def _flush_acks(self) -> None:
        self._acks_scheduled = False
        self._acks_pending = 0
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if self._ack_high < self._ack_low:
            return
        self._acks.append((self._ack_low, self._ack_high))
        ranges, self._acks = self._acks, []
        # Continue after the last one, so that a run of acks stays one range.
        self._ack_low = self._ack_high + 1
        link = self._client.link
        if link is not None and self._queue_id is not None:
            link.post(w.Settle(self._queue_id, self.consumer, ranges))

    async def ack_tags(self, first: int, last: int, generation: int) -> None:
        self._flush_acks()
        lost = await self._settle(w.Settle, first, last, generation, confirm=True)
        if lost and first == last:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")

    async def return_tags(self, first: int, last: int, generation: int, how: Comeback) -> None:
        self._flush_acks()
        await self._settle(w.Return, first, last, generation, **how._asdict())

    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None:
        lost = await self._settle(
            w.Extend, first, last, generation, lease_ms=max(int(lease_s * 1e3), 1)
        )
        if lost:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")

    async def _settle(
        self,
        kind: type[w.Settle | w.Return | w.Extend],
        first: int,
        last: int,
        generation: int,
        **more: Any,
    ) -> int:
        link = self._client.link
        if generation != self._generation or link is None or not link.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        assert self._queue_id is not None
        answered = await link.ask(
            kind(queue_id=self._queue_id, consumer=self.consumer, ranges=[(first, last)], **more)
        )
        assert isinstance(answered.packet, w.SettleResponse)
        return answered.packet.lost

    async def set_prefetch(self, prefetch: int) -> None:
        """Change how many messages may be on their way to us or in our hands."""
        if prefetch < 1:
            raise InvalidValue(f"prefetch must be at least 1, not {prefetch}")
        link = await self._client.connected()
        assert self._queue_id is not None
        await link.ask(w.SetPrefetch(self._queue_id, self.consumer, prefetch))
        self.prefetch = prefetch

    async def drain(self) -> None:
        """Take no more: what was not yet looked at goes back, as if it had never been delivered.

        What was taken stays ours, to be settled as usual.
        """
        self._drained = True
        link = self._client.link
        if link is None or not link.alive or self._queue_id is None:
            return  # what we had went back with the connection
        self._flush_acks()
        # If it fails, the connection or the queue is gone, and everything has gone back.
        with contextlib.suppress(TidegateError):
            await link.ask(w.SetPrefetch(self._queue_id, self.consumer, 0))
            # What was sent before the node knew has arrived before its answer.
            untouched = [
                message._run.tag + message._index
                for message in self._opened
                if message._generation == self._generation
            ]
            ranges = [(tag, tag) for tag in untouched] + [one._tags() for one in self._arrived]
            self._arrived.clear()
            if ranges:
                await link.ask(
                    w.Return(self._queue_id, self.consumer, ranges, **_UNSTARTED._asdict())
                )

    async def _renew(self) -> None:
        """While we live, what we hold stays ours. A third: two may be lost."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            link = self._client.link
            if link is not None and link.alive and self._queue_id is not None:
                try:
                    await link.ask(w.Extend(self._queue_id, self.consumer))
                except TidegateError:
                    continue
