"""Puts to a logical queue, distributed over its replicas.

Theory of operation. A `ReplicaRouter` is the producer of a logical queue. It gathers the puts of
one turn of the event loop, and distributes them at its end in consecutive runs. Each replica gets
its share of them, with an error below one message per replica. Each replica has a `ReplicaProducer`
with batches and numbers of its own, so a resent batch is recognised where it was stored.

Messages of a group, with a receiver or with a dedup id go to their assigned replica. They have one
`AssignedReplicaProducer` per assignment slot, which follows when the assignment changes.

A `QueueMembership` supplies the topology, and under the policy "clients" the replica of this
producer. Then all other messages go to that replica.

A replica gets no new messages while it is

- away: it refused a batch, its node failed, or it was silent for `STALL_S`. It is tried again after
  0.05 s to 1 s. The last replica with a share is not put away for silence, since slow is better
  than nothing.
- gone: it no longer exists. This holds until a topology without it arrives.
- full: it had no room a moment ago, and other replicas have room.

The shares of the remaining replicas grow accordingly. If no replica is left, messages go to the
alias, which stores them and hands them over later.

What a replica has refused for certain goes to other replicas under new numbers. What it may have
stored is sent only to that replica, until its result is known; see `ReplicaProducer`.

If the queue turns out to be deleted or plain, a new producer looks the name up. It gets the
messages that are certainly not stored. Batches in doubt and batches of `put_many` stay here.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tidegate.client.directory import QueueDirectory, QueueMembership
from tidegate.client.message import DEFAULT_MESSAGE_OPTIONS, MessageOptions
from tidegate.client.producer import OutgoingBatch, PendingMessages, Producer
from tidegate.core.errors import (
    IoFailure,
    LimitReached,
    NotHome,
    NotOwner,
    QueueNotExisting,
    RetryLater,
    TidegateError,
)
from tidegate.core.topology import (
    ALIAS,
    MemberRole,
    ReplicaInfo,
    ReplicaState,
    assignment_key,
    assignment_slot,
)
from tidegate.laws.routing import Splitter
from tidegate.protocol.messages import GetFate, GetFateResponse, PutMessageResponse
from tidegate.protocol.packet import Packet

if TYPE_CHECKING:
    from tidegate.client.connection import ClusterConnection
    from tidegate.client.puts import ProducerPool


_AWAY_FIRST_S = 0.05
_AWAY_MAX_S = 1.0
# How long a full replica gets no new messages while others have room, in seconds.
_FULL_S = 0.25


class ReplicaRouter:
    """Distributes the messages to one logical queue over its replicas."""

    def __init__(
        self,
        connection: ClusterConnection,
        queues: QueueDirectory,
        pool: ProducerPool,
        queue: str,
        queue_id: int,
        *,
        member: int = 0,
        wanted: int | None = None,
    ) -> None:
        self.connection = connection
        self.queues = queues
        self.pool = pool
        self.queue = queue
        self.queue_id = queue_id
        self.membership = QueueMembership(
            connection, queues, self, queue_id, MemberRole.PRODUCER, member, wanted=wanted
        )
        self._loop = asyncio.get_running_loop()
        self._payloads: list[bytes] = []
        self._futures: list[asyncio.Future[int]] = []
        self._special: list[MessageOptions] | None = None
        self._scheduled = False
        # A random start, so that many clients that put one message each do not all use the same
        # replica.
        self._splitter = Splitter({}, random.random())
        self._places: dict[int, ReplicaInfo] = {}
        self._alias = ReplicaProducer(self, queue_id)
        self._producers: dict[int, ReplicaProducer] = {queue_id: self._alias}
        self._homes: dict[tuple[int, bool], AssignedReplicaProducer] = {}
        self._watching = False
        # Ids of replicas that get nothing now, and how often in a row each has refused.
        self._away: set[int] = set()
        self._refusals: dict[int, int] = {}
        self._gone: set[int] = set()
        # Ids of replicas that had no room a moment ago.
        self._full: set[int] = set()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.membership.start()

    async def ready(self) -> None:
        """Wait until the topology is known."""
        await asyncio.shield(self._ready)

    # Gathering messages

    def add(self, payload: bytes) -> asyncio.Future[int]:
        """Add a message with default options; return the future of its id."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._payloads.append(payload)
        self._futures.append(future)
        if self._special is not None:
            self._special.append(DEFAULT_MESSAGE_OPTIONS)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._distribute)
        return future

    def add_with_options(self, payload: bytes, special: MessageOptions) -> asyncio.Future[int]:
        """Add a message with options of its own; return the future of its id."""
        if self._special is None:
            self._special = [DEFAULT_MESSAGE_OPTIONS] * len(self._payloads)
        future = self.add(payload)
        self._special[-1] = special
        return future

    async def add_many(self, payloads: list[bytes], priority: int) -> list[list[int]]:
        """Send many messages in batches per replica; return the ids of each batch."""
        await self.ready()
        self._distribute()  # messages that were put earlier are sent first
        self._watch()
        runs = []
        at = 0
        for number, count in self._splitter.deal(len(payloads)).items():
            run = payloads[at : at + count]
            at += count
            runs.append(self._producer_of(number).add_many(run, priority))
        return [ids for answers in await asyncio.gather(*runs) for ids in answers]

    def add_pending(self, unsent: PendingMessages) -> None:
        """Add messages that another producer had gathered, and distribute them."""
        if unsent.special is not None and self._special is None:
            self._special = [DEFAULT_MESSAGE_OPTIONS] * len(self._payloads)
        self._payloads += unsent.payloads
        self._futures += unsent.futures
        if self._special is not None:
            self._special += unsent.special or [DEFAULT_MESSAGE_OPTIONS] * len(unsent.payloads)
        self._distribute()

    def take_from(self, producer: Producer) -> None:
        """Take over the unsent messages of a producer whose queue has become a logical queue."""
        refused, unsent = producer.take_refused(), producer.take_pending()
        for batch in refused:
            messages = PendingMessages.of(batch)
            if messages is None:
                self._alias.add_batch(batch)
            else:
                self.add_pending(messages)
        self.add_pending(unsent)

    @property
    def unconfirmed(self) -> int:
        return len(self._payloads) + sum(producer.unconfirmed for producer in self._all())

    # Distributing messages

    def _distribute(self) -> None:
        self._scheduled = False
        if not self._payloads or not self._ready.done():
            return
        if not self._watching:
            self._watch()
        payloads, futures, special = self._payloads, self._futures, self._special
        self._payloads, self._futures, self._special = [], [], None
        if special is not None:
            payloads, futures, special = self._send_to_assigned(payloads, futures, special)
        counts = self._splitter.deal(len(payloads))
        if len(counts) == 1:
            self._producer_of(next(iter(counts))).add_pending(
                PendingMessages(payloads, futures, special)
            )
            return
        at = 0
        for number, count in counts.items():
            end = at + count
            self._producer_of(number).add_pending(
                PendingMessages(
                    payloads[at:end],
                    futures[at:end],
                    None if special is None else special[at:end],
                )
            )
            at = end

    def _send_to_assigned(
        self,
        payloads: list[bytes],
        futures: list[asyncio.Future[int]],
        special: list[MessageOptions],
    ) -> tuple[list[bytes], list[asyncio.Future[int]], list[MessageOptions]]:
        """Send messages with an assigned replica there; return the others."""
        rest: list[tuple[bytes, asyncio.Future[int], MessageOptions]] = []
        for message in zip(payloads, futures, special, strict=True):
            about = message[2].attributes
            group = None if about is None else about.group
            dedup_id = None if about is None else about.dedup_id
            key = assignment_key(message[2].receiver, group, dedup_id)
            if key is None:
                rest.append(message)
                continue
            payload, future, its_special = message
            producer = self._assigned_producer(
                assignment_slot(key), group is None and dedup_id is None
            )
            producer.add_pending(PendingMessages([payload], [future], [its_special]))
        return [m[0] for m in rest], [m[1] for m in rest], [m[2] for m in rest]

    def _assigned_producer(self, index: int, may_wait_at_alias: bool) -> AssignedReplicaProducer:
        producer = self._homes.get((index, may_wait_at_alias))
        if producer is None:
            producer = AssignedReplicaProducer(self, index, may_wait_at_alias=may_wait_at_alias)
            self._homes[index, may_wait_at_alias] = producer
        return producer

    def assigned_replica(self, index: int, *, may_be_alias: bool) -> int | None:
        """Return the queue id to which messages of an assignment slot go now.

        `None` means that the slot is closed while its messages move to another replica. With
        `may_be_alias`, the alias is returned then, and also while the replica cannot be reached.
        """
        topology = self.membership.topology
        number = topology.homes[index] if topology is not None and topology.homes else ALIAS
        if number < 0 and not may_be_alias:
            return None
        place = self._places.get(number)
        if place is None or (may_be_alias and not self._is_reachable(place)):
            return self.queue_id
        return place.queue_id

    def _producer_of(self, number: int) -> ReplicaProducer:
        place = self._places.get(number)
        if place is None:
            return self._alias
        producer = self._producers.get(place.queue_id)
        if producer is None:
            producer = self._producers[place.queue_id] = ReplicaProducer(self, place.queue_id)
        return producer

    def _all(self) -> list[ReplicaProducer]:
        return [*self._producers.values(), *self._homes.values()]

    # Choosing replicas

    def on_topology(self) -> None:
        """Apply a new topology, or a new replica of this producer."""
        topology = self.membership.topology
        assert topology is not None
        self._places = {place.number: place for place in topology.replicas}
        listed = {place.queue_id for place in topology.replicas}
        self._gone &= listed
        if not self._ready.done():
            self._ready.set_result(None)
        self._choose()
        for queue_id, producer in list(self._producers.items()):
            if queue_id not in listed and producer is not self._alias:
                self._empty(producer)
                if producer.is_idle:
                    del self._producers[queue_id]
        self._distribute()
        for home in self._homes.values():
            home.flush()

    def _watch(self) -> None:
        """Check for silent replicas as long as messages are unconfirmed."""
        if not self._watching:
            self._watching = True
            self._loop.call_later(STALL_S / 2, self._check_for_stalls)

    def _check_for_stalls(self) -> None:
        self._watching = False
        now = self._loop.time()
        others = set(self._splitter.shares)
        for number in list(others):
            producer = self._producer_of(number)
            # Keep the last replica: slow confirmations are better than none.
            if producer.is_stalled(now) and len(others) > 1:
                others.discard(number)
                self.on_replica_away(producer)
        if self.unconfirmed:
            self._watch()

    def _is_reachable(self, place: ReplicaInfo) -> bool:
        return (
            place.address is not None
            and place.queue_id not in self._away
            and place.queue_id not in self._gone
        )

    def _choose(self) -> None:
        """Recompute which share of new messages each replica gets."""
        places = [place for place in self._places.values() if self._is_reachable(place)]
        roomy = [place for place in places if place.queue_id not in self._full]
        shares = self._shares_among(roomy) or self._shares_among(places)
        if not shares:
            serving = [place for place in places if place.state is ReplicaState.SERVING]
            shares = {place.number: 1.0 for place in serving}
        self._splitter.set_shares(shares)

    def _shares_among(self, places: list[ReplicaInfo]) -> dict[int, float]:
        elected = [place for place in places if place.queue_id == self.membership.replica_id]
        return {place.number: 1.0 for place in elected} or {
            place.number: place.share for place in places if place.share > 0
        }

    def on_replica_away(self, producer: Producer, *, gone: bool = False) -> None:
        """Give a replica's share to others until it is tried again.

        Called when the replica has refused a batch or has not answered. Messages that wait for the
        replica and are certainly not stored go to others. `gone` means that the replica does not
        exist any more.
        """
        queue_id, transport = producer.queue_id, self.connection.transport
        if transport is None or not transport.alive:
            return  # the transport failed, not the replica
        if queue_id is None or queue_id == self.queue_id or queue_id in self._away:
            return
        if gone:
            # The next topology will not contain it.
            self._gone.add(queue_id)
        self._away.add(queue_id)
        times = self._refusals[queue_id] = self._refusals.get(queue_id, 0) + 1
        delay_s = min(_AWAY_FIRST_S * 2 ** min(times, 6), _AWAY_MAX_S) * random.uniform(0.5, 1.0)
        self._loop.call_later(delay_s, self._try_again, queue_id)
        self._choose()
        sent_to = self._producers.get(queue_id)
        if sent_to is not None:
            self._empty(sent_to)
        self.membership.join_again(elsewhere=queue_id == self.membership.replica_id)

    def _try_again(self, queue_id: int) -> None:
        producer = self._producers.get(queue_id)
        if (
            producer is not None
            and producer.is_stalled(self._loop.time())
            and self._splitter.shares
        ):
            self._loop.call_later(_AWAY_MAX_S, self._try_again, queue_id)
            return
        self._away.discard(queue_id)
        self._choose()
        for home in self._homes.values():
            home.flush()

    def on_replica_answered(self, producer: Producer) -> None:
        """Give a replica its share again, since it has confirmed a batch."""
        queue_id = producer.queue_id
        if self._refusals and queue_id is not None and self._refusals.pop(queue_id, 0):
            self._away.discard(queue_id)
            self._choose()

    def _empty(self, producer: ReplicaProducer) -> None:
        """Give a replica's waiting messages to others, except batches it may have stored."""
        refused, unsent = producer.take_refused(), producer.take_pending()
        for batch in refused:
            self._producer_of(self._splitter.next()).add_batch(batch)
        if unsent.payloads:
            self.add_pending(unsent)

    def reroute(self, producer: ReplicaProducer, batch: OutgoingBatch) -> bool:
        """Give a refused batch as a whole to another replica; return `False` if there is none."""
        other = self._producer_of(self._splitter.next())
        if other is producer:
            return False
        other.add_batch(batch)
        return True

    def find_room(self, producer: ReplicaProducer, batch: OutgoingBatch) -> bool:
        """Offer a batch to a replica that has not refused it; return `False` if all are full."""
        queue_id = batch.packet.queue_id
        batch.full_at += (queue_id,)
        if queue_id not in self._full:
            self._full.add(queue_id)
            self._loop.call_later(_FULL_S, self._may_have_room, queue_id)
            self._choose()
        left = [
            place
            for place in self._places.values()
            if place.share > 0 and self._is_reachable(place) and place.queue_id not in batch.full_at
        ]
        if not left:
            return False
        # A small batch may fit where a large one does not. So replicas that were full come last,
        # but are tried.
        self._producer_of(
            min(left, key=lambda place: (place.queue_id in self._full, random.random())).number
        ).add_batch(batch)
        if not self._full.issuperset(place.queue_id for place in left):
            self._empty(producer)
        return True

    def _may_have_room(self, queue_id: int) -> None:
        self._full.discard(queue_id)
        if self._ready.done():
            self._choose()

    async def batch_result(self, replica_id: int, producer: int, batch: int) -> bool:
        """Return whether a replica that is gone had stored a batch."""
        answered = await self.connection.request(
            GetFate(self.queue_id, replica_id, producer, batch)
        )
        assert isinstance(answered.packet, GetFateResponse)
        return answered.packet.stored

    # Reconnecting and closing

    def flush(self) -> None:
        """Join again and send all waiting batches, after a reconnect."""
        self.membership.join_again()
        self._away.clear()
        if self._ready.done():
            self._choose()
        for producer in self._all():
            producer.flush()

    def fail(self, error: TidegateError) -> None:
        """Fail all unconfirmed messages with `error`."""
        for producer in self._all():
            producer.fail(error)
        for future in self._futures:
            if not future.done():
                future.set_exception(error)
        self._payloads, self._futures, self._special = [], [], None
        if not self._ready.done():
            self._ready.set_exception(error)

    def on_join_refused(self, error: TidegateError) -> None:
        """Handle a refused join: the queue is deleted or plain, or access is denied."""
        self.pool.drop(self)
        if not isinstance(error, QueueNotExisting | NotOwner):
            self.fail(error)
            return
        # The name may belong to a new queue or to a plain one: a new producer looks it up.
        left = [PendingMessages(self._payloads, self._futures, self._special)]
        self._payloads, self._futures, self._special = [], [], None
        for producer in self._all():
            messages = [
                PendingMessages.of(batch) for batch in producer.take_refused(of_one_each=True)
            ]
            left = [
                *(each for each in messages if each is not None),
                producer.take_pending(),
                *left,
            ]
        for unsent in left:
            if unsent.payloads:
                self.pool.get(self.queue).add_pending(unsent)
        if not self._ready.done():
            self._ready.set_exception(error)

    async def close(self) -> None:
        """Leave the logical queue; batches in flight still get their answers."""
        await self.membership.leave()


