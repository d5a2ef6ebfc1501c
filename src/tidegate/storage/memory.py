"""The in-memory twin of the PostgreSQL store: same fencing, same answers, nothing on disk.

Strategy: every method says in Python what its SQL function says in sql/, and a change happens
between two turns of the event loop, which is what a transaction is there. Several nodes of one
process may share one store; what it holds lives as long as the object, so a node that comes
back finds its queues again. For tests, ours and users'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from tidegate.core.errors import Unavailable, UniqueConstraint
from tidegate.core.model import DEFAULT_POLICY, ClientInfo, Mode, QueueInfo, QueuePolicy
from tidegate.core.ports import (
    Attempt,
    Claim,
    Clock,
    LaneSummary,
    Location,
    MemberInfo,
    Publication,
    Settlement,
    Write,
)
from tidegate.core.segment import Segment
from tidegate.core.topic import Filter, SubscriptionInfo, TopicInfo
from tidegate.storage.memory_users import MemoryUsers

# Of a producer that puts to several queues, and so leaves gaps in each, all but the last
# batches are forgotten.
_GAPS_MAX = 2048

Ranges = list[tuple[int, int]]


class _Member:
    """A node, until its lease runs out."""

    def __init__(self, member_id: int, name: str, address: str, alive_until: float) -> None:
        self.member_id = member_id
        self.name = name
        self.address = address
        self.alive_until = alive_until


class _Marks:
    """Which batches of a producer were stored and are gone; those of living segments are there."""

    def __init__(self) -> None:
        self.batches: Ranges = []
        self.seen_at = 0.0


class _Replica:
    """A queue: who owns it, and everything in it."""

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.owner: int | None = None
        self.epoch = 0
        self.next_id = 1
        self.segments: dict[int, Segment] = {}
        # First id → which batches of which producers its messages are.
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.acks: dict[int, Ranges] = {}
        # First id → offset → what came of its deliveries.
        self.attempts: dict[int, dict[int, Attempt]] = {}
        # Dedup id → when it was seen.
        self.dedup: dict[str, float] = {}
        self.marks: dict[int, _Marks] = {}

    def insert(self, segment: Segment, batches: list[tuple[int, int]]) -> None:
        if segment.first_id in self.segments:
            raise UniqueConstraint(f"segment {segment.first_id} of {self.info.name!r} is stored")
        self.segments[segment.first_id] = _copy(segment)
        self.batches[segment.first_id] = batches

    def drop(self, first_id: int, now: float) -> None:
        """Delete a segment, and remember which batches it was."""
        self.acks.pop(first_id, None)
        self.attempts.pop(first_id, None)
        if self.segments.pop(first_id, None) is None:
            return
        for producer, batch in self.batches.pop(first_id):
            marks = self.marks.setdefault(producer, _Marks())
            marks.batches = _union(marks.batches, [(batch, batch + 1)])
            marks.seen_at = now

    def all_marks(self) -> dict[int, Ranges]:
        found = {producer: list(marks.batches) for producer, marks in self.marks.items()}
        for living in self.batches.values():
            for producer, batch in living:
                found[producer] = _union(found.get(producer, []), [(batch, batch + 1)])
        return found

    def in_order(self) -> list[Segment]:
        return [self.segments[first_id] for first_id in sorted(self.segments)]

    def read(self, segment: Segment) -> Segment:
        """A segment as it comes back: fresh, with its acknowledgements."""
        copy = _copy(segment, reloaded=True)
        for low, high in self.acks.get(segment.first_id, ()):
            copy.mark_done(low, high)
        for offset, attempt in self.attempts.get(segment.first_id, {}).items():
            copy.remember(offset, attempt.failed, attempt.due_at, attempt.failures)
        return copy


class _Topic:
    """A topic: its queues, each with its filter and the member it goes with."""

    def __init__(self, topic_id: int, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.subscriptions: dict[int, tuple[Filter | None, int | None]] = {}


class MemoryStore(MemoryUsers):
    """A store without a server."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or Clock()
        self._client_users: dict[int, str | None] = {}
        self._clients: dict[int, tuple[str, Mode | None]] = {}
        self._client_ids: dict[str, int] = {}
        self._replicas: dict[int, _Replica] = {}
        self._queue_ids: dict[str, int] = {}
        self._members: dict[int, _Member] = {}
        self._topics: dict[str, _Topic] = {}
        # Like PostgreSQL's serials: never given out twice.
        self._last_client = self._last_queue = self._last_member = self._last_topic = 0

    async def open(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """What is stored stays: a node that starts again on this store finds it."""

    # Clients and queues

    async def register_client(
        self, name: str, mode: Mode, user: str | None = None
    ) -> ClientInfo | None:
        await _turn()
        client_id = self._client_ids.get(name)
        if client_id is None:
            client_id = self._new_client(name)
        elif self._clients[client_id][1] is not None:
            return None
        self._clients[client_id] = (name, mode)
        self._client_users[client_id] = user
        return ClientInfo(client_id, name, mode)

    def _new_client(self, name: str) -> int:
        self._last_client += 1
        self._client_ids[name] = self._last_client
        # Without a mode the name is reserved by somebody who addressed it.
        self._clients[self._last_client] = (name, None)
        return self._last_client

    async def find_client(
        self, client_id: int | None, name: str | None, user: str | None = None
    ) -> ClientInfo | None:
        await _turn()
        if client_id is None and name is not None:
            client_id = self._client_ids.get(name)
        found = self._clients.get(client_id) if client_id is not None else None
        if client_id is None or found is None or found[1] is None:
            return None
        if user is not None and self._client_users.get(client_id) != user:
            return None
        return ClientInfo(client_id, found[0], found[1])

    async def reserve_client(self, name: str) -> int:
        await _turn()
        client_id = self._client_ids.get(name)
        return self._new_client(name) if client_id is None else client_id

    async def delete_client(self, client_id: int) -> bool:
        await _turn()
        found = self._clients.get(client_id)
        if found is None or found[1] is None:
            return False
        del self._clients[client_id], self._client_ids[found[0]]
        self._client_users.pop(client_id, None)
        return True

    def _forget_clients_of(self, name: str) -> None:
        for client_id in [c for c, user in self._client_users.items() if user == name]:
            del self._client_ids[self._clients.pop(client_id)[0]], self._client_users[client_id]

    async def create_queue(
        self, name: str, durable: bool, policy: QueuePolicy = DEFAULT_POLICY
    ) -> QueueInfo | None:
        await _turn()
        return self._create_queue(name, durable, policy)

    def _create_queue(self, name: str, durable: bool, policy: QueuePolicy) -> QueueInfo | None:
        if name in self._queue_ids:
            return None
        self._last_queue += 1
        info = QueueInfo(self._last_queue, name, durable, policy)
        self._queue_ids[name] = info.queue_id
        self._replicas[info.queue_id] = _Replica(info)
        return info

    async def set_policy(self, queue_id: int, policy: QueuePolicy) -> bool:
        await _turn()
        replica = self._replicas.get(queue_id)
        if replica is None:
            return False
        replica.info = msgspec.structs.replace(replica.info, policy=policy)
        return True

    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None:
        await _turn()
        if queue_id is None and name is not None:
            queue_id = self._queue_ids.get(name)
        replica = self._replicas.get(queue_id) if queue_id is not None else None
        return None if replica is None else replica.info

    async def list_queues(self) -> list[QueueInfo]:
        await _turn()
        return sorted((r.info for r in self._replicas.values()), key=lambda info: info.name)

    async def active_queues(self, client_id: int) -> list[QueueInfo]:
        await _turn()
        active = [
            replica.info
            for replica in self._replicas.values()
            if any(
                (segment.receivers is None or client_id in segment.receivers)
                and (segment.due_at is None or segment.due_at <= self._clock.wall())
                for segment in replica.segments.values()
            )
        ]
        return sorted(active, key=lambda info: info.name)

    async def delete_queue(self, queue_id: int) -> bool:
        await _turn()
        replica = self._replicas.pop(queue_id, None)
        if replica is None:
            return False
        del self._queue_ids[replica.info.name]
        for topic in self._topics.values():
            topic.subscriptions.pop(queue_id, None)
        return True

    # Members and ownership

    async def join(self, name: str, address: str, lease_s: float) -> int:
        await _turn()
        # Who listens at an address is alone there: a member that was there before is dead.
        self._members = {i: m for i, m in self._members.items() if m.address != address}
        self._last_member += 1
        member = _Member(self._last_member, name, address, self._clock.monotonic() + lease_s)
        self._members[member.member_id] = member
        return member.member_id

    async def renew(self, member_id: int, lease_s: float) -> bool:
        await _turn()
        member = self._members.get(member_id)
        if member is None:
            return False
        member.alive_until = self._clock.monotonic() + lease_s
        return True

    async def leave(self, member_id: int) -> None:
        await _turn()
        for replica in self._replicas.values():
            if replica.owner == member_id:
                replica.owner = None
        self._members.pop(member_id, None)

    def _is_alive(self, member_id: int | None) -> bool:
        member = self._members.get(member_id) if member_id is not None else None
        return member is not None and member.alive_until > self._clock.monotonic()

    async def members(self) -> list[MemberInfo]:
        await _turn()
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
        await _turn()
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

    async def orphans(self) -> list[int]:
        await _turn()
        return sorted(q for q, r in self._replicas.items() if not self._is_alive(r.owner))

    async def claim(self, queue_id: int, member_id: int) -> Claim | None:
        await _turn()
        replica = self._replicas.get(queue_id)
        if replica is None or not self._is_alive(member_id):
            return None
        if replica.owner != member_id and self._is_alive(replica.owner):
            return None
        if replica.owner is not None and replica.owner != member_id:
            # Declared dead: its next renewal tells it to forget what it owned.
            self._members.pop(replica.owner, None)
        replica.owner = member_id
        replica.epoch += 1
        return Claim(replica.epoch, replica.next_id)

    async def release(self, queue_id: int, epoch: int, heir: int | None) -> bool:
        await _turn()
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return False
        replica.owner = heir
        replica.epoch += 1
        return True

    async def reserve_ids(self, queue_id: int, epoch: int, count: int) -> int | None:
        await _turn()
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return None
        replica.next_id += count
        return replica.next_id

    def _fenced(self, queue_id: int, epoch: int) -> _Replica | None:
        """The queue, if that epoch is still its owner's."""
        replica = self._replicas.get(queue_id)
        return replica if replica is not None and replica.epoch == epoch else None

    # Messages

    def submit(
        self,
        writes: Sequence[Write],
        done: Callable[[list[bool] | Exception], None],
        *,
        writer: int = 0,
    ) -> None:
        def commit() -> None:
            # All or nothing, as in a transaction: look before the first change.
            for write in writes:
                replica = self._fenced(write.segment.queue_id, write.epoch)
                if replica is not None and write.segment.first_id in replica.segments:
                    done(UniqueConstraint(f"segment {write.segment.first_id} is stored"))
                    return
            done([self._put(write) for write in writes])

        asyncio.get_running_loop().call_soon(commit)

    def _put(self, write: Write) -> bool:
        replica = self._fenced(write.segment.queue_id, write.epoch)
        if replica is None:
            return False
        replica.insert(write.segment, list(zip(write.producers, write.batches, strict=True)))
        for dedup_id in write.dedup_ids or ():
            replica.dedup[dedup_id] = self._clock.wall()
        return True

    async def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        await _turn()
        return [self._settle(settlement) for settlement in settlements]

    def _settle(self, settlement: Settlement) -> bool:
        replica = self._fenced(settlement.queue_id, settlement.epoch)
        if replica is None:
            return False
        for first_id in settlement.finished:
            replica.drop(first_id, self._clock.monotonic())
        for first_id, done in settlement.partly.items():
            replica.acks[first_id] = _union(replica.acks.get(first_id, []), done)
        for (first_id, offset), attempt in settlement.attempts.items():
            replica.attempts.setdefault(first_id, {})[offset] = attempt
        return True

    async def transact(
        self,
        writes: Sequence[Write],
        settlements: Sequence[Settlement],
        publications: Sequence[Publication] = (),
    ) -> bool:
        await _turn()
        # All or nothing: look before the first change.
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
        await _turn()
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return False
        for first_id in list(replica.acks):
            segment = replica.segments.get(first_id)
            if segment is not None and replica.read(segment).open <= 0:
                replica.drop(first_id, self._clock.monotonic())
        return True

    async def stored(self, queue_id: int, first_ids: list[int]) -> set[int]:
        await _turn()
        replica = self._replicas.get(queue_id)
        return set() if replica is None else replica.segments.keys() & set(first_ids)

    async def lanes(self, queue_id: int) -> list[LaneSummary]:
        await _turn()
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
        await _turn()
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
        await _turn()
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
        await _turn()
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
        await _turn()
        replica = self._replicas.get(queue_id)
        found: list[Segment] = []
        for due_at, first_id in self._due(replica):
            if (due_at, first_id) > behind and len(found) < count_max and bytes_max > 0:
                assert replica is not None
                found.append(replica.read(replica.segments[first_id]))
                bytes_max -= found[-1].payload_bytes
        return found

    @staticmethod
    def _due(replica: _Replica | None) -> list[tuple[float, int]]:
        segments = () if replica is None else replica.segments.values()
        return sorted((s.due_at, s.first_id) for s in segments if s.due_at is not None)

    async def count_due(self, queue_id: int) -> int:
        await _turn()
        replica = self._replicas.get(queue_id)
        if replica is None:
            return 0
        return sum(replica.read(replica.segments[i]).open for _, i in self._due(replica))

    async def dedup_ids(self, queue_id: int, newer_than_s: float) -> dict[str, float]:
        await _turn()
        replica = self._replicas.get(queue_id)
        ages = {
            dedup_id: self._clock.wall() - seen_at
            for dedup_id, seen_at in (replica.dedup.items() if replica is not None else ())
        }
        return {dedup_id: age_s for dedup_id, age_s in ages.items() if age_s < newer_than_s}

    async def forget_dedup(self) -> int:
        await _turn()
        forgotten = 0
        for replica in self._replicas.values():
            oldest = self._clock.wall() - replica.info.policy.dedup_window_s
            kept = {i: at for i, at in replica.dedup.items() if at >= oldest}
            forgotten += len(replica.dedup) - len(kept)
            replica.dedup = kept
        return forgotten

    async def marks(self, queue_id: int) -> dict[int, Ranges]:
        await _turn()
        replica = self._replicas.get(queue_id)
        return {} if replica is None else replica.all_marks()

    async def forget_marks(self, older_than_s: float) -> int:
        await _turn()
        before = self._clock.monotonic() - older_than_s
        forgotten = 0
        for replica in self._replicas.values():
            for marks in replica.marks.values():
                if len(marks.batches) > _GAPS_MAX:
                    oldest = marks.batches[-1][1] - _GAPS_MAX
                    marks.batches = [(max(a, oldest), b) for a, b in marks.batches if b > oldest]
            kept = {p: marks for p, marks in replica.marks.items() if marks.seen_at >= before}
            forgotten += len(replica.marks) - len(kept)
            replica.marks = kept
        return forgotten

    async def purge(self, queue_id: int, epoch: int, below_id: int, kept: list[int]) -> bool:
        await _turn()
        replica = self._fenced(queue_id, epoch)
        if replica is None:
            return False
        for first_id in replica.segments.keys() - set(kept):
            if first_id < below_id:
                replica.drop(first_id, self._clock.monotonic())
        return True

    # Topics

    async def create_topic(self, name: str) -> TopicInfo | None:
        await _turn()
        if name in self._topics:
            return None
        self._last_topic += 1
        self._topics[name] = _Topic(self._last_topic, name)
        return self._topic_info(self._topics[name])

    def _topic_info(self, topic: _Topic) -> TopicInfo:
        return TopicInfo(
            topic.topic_id,
            topic.name,
            [
                SubscriptionInfo(
                    queue_id, self._replicas[queue_id].info.name, header_filter, member_id is None
                )
                for queue_id, (header_filter, member_id) in sorted(topic.subscriptions.items())
            ],
        )

    async def delete_topic(self, name: str) -> bool:
        await _turn()
        return self._topics.pop(name, None) is not None

    async def find_topic(self, name: str) -> TopicInfo | None:
        await _turn()
        topic = self._topics.get(name)
        return None if topic is None else self._topic_info(topic)

    async def list_topics(self) -> list[TopicInfo]:
        await _turn()
        return [self._topic_info(self._topics[name]) for name in sorted(self._topics)]

    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None:
        await _turn()
        found = self._topics.get(topic)
        if found is None:
            return None
        info = self._create_queue(queue, True, DEFAULT_POLICY)
        if info is None:
            if member_id is not None:
                return None
            info = self._replicas[self._queue_ids[queue]].info
        _, lives_with = found.subscriptions.get(info.queue_id, (None, member_id))
        found.subscriptions[info.queue_id] = (header_filter or None, lives_with)
        return info

    async def drop_subscription(self, topic: str, queue_id: int) -> bool:
        await _turn()
        found = self._topics.get(topic)
        return found is not None and found.subscriptions.pop(queue_id, None) is not None

    async def lost_subscriptions(self) -> list[int]:
        await _turn()
        return [
            queue_id
            for topic in self._topics.values()
            for queue_id, (_, member_id) in topic.subscriptions.items()
            if member_id is not None and member_id not in self._members
        ]

    async def owners(self, queue_ids: Sequence[int]) -> dict[int, str]:
        await _turn()
        owners = {}
        for queue_id in queue_ids:
            replica = self._replicas.get(queue_id)
            if replica is not None and self._is_alive(replica.owner):
                assert replica.owner is not None
                owners[queue_id] = self._members[replica.owner].address
        return owners

    async def free_payloads(self) -> int:
        await _turn()
        return 0  # Python frees an object that nobody uses


async def _turn() -> None:
    """A store answers later, never at once: nobody may rely on the contrary."""
    await asyncio.sleep(0)


def _copy(segment: Segment, *, reloaded: bool = False) -> Segment:
    """The columns as they were stored: what a node notes on its own copy stays there."""
    return Segment(
        queue_id=segment.queue_id,
        first_id=segment.first_id,
        priority=segment.priority,
        arrived_at=segment.arrived_at,
        lengths=segment.lengths,
        payload=bytes(segment.payload),
        senders=segment.senders,
        receivers=segment.receivers,
        contexts=segment.contexts,
        attributes=segment.attributes,
        due_at=segment.due_at,
        reloaded=reloaded,
    )


def _union(ranges: Ranges, added: Ranges) -> Ranges:
    """Ranges [low, high) in order, neighbours joined, as a multirange is."""
    if len(added) == 1 and ranges and ranges[-1][1] == added[0][0]:
        return [*ranges[:-1], (ranges[-1][0], added[0][1])]
    joined: Ranges = []
    for low, high in sorted([*ranges, *added]):
        if joined and joined[-1][1] >= low:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
