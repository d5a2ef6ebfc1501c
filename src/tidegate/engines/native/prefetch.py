"""One consumer as a controlled plant: its node measures it and sets its prefetch.

Theory of operation.

The prefetch loop of a node has one `ConsumerCredit` for each consumer that it controls. All calls
run in the node's event loop, in this order:

- `poll`, at least five times per sample: record how many messages the consumer holds, and whether
  its credit was used up. Advance the sojourn estimator.
- `sense`, once per sample: return the rates since the last sample, and how well they reflect the
  prefetch.
- `notify_consumer`, once per sample: inform the client of a new level, if it differs from the last
  one by more than 10 %.
- `wanted`, at every tick: return the prefetch to set now, which a probe of the estimator may
  reduce.

A sample is marked `starved` if unused credit was seen in more than 20 % of the polls. The node
delivers as soon as there is credit, so unused credit means that the prefetch does not limit the
rate. Then the queue is empty, paused or limited in rate, the socket is full, or the consumer holds
the maximum of bytes.

A sample is also `starved` if nothing was acknowledged for four sojourns, and at least 2 seconds: a
stuck consumer would only absorb more credit.

If the goal is to keep up with the handler, the sample also has `held` and `busy`. `busy` is 1.0
while messages wait in the consumer. If none has waited for three samples, it is 0.5: the law then
assumes twice the present capacity, and the prefetch grows by factors.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tidegate.broker.dispatch import Consumer
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.client.subscription import Subscription
from tidegate.core.errors import InvalidValue, QueueNotExisting, TidegateError
from tidegate.core.prefetch import PROBE_BYTES_MAX, ConsumerSample
from tidegate.engines.probe import PREFETCH_FIRST, ProbeConsumer
from tidegate.telemetry.meters import ServiceTimeProbe
from tidegate.telemetry.stats import ConsumerStats, QueueStats

# Part of the polls with unused credit, above which a sample says nothing about the prefetch.
_STARVED_PART = 0.2
# Relative change of the level that is reported to the client, which sizes its batches of
# acknowledgements by its prefetch.
_TOLD_PART = 0.1
# After so many sojourns without an acknowledgement, and at least so many seconds, the consumer
# counts as stuck.
_STUCK_SOJOURNS = 4.0
_STUCK_S = 2.0
# Assumed utilisation of the handler while no message waits. It makes the estimated capacity twice
# the present rate, so the prefetch grows by factors instead of steps.
_BUSY_BELOW_KNEE = 0.5
# Consecutive samples without waiting messages before the handler counts as idle.
_BELOW_KNEE_SAMPLES = 3


class SensedConsumer(NamedTuple):
    """One sample, with the values that are reported beside it."""

    sample: ConsumerSample
    acked_per_s: float
    # Mean time from delivery to acknowledgement; 0 means unknown.
    sojourn_s: float
    # A probe reduced the credit during this sample, so the sample is unfit for control.
    is_probe: bool


class ConsumerCredit:
    """The measurements of one consumer, and the prefetch to set for it."""

    def __init__(self, consumer: Consumer, now: float, *, keep_up: bool) -> None:
        self.consumer = consumer
        meters = consumer.meters
        self._delivered = meters.delivered.total
        self._acked = meters.acked.total
        self._service = (meters.service.count, meters.service.sum_s)
        self._sampled_at = now
        self._acked_at = now
        self._sojourn_s = 0.0
        self._looks = self._unused = self._outstanding = 0
        # Integral of the prefetch that was set, in messages times seconds.
        self._prefetch_s = 0.0
        self._set_at = now
        self._probed = False
        self._told = consumer.prefetch
        self.sojourn = SojournEstimator(consumer, now) if keep_up else None
        self._empty_samples = 0

    # Sensing

    def poll(self, now: float) -> None:
        """Poll the consumer; called several times per sample."""
        consumer = self.consumer
        outstanding = consumer.book.outstanding
        self._looks += 1
        self._outstanding += outstanding
        if outstanding < consumer.prefetch:
            self._unused += 1
        if self.sojourn is not None:
            self.sojourn.update(now)
            self._probed |= self.sojourn.probing is not None

    @property
    def probing(self) -> int | None:
        """Prefetch to set during a probe; None means that no probe runs."""
        return None if self.sojourn is None else self.sojourn.probing

    def sense(self, now: float) -> SensedConsumer:
        """Return the sample since the previous call, and begin the next one."""
        consumer = self.consumer
        interval_s = max(now - self._sampled_at, 1e-9)
        delivered, acked = consumer.meters.delivered.total, consumer.meters.acked.total
        self._note_set(now)
        prefetch = self._prefetch_s / interval_s
        arrived_per_s = (delivered - self._delivered) / interval_s
        acked_per_s = (acked - self._acked) / interval_s
        if acked > self._acked:
            self._acked_at = now
            service = consumer.meters.service
            count, sum_s = service.count - self._service[0], service.sum_s - self._service[1]
            self._service = (service.count, service.sum_s)
            self._sojourn_s = sum_s / count if count else self._sojourn_s
        held = self._held()
        starved = self._unused > _STARVED_PART * self._looks
        busy = None if held is None or starved or self._probed else self._busy(held)
        sample = ConsumerSample(
            at=now,
            interval_s=interval_s,
            arrived_per_s=arrived_per_s,
            processed_per_s=None if busy is None else acked_per_s,
            busy=busy,
            held=held,
            prefetch=prefetch,
            starved=starved or self._is_stuck(now),
        )
        is_probe, self._probed = self._probed, False
        self._delivered, self._acked, self._sampled_at = delivered, acked, now
        self._looks = self._unused = self._outstanding = 0
        self._prefetch_s = 0.0
        return SensedConsumer(sample, acked_per_s, self._sojourn_s, is_probe)

    def _held(self) -> float | None:
        if self.sojourn is None:
            return None
        outstanding = self._outstanding / self._looks if self._looks else 0.0
        return self.sojourn.held(outstanding)

    def _busy(self, held: float) -> float:
        """Return 1.0, or after some samples without waiting messages `_BUSY_BELOW_KNEE`."""
        self._empty_samples = self._empty_samples + 1 if held < 0.25 else 0
        return _BUSY_BELOW_KNEE if self._empty_samples >= _BELOW_KNEE_SAMPLES else 1.0

    def _is_stuck(self, now: float) -> bool:
        """Return whether the consumer has acknowledged nothing for too long."""
        patience_s = max(_STUCK_SOJOURNS * self._sojourn_s, _STUCK_S)
        return now - self._acked_at > patience_s

    # Acting

    def _note_set(self, now: float) -> None:
        self._prefetch_s += self.consumer.prefetch * (now - self._set_at)
        self._set_at = now

    def wanted(self, prefetch: int, now: float) -> int:
        """Return the prefetch to set now; from this call on it counts as set."""
        self._note_set(now)
        probing = self.probing
        return prefetch if probing is None else min(prefetch, probing)

    def notify_consumer(self, level: float) -> None:
        """Inform the client of a new level if it differs enough from the last one reported."""
        wanted = math.ceil(level)
        if self.consumer.limit is not None:
            wanted = min(wanted, self.consumer.limit)
        if abs(wanted - self._told) > _TOLD_PART * self._told:
            self._told = wanted
            self.consumer.target.prefetch_changed(self.consumer.consumer, wanted)

    def close(self) -> None:
        """End the measurements of the estimator."""
        if self.sojourn is not None:
            self.sojourn.close()


# Estimation of how many messages wait in a consumer, as TCP Vegas estimates a network's queue.
#
#     held = outstanding · (1 − base / sojourn)      sojourn: from delivery to acknowledgement
#
# By Little's law, `outstanding` is the rate times the sojourn. The part of the sojourn that is
# neither network nor handler time is waiting. `base` is the sojourn of a message that meets hardly
# any other message.
#
# The smallest observed sojourn is no usable base. If the handler's time varies, it belongs to the
# luckiest message, and everything slower would look like waiting. So the base is the mean of some
# messages that are delivered during a probe.
#
# A probe works as follows:
#
# - The credit is cut to half of the messages that are estimated to be at work. With half of the
#   handler's slots free, no message waits, for any number of slots.
# - When no more messages are outstanding than that, the probe counts deliveries: at least eight and
#   twice the credit, or two after one second. Then the credit is restored.
# - When all these messages are acknowledged, their mean sojourn updates the base.
# - A probe is abandoned after 30 seconds.
#
# Probes cost one or two per cent of the rate. Without them, a base that was once too short would
# look like waiting for ever. A probe that confirms the base doubles the pause to the next one, from
# 10 seconds to a minute. If the mean sojourn changes by a factor of 1.5, the next probe starts
# sooner.
#
# The first probe, without any base, cuts the credit to one. If messages take a second or longer,
# that would leave the handler idle for many seconds. Such a consumer is probed only in two cases:
# it holds more than 16 messages, so most of them must be waiting, or its prefetch is one anyway.
#
# A consumer that acknowledges n messages together received them together. In a batch of n, n − 1
# messages wait because of the way they travel, not because of the prefetch. So n − 1 is subtracted
# from `held`.


# Minimum number of messages in a probe; after `_FEWER_AFTER_S` seconds `_FEWER` suffice. A probe is
# abandoned after `_GIVEN_UP_S` seconds.
PROBE_MESSAGES = 8
_FEWER, _FEWER_AFTER_S = 2, 1.0
_GIVEN_UP_S = 30.0
# Seconds between probes, at first and at most; and the minimum pause as a multiple of a probe's
# duration, which bounds the cost to about two per cent.
PROBE_EVERY_S, _SELDOM_S = 10.0, 60.0
_REST = 30.0
# Factor of the pause after a probe that confirmed the base.
_SELDOMER = 2.0
# Without a base, a consumer with such slow messages and so few outstanding ones is not probed: the
# probe would take several seconds.
_SLOW_S, _FEW_OUTSTANDING = 1.0, 16
# The base is a moving mean of about so many probes. A probe that differs by more than this factor
# replaces it.
_PROBES = 4
_JUMP = 1.5


class SojournEstimator:
    """The base sojourn of one consumer, and the number of messages that wait in it."""

    def __init__(self, consumer: Consumer, now: float) -> None:
        self._consumer = consumer
        # Seconds; None means unknown.
        self.base_s: float | None = None
        self._probes = 0
        self._probe_at = now
        self._began_at = now
        self._every_s = PROBE_EVERY_S
        # When the last probe ended, and the mean sojourn then.
        self._ended_at = now
        self._mean_then_s: float | None = None
        # The reduced credit while a probe runs; None means that no probe runs.
        self.probing: int | None = None
        # The counter of deliveries when the probe began to count, and deliveries since.
        self._delivered = self._expected = 0
        self._sum_s = consumer.meters.service.sum_s
        self._count = consumer.meters.service.count
        self._settlements = consumer.meters.settlements
        self._mean_s: float | None = None

    def held(self, outstanding: float) -> float | None:
        """Return the mean number of waiting messages since the previous call; None if unknown."""
        meters = self._consumer.meters
        service = meters.service
        sum_s, count = service.sum_s - self._sum_s, service.count - self._count
        together = count / max(meters.settlements - self._settlements, 1)
        self._sum_s, self._count = service.sum_s, service.count
        self._settlements = meters.settlements
        if not count:
            return None
        self._mean_s = sum_s / count
        if self.base_s is None:
            return None
        waiting = outstanding * (1.0 - self.base_s / max(self._mean_s, 1e-9))
        return max(waiting - (together - 1.0), 0.0)

    def update(self, now: float) -> None:
        """Begin, continue or end a probe, as is due."""
        if self.probing is not None:
            self._continue_probe(self.probing, now)
        elif self._consumer.meters.probe is not None:
            self._wait_for_all(self._consumer.meters.probe, now)
        elif self._is_worth_it() and (now >= self._probe_at or self._is_otherwise(now)):
            self._begin(now)

    def _is_worth_it(self) -> bool:
        """Return whether a probe is short, free of cost, or likely to find waiting messages."""
        outstanding = self._consumer.book.outstanding
        if not outstanding:
            return False
        if self.base_s is not None or self._consumer.prefetch <= 1:
            return True
        if self._mean_s is None:
            # No message was acknowledged yet, so the handler may be slow.
            return False
        return self._mean_s < _SLOW_S or outstanding > _FEW_OUTSTANDING

    def _is_otherwise(self, now: float) -> bool:
        """Return whether the mean sojourn has changed clearly since the last probe."""
        then_s, now_s = self._mean_then_s, self._mean_s
        if then_s is None or now_s is None or now < self._ended_at + PROBE_EVERY_S:
            return False
        return not then_s / _JUMP <= now_s <= then_s * _JUMP

    def _begin(self, now: float) -> None:
        in_use = float(self._consumer.book.outstanding)
        if self.base_s is None or self._mean_s is None:
            in_use = 1.0
        else:
            in_use *= min(self.base_s / max(self._mean_s, 1e-9), 1.0)
        self.probing = max(int(in_use / 2.0), 1)
        self._began_at = now

    def _continue_probe(self, probing: int, now: float) -> None:
        """Continue a probe: let the outstanding messages drain, then count deliveries."""
        meters, lasted_s = self._consumer.meters, now - self._began_at
        delivered = meters.delivered.total
        if meters.probe is None:
            if self._consumer.book.outstanding <= probing:
                # From now on a delivered message meets hardly any other message.
                meters.probe = ServiceTimeProbe(now)
                self._delivered = delivered
        else:
            self._expected = delivered - self._delivered
            few_are_enough = self._expected >= _FEWER and lasted_s >= _FEWER_AFTER_S
            if self._expected >= max(PROBE_MESSAGES, 2 * probing) or few_are_enough:
                meters.probe.until = now
                self._end_cut(now, lasted_s)
                return
        if lasted_s > _GIVEN_UP_S:
            meters.probe = None
            self._end_cut(now, lasted_s)

    def _wait_for_all(self, probe: ServiceTimeProbe, now: float) -> None:
        """Learn the base when all messages of the probe are acknowledged.

        The first acknowledgements alone would be those of the luckiest messages.
        """
        if probe.count >= self._expected:
            self._learn(probe.sum_s / probe.count)
            self._consumer.meters.probe = None
        elif now - probe.until > _GIVEN_UP_S:
            # Some messages were returned, or their lease expired.
            self._consumer.meters.probe = None

    def _end_cut(self, now: float, lasted_s: float) -> None:
        self.probing = None
        self._ended_at = now
        self._mean_then_s = self._mean_s
        self._probe_at = now + max(self._every_s, _REST * lasted_s)

    def _learn(self, base_s: float) -> None:
        known = self.base_s
        if known is None or not known / _JUMP <= base_s <= known * _JUMP:
            self.base_s, self._probes, self._every_s = base_s, 1, PROBE_EVERY_S
        else:
            self._every_s = min(_SELDOMER * self._every_s, _SELDOM_S)
            self._probes = min(self._probes + 1, _PROBES)
            self.base_s = known + (base_s - known) / self._probes

    def close(self) -> None:
        """Stop counting for a probe."""
        self._consumer.meters.probe = None


# The existing consumers of a queue, as the plant of `tidegate tune prefetch`.
#
# The experiment sets the prefetch of all consumers of the queue through their node, and reads the
# node's counters; client code takes no part. All consumers get the same prefetch. The measured rate
# is the mean of one consumer.
#
# The node restores the prefetch that each consumer asked for when the experiment ends, and also
# when this process dies: the change lasts as long as the connection (`set_experiment_prefetch`).
# Only one experiment can run at a time.


# Queue id (of the queue or of a replica), client id, and number of the consumer.
Key = tuple[int, int, int]
EXPERIMENT_OVER = 0


class NoConsumers(InvalidValue):
    """The queue has no consumer that acknowledges explicitly."""


class ExistingConsumers:
    """The consumers of one queue of a cluster."""

    feeds_itself = False

    def __init__(self, client: Client, queue: str, consumers: list[Key]) -> None:
        self._client = client
        self._queue = queue
        self._consumers = consumers
        self._prefetch = math.nan
        count = len(consumers)
        self.description = (
            f"{'the consumer' if count == 1 else f'the {count} consumers'} of {queue}, as "
            f"{'it is' if count == 1 else 'they are'}"
        )
        self.restored_text = (
            f"the consumers of {queue} have the prefetch again that they asked for"
            if count > 1
            else f"the consumer of {queue} has the prefetch again that it asked for"
        )

    @classmethod
    async def find(cls, client: Client, queue: str) -> ExistingConsumers:
        """Return the present consumers of a queue.

        Raises NoConsumers if there are none. Raises InvalidValue if nodes control their prefetch
        already, or another experiment runs.
        """
        if (await client.queue(queue)).policy.prefetch is not None:
            # Two controllers of one prefetch would measure each other.
            raise InvalidValue(
                f"nodes steer the prefetch of {queue} already: switch that off first (`tidegate "
                f"policy {queue} --prefetch-off`), or measure with a probe of our own (--probe)"
            )
        found = _consumers(await _numbers(client, queue))
        if not found:
            raise NoConsumers(f"queue {queue} has no consumer that acknowledges")
        trying = {one.trial_by for one in found.values()} - {""}
        if trying:
            raise InvalidValue(
                f"{min(trying)} is trying out prefetches with the consumers of {queue} just now "
                "(`tidegate tune prefetch` does): wait until that has ended, or measure with a "
                "probe of our own (--probe)"
            )
        return cls(client, queue, list(found))

    async def set_prefetch(self, prefetch: int) -> None:
        # Set all of them each time: after a lost connection, a consumer has its own prefetch again.
        for key in self._consumers:
            await self._set(key, prefetch)
        self._prefetch = float(prefetch)

    async def measure(self, interval_s: float) -> ConsumerSample:
        loop = asyncio.get_running_loop()
        first = await _numbers(self._client, self._queue)
        begun_at = loop.time()
        await asyncio.sleep(interval_s)
        last = await _numbers(self._client, self._queue)
        now = loop.time()
        before, after = _consumers(first), _consumers(last)
        counted = [key for key in self._consumers if key in before and key in after]
        if not counted:
            raise InvalidValue(
                f"the consumers of {self._queue} have gone while they were measured: start them "
                "and try again"
            )
        arrived = sum(after[key].delivered - before[key].delivered for key in counted)
        return ConsumerSample(
            at=now,
            interval_s=now - begun_at,
            arrived_per_s=arrived / len(counted) / (now - begun_at),
            prefetch=self._prefetch,
            starved=_is_empty(first) or _is_empty(last),
        )

    async def close(self) -> None:
        """Restore the prefetch that each consumer asked for.

        A consumer that has left, or that another experiment uses, is skipped.
        """
        for key in self._consumers:
            with contextlib.suppress(InvalidValue):
                await self._set(key, EXPERIMENT_OVER)

    async def _set(self, key: Key, prefetch: int) -> None:
        queue_id, client_id, consumer = key
        await self._client.set_consumer_prefetch(
            queue_id, client_id, consumer, prefetch, trial=True
        )


async def _numbers(client: Client, queue: str) -> list[QueueStats]:
    cluster = await client.stats(queue)
    found = [numbers for node in cluster.nodes for numbers in node.queues]
    if not found:
        raise TidegateError(f"no node has numbers of queue {queue} at the moment: try again")
    return found


def _consumers(queues: list[QueueStats]) -> dict[Key, ConsumerStats]:
    return {
        (queue.queue_id, one.client_id, one.consumer): one
        for queue in queues
        for one in queue.consumers
        if not one.automatic
    }


def _is_empty(queues: list[QueueStats]) -> bool:
    return sum(queue.waiting - queue.delayed for queue in queues) <= 0


# A probe consumer on Tidegate nodes, on a temporary queue that its connection owns.


PREFIX = "tidegate.tune."
# Messages that are browsed, without taking them, to measure their size.
SIZES_SAMPLED = 20
SIZE_BYTES_DEFAULT = 256


async def native_probe(
    client: Client, queue: str, *, handler_s: float, size_bytes: int | None
) -> ProbeConsumer:
    """Open a probe beside `queue`, as durable and with messages as large.

    `size_bytes` None means the mean size of the waiting messages.
    """
    info = await client.queue(queue)
    if size_bytes is None:
        size_bytes = min(await _size_of_messages(client, queue), PROBE_BYTES_MAX)
    own = NativeProbeQueue(client, queue, durable=info.durable)
    probe = ProbeConsumer(own, queue, handler_s=handler_s, size_bytes=size_bytes)
    await probe.open()
    return probe


class NativeProbeQueue:
    """A `ProbeQueue` on a client that the caller opens and closes."""

    put_at_once = 500

    def __init__(self, client: Client, queue: str, *, durable: bool) -> None:
        self._client = client
        self._durable = durable
        self.name = f"{PREFIX}{queue}.{secrets.token_hex(4)}"
        self._is_made = False
        self._subscription: Subscription | None = None
        self._consuming: asyncio.Task[None] | None = None
        self._turns: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await self._client.create_queue(self.name, durable=self._durable, ephemeral=True)
        self._is_made = True

    async def put(self, payloads: list[bytes]) -> None:
        await self._client.put_many(self.name, payloads)

    async def consume(self, handle: Callable[[], Awaitable[None]]) -> None:
        self._subscription = self._client.subscribe(self.name, prefetch=PREFETCH_FIRST)
        await self._subscription.__aenter__()
        self._consuming = asyncio.create_task(self._take(self._subscription, handle))

    async def _take(
        self, subscription: Subscription, handle: Callable[[], Awaitable[None]]
    ) -> None:
        async def turn(message: Message) -> None:
            await handle()
            message.ack()

        async for message in subscription:
            task = asyncio.create_task(turn(message))
            self._turns.add(task)
            task.add_done_callback(self._turns.discard)

    async def apply_prefetch(self, prefetch: int) -> None:
        assert self._subscription is not None
        await self._subscription.set_prefetch(prefetch)

    async def close(self) -> None:
        tasks = {*self._turns, *([self._consuming] if self._consuming else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._subscription is not None:
            with contextlib.suppress(TidegateError):
                await self._subscription.__aexit__(None, None, None)
        if self._is_made:
            # The node deletes an ephemeral queue when its client's session ends.
            with contextlib.suppress(QueueNotExisting):
                await self._client.delete_queue(self.name)
            self._is_made = False


async def _size_of_messages(client: Client, queue: str) -> int:
    """Return the mean size of waiting messages, without taking them."""
    sizes = [len(message.payload) for message in await client.browse(queue, limit=SIZES_SAMPLED)]
    return round(sum(sizes) / len(sizes)) if sizes else SIZE_BYTES_DEFAULT
