"""A subscription: messages of one queue, pushed by the node that owns it.

Theory of operation. A `Subscription` receives through `RemoteConsumer`s, which are registered at a
queue over one transport. All of them deliver into one `ReceiveBuffer`, from which the application
iterates. Consumers may fail and be replaced while the application iterates.

Its consumers are:

- the current consumer, registered at the queue, or at the assigned replica of a logical queue.
  There is none while the subscription is looking for a node or replica.
- retiring consumers, at former replicas. They receive no more, and end when the application has
  settled their last message; see `ConsumerSet`.
- the addressed consumer, at the replica that holds messages for this client's id, if that is
  another replica; see `AddressedReads`.

On failures:

- The transport fails: all consumers are lost. The node has returned their messages to the queue,
  and messages still in the buffer are dropped. Acknowledgements of lost messages are ignored. After
  the reconnect the subscription registers again.
- The owner of the queue changes, or a replica is deleted: the node ends the consumer. The
  subscription registers at the new owner, or joins the logical queue again and gets another
  replica.
- A registration is refused with `RetryLater`: it is retried, with a delay from 0.02 s to 1 s.
- A plain queue becomes a logical queue, or the reverse: the subscription looks the queue up and
  joins it, or registers at it directly.
- The queue is deleted, or access is denied: iterating raises the error.

The leases of held messages are renewed at a third of their length, so two renewals may fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine, Iterator
from itertools import count
from typing import Any

from tidegate.client import tracing
from tidegate.client.connection import ClusterConnection
from tidegate.client.consumer import AddressedReads, ConsumerSet, RemoteConsumer
from tidegate.client.directory import QueueDirectory, QueueMembership
from tidegate.client.handler import error_text
from tidegate.client.message import Message, MessageBatch, check_count
from tidegate.core.errors import (
    InvalidValue,
    LeaseLost,
    NotOwner,
    QueueNotExisting,
    RetryLater,
    TidegateError,
    UniqueConstraint,
    from_code,
)
from tidegate.core.model import Order, QueueInfo
from tidegate.core.topology import MemberRole
from tidegate.protocol.messages import ConsumerEnded, PrefetchChanged

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0
# How long to wait for a replica of a logical queue before joining again, in seconds.
_NOWHERE_S = 1.0


class Subscription:
    """Messages of one queue, pushed by the node. Use it with `async with`, then iterate.

    Several tasks may iterate over one subscription; each message goes to one of them. Leaving the
    block returns unsettled messages to the queue, which does not count as a failed delivery.
    """

    def __init__(
        self,
        connection: ClusterConnection,
        queues: QueueDirectory,
        subscriptions: SubscriptionSet,
        queue: str | int,
        prefetch: int,
        order: Order,
        automatic: bool,
        *,
        wanted: int | None = None,
        is_bound: bool = False,
    ) -> None:
        self._connection = connection
        self._queues = queues
        self._subscriptions = subscriptions
        self._named = queue
        self.queue = str(queue)
        # Its number in the membership, and of its first consumer.
        self._member = subscriptions.next_number()
        self.consumer = self._member
        self.prefetch = prefetch
        self.automatic = automatic
        # How often the current consumer was lost.
        self.interruptions = 0
        self._wanted = wanted
        self._is_bound = is_bound
        self._queue_id = 0
        self._membership: QueueMembership | None = None
        # Done with the first answer to the join, which names the assigned replica, if any.
        self._joined: asyncio.Future[None] | None = None
        self._buffer = ReceiveBuffer()
        # The buffer's own method, since every delivery calls it.
        self.on_delivered = self._buffer.add
        self._consumers = ConsumerSet(
            connection, subscriptions, self, self._buffer, self.queue, order, automatic
        )
        # Receives messages that are addressed to this client and held by another replica.
        self._addressed_reads = AddressedReads(self, self._consumers)
        self._drained = False
        self._subscribing = False
        self._placed = asyncio.Event()
        self._renewal: asyncio.Task[None] | None = None

    # Opening and closing

    async def __aenter__(self) -> Subscription:
        self._queue_id = await self._queues.id_of(self._named)
        self._buffer.is_open = True
        self._subscriptions.add(self)
        try:
            if self._queue_id in self._queues.logical_ids:
                await self._join()
            if self._target():
                await self._subscribe()
            else:
                # A logical queue without a replica: iterating waits for the first one.
                self._subscribe_behind()
        except BaseException:
            self._buffer.is_open = False
            self._subscriptions.remove(self)
            if self._membership is not None:
                await self._membership.leave()
            raise
        self._renewal = self._connection.spawn(self._renew())
        self._addressed_reads.refresh()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._buffer.close()
        self._placed.set()
        self._subscriptions.remove(self)
        if self._renewal is not None:
            self._renewal.cancel()
        for consumer in self._all_consumers():
            await consumer.unsubscribe()
            self.discard_consumer(consumer)
        if self._membership is not None:
            await self._membership.leave()

    async def _join(self) -> None:
        """Join the logical queue, and wait for the answer with the assigned replica, if any."""
        self._joined = asyncio.get_running_loop().create_future()
        self._membership = QueueMembership(
            self._connection,
            self._queues,
            self,
            self._queue_id,
            MemberRole.CONSUMER,
            self._member,
            wanted=self._wanted,
            is_bound=self._is_bound,
        )
        self._membership.start()
        await self._joined

    def on_join_refused(self, error: TidegateError) -> None:
        if isinstance(error, NotOwner):
            # The queue is plain by now: consume from it directly.
            if self._membership is not None:
                self._membership.end()
            self._membership = None
            self.on_topology()
        elif self._joined is not None and not self._joined.done():
            self._joined.set_exception(error)
        else:
            self.fail(error)

    def _all_consumers(self) -> list[RemoteConsumer]:
        """Return all consumers that may hold messages."""
        consumers = (
            self._consumers.consumer,
            self._addressed_reads.consumer,
            *self._consumers.leaving,
        )
        return [consumer for consumer in consumers if consumer is not None]

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a task that is cancelled when the client closes."""
        self._connection.spawn(work)

    def wants_more(self) -> bool:
        return self._buffer.is_open and not self._drained

    def _target(self) -> int:
        """Return the id of the queue to consume from; 0 if no replica is assigned."""
        return self._queue_id if self._membership is None else self._membership.replica_id

    def home_id(self) -> int:
        """Return the id of the replica for an addressed consumer; 0 if none is needed.

        None is needed if the current consumer is registered at that replica, or after `drain`.
        """
        topology = None if self._membership is None else self._membership.topology
        if topology is None or not self.wants_more():
            return 0
        number = topology.home_of(self._connection.identity().client_id)
        place = None if number is None else topology.replica(number)
        return 0 if place is None or place.queue_id == self._target() else place.queue_id

    def join_again(self) -> None:
        """Refresh the membership, since the known topology may be out of date."""
        if self._membership is not None:
            self._membership.join_again()

    @property
    def replica(self) -> int | None:
        """The number of the assigned replica; `None` for a plain queue, or if none is assigned."""
        place = None if self._membership is None else self._membership.place
        return None if place is None else place.number

    @property
    def address(self) -> str | None:
        """The address of the node that serves the assigned replica; `None` if there is none."""
        place = None if self._membership is None else self._membership.place
        return None if place is None else place.address

    async def _subscribe(self) -> None:
        """Register a consumer at the target, with retries; only one task does so at a time."""
        backoff_s = _BACKOFF_FIRST_S
        self._subscribing = True
        consumer: RemoteConsumer | None = None
        try:
            while self.wants_more():
                self._placed.clear()
                target = self._target()
                if not target:
                    await self._wait_for_place()
                    continue
                consumer = await self._new_consumer(target)
                try:
                    await consumer.subscribe()
                except RetryLater as refusal:
                    self.discard_consumer(consumer)
                    await self._refused(refusal)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
                    continue
                except QueueNotExisting as refusal:
                    self.discard_consumer(consumer)
                    if self._membership is None:
                        raise
                    await self._refused(refusal)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _BACKOFF_MAX_S)
                    continue
                except UniqueConstraint:
                    # The node still has a consumer of this number, since the end that arrived was
                    # that of an older one. Remove it and register again.
                    self.discard_consumer(consumer)
                    await consumer.unsubscribe()
                    continue
                if consumer.lost:
                    continue
                if not self.wants_more():
                    consumer.abandon()
                    return
                self._consumers.switch_to(consumer)
                if self._target() == target:
                    return
        except BaseException:
            if consumer is not None and consumer is not self._consumers.consumer:
                consumer.abandon()
            raise
        finally:
            self._subscribing = False

    async def _wait_for_place(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._placed.wait(), _NOWHERE_S)
        if not self._target() and self._membership is not None:
            self._membership.join_again()

    async def _refused(self, refusal: TidegateError) -> None:
        """Handle a refused registration: join again, or check if the queue has become logical."""
        if self._membership is not None:
            self._membership.join_again(elsewhere=not self._is_bound)
        elif isinstance(refusal, NotOwner):
            # The queue may have become a logical queue, whose alias serves no consumers.
            info = await self._queues.find(self._named)
            if info.elastic:
                self._queue_id = info.queue_id
                await self._join()

    async def _new_consumer(self, queue_id: int) -> RemoteConsumer:
        transport = await self._connection.connected()
        if self._membership is not None:
            # Use the number of the membership, unless a retiring consumer still has it.
            taken = self._member in self._subscriptions.consumers
            self.consumer = self._subscriptions.next_number() if taken else self._member
        elif self._consumers.consumer is not None:
            self.discard_consumer(self._consumers.consumer)
        return self._consumers.new_consumer(queue_id, self.consumer, transport, self.prefetch)

    async def new_addressed_consumer(self, queue_id: int, prefetch: int) -> RemoteConsumer:
        """Make a consumer that receives only messages addressed to this client."""
        transport = await self._connection.connected()
        number = self._subscriptions.next_number()
        return self._consumers.new_consumer(queue_id, number, transport, prefetch, mine_only=True)

    def discard_consumer(self, consumer: RemoteConsumer) -> None:
        """Discard a consumer after the node has returned its messages to the queue."""
        self.interruptions += consumer is self._consumers.consumer
        self._consumers.discard(consumer)
        self._addressed_reads.on_consumer_lost(consumer)

    def resubscribe(self, queue_id: int | None = None) -> None:
        """Register again after a reconnect, or when the queue was created again as `queue_id`."""
        if not self._buffer.is_open:
            return
        self._queue_id = queue_id or self._queue_id
        for consumer in self._all_consumers():
            self.discard_consumer(consumer)
        self.join_again()
        self._subscribe_behind()
        self._addressed_reads.refresh()

    def _subscribe_behind(self) -> None:
        """Register in a task; if one is running, it notices the new target by itself."""
        self._placed.set()
        if self._subscribing or self._drained or not self._buffer.is_open:
            return
        self._subscribing = True

        async def again() -> None:
            try:
                await self._subscribe()
            except TidegateError as error:
                self.fail(error)

        self._connection.spawn(again())

    def on_topology(self) -> None:
        """Move to the assigned replica, which was just assigned or has changed."""
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)
        target = self._target()
        if target and (
            self._consumers.consumer is None or self._consumers.consumer.queue_id != target
        ):
            # While the block is being entered, `__aenter__` registers the consumer itself.
            if self._renewal is not None:
                self._subscribe_behind()
            self._placed.set()
        if self._renewal is not None:
            self._addressed_reads.refresh()

    def fail(self, error: TidegateError) -> None:
        self._buffer.fail(error)

    # Pushes from the node

    def on_ended(self, consumer: RemoteConsumer, packet: ConsumerEnded) -> None:
        error = from_code(packet.code, packet.text)
        is_current = consumer is self._consumers.consumer or consumer not in self._consumers.leaving
        is_at_home = consumer is self._addressed_reads.consumer
        self.discard_consumer(consumer)
        if not is_current:
            return
        if is_at_home and isinstance(error, QueueNotExisting | RetryLater):
            self.join_again()
            self._addressed_reads.refresh()
        elif self._membership is not None and isinstance(error, QueueNotExisting | RetryLater):
            self._membership.join_again()
            self._subscribe_behind()
        elif isinstance(error, RetryLater):
            self._subscribe_behind()
        else:
            self.fail(error)

    def on_prefetch(self, consumer: RemoteConsumer, prefetch: int) -> None:
        if consumer is self._consumers.consumer:
            self.prefetch = prefetch

    # Iterating

    @property
    def held(self) -> int:
        """Messages received but not yet taken by the application."""
        return self._buffer.held

    @property
    def delivered(self) -> int:
        """Messages received since the subscription began."""
        return self._buffer.delivered

    async def waiting(self) -> int | None:
        """Return the number of messages ready at the queue or replica; `None` if not known."""
        return (
            None if self._consumers.consumer is None else await self._consumers.consumer.waiting()
        )

    @property
    def is_live(self) -> bool:
        """Whether messages can arrive now."""
        return self._consumers.consumer is not None and self._consumers.consumer.is_connected

    @property
    def is_prefetch_costly(self) -> bool:
        """False: a change of prefetch costs one small packet."""
        return False

    def batches(self) -> AsyncIterator[MessageBatch]:
        """Iterate over batches of messages as the node sent them."""
        return self._buffer.batches()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages.

        Several tasks may iterate over one subscription. An iteration that was left may be
        continued.
        """
        return self._buffer.messages()

    async def run(
        self,
        handler: Callable[[Message], Awaitable[Any]],
        *,
        on_error: Callable[[Message, Exception], Any] | None = None,
    ) -> None:
        """Call `handler` for each message until cancelled, one message at a time.

        A message is acknowledged when the handler returns, and returned to the queue as failed when
        it raises. `on_error` is called after that; without it, the traceback is logged.
        """
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
                    # If the lease was lost, the message comes again anyway.
                    with contextlib.suppress(LeaseLost):
                        await message.nack(error=error_text(error))
                if on_error is not None:
                    on_error(message, error)
            else:
                if not self.automatic:
                    message.ack()

    # Controlling deliveries

    async def set_prefetch(self, prefetch: int) -> None:
        """Change how many unacknowledged messages this subscription may have."""
        check_count("prefetch", prefetch)
        await self._connection.connected()
        if self._consumers.consumer is not None:
            await self._consumers.consumer.set_prefetch(prefetch)
        self.prefetch = prefetch
        await self._addressed_reads.set_prefetch()

    async def drain(self) -> None:
        """Stop receiving, and return messages that the application has not taken.

        The returned messages count as never delivered. Messages that were taken stay held, and are
        settled as usual.
        """
        self._drained = True
        self._placed.set()
        for consumer in (self._consumers.consumer, self._addressed_reads.consumer):
            if consumer is None or not consumer.is_connected:
                continue  # the node has returned its messages when the transport failed
            # An error means that the transport or the queue is gone, and its messages were
            # returned.
            with contextlib.suppress(TidegateError):
                await consumer.withdraw_credit()
                await consumer.return_unstarted(self._buffer.untouched(consumer))

    async def _renew(self) -> None:
        """Renew the leases at a third of their length, so that two renewals may fail."""
        while True:
            consumers = [
                consumer
                for consumer in (self._consumers.consumer, self._addressed_reads.consumer)
                if consumer is not None
            ]
            await asyncio.sleep(min([60.0, *(consumer.lease_s for consumer in consumers)]) / 3)
            for consumer in (self._consumers.consumer, self._addressed_reads.consumer):
                if consumer is not None:
                    await consumer.renew()


# The subscriptions of a client. Every consumer has a number that is unique on its connection; the
# node names that number in each delivery.


class SubscriptionSet:
    """The open subscriptions of one client, and their consumers by number."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: list[Subscription] = []
        # By the number that every delivery names.
        self.consumers: dict[int, RemoteConsumer] = {}

    def next_number(self) -> int:
        """Return a number that no consumer and no member on this connection has."""
        return next(self._numbers)

    def add(self, subscription: Subscription) -> None:
        self._open.append(subscription)

    def remove(self, subscription: Subscription) -> None:
        if subscription in self._open:
            self._open.remove(subscription)

    def add_consumer(self, consumer: RemoteConsumer) -> None:
        self.consumers[consumer.consumer] = consumer

    def remove_consumer(self, consumer: RemoteConsumer) -> None:
        if self.consumers.get(consumer.consumer) is consumer:
            del self.consumers[consumer.consumer]

    def on_push(self, packet: ConsumerEnded | PrefetchChanged) -> None:
        """Pass a push to the consumer that it names."""
        consumer = self.consumers.get(packet.consumer)
        if consumer is None:
            return
        if isinstance(packet, ConsumerEnded):
            consumer.ended(packet)
        else:
            consumer.prefetch_changed(packet.prefetch, packet.lasting)

    def resubscribe(self, temporary: Container[str]) -> None:
        """Register again after a reconnect, but for queues that do not exist again yet."""
        for subscription in self._open:
            if subscription.queue not in temporary:
                subscription.resubscribe()

    def resubscribe_to(self, queue: QueueInfo) -> None:
        """Register again at a temporary queue that was created again."""
        for subscription in self._open:
            if subscription.queue == queue.name:
                subscription.resubscribe(queue.queue_id)

    def fail(self, error: TidegateError, queue: str | None = None) -> None:
        """Fail the subscriptions of a queue; `None` means all."""
        for subscription in list(self._open):
            if queue is None or subscription.queue == queue:
                subscription.fail(error)