# Batches on their way to one replica of a logical queue, and their handling when it fails.
#
#     refused for certain      goes to other replicas at once, under new numbers
#     no room                  offered to each other replica once; fails if none has room
#     result unknown           sent again to the same replica until a node knows the result
#     replica does not exist   ask the alias whether it was stored; if not, send it elsewhere
#
# Messages with an assigned replica (a group, a receiver, a dedup id) go nowhere else. They wait for
# that replica, in order, and follow when the assignment changes.


# A replica that confirms nothing for this long gets no new messages until it answers, in seconds.
STALL_S = 1.0
# The answer for a batch that was stored at a replica that is gone; its ids are not known.
_STORED = PutMessageResponse(0)


class ReplicaProducer(Producer):
    """Collects and sends messages to one replica, or to the alias."""

    __slots__ = ("_answered_at", "_fates", "_router")

    def __init__(self, router: ReplicaRouter, queue_id: int) -> None:
        super().__init__(router.connection, router.queues, router.pool, router.queue)
        self._router = router
        self.queue_id = queue_id
        # The time of its last answer, or of the first batch sent after a pause.
        self._answered_at = 0.0
        # Look-ups of results of batches.
        self._fates: set[asyncio.Task[None]] = set()

    @property
    def unconfirmed(self) -> int:
        return super().unconfirmed + len(self._fates)

    @property
    def is_idle(self) -> bool:
        return not (self._payloads or self._in_flight or self._resend or self._fates)

    def is_stalled(self, now: float) -> bool:
        """Return whether batches in flight have had no answer for longer than `STALL_S`."""
        return bool(self._in_flight) and now - self._answered_at > STALL_S

    def _send(self, batch: OutgoingBatch) -> None:
        if not self._in_flight:
            self._answered_at = self._loop.time()
        super()._send(batch)

    def _take_answer(self, batch: OutgoingBatch, answer: Packet) -> None:
        self._answered_at = self._loop.time()
        self._router.on_replica_answered(self)
        super()._take_answer(batch, answer)

    def _failed(self, batch: OutgoingBatch, error: TidegateError) -> None:
        if isinstance(error, IoFailure):
            batch.is_unknown = True
        if isinstance(error, NotHome):
            # The replica has looked for the batch and does not have it.
            batch.is_unknown = False
            self._not_home(batch, error)
        elif isinstance(error, QueueNotExisting):
            if batch.is_unknown:
                self._request_result(batch)
            else:
                self._refused(batch, error)
        elif (
            isinstance(error, RetryLater)
            and not isinstance(error, LimitReached)
            and not batch.is_unknown
            and self._has_patience(batch)
        ):
            self._refused(batch, error)
        elif isinstance(error, LimitReached) and not batch.is_unknown and self._finds_room(batch):
            return
        else:
            if batch.is_unknown:
                self._router.on_replica_away(self)
            super()._failed(batch, error)

    def _has_patience(self, batch: OutgoingBatch) -> bool:
        now = self._loop.time()
        if batch.failing_since is None:
            batch.failing_since = now
        return now - batch.failing_since <= self._connection.reconnect_s

    def _refused(self, batch: OutgoingBatch, error: TidegateError) -> None:
        """Give a batch that is certainly not stored to another replica."""
        transport = self._connection.transport
        if transport is None or not transport.alive:
            # The transport failed, not the replica: keep the batch for the reconnect.
            self._put_back(batch)
            return
        self._router.on_replica_away(self, gone=isinstance(error, QueueNotExisting))
        if not self._router.reroute(self, batch):
            self._try_later(batch)

    def _finds_room(self, batch: OutgoingBatch) -> bool:
        """Pass the batch to a replica that may have room; return `False` if there is none."""
        return self._router.find_room(self, batch)

    def _not_home(self, batch: OutgoingBatch, error: TidegateError) -> None:
        """Distribute a batch again, since another replica is assigned to some of its messages."""
        unsent = PendingMessages.of(batch)
        if unsent is not None and self._has_patience(batch):
            self._router.add_pending(unsent)
        else:
            batch.fail(error)

    def _request_result(self, batch: OutgoingBatch) -> None:
        task = self._connection.spawn(self._find_result(batch))
        self._fates.add(task)
        task.add_done_callback(self._on_result)

    def _on_result(self, task: asyncio.Task[None]) -> None:
        """Flush after a look-up has ended, since batches may have waited for it."""
        self._fates.discard(task)
        if not task.cancelled():
            self.flush()

    async def _find_result(self, batch: OutgoingBatch) -> None:
        assert self.queue_id is not None
        packet = batch.packet
        try:
            stored = await self._router.batch_result(packet.queue_id, packet.producer, packet.batch)
        except asyncio.CancelledError:
            batch.fail(IoFailure("closed before it was known whether it was stored"))
            raise
        except TidegateError as error:
            if isinstance(error, RetryLater) and self._has_patience(batch):
                self._try_later(batch)
            else:
                batch.fail(IoFailure(f"{error}; whether it was stored is not known"))
            return
        if stored:
            super()._take_answer(batch, _STORED)
            return
        batch.is_unknown = False
        self._refused(batch, QueueNotExisting("the replica is gone"))


