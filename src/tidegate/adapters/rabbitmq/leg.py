"""The consumers of a subscription on one channel, and what they hold there.

As a rule that is one; of an elastic queue one for each of its replicas, so that one prefetch holds
over all of them (on quorum queues each has its part of it).

A message belongs to the leg that it came with. When the channel has ended, everything has gone back
to its queue and comes again, so that a late ack is dropped: delivery tags count from 1 on every
channel, and on another one it would settle a stranger. A tag is settled once, because a second time
closes the channel.

The prefetch is live. A classic queue takes `basic.qos` of the whole channel at any time. Quorum
queues refuse that: there the value is the consumer's, so another one begins with the new value on
the same channel and the former is cancelled; what came to either is the same to us, and what the
former had delivered stays ours. Until that is settled more may be held than the new value says.
What is on its way to a consumer that is cancelled goes back, flagged and counted as if it had
failed. So the former's acks are held back until it has all that it may have, when nothing can be on
its way to it. A queue that is about empty does not fill it: then everything stays as it is, and the
change is made up for when as many messages have come as it would allow; before, it changes nothing.

A replica that is to go is let go: no more is taken from it, and when the last message of it is
settled we leave its holders too. Before that it is not deleted: its broker would take the message
away from under us.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from aiormq import spec
from aiormq.abc import AbstractChannel, DeliveredMessage

from tidegate.adapters.rabbitmq.elastic.sources import Source
from tidegate.adapters.rabbitmq.failures import as_tidegate, telling
from tidegate.core.errors import CallerError, LeaseLost, TidegateError, Unavailable

log = logging.getLogger(__name__)

# The most that AMQP can say; 0 would mean without limit.
PREFETCH_MAX = 65_535
# How long a consumer that is to be cancelled may wait for what its prefetch allows, and how long
# without any message says that there are none.
_FULL_S_MAX = 0.2
_IDLE_S = 0.05
# Before what cannot be delayed, for want of a permission say, goes back.
_IN_VAIN_S = 1.0
Result = TypeVar("Result")


class Leg:
    """A holder of messages."""

    def __init__(
        self,
        channel: AbstractChannel,
        queue: str,
        *,
        is_classic: bool,
        prefetch: int,
        on_arrived: Callable[[Leg, DeliveredMessage], None],
    ) -> None:
        self._channel = channel
        self.queue = queue
        self.is_classic = is_classic
        # As wanted; as the channel has it, or each consumer, by its tag.
        self.prefetch = prefetch
        self._of_channel = prefetch
        self._in_force: dict[str, int] = {}
        # How many consumers share it, where it is the consumer's.
        self._among = 1
        self._on_arrived = on_arrived
        self.lost = False
        self._tags = 0
        # The tags of those that wait for the broker's word that they consume.
        self._beginning: set[str] = set()
        # By name of the queue: the tag of its consumer, and of ours among its holders.
        self._consumers: dict[str, str] = {}
        self._standing: dict[str, str] = {}
        self._stopped = False
        self._turning = asyncio.Lock()
        # Of what was delivered: where from, and how many of each are not settled.
        self._source_of: dict[int, str] = {}
        self._held_of: Counter[str] = Counter()
        # Delivered and not settled; those being settled elsewhere first.
        self._unsettled: set[int] = set()
        self._settling: set[int] = set()
        # Which consumer each came to, and how many of each's acks were not sent.
        self._owners: dict[int, str] = {}
        self._out: Counter[str] = Counter()
        # The consumer whose acks are held back, and those.
        self._retiring = ""
        self._held_back: list[int] = []
        self._came = asyncio.Event()
        self._making_up: asyncio.Task[None] | None = None
        self._acks: deque[int] = deque()
        self._acking: asyncio.Task[None] | None = None

    # Coming and going

    async def begin(self, sources: Sequence[Source]) -> None:
        self._channel.on_consumer_cancel_callbacks.add(self._cancelled_by_the_broker)
        if self.is_classic:
            await self._rpc(self._set_qos(self.prefetch))
            self._of_channel = self.prefetch
        await self.follow(sources)

    async def follow(self, sources: Sequence[Source]) -> None:
        """Consume from these from now on, and let go of others."""
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
                    await self._rpc(self._stand(name, holders))
                if name not in self._consumers:
                    await self._rpc(self._consume(name))
            if not self.is_classic:
                for name in former:
                    await self._turn(name)
            for name in list(self._standing):
                await self._leave(name)

    async def _leave(self, name: str) -> None:
        """Stand no more among the holders of a queue that was let go, if we hold nothing of it."""
        if name in self._standing and name not in self._consumers and not self._held_of[name]:
            # Acks that are on their way arrive before this.
            await self._flush()
            await self._rpc(self._cancel(self._standing.pop(name)))

    async def _leave_later(self, name: str) -> None:
        with contextlib.suppress(TidegateError):
            async with self._turning:
                if not self.lost:
                    await self._leave(name)

    async def ended(self) -> TidegateError:
        """Wait until the channel has; the reason."""
        closing = self._channel.closing
        await asyncio.wait({closing})
        self.lost = True
        reason = None if closing.cancelled() else closing.exception()
        return as_tidegate(reason, f"queue {self.queue!r}")

    async def end(self) -> None:
        """Everything that is not settled goes back."""
        if self.lost:
            return
        with contextlib.suppress(TidegateError), telling(self.queue):
            await self._flush()
            self.lost = True
            await self._channel.close()
        self.lost = True

    async def stop(self) -> None:
        """Take no more: what was sent before the broker knew has arrived when this returns."""
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
        # To the end: who comes next has to know what the broker was told.
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
        """What each consumer is to have, where the prefetch is the consumer's."""
        return max(-(-self.prefetch // max(self._among, 1)), 1)

    async def _turn(self, name: str) -> None:
        """Another consumer in the place of this one, if it can be filled."""
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
        """Hold its acks back until it has all that it may have; not for longer than it seems so."""
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
        """The prefetch was changed while the queue was about empty: now it counts."""
        consumer = self._consumers.get(name)
        if self.is_classic or consumer is None or self._turning.locked():
            return
        part, in_force = self._part, self._in_force[consumer]
        if part != in_force and self._out[consumer] >= min(part, in_force):
            self._making_up = asyncio.get_running_loop().create_task(self._made_up(name))

    async def _made_up(self, name: str) -> None:
        # If it fails, the channel is gone, and the next one begins with it.
        with contextlib.suppress(TidegateError):
            async with self._turning:
                if not self.lost:
                    await self._turn(name)

    async def _set_qos(self, prefetch: int) -> None:
        """Of the whole channel; on quorum queues of each consumer that begins from now on."""
        count = min(max(prefetch, 1), PREFETCH_MAX)
        await self._channel.basic_qos(prefetch_count=count, global_=self.is_classic)

    async def _consume(self, name: str) -> None:
        """Begin with a queue, or anew with its part of the prefetch."""
        part = self._part
        if not self.is_classic:
            await self._set_qos(part)
        tag = await self._begin_consumer(name, partial(self._delivered, name), part)
        self._consumers[name] = tag

    async def _stand(self, name: str, holders: str) -> None:
        """Be one of those who may hold messages of a queue."""
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
        """A call whose end is waited for even if nobody does: half of one closes the channel."""
        with telling(f"queue {self.queue!r}"):
            return await asyncio.shield(asyncio.get_running_loop().create_task(call))

    async def _cancelled_by_the_broker(self, frame: spec.Basic.Cancel) -> None:
        """The queue was deleted, or has moved: begin anew, or learn that there is none."""
        # Right behind its word that it consumes, who began it has not heard of that yet.
        self._beginning.discard(frame.consumer_tag or "")
        for name, tag in [*self._consumers.items(), *self._standing.items()]:
            if tag == frame.consumer_tag and name != self.queue:
                # A replica, by somebody's hand: the others go on.
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

    def _gone(self, tag: int) -> None:
        """It was settled, and the broker is told before anything that comes now."""
        source = self._source_of.pop(tag)
        self._held_of[source] -= 1
        is_last = not self._held_of[source] and source not in self._consumers
        if is_last and source in self._standing:
            self._leaving = asyncio.get_running_loop().create_task(self._leave_later(source))

    @property
    def unsettled(self) -> int:
        return len(self._unsettled) + len(self._settling)

    def ack(self, tag: int) -> None:
        """Without waiting; nothing if it is no longer ours."""
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
        # If it fails, the channel is gone, and everything has gone back.
        with contextlib.suppress(TidegateError), telling(self.queue):
            while self._acks:
                tags, self._acks = sorted(self._acks), deque()
                # One frame for all below the first that is still out: they came in order.
                first = next(iter(self._owners), tags[-1] + 1)
                together = [tag for tag in tags if tag < first]
                if together:
                    await self._channel.basic_ack(together[-1], multiple=True, wait=False)
                for tag in tags[len(together) :]:
                    await self._channel.basic_ack(tag, wait=False)
                for tag in tags:
                    self._gone(tag)

    async def _flush(self) -> None:
        self._release_acks()
        if self._acking is not None:
            await asyncio.shield(self._acking)

    async def ack_confirmed(self, tag: int) -> None:
        """RabbitMQ confirms no acks; an answer on the same channel says that it was read."""
        self.check_held(tag)
        self.ack(tag)
        with telling(f"queue {self.queue!r}"):
            # Not while acks are held back.
            async with self._turning:
                await self._flush()
                await self._rpc(self._set_qos(self._of_channel if self.is_classic else self._part))

    def check_held(self, tag: int) -> None:
        if self.lost:
            raise LeaseLost("the connection was lost meanwhile, and the message went back")
        if tag not in self._unsettled:
            raise LeaseLost("the message was settled before")

    async def requeue(self, tag: int) -> None:
        """To the queue, where it was."""
        self.check_held(tag)
        self._unsettled.discard(tag)
        await self._rpc(self._nack(tag))

    async def _nack(self, tag: int) -> None:
        await self._channel.basic_nack(tag, requeue=True, wait=False)
        # Not before it is on its way: one ack of all below another would be an ack of this, too.
        self._forget(tag)
        self._gone(tag)

    async def settle_after(self, tag: int, work: Coroutine[Any, Any, None]) -> None:
        """Ack a message when it is safe elsewhere; if it is not, it goes back to its queue."""
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
                    # It would fail again at once, and again.
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
    """Nobody sends anything to the holders of a queue."""
