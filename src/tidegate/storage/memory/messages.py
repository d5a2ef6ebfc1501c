"""Messages in memory: storing, settling and reading, and the records of batches and dedup ids.

A change is all or nothing: each method checks everything before its first change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.model import QueueInfo
from tidegate.core.segment import Segment
from tidegate.core.store import (
    ClaimedQueue,
    Clock,
    LaneSummary,
    Location,
    MemberInfo,
    Publication,
    Settlement,
    Write,
)
from tidegate.core.topology import (
    ReplicaInfo,
    ReplicaState,
    Scaling,
    SegmentMove,
    Topology,
    replica_name,
    scaling_changed_meanwhile,
)
from tidegate.storage.memory.catalogue import MemoryQueues, Ranges, StoredQueue, union_ranges
from tidegate.storage.memory.cluster import StoredMember
from tidegate.storage.postgres.topology import check_assignments, normalize_shares

# Logical queues in memory, as in sql/0007_replication.sql.
#
# A version is raised when a topology is read and differs from the last read. The parts that change
# addresses therefore need not know about versions.


class MemoryReplication(MemoryQueues):
    """The part of an in-memory store that manages logical queues."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        # Logical queue -> its topology as last read; addresses are looked up for each read.
        self._topologies: dict[int, Topology] = {}
        self._alias_addresses: dict[int, str | None] = {}
        self._last_numbers: dict[int, int] = {}
        # Sum of the versions of deleted topologies, so that the total never decreases.
        self._past_versions = 0
        # Ended replicas whose batches are still recorded.
        self._retired: dict[int, StoredQueue] = {}
        # Move id -> when it was made, and whether it was cancelled.
        self._arrivals: dict[str, tuple[float, bool]] = {}

    # Topologies

    async def set_scaling(
        self, queue_id: int, scaling: Scaling | None, before: Scaling | UnsetType | None = UNSET
    ) -> bool:
        await asyncio.sleep(0)
        queue = self._replicas.get(queue_id)
        if queue is None or queue.info.alias_id:
            return False
        known = self._topologies.get(queue_id)
        if before is not UNSET and before != (None if known is None else known.scaling):
            raise scaling_changed_meanwhile(queue_id)
        if scaling is None:
            if known is not None and known.replicas:
                return False
            self._forget_topology(queue_id)
        elif known is None:
            self._topologies[queue_id] = Topology(queue_id, queue.info.name, 1, scaling)
        else:
            self._change_topology(known, scaling=scaling)
        queue.info = msgspec.structs.replace(queue.info, elastic=scaling is not None)
        return True

    def _forget_queue(self, queue_id: int) -> None:
        super()._forget_queue(queue_id)
        self._forget_topology(queue_id)

    def _forget_topology(self, queue_id: int) -> None:
        known = self._topologies.pop(queue_id, None)
        if known is not None:
            self._past_versions += known.version + 1

    def _change_topology(self, topology: Topology, **fields: object) -> None:
        self._topologies[topology.queue_id] = msgspec.structs.replace(
            topology, version=topology.version + 1, **fields
        )

    def _change_place(self, topology: Topology, number: int, **fields: object) -> bool:
        if topology.replica(number) is None:
            return False
        self._change_topology(
            topology,
            replicas=[
                msgspec.structs.replace(place, **fields) if place.number == number else place
                for place in topology.replicas
            ],
        )
        return True

    def _seen_topology(self, queue_id: int) -> Topology | None:
        """Return the topology with the addresses of live owners.

        If one of them has changed, the version is raised.
        """
        known = self._topologies.get(queue_id)
        if known is None:
            return None
        places = [
            msgspec.structs.replace(place, address=self._address_of(place.queue_id))
            for place in known.replicas
        ]
        alias_at = self._address_of(queue_id)
        if places != known.replicas or alias_at != self._alias_addresses.get(queue_id):
            self._alias_addresses[queue_id] = alias_at
            self._change_topology(known, replicas=places)
        return self._topologies[queue_id]

    def _address_of(self, queue_id: int) -> str | None:
        queue = self._replicas.get(queue_id)
        if queue is None or queue.owner is None or not self._is_alive(queue.owner):
            return None
        return self._members[queue.owner].address

    async def topology(self, queue_id: int) -> Topology | None:
        await asyncio.sleep(0)
        return self._seen_topology(queue_id)

    async def topologies(self) -> list[Topology]:
        await asyncio.sleep(0)
        seen = [self._seen_topology(queue_id) for queue_id in list(self._topologies)]
        return sorted((each for each in seen if each is not None), key=lambda each: each.queue)

    async def topology_version(self) -> int:
        seen = await self.topologies()
        return self._past_versions + sum(topology.version for topology in seen)

    # Replicas

    async def add_replica(
        self,
        queue_id: int,
        leader_epoch: int,
        *,
        machine_id: int | None = None,
        store_number: int | None = None,
    ) -> ReplicaInfo | None:
        await asyncio.sleep(0)
        if store_number:
            raise InvalidValue(f"there is one store, no number {store_number}: list it in the url")
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        if topology is None:
            return None
        alias = self._replicas[queue_id].info
        number = self._last_numbers.get(queue_id, 0) + 1
        while replica_name(alias.name, number) in self._queue_ids:
            number += 1
        self._last_numbers[queue_id] = number
        info = QueueInfo(
            self._next_queue_id(),
            replica_name(alias.name, number),
            alias.durable,
            alias.policy,
            alias_id=queue_id,
            number=number,
        )
        self._add_queue(info)
        place = ReplicaInfo(info.queue_id, number, machine_id=machine_id)
        self._change_topology(topology, replicas=[*topology.replicas, place])
        return place

    async def assign_replica(
        self, queue_id: int, number: int, machine_id: int | None, leader_epoch: int
    ) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        return topology is not None and self._change_place(topology, number, machine_id=machine_id)

    def _unassign(self, machine_id: int) -> None:
        for topology in list(self._topologies.values()):
            for place in topology.replicas:
                if place.machine_id == machine_id:
                    current = self._topologies[topology.queue_id]
                    self._change_place(current, place.number, machine_id=None)

    async def set_replica_state(
        self, queue_id: int, number: int, state: ReplicaState, leader_epoch: int
    ) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        return topology is not None and self._change_place(topology, number, state=state)

    async def set_shares(self, queue_id: int, shares: dict[int, float], leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        whole = normalize_shares(shares)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        if topology is None or any(topology.replica(number) is None for number in whole):
            return False
        self._change_topology(
            topology,
            replicas=[
                msgspec.structs.replace(place, share=whole.get(place.number, 0.0))
                for place in topology.replicas
            ],
        )
        return True

    async def set_homes(self, queue_id: int, homes: Sequence[int], leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        check_assignments(homes)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        if topology is None or any(topology.replica(abs(n)) is None for n in homes):
            return False
        self._change_topology(topology, homes=list(homes))
        return True

    async def retire_replica(self, queue_id: int, number: int, leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        topology = self._topologies.get(queue_id)
        place = None if topology is None else topology.replica(number)
        if topology is None or place is None:
            return True
        queue = self._replicas.get(place.queue_id)
        if queue is not None:
            queue.drop_done(self._clock.monotonic())
        if place.state is not ReplicaState.DRAINING or (queue is not None and queue.segments):
            return False
        if queue is not None:
            del self._replicas[place.queue_id], self._queue_ids[queue.info.name]
            self._retired[place.queue_id] = queue
        left = [each for each in topology.replicas if each.number != number]
        share = sum(each.share for each in left)
        if share > 0:
            left = [msgspec.structs.replace(each, share=each.share / share) for each in left]
        heirs = [e.number for e in left if e.state is not ReplicaState.DRAINING]
        heirs = heirs or [each.number for each in left]
        homes = [
            heirs[at % len(heirs)] * (1 if home > 0 else -1) if abs(home) == number else home
            for at, home in enumerate(topology.homes if heirs else [], start=1)
        ]
        self._change_topology(topology, replicas=left, homes=homes)
        return True

    async def assigned(self, machine_id: int) -> list[ReplicaInfo]:
        return [
            place
            for topology in await self.topologies()
            for place in topology.replicas
            if place.machine_id == machine_id
        ]

    def _is_reserved(self, queue: StoredQueue, member_id: int | None) -> bool:
        """Return whether the live machine of another member has been assigned the replica."""
        topology = self._topologies.get(queue.info.alias_id)
        place = None if topology is None else topology.replica(queue.info.number)
        if place is None or place.machine_id is None or place.machine_id not in self._machines:
            return False
        wanted = self._machines[place.machine_id].member_id
        return wanted != member_id and self._is_alive(wanted)

    # Moves

    async def move(self, move: SegmentMove) -> bool:
        await asyncio.sleep(0)
        source, target = self._replicas.get(move.source), self._replicas.get(move.target)
        if source is None or source.epoch != move.source_epoch:
            return False
        if target is None or target.epoch != move.target_epoch:
            return False
        if move.move_id in self._arrivals:
            return not self._arrivals[move.move_id][1]
        now = self._clock.monotonic()
        for first_id, new_first_id in zip(move.first_ids, move.new_first_ids, strict=True):
            if first_id in source.segments:
                source.move_to(first_id, target, new_first_id, now)
        self._arrivals[move.move_id] = (now, False)
        return True

    def _forget_arrivals(self, before: float) -> None:
        self._arrivals = {m: known for m, known in self._arrivals.items() if known[0] >= before}

    async def has_arrived(self, move_id: str, target: int) -> bool:
        await asyncio.sleep(0)
        return not self._arrivals.setdefault(move_id, (self._clock.monotonic(), True))[1]

    async def finish_moves(self, queue_id: int, epoch: int) -> int:
        await asyncio.sleep(0)
        return 0


class MemoryMessages(MemoryReplication):
    """The part of an in-memory store that has messages."""

    def submit(
        self,
        writes: Sequence[Write],
        done: Callable[[list[bool] | Exception], None],
        *,
        writer: int = 0,
    ) -> None:
        def commit() -> None:
            # All or nothing, as in a transaction: check everything before the first change.
            for write in writes:
                replica = self._fenced(write.segment.queue_id, write.epoch)
                if replica is not None and write.segment.first_id in replica.segments:
                    done(Unavailable(f"segment {write.segment.first_id} is stored: look it up"))
                    return
            done([self._put(write) for write in writes])

        asyncio.get_running_loop().call_soon(commit)

    def _put(self, write: Write) -> bool:
        replica = self._fenced(write.segment.queue_id, write.epoch)
        if replica is None:
            return False
        replica.insert(write.segment, list(zip(write.producers, write.batches, strict=True)))
        for dedup_id in write.dedup_ids or ():
            self._logical(replica).dedup[dedup_id] = write.segment.arrived_at
        return True

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        await asyncio.sleep(0)
        return [self._settle(settlement) for settlement in settlements]

    def _settle(self, settlement: Settlement) -> bool:
        replica = self._fenced(settlement.queue_id, settlement.epoch)
        if replica is None:
            return False
        for first_id in settlement.finished:
            replica.drop(first_id, self._clock.monotonic())
        for first_id, done in settlement.partly.items():
            replica.acks[first_id] = union_ranges(replica.acks.get(first_id, []), done)
        for (first_id, offset), attempt in settlement.attempts.items():
            replica.attempts.setdefault(first_id, {})[offset] = attempt
        return True

    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool:
        await asyncio.sleep(0)
        # All or nothing: check everything before the first change.
        targets = [(each, target) for each in publications for target in each.targets]
        for queue_id, epoch in [
            *((write.segment.queue_id, write.epoch) for write in writes),
            *((settlement.queue_id, settlement.epoch) for settlement in settlements),
            *((target.queue_id, target.epoch) for _, target in targets),
        ]:
            if self._fenced(queue_id, epoch) is None:
                return False
        writes = [
            *writes,
            *(
                Write(
                    publication.segment(target),
                    target.epoch,
                    publication.producers,
                    publication.batches,
                    target.dedup_ids,
                )
                for publication, target in targets
            ),
        ]
        for write in writes:
            if write.segment.first_id in self._replicas[write.segment.queue_id].segments:
                raise Unavailable(f"segment {write.segment.first_id} is stored: look it up")
        for write in writes:
            self._put(write)
            if write.segment.done:
                replica = self._replicas[write.segment.queue_id]
                replica.acks[write.segment.first_id] = list(write.segment.done)
        for settlement in settlements:
            self._settle(settlement)
        return True

    async def drop_done(self, queue_id: int, epoch: int) -> bool:
        await asyncio.sleep(0)
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return False
        replica.drop_done(self._clock.monotonic())
        return True

    async def stored(self, queue_id: int, first_ids: list[int]) -> set[int]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        return set() if replica is None else replica.segments.keys() & set(first_ids)

    async def lanes(self, queue_id: int) -> list[LaneSummary]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        lanes: dict[tuple[int, bool], LaneSummary] = {}
        for segment in replica.in_order() if replica is not None else ():
            assert replica is not None
            if segment.due_at is not None:
                continue
            key = (segment.priority, segment.receivers is not None)
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = LaneSummary(*key, segment.first_id, 0, 0, 0, segment.arrived_at)
            lane.last_id = segment.last_id
            lane.arrived_at = min(lane.arrived_at, segment.arrived_at)
            lane.count += replica.read(segment).open
            lane.payload_bytes += segment.payload_bytes
        return list(lanes.values())

    async def read_lane(
        self,
        queue_id: int,
        priority: int,
        addressed: bool,
        from_id: int,
        to_id: int,
        count_max: int,
        bytes_max: int,
    ) -> list[Segment]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        found: list[Segment] = []
        if replica is None:
            return found
        for segment in replica.in_order():
            if len(found) >= count_max or bytes_max <= 0:
                break
            if (
                segment.priority == priority
                and (segment.receivers is not None) == addressed
                and from_id <= segment.first_id <= to_id
                and segment.due_at is None
            ):
                found.append(replica.read(segment))
                bytes_max -= segment.payload_bytes
        return found

    async def read_between(
        self, queue_id: int, from_id: int, to_id: int, count_max: int, bytes_max: int
    ) -> list[Segment]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        found: list[Segment] = []
        if replica is None:
            return found
        for segment in replica.in_order():
            if len(found) >= count_max or bytes_max <= 0 or segment.first_id > to_id:
                break
            if segment.last_id >= from_id and segment.due_at is None:
                found.append(replica.read(segment))
                bytes_max -= segment.payload_bytes
        return found

    async def find_segments(
        self,
        queue_id: int,
        from_id: int,
        receiver: int,
        sender: int | None,
        context: int | None,
        priority: int | None,
        count_max: int,
    ) -> list[Segment]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        if replica is None:
            return []
        selective = sender is not None or context is not None
        found = [
            replica.read(segment)
            for segment in replica.in_order()
            if segment.first_id >= from_id
            and segment.due_at is None
            and (selective if segment.receivers is None else receiver in segment.receivers)
            and (sender is None or sender in segment.senders)
            and (context is None or context in (segment.contexts or ()))
            and (priority is None or priority == segment.priority)
        ]
        return found[:count_max]

    async def read_due(
        self, queue_id: int, behind: tuple[float, int], count_max: int, bytes_max: int
    ) -> list[Segment]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        found: list[Segment] = []
        for due_at, first_id in self._due(replica):
            if (due_at, first_id) > behind and len(found) < count_max and bytes_max > 0:
                assert replica is not None
                found.append(replica.read(replica.segments[first_id]))
                bytes_max -= found[-1].payload_bytes
        return found

    @staticmethod
    def _due(replica: StoredQueue | None) -> list[tuple[float, int]]:
        segments = () if replica is None else replica.segments.values()
        return sorted((s.due_at, s.first_id) for s in segments if s.due_at is not None)

    async def count_due(self, queue_id: int) -> int:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        if replica is None:
            return 0
        return sum(replica.read(replica.segments[i]).open for _, i in self._due(replica))

    async def dedup_ids(self, queue_id: int, newer_than_s: float) -> dict[str, float]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        seen = {} if replica is None else self._logical(replica).dedup
        ages = {dedup_id: self._clock.wall() - seen_at for dedup_id, seen_at in seen.items()}
        return {dedup_id: age_s for dedup_id, age_s in ages.items() if age_s < newer_than_s}

    async def forget_dedup(self) -> int:
        await asyncio.sleep(0)
        forgotten = 0
        for replica in self._replicas.values():
            oldest = self._clock.wall() - replica.info.policy.dedup_window_s
            kept = {i: at for i, at in replica.dedup.items() if at >= oldest}
            forgotten += len(replica.dedup) - len(kept)
            replica.dedup = kept
        return forgotten

    async def marks(self, queue_id: int) -> dict[int, Ranges]:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id) or self._retired.get(queue_id)
        return {} if replica is None else replica.all_marks()

    async def forget_marks(self, older_than_s: float) -> int:
        await asyncio.sleep(0)
        before = self._clock.monotonic() - older_than_s
        self._forget_arrivals(before)
        for queue_id in [q for q, gone in self._retired.items() if not gone.all_marks()]:
            del self._retired[queue_id]
        every = [*self._replicas.values(), *self._retired.values()]
        return sum(replica.forget_marks(before) for replica in every)

    async def purge(self, queue_id: int, epoch: int, below_id: int, kept: list[int]) -> bool:
        await asyncio.sleep(0)
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return False
        for first_id in replica.segments.keys() - set(kept):
            if first_id < below_id:
                replica.drop(first_id, self._clock.monotonic())
        return True

    async def free_payloads(self) -> int:
        await asyncio.sleep(0)
        return 0  # Python frees unused objects by itself


class MemoryOwnership(MemoryReplication):
    """The part of an in-memory store that manages members and owners."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        # Like PostgreSQL's sequences: an id is never used again.
        self._last_member = 0

    async def join(self, name: str, address: str, lease_s: float) -> int:
        await asyncio.sleep(0)
        # Only one node can listen at an address, so an earlier member there is dead.
        self._members = {i: m for i, m in self._members.items() if m.address != address}
        self._last_member += 1
        member = StoredMember(self._last_member, name, address, self._clock.monotonic() + lease_s)
        self._members[member.member_id] = member
        return member.member_id

    async def renew(self, member_id: int, lease_s: float) -> bool:
        await asyncio.sleep(0)
        member = self._members.get(member_id)
        if member is None:
            return False
        member.alive_until = self._clock.monotonic() + lease_s
        return True

    async def leave(self, member_id: int) -> None:
        await asyncio.sleep(0)
        for replica in self._replicas.values():
            if replica.owner == member_id:
                replica.owner = None
        self._members.pop(member_id, None)

    async def members(self) -> list[MemberInfo]:
        await asyncio.sleep(0)
        owners = [replica.owner for replica in self._replicas.values()]
        return [
            MemberInfo(
                member.member_id,
                member.name,
                member.address,
                self._is_alive(member.member_id),
                owners.count(member.member_id),
            )
            for member in self._members.values()
        ]

    async def locate(self, queue_id: int) -> Location | None:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        if replica is None:
            return None
        member = self._members.get(replica.owner) if replica.owner is not None else None
        return Location(
            replica.info,
            replica.owner,
            None if member is None else member.address,
            self._is_alive(replica.owner),
        )

    async def orphans(self, member_id: int | None = None) -> list[int]:
        await asyncio.sleep(0)
        return sorted(
            queue_id
            for queue_id, replica in self._replicas.items()
            if not self._is_alive(replica.owner) and not self._is_reserved(replica, member_id)
        )

    async def claim(self, queue_id: int, member_id: int) -> ClaimedQueue | None:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        if replica is None or not self._is_alive(member_id):
            return None
        if self._is_reserved(replica, member_id):
            return None
        if replica.owner != member_id and self._is_alive(replica.owner):
            return None
        if replica.owner is not None and replica.owner != member_id:
            # Declared dead: its next renewal fails, and it then drops its queues.
            self._members.pop(replica.owner, None)
        replica.owner = member_id
        replica.epoch += 1
        return ClaimedQueue(replica.epoch, replica.next_id)

    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool:
        await asyncio.sleep(0)
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return False
        replica.owner = heir
        replica.epoch += 1
        return True

    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None:
        await asyncio.sleep(0)
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return None
        replica.next_id += count
        return replica.next_id

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        await asyncio.sleep(0)
        owners = {}
        for queue_id in queue_ids:
            replica = self._replicas.get(queue_id)
            if replica is not None and self._is_alive(replica.owner):
                assert replica.owner is not None
                owners[queue_id] = self._members[replica.owner].address
        return owners
