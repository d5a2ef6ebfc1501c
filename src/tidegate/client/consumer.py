"""The consumers of a subscription, each registered at one node.

A `RemoteConsumer` belongs to one queue and one transport. It receives messages within its prefetch,
and settles them: it acknowledges them in ranges, returns them, or extends their leases.

A `Subscription` uses one `RemoteConsumer`, two while it moves to another replica, and one more for
messages that are addressed to the client. When the transport or the queue's owner fails, the
consumer is lost: the node returns all its messages to the queue and delivers them again. The
consumer then drops what it still has, and ignores late acknowledgements.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidegate.client.connection import ClusterConnection, Transport
from tidegate.client.message import MessageBatch, ReturnOptions, split_payloads
from tidegate.core.errors import (
    InvalidValue,
    LeaseLost,
    QueueNotExisting,
    RetryLater,
    TidegateError,
)
from tidegate.core.model import Order
from tidegate.protocol.cluster import Stats
from tidegate.protocol.messages import (
    ConsumerEnded,
    Deliver,
    Extend,
    Return,
    SetPrefetch,
    Settle,
    SettleResponse,
    Subscribe,
    SubscribeResponse,
    Unsubscribe,
)
from tidegate.telemetry.stats import ClusterStats

if TYPE_CHECKING:
    from tidegate.client.subscription import ReceiveBuffer, Subscription, SubscriptionSet

# How long acknowledgements wait for more, in seconds, while the node has enough credit. One packet
# per acknowledgement would cost the node more than the messages.
_ACK_LINGER_S = 0.003
UNSTARTED = ReturnOptions(unstarted=True)


class ConsumerListener(Protocol):
    """The subscription that a consumer belongs to."""

    def on_delivered(self, batches: list[MessageBatch]) -> None:
        """Take the messages of one packet."""

    def on_ended(self, consumer: RemoteConsumer, packet: ConsumerEnded) -> None:
        """Handle that the node has ended a consumer."""

    def on_prefetch(self, consumer: RemoteConsumer, prefetch: int) -> None:
        """Note a prefetch that was set at the node for good."""


class RemoteConsumer:
    """A consumer number at one queue over one transport, with the messages that it holds."""

    def __init__(
        self,
        listener: ConsumerListener,
        queue: str,
        queue_id: int,
        consumer: int,
        transport: Transport,
        *,
        prefetch: int,
        order: Order,
        automatic: bool,
        mine_only: bool = False,
    ) -> None:
        # The name of the logical or plain queue, not of a replica.
        self.queue = queue
        self.queue_id = queue_id
        self.consumer = consumer
        self.prefetch = prefetch
        self.automatic = automatic
        self._mine_only = mine_only
        self.lease_s = 60.0
        self.lost = False
        self._transport = transport
        self._order = order
        self._listener = listener
        # Bound once, since every delivery calls it.
        self._on_delivered = listener.on_delivered
        # Tags number the deliveries of this consumer from 1.
        self._last_tag = 0
        self._ack_low = 0
        self._ack_high = -1
        self._acks: list[tuple[int, int]] = []
        self._acks_scheduled = False
        self._acks_pending = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def is_connected(self) -> bool:
        return not self.lost and self._transport.alive

    # Registering and unregistering

    async def subscribe(self) -> None:
        answered = await self._transport.request(
            Subscribe(
                self.queue_id,
                self.consumer,
                self.prefetch,
                self._order,
                self.automatic,
                self._mine_only,
            )
        )
        assert isinstance(answered.packet, SubscribeResponse)
        self.lease_s = answered.packet.lease_ms / 1e3

    async def unsubscribe(self) -> None:
        if self._transport.alive:
            self.flush_acks()
            # An error means that the transport or the queue is gone, and the registration with it.
            with contextlib.suppress(TidegateError):
                await self._transport.request(Unsubscribe(self.queue_id, self.consumer))

    def abandon(self) -> None:
        """Unregister without waiting, since the registration may exist already or be under way."""
        self.lost = True
        self._transport.submit(
            Unsubscribe(self.queue_id, self.consumer), None, lambda answer, body: None
        )

    async def withdraw_credit(self) -> None:
        """Set the prefetch to 0. When this returns, all messages sent before have arrived."""
        self.flush_acks()
        await self._transport.request(SetPrefetch(self.queue_id, self.consumer, 0))

    async def return_unstarted(self, ranges: list[tuple[int, int]]) -> None:
        """Return messages by tag ranges; they count as never delivered."""
        if ranges:
            await self._transport.request(
                Return(self.queue_id, self.consumer, ranges, **UNSTARTED._asdict())
            )

    async def until_settled(self) -> None:
        """Wait until no message is held; until then renew the leases.

        The node counts the held messages, so this asks the node.
        """
        while self.is_connected and self._last_tag:
            self._settled.clear()
            try:
                answered = await self._transport.request(
                    Extend(self.queue_id, self.consumer, [(1, self._last_tag)])
                )
            except TidegateError:
                return
            assert isinstance(answered.packet, SettleResponse)
            if answered.packet.lost >= self._last_tag:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), self.lease_s / 3)

    async def renew(self) -> None:
        """Renew the leases of all held messages."""
        if self.is_connected:
            with contextlib.suppress(TidegateError):
                await self._transport.request(Extend(self.queue_id, self.consumer))

    # Pushes from the node

    def delivered(self, packet: Deliver, body: memoryview) -> None:
        if self.lost:
            return
        batches = split_payloads(packet.runs, body, self, 0)
        run = packet.runs[-1]
        self._last_tag = run.tag + len(run.lengths) - 1
        self._on_delivered(batches)

    def ended(self, packet: ConsumerEnded) -> None:
        self._listener.on_ended(self, packet)

    async def waiting(self) -> int | None:
        """Return the number of ready messages; `None` if the node has no stats of the queue."""
        # Ask only the owner, since other nodes have no stats of this queue. Leave out consumers,
        # since every one of them asks regularly.
        asked = Stats(self.queue_id, cluster=False, consumers=False)
        answered = await self._transport.request(asked)
        numbers = msgspec.json.decode(answered.body, type=ClusterStats)
        for queue in (queue for node in numbers.nodes for queue in node.queues):
            if queue.queue_id == self.queue_id:
                return 0 if queue.paused else queue.waiting - queue.delayed
        return None

    def prefetch_changed(self, prefetch: int, lasting: bool) -> None:
        self.prefetch = prefetch
        if lasting:
            self._listener.on_prefetch(self, prefetch)

    async def set_prefetch(self, prefetch: int) -> None:
        await self._transport.request(SetPrefetch(self.queue_id, self.consumer, prefetch))
        self.prefetch = prefetch

    # Settling messages

    def lease_of(self, generation: int) -> tuple[Transport, int, int]:
        """Return transport, queue id and consumer number of a held message.

        Raise `LeaseLost` if the consumer is lost, and `InvalidValue` if it acknowledges
        automatically.
        """
        if self.automatic:
            raise InvalidValue("this subscription acknowledges by itself")
        self._check_held()
        return self._transport, self.queue_id, self.consumer

    def _check_held(self) -> None:
        if self.lost or not self._transport.alive:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")

    def ack_tag(self, tag: int, generation: int) -> None:
        self.ack_range(tag, tag, generation)

    def ack_range(self, first: int, last: int, generation: int) -> None:
        if self.lost or self.automatic:
            return  # the node has returned it to the queue and will deliver it again
        if first == self._ack_high + 1:
            self._ack_high = last
        else:
            if self._ack_high >= self._ack_low:
                self._acks.append((self._ack_low, self._ack_high))
            self._ack_low, self._ack_high = first, last
        self._acks_pending += last - first + 1
        if self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_LINGER_S, self.flush_acks)
        # Send when a quarter of the prefetch is acknowledged, so the node always has credit left.
        if not self._acks_scheduled and 4 * self._acks_pending >= self.prefetch:
            self._acks_scheduled = True
            self._loop.call_soon(self.flush_acks)

    def flush_acks(self) -> None:
        self._acks_scheduled = False
        self._acks_pending = 0
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        if self._ack_high < self._ack_low:
            return
        self._acks.append((self._ack_low, self._ack_high))
        ranges, self._acks = self._acks, []
        # Continue behind the last tag, so that consecutive acknowledgements stay one range.
        self._ack_low = self._ack_high + 1
        if not self.lost:
            self._transport.post(Settle(self.queue_id, self.consumer, ranges))
            self._settled.set()

    async def ack_tags(self, first: int, last: int, generation: int) -> None:
        self.flush_acks()
        lost = await self._settle(Settle, first, last, confirm=True)
        if lost and first == last:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")

    async def return_tags(self, first: int, last: int, generation: int, how: ReturnOptions) -> None:
        self.flush_acks()
        await self._settle(Return, first, last, **how._asdict())

    async def extend_tags(self, first: int, last: int, generation: int, lease_s: float) -> None:
        lost = await self._settle(Extend, first, last, lease_ms=max(int(lease_s * 1e3), 1))
        if lost:
            raise LeaseLost("the message was no longer held: it has gone to somebody else")

    async def _settle(
        self, kind: type[Settle | Return | Extend], first: int, last: int, **more: Any
    ) -> int:
        self._check_held()
        answered = await self._transport.request(
            kind(queue_id=self.queue_id, consumer=self.consumer, ranges=[(first, last)], **more)
        )
        self._settled.set()
        assert isinstance(answered.packet, SettleResponse)
        return answered.packet.lost


# The consumers of a subscription: the current one, and the retiring ones.
#
# A subscription that moves to another replica retires its consumer. A retiring consumer receives no
# more and returns untouched messages. It unregisters when the application has settled its last
# message.


class ConsumerSet:
    """The consumers of one subscription, all of which deliver into one buffer."""

    def __init__(
        self,
        connection: ClusterConnection,
        subscriptions: SubscriptionSet,
        listener: ConsumerListener,
        buffer: ReceiveBuffer,
        queue: str,
        order: Order,
        automatic: bool,
    ) -> None:
        self._connection = connection
        self._subscriptions = subscriptions
        self._listener = listener
        self._buffer = buffer
        self._queue = queue
        self._order = order
        self._automatic = automatic
        self.consumer: RemoteConsumer | None = None
        # Consumers at former replicas, with messages that the application has not settled.
        self.leaving: set[RemoteConsumer] = set()

    def new_consumer(
        self,
        queue_id: int,
        number: int,
        transport: Transport,
        prefetch: int,
        *,
        mine_only: bool = False,
    ) -> RemoteConsumer:
        """Make a consumer that is not registered yet, and is not the current one."""
        consumer = RemoteConsumer(
            self._listener,
            self._queue,
            queue_id,
            number,
            transport,
            prefetch=prefetch,
            order=self._order,
            automatic=self._automatic,
            mine_only=mine_only,
        )
        self._subscriptions.add_consumer(consumer)
        return consumer

    def switch_to(self, consumer: RemoteConsumer) -> None:
        former, self.consumer = self.consumer, consumer
        if former is not None:
            self.retire(former)

    def retire(self, consumer: RemoteConsumer) -> None:
        """Retire a consumer: it receives no more and ends with its last unsettled message."""
        if not consumer.lost:
            self.leaving.add(consumer)
            self._connection.spawn(self._drain(consumer))

    async def _drain(self, consumer: RemoteConsumer) -> None:
        """Retire a consumer, and wait until its messages are settled."""
        # An error means that the transport or the queue is gone, and its messages were returned.
        with contextlib.suppress(TidegateError):
            await consumer.withdraw_credit()
            if not self._automatic:
                await consumer.return_unstarted(self._buffer.untouched(consumer))
                await consumer.until_settled()
        if consumer in self.leaving:
            self.leaving.discard(consumer)
            await consumer.unsubscribe()
            consumer.lost = True
            self._subscriptions.remove_consumer(consumer)

    def discard(self, consumer: RemoteConsumer) -> None:
        """Discard a consumer after the node has returned its messages to the queue."""
        consumer.lost = True
        self._subscriptions.remove_consumer(consumer)
        self.leaving.discard(consumer)
        if consumer is self.consumer:
            self.consumer = None
        self._buffer.discard(consumer)


# Messages of a logical queue that are addressed to this client.
#
# One replica holds all messages for a receiver. If a subscription is assigned to another replica,
# it has an additional consumer there. That consumer gets only addressed messages and does not count
# as a member. It follows when the assignment changes, and ends when the subscription itself moves
# to that replica.

_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0
# The divisor of the subscription's prefetch that gives the prefetch of the additional consumer.
# Addressed messages are seldom many.
_PREFETCH_PART = 8


class AddressedReads:
    """The additional consumer of a subscription for addressed messages."""

    def __init__(self, subscription: Subscription, consumers: ConsumerSet) -> None:
        self._subscription = subscription
        self._consumers = consumers
        self._moving = False
        self.consumer: RemoteConsumer | None = None

    @property
    def prefetch(self) -> int:
        return max(self._subscription.prefetch // _PREFETCH_PART, 1)

    def refresh(self) -> None:
        """Start to move the consumer to the right replica, if it is at another one."""
        if not self._moving and self._is_elsewhere():
            self._moving = True
            self._subscription.spawn(self._move())

    def on_consumer_lost(self, consumer: RemoteConsumer) -> None:
        if consumer is self.consumer:
            self.consumer = None

    async def set_prefetch(self) -> None:
        """Adapt to a new prefetch of the subscription."""
        if self.consumer is not None and self.consumer.is_connected:
            await self.consumer.set_prefetch(self.prefetch)

    def _is_elsewhere(self) -> bool:
        return (
            0 if self.consumer is None else self.consumer.queue_id
        ) != self._subscription.home_id()

    async def _move(self) -> None:
        try:
            await self._move_until_done()
        except TidegateError as error:
            self._subscription.fail(error)
        finally:
            self._moving = False

    async def _move_until_done(self) -> None:
        subscription = self._subscription
        backoff_s = _BACKOFF_FIRST_S
        while self._is_elsewhere():
            former, self.consumer = self.consumer, None
            if former is not None:
                self._consumers.retire(former)
            home_id = subscription.home_id()
            if not home_id:
                return
            consumer = await subscription.new_addressed_consumer(home_id, self.prefetch)
            try:
                await consumer.subscribe()
            except (RetryLater, QueueNotExisting):
                # The replica does not serve this client now. Its assignment may have changed.
                subscription.discard_consumer(consumer)
                subscription.join_again()
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)
                continue
            except BaseException:
                subscription.discard_consumer(consumer)
                consumer.abandon()
                raise
            if consumer.lost:
                continue
            self.consumer = consumer
            if not subscription.wants_more():
                self._consumers.retire(consumer)
                self.consumer = None
                return
