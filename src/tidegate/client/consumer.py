"""A consumer registered at one node.

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
from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.client.connection import Transport
from tidegate.client.message import MessageBatch, ReturnOptions, split_payloads
from tidegate.core.errors import InvalidValue, LeaseLost, TidegateError
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

# How long acknowledgements wait for more, in seconds, while the node has enough credit. One packet
# per acknowledgement would cost the node more than the messages.
_ACK_LINGER_S = 0.003
UNSTARTED = ReturnOptions(unstarted=True)


class RemoteConsumer:
    """A consumer number at one queue over one transport, with the messages that it holds."""

    def __init__(
        self,
        queue: str,
        queue_id: int,
        consumer: int,
        transport: Transport,
        *,
        prefetch: int,
        order: Order,
        automatic: bool,
        mine_only: bool = False,
        on_arrived: Callable[[list[MessageBatch]], None],
        on_ended: Callable[[RemoteConsumer, ConsumerEnded], None],
        on_prefetch: Callable[[RemoteConsumer, int], None],
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
        self._on_arrived = on_arrived
        self._on_ended = on_ended
        self._on_prefetch = on_prefetch
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
        self._on_arrived(batches)

    def on_ended(self, packet: ConsumerEnded) -> None:
        self._on_ended(self, packet)

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
            self._on_prefetch(self, prefetch)

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
