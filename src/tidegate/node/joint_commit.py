"""Changes of several queues that this node owns, stored in one transaction.

Before the commit no client sees any of it. While it runs, ids and leases are reserved. Afterwards
they are used or released. If the answer is lost, the store is asked for the reserved ids, so that
the commit is never done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidegate.core.crash import crash_point
from tidegate.core.errors import LeaseLost, StaleEpoch, TidegateError, Unavailable
from tidegate.core.ports import Publication, Settlement, Store, Target, Write
from tidegate.core.segment import Segment
from tidegate.node.batch import Batch
from tidegate.node.consumer import Consumer
from tidegate.node.replica import Replica
from tidegate.node.settling import Pledge, Ranges

_BACKOFF_FIRST_S = 0.05
_BACKOFF_MAX_S = 1.0


class JointCommit:
    """One commit of one producer's batch.

    The caller must not await between creating it and `store`. If preparing fails, it calls
    `give_up`.
    """

    def __init__(self, producer: int, batch: int) -> None:
        self._producer = producer
        self._batch = batch
        self._writes: list[tuple[Replica, Write]] = []
        self._publications: list[Publication] = []
        self._targets: list[tuple[Replica, Publication, Target]] = []
        self._pledges: list[tuple[Replica, Pledge]] = []
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
            target = Target(replica.info.queue_id, replica.epoch, first_id, done, dedup_ids)
            publication.targets.append(target)
            self._targets.append((replica, publication, target))
            self._takers.append(replica)

    def ack(self, replica: Replica, holder: Consumer, ranges: Ranges) -> None:
        """Add the acknowledgement of leases; raises `LeaseLost` if not all of them are held."""
        pledge = replica.dispatch.pledge(holder, ranges)
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
            self.give_up()
            raise
        for replica in self._takers:
            replica.intake.remember(self._producer, self._batch)
        for replica, pledge in self._pledges:
            replica.dispatch.redeem(pledge)
        for replica, write in self._writes:
            replica.intake.arrivals.came(write.segment, write.dedup_ids)
        for replica, publication, target in self._targets:
            replica.intake.arrivals.came(publication.segment(target), target.dedup_ids)

    def give_up(self) -> None:
        """Release the reserved ids and leases: nothing will be stored."""
        for replica, pledge in self._pledges:
            replica.dispatch.release(pledge)
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
