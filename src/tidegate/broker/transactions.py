"""Transactions: puts and acknowledgements across queues, all or none.

Theory of operation

A transaction is one commit in the store, so one node must own all its queues. Leases cannot move to
another node. The node that has the leases therefore executes the transaction, and the queues that
are only put to are brought to it. Without acknowledgements, the owner of most of the queues
executes it. A session of another node forwards the packet.

The session finds the leases when the packet arrives, before anything waits: a moment later the same
consumer number may belong to a new consumer.

1. `QueueColocation.gather` brings all queues here and waits for room in them.
2. Without awaiting, `JointCommit` reserves the leases and takes ids for the puts.
3. `JointCommit.store` commits, and then settles the leases and admits the messages.

Failures:

- A queue is transient, a lease is lost, or a queue has no room: the transaction fails and nothing
  of it is done.
- A queue moves away meanwhile: the transaction is repeated a few times.
- The client sends it again: while it runs, both share its result. Later it is recognized by the
  batch marks of its puts and answered as done. If nothing is marked and its leases may be gone, it
  fails with `LeaseLost`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidegate.broker.batch import Batch, build_segments
from tidegate.broker.deduplication import InFlightRequests
from tidegate.broker.dispatch import Consumer
from tidegate.broker.handlers import check_transact
from tidegate.broker.relay import Relay
from tidegate.broker.replica import Replica
from tidegate.broker.settling import Ranges, TransactionLeases
from tidegate.core.errors import (
    InvalidValue,
    LeaseLost,
    LimitReached,
    NotOwner,
    QueueNotExisting,
    StaleEpoch,
    TidegateError,
    TopicNotExisting,
    Unavailable,
)
from tidegate.core.model import (
    Filter,
    SubscriptionInfo,
    matches_filter,
    offset_ranges,
    unmatched_offsets,
)
from tidegate.core.runtime import crash_point
from tidegate.core.segment import Segment
from tidegate.core.store import Publication, PublicationTarget, Settlement, Store, Write
from tidegate.protocol.catalogue import Publish
from tidegate.protocol.connection import ReceivedPacket
from tidegate.protocol.messages import (
    PutMessageResponse,
    PutMessages,
    PutToQueues,
    Transact,
    TransactResponse,
)

if TYPE_CHECKING:
    from tidegate.broker.context import NodeContext
    from tidegate.broker.ownership import Ownership
    from tidegate.broker.session import Session


LeasedMessages = list[tuple[Replica, Consumer, Ranges]]


def transact(session: Session, packet: Transact, event: ReceivedPacket) -> Awaitable[None] | None:
    """Run a transaction here, or forward it to the node that has the leases."""
    bodies = check_transact(packet, memoryview(event.body), session.limits)
    held: LeasedMessages = []
    if packet.acks and not packet.resent:
        place = _place(session, packet)
        if isinstance(place, Relay):
            session.forward(place, packet, event.frame)
            return None
        held = place
    return _run(session, packet, [bytes(body) for body in bodies], held, event)


async def _run(
    session: Session,
    packet: Transact,
    bodies: list[bytes],
    held: LeasedMessages,
    event: ReceivedPacket,
) -> None:
    done = await session.parts.transactions.run(packet, bodies, held, session.client_id)
    if isinstance(done, str):
        await session.forward_to(done, packet, event.frame)
        return
    session.answer(TransactResponse(done), event.packet_id)


def _place(session: Session, packet: Transact) -> LeasedMessages | Relay:
    """Return the holders of the leases here, or the relay to the node that has them.

    Raises `LeaseLost` if there are none, and `InvalidValue` if several nodes have them.
    """
    held: LeasedMessages = []
    relays: set[Relay] = set()
    for ack in packet.acks:
        replica = session.parts.ownership.replicas.get(ack.queue_id)
        if replica is None:
            relay = session.routes.to(ack.queue_id)
            if relay is None:
                raise _lost(str(ack.queue_id))
            relays.add(relay)
            continue
        holder = replica.dispatch.holders.of(session, ack.consumer)
        if holder is None:
            raise _lost(replica.info.title)
        if not replica.info.durable:
            raise _transient(replica)
        held.append((replica, holder, ack.ranges))
    if len(relays) > 1 or (relays and held):
        raise InvalidValue(
            "the messages are of queues that different nodes own, and a transaction is one "
            "node's: move the queues together first, as with `tidegate move`"
        )
    return relays.pop() if relays else held


def _lost(queue: str) -> LeaseLost:
    return LeaseLost(f"no message of queue {queue} is held: nothing of the transaction was done")


def _transient(replica: Replica) -> InvalidValue:
    return InvalidValue(
        f"queue {replica.info.title} is transient: only what is stored can be part of a transaction"
    )


class Transactions:
    """The transactions of one node; equal requests share one result."""

    def __init__(self, store: Store, colocation: QueueColocation) -> None:
        self._store = store
        self._colocation = colocation
        self._once: InFlightRequests[list[PutMessageResponse] | str] = InFlightRequests()

    async def close(self) -> None:
        await self._once.close()

    async def run(
        self, packet: Transact, bodies: list[bytes], held: LeasedMessages, sender: int
    ) -> list[PutMessageResponse] | str:
        """Return the ids of the puts, or the address of the node that should run it."""
        return await self._once.run(
            (packet.producer, packet.batch), lambda: self._run(packet, bodies, held, sender)
        )

    async def _run(
        self, packet: Transact, bodies: list[bytes], held: LeasedMessages, sender: int
    ) -> list[PutMessageResponse] | str:
        if not held:
            elsewhere = await self._colocation.coordinator({put.queue_id for put in packet.puts})
            if elsewhere is not None:
                return elsewhere
        return await retry_while_moving(lambda: self._try(packet, bodies, held, sender))

    async def _try(
        self, packet: Transact, bodies: list[bytes], held: LeasedMessages, sender: int
    ) -> list[PutMessageResponse]:
        key = (packet.producer, packet.batch)
        replicas = await self._colocation.gather(
            {put.queue_id: (len(put.lengths), sum(put.lengths)) for put in packet.puts}, key
        )
        # From here to the commit nothing awaits, so no queue can leave.
        for replica in replicas.values():
            if not replica.info.durable:
                raise _transient(replica)
            if replica.intake.is_stored(*key):
                return []  # All or none: one queue that has it speaks for all
        if packet.acks and not held:
            raise LeaseLost(
                "nothing of the transaction was done, and it was asked for again when its messages "
                "may no longer have been held: begin anew with those that come"
            )
        commit = JointCommit(*key)
        answers: list[PutMessageResponse] = []
        try:
            for replica, holder, ranges in held:
                if replica.fenced or not replica.dispatch.holders.has(holder):
                    raise _lost(replica.info.title)
                commit.ack(replica, holder, ranges)
            for put, body in zip(packet.puts, bodies, strict=True):
                batch = Batch(
                    put,
                    body,
                    sender,
                    lambda first_id, ids, _: answers.append(PutMessageResponse(first_id, ids)),
                    _never_refused,
                )
                commit.put(replicas[put.queue_id], batch)
                if batch.is_stored:
                    batch.confirm_duplicate()
                else:
                    batch.confirm()
        except BaseException:
            commit.fail()
            raise
        await commit.store(self._store)
        return answers


def _never_refused(error: Exception) -> None:
    raise AssertionError("a transaction is refused as a whole") from error


# Puts of the same messages into several queues, all or none: queue lists and topics.
#
# The subscriptions of a topic are read for each batch: a queue that was subscribed before a put
# gets it. All target queues share one stored payload. Messages that a subscription does not select
# are stored as done in its queue.


class Publishing:
    """Publishes to several queues of a node; equal requests share one result."""

    def __init__(self, context: NodeContext, colocation: QueueColocation) -> None:
        self._context = context
        self._colocation = colocation
        self._once: InFlightRequests[list[int] | str] = InFlightRequests()

    async def close(self) -> None:
        await self._once.close()

    # Queue lists

    async def put_to(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        """Return the queues that took the message, or the address of the node to ask."""
        key = (packet.producer, packet.batch)
        return await self._once.run(
            key, lambda: retry_while_moving(lambda: self._put_to(packet, payload, sender))
        )

    async def _put_to(self, packet: PutToQueues, payload: bytes, sender: int) -> list[int] | str:
        elsewhere = await self._colocation.coordinator(set(packet.queue_ids))
        if elsewhere is not None:
            return elsewhere
        key = (packet.producer, packet.batch)
        needs = dict.fromkeys(packet.queue_ids, (1, len(payload)))
        replicas = await self._colocation.gather(needs, key, partial=packet.partial)
        messages = PutMessages(
            0,
            packet.producer,
            packet.batch,
            [len(payload)],
            [packet.priority],
            None if packet.receiver is None else [packet.receiver],
            None if packet.context is None else [packet.context],
            None if packet.attributes is None else [packet.attributes],
        )
        # A repeated request: queues that have the message must not get it twice.
        new = [replica for replica in replicas.values() if not replica.intake.is_stored(*key)]
        if packet.partial:
            for replica in new:
                try:
                    await self._store(messages, payload, sender, {replica: None})
                except TidegateError:
                    del replicas[replica.info.queue_id]
        else:
            if len({replica.info.durable for replica in replicas.values()}) > 1:
                raise InvalidValue("all or none cannot span durable and transient queues")
            await self._store(messages, payload, sender, dict.fromkeys(new))
        return list(replicas)

    # Topics

    async def publish(self, packet: Publish, body: bytes, sender: int) -> list[int] | str:
        """Return how many subscriptions got each message, or the address of the node to ask."""
        key = (packet.messages.producer, packet.messages.batch)
        return await self._once.run(
            key, lambda: retry_while_moving(lambda: self._publish(packet, body, sender))
        )

    async def _publish(self, packet: Publish, body: bytes, sender: int) -> list[int] | str:
        messages = packet.messages
        topic = await self._context.store.find_topic(packet.topic)
        if topic is None:
            raise TopicNotExisting(f"no topic named {packet.topic!r}: create it first")
        subscriptions = _wanting(messages, topic.subscriptions)
        elsewhere = await self._colocation.coordinator({each.queue_id for each in subscriptions})
        if elsewhere is not None:
            return elsewhere
        key = (messages.producer, messages.batch)
        need = (len(messages.lengths), len(body))
        try:
            replicas = await self._colocation.gather(
                {each.queue_id: need for each in subscriptions}, key
            )
        except QueueNotExisting:
            raise Unavailable("a subscription ended meanwhile: try again") from None
        # All or none: if one queue has the batch, the others have it or were subscribed later.
        if not any(replica.intake.is_stored(*key) for replica in replicas.values()):
            filters = {replicas[each.queue_id]: each.filter for each in subscriptions}
            await self._store(messages, body, sender, filters)
        return _counts(messages, subscriptions)

    async def _store(
        self,
        messages: PutMessages,
        body: bytes,
        sender: int,
        filters: dict[Replica, Filter | None],
    ) -> None:
        """Store messages in all queues of `filters` in one transaction, the payload once."""
        if not filters:
            return
        now = self._context.clock.wall()
        batch = Batch(messages, body, sender, lambda *_: None, lambda _: None)
        batch.stamp(now)
        commit = JointCommit(messages.producer, messages.batch)
        seen: dict[Replica, set[str]] = {replica: set() for replica in filters}
        try:
            for builder in build_segments([batch]):
                columns = builder.build(0, 0, now)
                # One object for all queues
                columns.payload = bytes(columns.payload)
                builder.release()
                takers = []
                for replica, header_filter in filters.items():
                    left_out = unmatched_offsets(header_filter, columns.attributes, columns.count)
                    left_out |= replica.intake.dedup.duplicates(columns.attributes, seen[replica])
                    if len(left_out) < columns.count:
                        takers.append((replica, offset_ranges(left_out)))
                commit.publish(columns, takers)
        except BaseException:
            commit.fail()
            raise
        await commit.store(self._context.store)


def _wanting(
    messages: PutMessages, subscriptions: list[SubscriptionInfo]
) -> list[SubscriptionInfo]:
    """Return the subscriptions that select at least one message."""
    attributes = messages.attributes or [None]
    return [
        each
        for each in subscriptions
        if not each.filter or any(matches_filter(each.filter, one) for one in attributes)
    ]


def _counts(messages: PutMessages, subscriptions: list[SubscriptionInfo]) -> list[int]:
    """Return for each message how many subscriptions select it."""
    unfiltered = sum(not each.filter for each in subscriptions)
    filters = [each.filter for each in subscriptions if each.filter]
    if not filters or messages.attributes is None:
        return [unfiltered] * len(messages.lengths)
    return [
        unfiltered + sum(matches_filter(each, attributes) for each in filters)
        for attributes in messages.attributes
    ]


# Changes of several queues that this node owns, stored in one transaction.
#
# Before the commit no client sees any of it. While it runs, ids and leases are reserved. Afterwards
# they are used or released. If the answer is lost, the store is asked for the reserved ids, so that
# the commit is never done twice.


_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0


class JointCommit:
    """One commit of one producer's batch.

    The caller must not await between creating it and `store`. If preparing fails, it calls
    `fail`.
    """

    def __init__(self, producer: int, batch: int) -> None:
        self._producer = producer
        self._batch = batch
        self._writes: list[tuple[Replica, Write]] = []
        self._publications: list[Publication] = []
        self._targets: list[tuple[Replica, Publication, PublicationTarget]] = []
        self._pledges: list[tuple[Replica, TransactionLeases]] = []
        # Queues that remember the batch, even if all its messages were duplicates there.
        self._takers: list[Replica] = []

    def put(self, replica: Replica, batch: Batch) -> None:
        """Add the messages of a batch for one queue."""
        self._takers.append(replica)
        self._writes += [(replica, write) for write in replica.intake.arrivals.prepare(batch)]

    def publish(self, messages: Segment, takers: list[tuple[Replica, Ranges]]) -> None:
        """Add the same messages for several queues, each with the offsets that are not for it."""
        if not takers:
            return
        publication = Publication(messages, [], [self._producer], [self._batch])
        self._publications.append(publication)
        for replica, done in takers:
            first_id = replica.intake.arrivals.take_ids(messages.count)
            dedup_ids = _dedup_ids(messages, done)
            replica.intake.dedup.under_way.update(dedup_ids or ())
            target = PublicationTarget(
                replica.info.queue_id, replica.epoch, first_id, done, dedup_ids
            )
            publication.targets.append(target)
            self._targets.append((replica, publication, target))
            self._takers.append(replica)

    def ack(self, replica: Replica, holder: Consumer, ranges: Ranges) -> None:
        """Add the acknowledgement of leases; raises `LeaseLost` if not all of them are held."""
        pledge = replica.dispatch.lease_to_transaction(holder, ranges)
        if pledge is None:
            raise LeaseLost(
                f"a message of queue {replica.info.title} is no longer held: nothing of the "
                "transaction was done"
            )
        self._pledges.append((replica, pledge))

    async def store(self, store: Store) -> None:
        """Commit, then settle the leases and admit the messages.

        Raises `LeaseLost` or `StaleEpoch` if nothing was done, or if the new owner knows what was.
        """
        try:
            crash_point("before-joint-commit")
            await self._commit(store)
            crash_point("after-joint-commit")
        except BaseException:
            self.fail()
            raise
        for replica in self._takers:
            replica.intake.remember(self._producer, self._batch)
        for replica, pledge in self._pledges:
            replica.dispatch.commit_transaction(pledge)
        for replica, write in self._writes:
            replica.intake.arrivals.on_stored(write.segment, write.dedup_ids)
        for replica, publication, target in self._targets:
            replica.intake.arrivals.on_stored(publication.segment(target), target.dedup_ids)

    def fail(self) -> None:
        """Release the reserved ids and leases: nothing will be stored."""
        for replica, pledge in self._pledges:
            replica.dispatch.abort_transaction(pledge)
        for replica, write in self._writes:
            replica.intake.arrivals.not_coming(write.segment.first_id, write.dedup_ids or ())
        for replica, _, target in self._targets:
            replica.intake.arrivals.not_coming(target.first_id, target.dedup_ids or ())

    async def _commit(self, store: Store) -> None:
        writes = [write for replica, write in self._writes if replica.info.durable]
        publications = self._durable_publications()
        settlements = [
            pledge.settlement(replica.info.queue_id, replica.epoch)
            for replica, pledge in self._pledges
        ]
        if writes or publications or settlements:
            await commit_once(store, writes, settlements, publications)

    def _durable_publications(self) -> list[Publication]:
        """Return the publications without transient queues, which are not stored."""
        transient = {r.info.queue_id for r, _, _ in self._targets if not r.info.durable}
        if not transient:
            return self._publications
        return [
            Publication(each.messages, kept, each.producers, each.batches)
            for each in self._publications
            if (kept := [t for t in each.targets if t.queue_id not in transient])
        ]


async def commit_once(
    store: Store,
    writes: Sequence[Write],
    settlements: Sequence[Settlement],
    publications: Sequence[Publication] = (),
) -> None:
    """Commit all or nothing, repeating with the same ids until the result is known.

    Raises `StaleEpoch` if an epoch was refused, and `LeaseLost` if acknowledgements alone were
    refused after a lost answer.
    """
    stored = [(write.segment.queue_id, write.segment.first_id) for write in writes]
    stored += [(each.queue_id, each.first_id) for p in publications for each in p.targets]
    backoff_s = _BACKOFF_FIRST_S
    in_doubt = False
    while True:
        try:
            # All or none, so one id answers for all.
            if in_doubt and stored and await store.stored(stored[0][0], [stored[0][1]]):
                return
            if not await store.transact(writes, settlements, publications):
                raise _refused(in_doubt, bool(stored))
            return
        except Unavailable:
            in_doubt = True
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _BACKOFF_MAX_S)


def _refused(in_doubt: bool, can_be_looked_up: bool) -> TidegateError:
    if in_doubt and not can_be_looked_up:
        return LeaseLost(
            "the queue has a new owner, and whether the acknowledgements were stored before "
            "is not known: those that were not come again"
        )
    return StaleEpoch("one of the queues has a new owner: try again")


def _dedup_ids(messages: Segment, done: Ranges) -> list[str] | None:
    """Return the dedup ids of messages that are for the queue."""
    if messages.attributes is None:
        return None
    left_out = {offset for low, high in done for offset in range(low, high)}
    return [
        each.dedup_id
        for offset, each in enumerate(messages.attributes)
        if each is not None and each.dedup_id and offset not in left_out
    ] or None


# Brings queues to one node that are to be changed in one transaction.
#
# The owner of most of the queues brings the others; on a tie, the owner of the first queue. If each
# node that is asked did so, two nodes could take the queues from each other forever.


_TRIES = 7
# How long a joint change waits for a full queue. It holds up the other queues meanwhile.
_ROOM_S = 30.0
_ROOM_POLL_S = 0.02

# Number of messages, and bytes of payload.
Need = tuple[int, int]

Result = TypeVar("Result")


class QueueColocation:
    """Brings queues of other nodes to this one for joint changes."""

    def __init__(self, context: NodeContext, ownership: Ownership) -> None:
        self._context = context
        self._ownership = ownership
        # One at a time: two callers that bring the same queues would take them from each other.
        self._lock = asyncio.Lock()

    async def coordinator(self, queue_ids: Collection[int]) -> str | None:
        """Return the address of the node that owns most of the queues; None: this node."""
        replicas = self._ownership.replicas
        elsewhere = [queue_id for queue_id in queue_ids if queue_id not in replicas]
        if not elsewhere:
            return None
        owners = await self._context.store.owners(elsewhere)
        counts: dict[str | None, int] = {}
        for queue_id in sorted(queue_ids):
            address = None if queue_id in replicas else owners.get(queue_id)
            if address is not None and address != self._context.identity.address:
                counts[address] = counts.get(address, 0) + 1
            elif queue_id in replicas:
                counts[None] = counts.get(None, 0) + 1
        return max(counts, key=lambda address: counts[address], default=None)

    async def gather(
        self, needs: dict[int, Need], key: tuple[int, int], *, partial: bool = False
    ) -> dict[int, Replica]:
        """Own all queues, with room for what each needs; return them by id.

        A queue that knows the batch `key` needs no room. Waits for `slow` queues up to 30 s, then
        raises `LimitReached`.
        """
        clock = self._context.clock
        deadline = clock.monotonic() + _ROOM_S
        while True:
            replicas = await self.bring(needs, partial=partial)
            full = [
                replica.info.title
                for queue_id, replica in replicas.items()
                if not replica.intake.is_stored(*key)
                and not replica.intake.limits.has_room_for(*needs[queue_id])
            ]
            if not full:
                return replicas
            if clock.monotonic() > deadline:
                raise LimitReached(f"queue {full[0]} is full, and stayed so for {_ROOM_S:g} s")
            await asyncio.sleep(_ROOM_POLL_S)

    async def bring(self, queue_ids: Iterable[int], *, partial: bool = False) -> dict[int, Replica]:
        """Own all queues; with `partial` leave out missing ones."""
        wanted = list(dict.fromkeys(queue_ids))
        found = self._all_here(wanted)
        if found is not None:
            return found
        async with self._lock:
            for queue_id in wanted:
                try:
                    await self._ownership.bring_here(queue_id)
                except QueueNotExisting:
                    if not partial:
                        raise
                    wanted = [each for each in wanted if each != queue_id]
        # Another node may have taken a queue while the next one was brought.
        found = self._all_here(wanted)
        if found is None:
            raise Unavailable("the queues are wanted by another node too: try again")
        return found

    def _all_here(self, queue_ids: list[int]) -> dict[int, Replica] | None:
        found = {}
        for queue_id in queue_ids:
            replica = self._ownership.replicas.get(queue_id)
            if replica is None or replica.fenced:
                return None
            found[queue_id] = replica
        return found


async def retry_while_moving(work: Callable[[], Awaitable[Result]]) -> Result:
    """Repeat `work` while queues change owners; at most `_TRIES` times."""
    for attempt in range(_TRIES):
        try:
            return await work()
        except (StaleEpoch, Unavailable, NotOwner):
            if attempt == _TRIES - 1:
                raise
            await asyncio.sleep(0.05 * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("unreachable")


# Temporary queues of connections, and cleaning up after topics.
#
# The node of a connection deletes its temporary queues when the connection ends. If that node is
# gone, the owner of each queue deletes it.


log = logging.getLogger(__name__)

# Unused payloads are looked for in one of this many sweeps.
_PAYLOAD_SWEEPS = 10


class Topics:
    """A node's part in topics beside publishing."""

    def __init__(self, context: NodeContext, ownership: Ownership) -> None:
        self._context = context
        self._ownership = ownership
        self._sweeps = 0

    def connection_ended(self, queue_ids: Iterable[int]) -> None:
        """Delete the temporary queues of a connection."""
        for queue_id in queue_ids:
            self._context.tasks.do_soon(self._delete(queue_id))

    async def _delete(self, queue_id: int) -> None:
        try:
            await retry_while_moving(lambda: self._ownership.delete_anywhere(queue_id))
        except QueueNotExisting:
            return
        except TidegateError as failure:
            # Another node deletes it once this node is gone.
            log.warning("queue %s outlives its connection: %s", queue_id, failure)

    async def sweep(self) -> None:
        """Delete temporary queues of nodes that are gone, and payloads that no segment uses."""
        store = self._context.store
        for queue_id in await store.lost_subscriptions():
            if queue_id in self._ownership.replicas:
                await self._delete(queue_id)
        # Rarely, since it scans all payloads. Normally the last segment to use a payload frees it.
        if self._sweeps % _PAYLOAD_SWEEPS == 0:
            await store.free_payloads()
        self._sweeps += 1