class AssignedReplicaProducer(ReplicaProducer):
    """Collects and sends the messages of one assignment slot to its current replica."""

    __slots__ = ("_index", "_may_wait_at_alias")

    def __init__(self, router: ReplicaRouter, index: int, *, may_wait_at_alias: bool) -> None:
        super().__init__(router, 0)
        self._index = index
        # Addressed messages may wait at the alias. Groups and dedup ids need a single place: an
        # order or a duplicate is only known there.
        self._may_wait_at_alias = may_wait_at_alias
        self.queue_id = self._target() or router.queue_id

    def _target(self) -> int | None:
        return self._router.assigned_replica(self._index, may_be_alias=self._may_wait_at_alias)

    def _flush(self) -> None:
        if self._fates:
            # The looked-up batch may have to be sent again, before everything that was put after
            # it.
            self._scheduled = False
            return
        target = self._target()
        if target == self.queue_id:
            super()._flush()
            return
        self._scheduled = False
        transport = self._connection.transport
        if transport is None or not transport.alive:
            return
        # Send to the former replica only batches that it may have stored.
        self._send_unknown()
        if target is not None and not self._in_flight:
            self.queue_id = target
            super()._flush()

    def _not_home(self, batch: OutgoingBatch, error: TidegateError) -> None:
        """Refresh the topology and try again, since the assignment has changed."""
        if self._has_patience(batch):
            self._router.membership.join_again()
            self._try_later(batch)
        else:
            batch.fail(error)

    def _refused(self, batch: OutgoingBatch, error: TidegateError) -> None:
        self._router.on_replica_away(self, gone=isinstance(error, QueueNotExisting))
        self._try_later(batch)

    def _finds_room(self, batch: OutgoingBatch) -> bool:
        return False
