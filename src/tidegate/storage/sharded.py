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

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from tidegate.core.errors import InvalidValue, TidegateError, Unavailable
from tidegate.core.model import QueueInfo, QueuePolicy
from tidegate.core.runtime import crash_point
from tidegate.core.store import ClaimedQueue, Location, MemberInfo, Publication, Settlement, Write
from tidegate.core.topology import STORE_SHIFT, ReplicaInfo, SegmentMove, Topology
from tidegate.storage.postgres.catalogue import json_of, queue_of
from tidegate.storage.postgres.messages import Committed
from tidegate.storage.postgres.store import PostgresStore
from tidegate.storage.sharded_moves import finish_moves, move_segments

log = logging.getLogger(__name__)

# Logical queues with replicas in several stores.
#
# The catalogue has the list of replicas. The owner and the messages of a replica are in its own
# store.


class ShardedReplicas(PostgresStore):
    """The part of a sharded store that manages logical queues."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        writers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(urls[0], writers=writers)
        self.others = Shards(self, urls[1:], writers=writers, monotonic=monotonic)

    async def topology(self, queue_id: int) -> Topology | None:
        await self._hear_of_others()
        topology = await super().topology(queue_id)
        return None if topology is None else (await self._with_addresses([topology]))[0]

    async def topologies(self) -> list[Topology]:
        await self._hear_of_others()
        return await self._with_addresses(await super().topologies())

    async def topology_version(self) -> int:
        await self._hear_of_others()
        # A shard that stops or starts answering changes addresses, but no stored version.
        return await super().topology_version() + sum(other.turns for other in self.others.all)

    async def _hear_of_others(self) -> None:
        """Raise the catalogue's topology version if the version of a shard has changed."""
        for number, version in await self.others.ask_all(PostgresStore.topology_version):
            other = self.others.all[number - 1]
            if version != other.noted_version:
                query = "select note_store_version(%s::int, %s)"
                await self._call(query, number, version)
                other.noted_version = version

    async def _with_addresses(self, topologies: list[Topology]) -> list[Topology]:
        places = [place for topology in topologies for place in topology.replicas]
        addresses = await self._addresses(places)
        return [
            msgspec.structs.replace(
                topology, replicas=[_at(place, addresses) for place in topology.replicas]
            )
            for topology in topologies
        ]

    async def _addresses(self, places: Iterable[ReplicaInfo]) -> dict[int, str]:
        elsewhere = [place.queue_id for place in places if place.store_number]
        return await self.owners(elsewhere) if elsewhere else {}

    async def assigned(self, machine_id: int) -> list[ReplicaInfo]:
        places = await super().assigned(machine_id)
        addresses = await self._addresses(places)
        return [_at(place, addresses) for place in places]

    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaInfo | None:
        number = await self._emptiest() if store_number is None else store_number
        if not 0 <= number <= len(self.others.all):
            raise InvalidValue(f"there is no store {number}: there are {1 + len(self.others.all)}")
        if number == 0:
            return await super().add_replica(queue_id, leader_epoch, machine_id=machine_id)
        other = self.others.all[number - 1]
        # Asked first: a replica in a store that does not answer could not be served.
        await PostgresStore.topology_version(await self.others.holder(number << STORE_SHIFT))
        place = await self._note_replica(queue_id, leader_epoch, machine_id, number)
        crash_point("after-replica-noted")
        if place is not None:
            await self.others.make(other, place.queue_id)
        return place

    async def _emptiest(self) -> int:
        """Return the number of the store with the fewest replicas, among the answering ones."""
        up = {0, *(other.number for other in self.others.up)}
        counts: dict[int, int] = dict(await self._call("select * from replicas_by_store()"))
        return min(up, key=lambda number: (counts.get(number, 0), number))

    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool:
        topology = await super().topology(queue_id)
        place = None if topology is None else topology.replica(number)
        if place is None or not place.store_number:
            return await super().retire_replica(queue_id, number, leader_epoch)
        there = await self.others.holder(place.queue_id)
        query = "select begin_end(%s::int, %s::int, %s)"
        ending = (await self._call(query, queue_id, number, leader_epoch))[0][0]
        if ending is None or ending < 0:
            return ending is not None
        crash_point("after-end-noted")
        ended = (await there.ask("select end_replica(%s::int)", place.queue_id))[0][0]
        crash_point("after-replica-ended")
        query = "select finish_end(%s::int, %s::int, %s, %s)"
        await self._call(query, queue_id, number, ended, leader_epoch)
        return bool(ended)

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        by_store = _by_store(queue_ids)
        found = await super().owners(by_store.pop(0, []))
        for _, owners in await self.others.ask_all(lambda s: s.owners(by_store.get(s.number, []))):
            found |= owners
        return found


