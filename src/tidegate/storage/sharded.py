"""Several PostgreSQL servers as one store: replicas are spread over them.

Theory of operation

The first server is the catalogue. It has the members, leader, users, clients and topics, every
queue that is no replica, and the list of replicas. The other servers are shards. A shard has
replicas, with their owners, epochs and messages, and leases of its own. The high bits of a queue id
are the number of its store, so a queue id is enough to find the store. Each fenced change is one
transaction of one server.

A few operations change the catalogue and a shard. Each is ordered so that any node can complete it
after a crash in between:

- Add a replica: first in the catalogue, which assigns the id, then in the shard. A node that wants
  to serve a replica that the shard does not have creates it there; creating it twice changes
  nothing.
- End a replica: the catalogue notes that it is ending, the shard ends it if it is empty, the
  catalogue removes it. The leader resumes at the noted step.
- Delete a logical queue: first in the shards, then in the catalogue. As long as the queue is in the
  catalogue, it can be deleted again.
- Move segments: see `move_segments`.

This class sends each call to the store that it concerns. Its base class `ShardedReplicas` adds and
ends replicas.

Failure of a shard: only its replicas are unavailable. The node keeps its other queues, and joins
the shard again when it answers. While a shard does not answer, its replicas have no address. If the
catalogue does not answer, the node cannot renew its lease.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from tidegate.core.errors import InvalidValue
from tidegate.core.model import QueueInfo, QueuePolicy
from tidegate.core.ports import (
    Claim,
    Location,
    MemberInfo,
    Publication,
    Settlement,
    Write,
)
from tidegate.core.replication import STORE_SHIFT, Move, Topology
from tidegate.storage.postgres import PostgresStore
from tidegate.storage.postgres_commits import Committed
from tidegate.storage.postgres_queues import queue_of
from tidegate.storage.several_moves import finish_departures, move_between
from tidegate.storage.several_replicas import SeveralReplicas

_REPLICA_NAME = re.compile(r"(.+)#(\d+)")

P = ParamSpec("P")
T = TypeVar("T")


def _where_the_queue_is(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a method that calls the same method of the store that has the queue."""

    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        everywhere, queue_id, *others = arguments
        assert isinstance(everywhere, SeveralStores)
        assert isinstance(queue_id, int)
        there: Any = await everywhere.others.holder(queue_id)
        unbound: Any = method
        return await unbound(there, queue_id, *others, **options)  # type: ignore[no-any-return]

    return call


