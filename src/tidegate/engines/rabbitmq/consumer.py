"""The consumers of one subscription on one channel, and the messages that they hold.

Theory of operation.

A `RabbitmqConsumer` owns one channel. It has one AMQP consumer for each source: one for a plain
queue, one for each replica of an elastic queue. The subscription makes another `RabbitmqConsumer`
when the channel ends.

Messages. A message belongs to the channel that delivered it. When the channel ends, all its
unsettled messages have returned to their queues, and late acknowledgements are dropped: delivery
tags count from 1 on every channel, so a late tag would settle another message. Each tag is settled
once, because a second settlement closes the channel.

Prefetch. It can change at any time:

- On a channel with classic queues only, AMQP's basic.qos applies to the whole channel at once, so
  one prefetch bounds all sources together.
- Quorum queues refuse that. There the prefetch belongs to the AMQP consumer, and each source gets
  an equal part. To change it, a new consumer begins on the same channel with the new value, and the
  former one is cancelled. Messages of the former one stay held, so for a while more may be held
  than the new value allows.

Cancelling on a quorum queue. Messages on their way to a cancelled consumer return to the queue,
flagged and counted as if they had failed. To prevent that, acknowledgements of the former consumer
are held back until it has as many messages as its prefetch allows: then none can be on its way. A
queue that is nearly empty never fills the consumer. Then the change is postponed until as many
messages have come as it would allow. Before that it would make no difference.

Leaving a replica. When a source is removed, its AMQP consumer is cancelled at once. The consumer of
its holders queue stays until the last message of that source is settled. The controller deletes the
replica's queue only after that; otherwise the broker would delete a message that is held here.

All calls that change consumers run under `_turning`, and each runs to completion even if the caller
is cancelled: a call that stops halfway closes the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aiormq import spec
from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.core.errors import CallerError, LeaseLost, TidegateError, Unavailable
from tidegate.engines.rabbitmq.connection import to_tidegate_error, translating_errors

if TYPE_CHECKING:
    from tidegate.engines.rabbitmq.topology import ReplicaSource


log = logging.getLogger(__name__)

# AMQP's maximum; 0 would mean unlimited.
PREFETCH_MAX = 65_535
# How long to wait until a former consumer is full; and the time without a message after which no
# more are expected.
_FULL_S_MAX = 0.2
_IDLE_S = 0.05
# Pause before a message is requeued that could not be delayed (for want of a permission, say).
_IN_VAIN_S = 1.0
Result = TypeVar("Result")


class RabbitmqConsumer:
    """One channel of a subscription, its AMQP consumers and its unsettled messages."""

    def __init__(
        self,
        channel: AbstractChannel,
        queue: str,
        *,
        is_classic: bool,
        prefetch: int,
        on_arrived: Callable[[RabbitmqConsumer, DeliveredMessage], None],
    ) -> None:
        self._channel = channel
        self.queue = queue
        self.is_classic = is_classic
        # The wanted prefetch; the channel's; and each AMQP consumer's, by its tag.
        self.prefetch = prefetch
        self._of_channel = prefetch
        self._in_force: dict[str, int] = {}
        # The number of sources that share the prefetch on quorum queues.
        self._among = 1
        self._on_arrived = on_arrived
        self.lost = False
        self._tags = 0
        # Tags of consumers that the broker has not confirmed yet.
        self._beginning: set[str] = set()
        # By name of the source: the tag of its consumer, and of the one at its holders queue.
        self._consumers: dict[str, str] = {}
        self._standing: dict[str, str] = {}
        self._stopped = False
        self._turning = asyncio.Lock()
        # Unsettled deliveries: the source of each, and the number per source.
        self._source_of: dict[int, str] = {}
        self._held_of: Counter[str] = Counter()
        # Tags of unsettled messages, and of those that are being stored elsewhere before their ack.
        self._unsettled: set[int] = set()
        self._settling: set[int] = set()
        # The AMQP consumer of each unsettled message, and how many of its acks are not sent.
        self._owners: dict[int, str] = {}
        self._out: Counter[str] = Counter()
        # The consumer whose acks are held back, and these acks.
        self._retiring = ""
        self._held_back: list[int] = []
        self._came = asyncio.Event()
        self._making_up: asyncio.Task[None] | None = None
        self._acks: deque[int] = deque()
        self._acking: asyncio.Task[None] | None = None

    # Sources and lifetime

    async def begin(self, sources: Sequence[ReplicaSource]) -> None:
        self._channel.on_consumer_cancel_callbacks.add(self._cancelled_by_the_broker)
        if self.is_classic:
            await self._rpc(self._set_qos(self.prefetch))
            self._of_channel = self.prefetch
        await self.follow(sources)

    async def follow(self, sources: Sequence[ReplicaSource]) -> None:
        """Consume from exactly these sources from now on."""
        async with self._turning:
            if self.lost or self._stopped:
                return
            wanted = {source.name: source for source in sources}
            self._among = len(wanted)
            for name in [name for name in self._consumers if name not in wanted]:
                await self._rpc(self._cancel(self._consumers.pop(name)))
            former = list(self._consumers)
            for name, holders in wanted.values():
                if holders is not None and name not in self._standing:
                    await self._rpc(self._join_holders(name, holders))
                if name not in self._consumers:
                    await self._rpc(self._consume(name))
            if not self.is_classic:
                for name in former:
                    await self._turn(name)
            for name in list(self._standing):
                await self._leave_holders(name)

    async def _leave_holders(self, name: str) -> None:
        """Leave the holders queue of a removed source if none of its messages is held."""
        if name in self._standing and name not in self._consumers and not self._held_of[name]:
            # The broker must read the acks before the cancel.
            await self._flush()
            await self._rpc(self._cancel(self._standing.pop(name)))

    async def _leave_later(self, name: str) -> None:
        with contextlib.suppress(TidegateError):
            async with self._turning:
                if not self.lost:
                    await self._leave_holders(name)

    async def wait_closed(self) -> TidegateError:
        """Wait until the channel has ended; return the reason."""
        closing = self._channel.closing
        await asyncio.wait({closing})
        self.lost = True
        reason = None if closing.cancelled() else closing.exception()
        return to_tidegate_error(reason, f"queue {self.queue!r}")

    async def end(self) -> None:
        """Close the channel; unsettled messages return to their queues."""
        if self.lost:
            return
        with contextlib.suppress(TidegateError), translating_errors(self.queue):
            await self._flush()
            self.lost = True
            await self._channel.close()
        self.lost = True

    async def stop(self) -> None:
        """Cancel the consumers; messages that were on their way have arrived when this returns."""
        async with self._turning:
            self._stopped = True
            while self._consumers and not self.lost:
                _, consumer = self._consumers.popitem()
                try:
                    if not self.is_classic:
                        await self._filled(consumer, _IDLE_S)
                    await self._rpc(self._cancel(consumer))
                finally:
                    self._release_acks()

    async def set_prefetch(self, prefetch: int) -> None:
        # Complete the change even if cancelled: the next change must know what the broker was told.
        await self._rpc(self._set_prefetch(prefetch))

    async def _set_prefetch(self, prefetch: int) -> None:
        async with self._turning:
            self.prefetch = prefetch
            if self.lost:
                return
            if not self.is_classic:
                for name in list(self._consumers):
                    await self._turn(name)
            elif prefetch != self._of_channel:
                await self._set_qos(prefetch)
                self._of_channel = prefetch

    @property
    def _part(self) -> int:
        """The prefetch of each AMQP consumer on quorum queues."""
        return max(-(-self.prefetch // max(self._among, 1)), 1)

    async def _turn(self, name: str) -> None:
        """Replace the consumer of a source if its prefetch is outdated and it can be filled."""
        former = self._consumers.get(name)
        if former is None or self._in_force[former] == self._part:
            return
        try:
            if await self._filled(former, _FULL_S_MAX) and not self.lost:
                await self._rpc(self._change_places(name, former))
        finally:
            self._release_acks()

    async def _change_places(self, name: str, former: str) -> None:
        await self._consume(name)
        await self._cancel(former)

    async def _filled(self, consumer: str, wait_s: float) -> bool:
        """Hold back a consumer's acks until it is full; return False if no messages come."""
        self._retiring = consumer
        try:
            async with asyncio.timeout(_FULL_S_MAX):
                while self._out[consumer] < self._in_force[consumer] and not self.lost:
                    self._came.clear()
                    await asyncio.wait_for(self._came.wait(), wait_s)
        except TimeoutError:
            return False
        return True

    def _release_acks(self) -> None:
        self._retiring = ""
        held_back, self._held_back = self._held_back, []
        self._send(held_back)

    def _make_up(self, name: str) -> None:
        """Retry a postponed change of the prefetch once enough messages have come."""
        consumer = self._consumers.get(name)
        if self.is_classic or consumer is None or self._turning.locked():
            return
        part, in_force = self._part, self._in_force[consumer]
        if part != in_force and self._out[consumer] >= min(part, in_force):
            self._making_up = asyncio.get_running_loop().create_task(self._made_up(name))

    async def _made_up(self, name: str) -> None:
        # If it fails, the channel is lost, and the next one begins with the new value.
        with contextlib.suppress(TidegateError):
            async with self._turning:
                if not self.lost:
                    await self._turn(name)

    async def _set_qos(self, prefetch: int) -> None:
        """Set the prefetch of the channel; on quorum queues, of consumers that begin later."""
        count = min(max(prefetch, 1), PREFETCH_MAX)
        await self._channel.basic_qos(prefetch_count=count, global_=self.is_classic)

    async def _consume(self, name: str) -> None:
        """Begin a consumer at a source, with its part of the prefetch."""
        part = self._part
        if not self.is_classic:
            await self._set_qos(part)
        tag = await self._begin_consumer(name, partial(self._delivered, name), part)
        self._consumers[name] = tag

    async def _join_holders(self, name: str, holders: str) -> None:
        """Register at the holders queue of a source."""
        self._standing[name] = await self._begin_consumer(holders, _nothing, 1)

    async def _begin_consumer(
        self, queue: str, delivered: Callable[[DeliveredMessage], Any], part: int
    ) -> str:
        self._tags += 1
        tag = f"tidegate-{self._tags}"
        self._in_force[tag] = part
        self._beginning.add(tag)
        try:
            await self._channel.basic_consume(queue, delivered, consumer_tag=tag)
            if tag not in self._beginning:
                raise Unavailable(f"queue {queue!r} has gone, or moves, as we came to it")
        except BaseException:
            del self._in_force[tag]
            raise
        finally:
            self._beginning.discard(tag)
        return tag

    async def _cancel(self, consumer: str) -> None:
        await self._channel.basic_cancel(consumer)
        self._in_force.pop(consumer, None)

    async def _rpc(self, call: Coroutine[Any, Any, Result]) -> Result:
        """Run a call to completion even if the caller is cancelled.

        Half a call would close the channel.
        """
        with translating_errors(f"queue {self.queue!r}"):
            return await asyncio.shield(asyncio.get_running_loop().create_task(call))

    async def _cancelled_by_the_broker(self, frame: spec.Basic.Cancel) -> None:
        """Handle a cancel by the broker: the queue was deleted, or has moved.

        A replica is dropped. For the queue itself the channel is closed, and the subscription
        starts again or finds that the queue is gone.
        """
        # If the cancel follows the confirmation at once, `_begin_consumer` has not resumed yet.
        self._beginning.discard(frame.consumer_tag or "")
        for name, tag in [*self._consumers.items(), *self._standing.items()]:
            if tag == frame.consumer_tag and name != self.queue:
                # A replica that was deleted by hand; the other sources continue.
                self._consumers.pop(name, None)
                self._standing.pop(name, None)
                return
        if frame.consumer_tag in self._consumers.values():
            self.lost = True
            asyncio.get_running_loop().create_task(self._channel.close())

    # Messages

    async def _delivered(self, source: str, delivered: DeliveredMessage) -> None:
        tag = delivered.delivery_tag
        if self.lost or tag is None:
            return
        owner = delivered.consumer_tag or ""
        self._unsettled.add(tag)
        self._owners[tag] = owner
        self._out[owner] += 1
        self._source_of[tag] = source
        self._held_of[source] += 1
        self._came.set()
        self._on_arrived(self, delivered)
        self._make_up(source)

    def _on_settled(self, tag: int) -> None:
        """Count a settled message, whose settlement is already on its way to the broker."""
        source = self._source_of.pop(tag)
        self._held_of[source] -= 1
        is_last = not self._held_of[source] and source not in self._consumers
        if is_last and source in self._standing:
            self._leaving = asyncio.get_running_loop().create_task(self._leave_later(source))

    @property
    def unsettled(self) -> int:
        return len(self._unsettled) + len(self._settling)

    def ack(self, tag: int) -> None:
        """Acknowledge without waiting; a message that is no longer held is ignored."""
        if self.lost or tag not in self._unsettled:
            return
        self._unsettled.discard(tag)
        if self._owners[tag] == self._retiring:
            self._held_back.append(tag)
        else:
            self._send([tag])

    def _send(self, tags: list[int]) -> None:
        for tag in tags:
            self._forget(tag)
        self._acks.extend(tags)
        if tags and (self._acking is None or self._acking.done()):
            self._acking = asyncio.get_running_loop().create_task(self._send_acks())

    def _forget(self, tag: int) -> None:
        owner = self._owners.pop(tag)
        self._out[owner] -= 1
        if not self._out[owner]:
            del self._out[owner]

    async def _send_acks(self) -> None:
        # If it fails, the channel is lost, and all messages have returned to their queues.
        with contextlib.suppress(TidegateError), translating_errors(self.queue):
            while self._acks:
                tags, self._acks = sorted(self._acks), deque()
                # One frame acknowledges all tags below the first unsettled one; tags are in order
                # of delivery.
                first = next(iter(self._owners), tags[-1] + 1)
                together = [tag for tag in tags if tag < first]
                if together:
                    await self._channel.basic_ack(together[-1], multiple=True, wait=False)
                for tag in tags[len(together) :]:
                    await self._channel.basic_ack(tag, wait=False)
                for tag in tags:
                    self._on_settled(tag)

    async def _flush(self) -> None:
        self._release_acks()
        if self._acking is not None:
            await asyncio.shield(self._acking)

    async def ack_confirmed(self, tag: int) -> None:
        """Acknowledge, and return when the broker has read it.

        Raises LeaseLost if the message is not held any more. RabbitMQ does not confirm acks. The
        answer to a later call on the same channel proves that the broker has read the ack.
        """
        self.check_held(tag)
        self.ack(tag)
        with translating_errors(f"queue {self.queue!r}"):
            # Wait for the lock: acks may be held back now.
            async with self._turning:
                await self._flush()
                await self._rpc(self._set_qos(self._of_channel if self.is_classic else self._part))

    def check_held(self, tag: int) -> None:
        if self.lost:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        if tag not in self._unsettled:
            raise LeaseLost("the message was settled before")

    async def requeue(self, tag: int) -> None:
        """Return a message to its place in the queue."""
        self.check_held(tag)
        self._unsettled.discard(tag)
        await self._rpc(self._nack(tag))

    async def _nack(self, tag: int) -> None:
        await self._channel.basic_nack(tag, requeue=True, wait=False)
        # Forget the tag only after the nack is sent: until then an ack of all lower tags would
        # include it.
        self._forget(tag)
        self._on_settled(tag)

    async def settle_after(self, tag: int, work: Coroutine[Any, Any, None]) -> None:
        """Acknowledge a message after `work` has stored it elsewhere, or requeue it."""
        try:
            self.check_held(tag)
        except LeaseLost:
            work.close()
            raise
        self._unsettled.discard(tag)
        self._settling.add(tag)
        try:
            await work
        except BaseException as failure:
            try:
                if isinstance(failure, CallerError) and not self.lost:
                    log.warning(
                        "a message cannot be given back as it should: it goes back as it is",
                        extra={"queue": self.queue, "reason": str(failure)},
                    )
                    # Pause, since the message would come again and fail again at once.
                    await asyncio.sleep(_IN_VAIN_S)
            finally:
                self._settling.discard(tag)
                if not self.lost:
                    self._unsettled.add(tag)
                    with contextlib.suppress(TidegateError):
                        await self.requeue(tag)
            raise
        self._settling.discard(tag)
        if not self.lost:
            self._unsettled.add(tag)
            self.ack(tag)


async def _nothing(_: DeliveredMessage) -> None:
    """Ignore a message; a holders queue gets none."""