def _by_store(queue_ids: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for queue_id in queue_ids:
        found.setdefault(queue_id >> STORE_SHIFT, []).append(queue_id)
    return found


def _at(place: ReplicaInfo, addresses: dict[int, str]) -> ReplicaInfo:
    if not place.store_number:
        return place
    return msgspec.structs.replace(place, address=addresses.get(place.queue_id))


# A shard: a store beside the catalogue that has replicas, with their owners and epochs.
#
# A node is a member of a shard under its member id of the catalogue, and has a separate lease
# there. If the shard does not answer, only its own queues are affected.


class Shard(PostgresStore):
    """Store 1, 2, ... of a sharded store."""

    def __init__(
        self,
        url: str,
        number: int,
        *,
        writers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(url, writers=writers)
        self.number = number
        self._monotonic = monotonic
        # Whether it was identified as the shard that the catalogue knows. It is not used before.
        self.is_known = False
        # Whether it answered last time.
        self.is_up = False
        # How often `is_up` has changed.
        self.turns = 0
        # Its topology version, as last noted in the catalogue.
        self.noted_version = -1
        self._alive_until = float("-inf")
        self._times_joined = 0
        # Member id, name and address of this node, from the first attempt to join until it leaves.
        self._member: tuple[int, str, str] | None = None
        self._is_joined = False
        self.meeting = asyncio.Lock()

    # Identity

    async def identify(self, catalogue: str, listed: int) -> str:
        """Return the shard's identity.

        Raises `InvalidValue` if it is not the shard with this number.
        """
        await self._prepare()
        query = "select store_trouble(%s::int, %s::uuid, %s::int)"
        trouble = (await self._call(query, self.number, catalogue, listed))[0][0]
        if trouble is not None:
            raise InvalidValue(f"store {self.number} of the list cannot be used: {trouble}")
        return str((await self._call("select store_identity()"))[0][0])

    # Membership

    def membership_epoch(self, queue_id: int) -> int | None:
        """Return how often this node has joined; None if its lease here has expired."""
        return self._times_joined if self._monotonic() < self._alive_until else None

    def enter(self, member_id: int, name: str, address: str) -> None:
        """Join with the next renewal."""
        self._member = (member_id, name, address)
        self._is_joined = False

    async def renew_lease(self, lease_s: float) -> None:
        """Renew the lease here, or join again."""
        if self._member is None:
            return
        member_id, name, address = self._member
        asked_at = self._monotonic()
        if not (self._is_joined and await super().renew(member_id, lease_s)):
            await self._call(
                "select join_store(%s::int, %s, %s, %s)", member_id, name, address, lease_s
            )
            self._times_joined += 1
            self._is_joined = True
        self._alive_until = asked_at + lease_s
        self.seems(up=True)

    def seems(self, *, up: bool, why: str = "") -> None:
        if up == self.is_up:
            return
        self.is_up = up
        self.turns += 1
        if up:
            log.info("store %d answers", self.number)
        else:
            log.warning("store %d does not answer: %s", self.number, why)

    async def leave_cluster(self) -> None:
        """Leave; if the shard does not answer, the lease expires by itself."""
        member, self._member = self._member, None
        self._alive_until = float("-inf")
        if member is not None and self._is_joined and self.is_up:
            await super().leave(member[0])


# The shards of a store: identification, calls to all of them, and membership.
#
# The catalogue knows the identity of each shard by its number; no other store is accepted. A shard
# that did not answer gets the missed changes when it is back.


# How long a joining node waits for shards that do not answer at once.
_JOIN_S_MAX = 5.0


class Shards:
    """Stores 1, 2, ... of a sharded store; the catalogue is store 0."""

    def __init__(
        self,
        catalogue: PostgresStore,
        urls: Sequence[str],
        *,
        writers: int = 1,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self.all = [
            Shard(url, number, writers=writers, monotonic=monotonic)
            for number, url in enumerate(urls, start=1)
        ]
        self._identity = ""
        # Renewals of the leases in the shards. They run beside the catalogue's, so that a slow
        # shard does not delay that one.
        self._keeping: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """Identify all shards that answer; a wrong one raises `InvalidValue`."""
        self._identity = str((await self._catalogue.ask("select store_identity()"))[0][0])
        outcomes = await asyncio.gather(
            *map(self._verify_identity, self.all), return_exceptions=True
        )
        for other, outcome in zip(self.all, outcomes, strict=True):
            if isinstance(outcome, Unavailable):
                log.warning("store %d does not answer: %s", other.number, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def close(self) -> None:
        await self._stop_keeping()
        await asyncio.gather(*(other.close() for other in self.all), return_exceptions=True)

    # Identification

    async def _verify_identity(self, other: Shard) -> None:
        """Identify a shard, if that was not done, and send it the missed changes."""
        async with other.meeting:
            if other.is_known:
                return
            identity = await other.identify(self._identity, 1 + len(self.all))
            query = "select know_store(%s::int, %s::uuid)"
            rows = await self._catalogue.ask(query, other.number, identity)
            if not rows[0][0]:
                raise InvalidValue(
                    f"store {other.number} of the list is not the one that it was: list the stores "
                    "in the same order everywhere, and new ones at the end"
                )
            await self._make_up_for(other)
            other.is_known = True
            other.seems(up=True)

    async def _make_up_for(self, other: Shard) -> None:
        """Copy the policies to a shard, which may have changed while it did not answer."""
        policies = {
            alias_id: policy
            for queue_id, alias_id, _, _, _, policy, _ in await self.places(None)
            if queue_id >> STORE_SHIFT == other.number
        }
        for alias_id, policy in policies.items():
            await self.copy_policy(other, alias_id, msgspec.convert(policy, QueuePolicy))

    async def places(self, queue_id: int | None) -> list[tuple[Any, ...]]:
        """Return the replicas that are placed in shards, as rows of the catalogue."""
        return await self._catalogue.ask("select * from place_queues(%s::int)", queue_id)

    @staticmethod
    async def copy_policy(other: Shard, alias_id: int, policy: QueuePolicy) -> None:
        await other.ask("select copy_policy(%s::int, %s::jsonb)", alias_id, json_of(policy))

    async def make(self, other: Shard, queue_id: int) -> bool:
        """Create a replica in its shard if the catalogue says that this is missing.

        Returns whether it was created.
        """
        for _, alias_id, number, name, durable, policy, made in await self.places(queue_id):
            if not made:
                await other.ask(
                    "select make_replica(%s::int, %s::int, %s::int, %s, %s, %s::jsonb)",
                    queue_id,
                    alias_id,
                    number,
                    name,
                    durable,
                    json_of(policy),
                )
                await self._catalogue.ask("select place_made(%s::int)", queue_id)
                return True
        return False

    # Store of a queue

    async def holder(self, queue_id: int) -> PostgresStore:
        """Return the store that has a queue.

        Raises `Unavailable` while its shard has never answered.
        """
        number = queue_id >> STORE_SHIFT
        if number == 0:
            return self._catalogue
        if not 0 < number <= len(self.all):
            raise Unavailable(f"there is no store {number}: list it, and start this node again")
        other = self.all[number - 1]
        if not other.is_known:
            await self._verify_identity(other)
        return other

    def shard_of(self, queue_id: int) -> Shard | None:
        """Return the shard that has a queue; None for the catalogue and unknown numbers."""
        number = queue_id >> STORE_SHIFT
        return self.all[number - 1] if 0 < number <= len(self.all) else None

    @property
    def up(self) -> list[Shard]:
        return [other for other in self.all if other.is_known and other.is_up]

    async def ask_all(self, question: Callable[[Shard], Awaitable[T]]) -> list[tuple[int, T]]:
        """Ask all shards that answer; return (number, answer) pairs."""
        stores = self.up
        answers = await asyncio.gather(*map(question, stores), return_exceptions=True)
        found = []
        for other, answer in zip(stores, answers, strict=True):
            if isinstance(answer, Unavailable):
                other.seems(up=False, why=str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append((other.number, answer))
        return found

    # Membership

    async def join(self, member_id: int, name: str, address: str, lease_s: float) -> None:
        """Join all shards under the member id of the catalogue."""
        await self._stop_keeping()
        for other in self.all:
            other.enter(member_id, name, address)
        self.keep_beside(lease_s)
        if self._keeping:
            # Shards that answer are joined together with the catalogue. The others are not waited
            # for.
            await asyncio.wait(self._keeping.values(), timeout=min(lease_s, _JOIN_S_MAX))

    async def leave(self) -> None:
        await self._stop_keeping()
        await asyncio.gather(*(other.leave_cluster() for other in self.all), return_exceptions=True)

    def keep_beside(self, lease_s: float) -> None:
        for other in self.all:
            running = self._keeping.get(other.number)
            if running is None or running.done():
                keeping = asyncio.create_task(self._renew_leases(other, lease_s))
                self._keeping[other.number] = keeping

    async def _renew_leases(self, other: Shard, lease_s: float) -> None:
        """Renew the lease in one shard; after an error the next renewal tries again."""
        try:
            await self._verify_identity(other)
            was_up = other.is_up
            await other.renew_lease(lease_s)
            if not was_up:
                await self._make_up_for(other)
        except Unavailable as failure:
            other.seems(up=False, why=str(failure))
        except TidegateError as failure:
            log.error("store %d cannot be used: %s", other.number, failure)
        except Exception:
            log.exception("a bug while store %d was told that we live", other.number)

    async def _stop_keeping(self) -> None:
        running, self._keeping = list(self._keeping.values()), {}
        for keeping in running:
            keeping.cancel()
        await asyncio.gather(*running, return_exceptions=True)


_REPLICA_NAME = re.compile(r"(.+)#(\d+)")

P = ParamSpec("P")
T = TypeVar("T")


def _where_the_queue_is(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return a method that calls the same method of the store that has the queue."""

    async def call(*arguments: P.args, **options: P.kwargs) -> T:
        everywhere, queue_id, *others = arguments
        assert isinstance(everywhere, ShardedStore)
        assert isinstance(queue_id, int)
        there: Any = await everywhere.others.holder(queue_id)
        unbound: Any = method
        return await unbound(there, queue_id, *others, **options)  # type: ignore[no-any-return]

    return call


class ShardedStore(ShardedReplicas):
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

    def membership_epoch(self, queue_id: int) -> int | None:
        other = self.others.shard_of(queue_id)
        return 0 if other is None else other.membership_epoch(queue_id)

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
        for _, known in await self.others.ask_all(PostgresStore.members):
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
        for _, rows in await self.others.ask_all(
            lambda s: s.ask("select active_ids(%s)", client_id)
        ):
            ids |= {row[0] for row in rows}
        rows = await self._call("select * from queues_by_id(%s::int[])", sorted(ids))
        return [queue_of(row) for row in rows]

    async def set_policy(
        self, queue_id: int, policy: QueuePolicy, before: QueuePolicy | None = None
    ) -> bool:
        if self.others.shard_of(queue_id) is not None:
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
        other = self.others.shard_of(queue_id)
        if other is None:
            return None if queue_id >> STORE_SHIFT > 0 else await super().locate(queue_id)
        there = await self.others.holder(queue_id)
        location = await there.locate(queue_id)
        if location is None and await self.others.make(other, queue_id):
            location = await there.locate(queue_id)
        return location

    async def claim(self, queue_id: int, member_id: int) -> ClaimedQueue | None:
        other = self.others.shard_of(queue_id)
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
        for _, rows in await self.others.ask_all(lambda s: s.ask("select orphans(null::int)")):
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
        asked = await self.others.ask_all(lambda s: s.dedup_ids(alias_id, newer_than_s))
        seen += [elsewhere for _, elsewhere in asked]
        for ages_s in seen:
            for dedup_id, age_s in ages_s.items():
                found[dedup_id] = min(age_s, found.get(dedup_id, age_s))
        return found

    async def forget_dedup(self) -> int:
        elsewhere = await self.others.ask_all(PostgresStore.forget_dedup)
        return await super().forget_dedup() + sum(count for _, count in elsewhere)

    async def forget_marks(self, older_than_s: float) -> int:
        elsewhere = await self.others.ask_all(lambda s: s.forget_marks(older_than_s))
        return await super().forget_marks(older_than_s) + sum(count for _, count in elsewhere)

    async def free_payloads(self) -> int:
        elsewhere = await self.others.ask_all(PostgresStore.free_payloads)
        return await super().free_payloads() + sum(count for _, count in elsewhere)

    # Moves

    async def move(self, move: SegmentMove) -> bool:
        source = await self.others.holder(move.source)
        target = await self.others.holder(move.target)
        if source is target:
            return await PostgresStore.move(source, move)
        return await move_segments(source, target, move)

    async def has_arrived(self, move_id: str, target: int) -> bool:
        return await PostgresStore.has_arrived(await self.others.holder(target), move_id, target)

    async def finish_moves(self, queue_id: int, epoch: int) -> int:
        source = await self.others.holder(queue_id)
        return await finish_moves(source, self.others.holder, queue_id, epoch)


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