class SeveralStores(SeveralReplicas):
    """The catalogue and its shards, with the interface of one store."""

    async def open(self) -> None:
        """Open the catalogue, and the shards that answer.

        Raises an error if the catalogue does not answer, or if a shard is not the expected one.
        """
        await self._prepare()
        await self._check_place(1 + len(self.others.all))
        try:
            await self.others.open()
        except Exception:
            await self.close()
            raise

    async def close(self) -> None:
        await self.others.close()
        await super().close()

    def standing(self, queue_id: int) -> int | None:
        other = self.others.of(queue_id)
        return 0 if other is None else other.standing(queue_id)

    # Members

    async def join(self, name: str, address: str, lease_s: float) -> int:
        member_id = await super().join(name, address, lease_s)
        await self.others.join(member_id, name, address, lease_s)
        return member_id

    async def renew(self, member_id: int, lease_s: float) -> bool:
        self.others.keep_beside(lease_s)
        return await super().renew(member_id, lease_s)

    async def leave(self, member_id: int) -> None:
        await self.others.leave()
        await super().leave(member_id)

    async def members(self) -> list[MemberInfo]:
        members = await super().members()
        elsewhere: dict[int, int] = {}
        for _, known in await self.others.ask(PostgresStore.members):
            for member in known:
                elsewhere[member.member_id] = elsewhere.get(member.member_id, 0) + member.queues
        for member in members:
            member.queues += elsewhere.get(member.member_id, 0)
        return members

    # Queues

    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None:
        if queue_id is not None and queue_id >> STORE_SHIFT:
            location = await self.locate(queue_id)
            return None if location is None else location.queue
        found = await super().find_queue(queue_id, name)
        if found is None and name is not None and _REPLICA_NAME.fullmatch(name):
            for there, _, _, known_as, *_ in await self.others.places(None):
                if known_as == name:
                    return await self.find_queue(there, None)
        return found

    async def active_queues(self, client_id: int) -> list[QueueInfo]:
        ids = {row[0] for row in await self._call("select active_ids(%s)", client_id)}
        for _, rows in await self.others.ask(lambda s: s.ask("select active_ids(%s)", client_id)):
            ids |= {row[0] for row in rows}
        rows = await self._call("select * from queues_by_id(%s::int[])", sorted(ids))
        return [queue_of(row) for row in rows]

    async def set_policy(
        self, queue_id: int, policy: QueuePolicy, before: QueuePolicy | None = None
    ) -> bool:
        if self.others.of(queue_id) is not None:
            return await (await self.others.holder(queue_id)).set_policy(queue_id, policy, before)
        changed = await super().set_policy(queue_id, policy, before)
        topology = await PostgresStore.topology(self, queue_id)
        for number in _numbers(topology):
            # A shard that does not answer gets the policy when it is back.
            if self.others.all[number - 1] in self.others.up:
                await self.others.copy_policy(self.others.all[number - 1], queue_id, policy)
        return changed

    async def delete_queue(self, queue_id: int) -> bool:
        for number in _numbers(await PostgresStore.topology(self, queue_id)):
            await (await self.others.holder(number << STORE_SHIFT)).delete_queue(queue_id)
        return await super().delete_queue(queue_id)

    # Ownership

    async def locate(self, queue_id: int) -> Location | None:
        other = self.others.of(queue_id)
        if other is None:
            return None if queue_id >> STORE_SHIFT > 0 else await super().locate(queue_id)
        there = await self.others.holder(queue_id)
        location = await there.locate(queue_id)
        if location is None and await self.others.make(other, queue_id):
            location = await there.locate(queue_id)
        return location

    async def claim(self, queue_id: int, member_id: int) -> Claim | None:
        other = self.others.of(queue_id)
        if other is None:
            return await super().claim(queue_id, member_id)
        # The catalogue's reservation is only a preference. The epoch in the shard decides.
        rows = await self._call("select %s::int in (select reserved(%s::int))", queue_id, member_id)
        if rows[0][0]:
            return None
        return await (await self.others.holder(queue_id)).claim(queue_id, member_id)

    async def orphans(self, member_id: int | None = None) -> list[int]:
        found = await super().orphans(member_id)
        places = await self.others.places(None)
        if not places:
            return found
        reserved = {row[0] for row in await self._call("select reserved(%s::int)", member_id)}
        ids = {row[0] for row in places} - reserved
        up = {other.number for other in self.others.up}
        lost = {row[0] for row in places if not row[-1] and row[0] >> STORE_SHIFT in up}
        for _, rows in await self.others.ask(lambda s: s.ask("select orphans(null::int)")):
            lost |= {row[0] for row in rows}
        return found + sorted(ids & lost)

    release = _where_the_queue_is(PostgresStore.release)
    reserve_ids = _where_the_queue_is(PostgresStore.reserve_ids)

    # Messages

    def submit(self, writes: Sequence[Write], done: Committed, *, writer: int = 0) -> None:
        number = _one_store(write.segment.queue_id for write in writes)
        if number == 0:
            super().submit(writes, done, writer=writer)
        else:
            self.others.all[number - 1].submit(writes, done, writer=writer)

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        numbers = [settlement.queue_id >> STORE_SHIFT for settlement in settlements]
        stored: dict[int, bool] = {}
        for number in sorted(set(numbers)):
            here = [s for s, n in zip(settlements, numbers, strict=True) if n == number]
            there = await self.others.holder(number << STORE_SHIFT)
            flags = await PostgresStore.settle(there, here)
            stored |= {id(s): flag for s, flag in zip(here, flags, strict=True)}
        return [stored[id(settlement)] for settlement in settlements]

    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool:
        targets = [target for publication in publications for target in publication.targets]
        number = _one_store(
            [
                *(write.segment.queue_id for write in writes),
                *(settlement.queue_id for settlement in settlements),
                *(target.queue_id for target in targets),
            ]
        )
        there = await self.others.holder(number << STORE_SHIFT)
        return await PostgresStore.transact(there, writes, settlements, publications)

    drop_done = _where_the_queue_is(PostgresStore.drop_done)
    stored = _where_the_queue_is(PostgresStore.stored)
    lanes = _where_the_queue_is(PostgresStore.lanes)
    read_lane = _where_the_queue_is(PostgresStore.read_lane)
    read_between = _where_the_queue_is(PostgresStore.read_between)
    find_segments = _where_the_queue_is(PostgresStore.find_segments)
    read_due = _where_the_queue_is(PostgresStore.read_due)
    count_due = _where_the_queue_is(PostgresStore.count_due)
    marks = _where_the_queue_is(PostgresStore.marks)
    purge = _where_the_queue_is(PostgresStore.purge)

    async def dedup_ids(self, queue_id: int, newer_than_s: float) -> dict[str, float]:
        """Return the dedup ids of the whole logical queue.

        Its replicas may be, or have been, in any store.
        """
        there = await self.others.holder(queue_id)
        found = await PostgresStore.dedup_ids(there, queue_id, newer_than_s)
        info = await self.find_queue(queue_id, None)
        alias_id = queue_id if info is None else info.alias_id or queue_id
        if info is None or not (await self._call("select was_alias(%s::int)", alias_id))[0][0]:
            return found
        seen = [await super().dedup_ids(alias_id, newer_than_s)]
        asked = await self.others.ask(lambda s: s.dedup_ids(alias_id, newer_than_s))
        seen += [elsewhere for _, elsewhere in asked]
        for ages_s in seen:
            for dedup_id, age_s in ages_s.items():
                found[dedup_id] = min(age_s, found.get(dedup_id, age_s))
        return found

    async def forget_dedup(self) -> int:
        elsewhere = await self.others.ask(PostgresStore.forget_dedup)
        return await super().forget_dedup() + sum(count for _, count in elsewhere)

    async def forget_marks(self, older_than_s: float) -> int:
        elsewhere = await self.others.ask(lambda s: s.forget_marks(older_than_s))
        return await super().forget_marks(older_than_s) + sum(count for _, count in elsewhere)

    async def free_payloads(self) -> int:
        elsewhere = await self.others.ask(PostgresStore.free_payloads)
        return await super().free_payloads() + sum(count for _, count in elsewhere)

    # Moves

    async def move(self, move: Move) -> bool:
        source = await self.others.holder(move.source)
        target = await self.others.holder(move.target)
        if source is target:
            return await PostgresStore.move(source, move)
        return await move_between(source, target, move)

    async def has_arrived(self, move_id: str, target: int) -> bool:
        return await PostgresStore.has_arrived(await self.others.holder(target), move_id, target)

    async def finish_moves(self, queue_id: int, epoch: int) -> int:
        source = await self.others.holder(queue_id)
        return await finish_departures(source, self.others.holder, queue_id, epoch)


def _one_store(queue_ids: Iterable[int]) -> int:
    """Return the number of the store that has all these queues.

    Raises `InvalidValue` if they are in several stores.
    """
    numbers = {queue_id >> STORE_SHIFT for queue_id in queue_ids}
    if len(numbers) > 1:
        raise InvalidValue(
            f"these queues are in different stores ({', '.join(map(str, sorted(numbers)))}): what "
            "is done all or none is done in one store"
        )
    return numbers.pop() if numbers else 0


def _numbers(topology: Topology | None) -> list[int]:
    """Return the numbers of the shards that have replicas of a topology."""
    if topology is None:
        return []
    return sorted({place.store_number for place in topology.replicas} - {0})