# The receive buffer of a subscription: messages received and not yet taken.
#
# Messages of a lost consumer are dropped, since the node has returned them to their queue.


class ReceiveBuffer:
    """Batches in the order of arrival. Several tasks may take messages from it."""

    __slots__ = (
        "_arrived",
        "_failure",
        "_news",
        "_opened",
        "_opened_left",
        "_opened_of",
        "delivered",
        "is_open",
    )

    def __init__(self) -> None:
        self._arrived: deque[MessageBatch] = deque()
        # The rest of the batch that is iterated message by message, and its consumer.
        self._opened: Iterator[Message] = iter(())
        self._opened_of: RemoteConsumer | None = None
        self._opened_left = 0
        # Messages received since the subscription began.
        self.delivered = 0
        self._news = asyncio.Event()
        self._failure: TidegateError | None = None
        self.is_open = False

    def add(self, batches: list[MessageBatch]) -> None:
        self._arrived.extend(batches)
        self.delivered += sum(map(len, batches))
        self._news.set()

    def fail(self, error: TidegateError) -> None:
        """End the iteration: all tasks that wait for messages raise `error`."""
        self._failure = error
        self._news.set()

    def close(self) -> None:
        self.is_open = False
        self._news.set()  # wakes the iterating tasks, which raise `InvalidValue`

    # Taking messages

    @property
    def held(self) -> int:
        """Messages received but not yet taken by the application."""
        opened_of = self._opened_of
        opened = 0 if opened_of is None or opened_of.lost else self._opened_left
        return opened + sum(map(len, self._arrived))

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Iterate over batches."""
        while True:
            while self._arrived:
                yield self._arrived.popleft()
            await self._wait_for_change()

    async def messages(self) -> AsyncIterator[Message]:
        """Iterate over messages."""
        while True:
            opened = self._opened
            for message in opened:
                self._opened_left -= 1
                if message._holder.lost:  # type: ignore[union-attr]
                    break
                yield message
            if opened is not self._opened:
                continue  # another task has opened the next batch, and not finished it
            if self._arrived:
                batch = self._arrived.popleft()
                self._opened, self._opened_of = iter(batch), batch._holder  # type: ignore[assignment]
                self._opened_left = len(batch)
                self._news.set()  # other tasks may take messages of this batch, too
                # Let acknowledgements and other tasks run between two batches.
                await asyncio.sleep(0)
            else:
                await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self.is_open:
            raise InvalidValue("the subscription is not open: use `async with mq.subscribe(...)`")
        self._news.clear()
        await self._news.wait()

    # Returning messages

    def untouched(self, consumer: RemoteConsumer) -> list[tuple[int, int]]:
        """Remove the messages of a consumer that were not taken; return their tags as ranges."""
        opened: list[Message] = []
        if self._opened_of is consumer:
            opened, self._opened_left = list(self._opened), 0
        ranges = [(tag, tag) for tag in (message._run.tag + message._index for message in opened)]
        ranges += [batch._tags() for batch in self._arrived if batch._holder is consumer]
        self.discard(consumer)
        return ranges

    def discard(self, consumer: RemoteConsumer) -> None:
        """Drop the messages of a lost consumer."""
        self._arrived = deque(batch for batch in self._arrived if batch._holder is not consumer)
