"""Queues in memory, by id and by name, including replicas."""

from __future__ import annotations

import asyncio

import msgspec

from tidegate.core.errors import UniqueConstraint
from tidegate.core.model import (
    DEFAULT_POLICY,
    ClientInfo,
    ClientMode,
    Filter,
    Grant,
    PasswordKeys,
    QueueInfo,
    QueuePolicy,
    SubscriptionInfo,
    TopicInfo,
    User,
    policy_changed_meanwhile,
)
from tidegate.core.segment import Segment
from tidegate.core.store import Clock, FailedDelivery
from tidegate.storage.memory.cluster import MemoryFleet


class MemoryQueues(MemoryFleet):
    """The part of an in-memory store that manages queues."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._replicas: dict[int, StoredQueue] = {}
        self._queue_ids: dict[str, int] = {}
        # Like PostgreSQL's sequences: an id is never used again.
        self._last_queue = 0

    async def create_queue(
        self, name: str, durable: bool, policy: QueuePolicy = DEFAULT_POLICY
    ) -> QueueInfo | None:
        await asyncio.sleep(0)
        return self._create_queue(name, durable, policy)

    def _create_queue(self, name: str, durable: bool, policy: QueuePolicy) -> QueueInfo | None:
        if name in self._queue_ids:
            return None
        info = QueueInfo(self._next_queue_id(), name, durable, policy)
        self._add_queue(info)
        return info

    def _next_queue_id(self) -> int:
        self._last_queue += 1
        return self._last_queue

    def _add_queue(self, info: QueueInfo) -> None:
        self._queue_ids[info.name] = info.queue_id
        self._replicas[info.queue_id] = StoredQueue(info)

    async def set_policy(
        self, queue_id: int, policy: QueuePolicy, before: QueuePolicy | None = None
    ) -> bool:
        await asyncio.sleep(0)
        replica = self._replicas.get(queue_id)
        if replica is None:
            return False
        if before is not None and before != replica.info.policy:
            raise policy_changed_meanwhile(queue_id)
        for each in [replica, *self._replicas_of(queue_id)]:
            each.info = msgspec.structs.replace(each.info, policy=policy)
        return True

    def _replicas_of(self, alias_id: int) -> list[StoredQueue]:
        return [r for r in self._replicas.values() if r.info.alias_id == alias_id]

    def _logical(self, replica: StoredQueue) -> StoredQueue:
        """Return the logical queue of a replica, or the queue itself."""
        return self._replicas.get(replica.info.alias_id, replica)

    async def find_queue(self, queue_id: int | None, name: str | None) -> QueueInfo | None:
        await asyncio.sleep(0)
        if queue_id is None and name is not None:
            queue_id = self._queue_ids.get(name)
        replica = self._replicas.get(queue_id) if queue_id is not None else None
        return None if replica is None else replica.info

    async def list_queues(self) -> list[QueueInfo]:
        await asyncio.sleep(0)
        plain = (r.info for r in self._replicas.values() if not r.info.alias_id)
        return sorted(plain, key=lambda info: info.name)

    async def active_queues(self, client_id: int) -> list[QueueInfo]:
        await asyncio.sleep(0)
        active = {
            self._logical(replica).info.name: self._logical(replica).info
            for replica in self._replicas.values()
            if any(
                (segment.receivers is None or client_id in segment.receivers)
                and (segment.due_at is None or segment.due_at <= self._clock.wall())
                for segment in replica.segments.values()
            )
        }
        return [active[name] for name in sorted(active)]

    async def delete_queue(self, queue_id: int) -> bool:
        await asyncio.sleep(0)
        replica = self._replicas.pop(queue_id, None)
        if replica is None:
            return False
        for each in self._replicas_of(queue_id):
            del self._replicas[each.info.queue_id], self._queue_ids[each.info.name]
        del self._queue_ids[replica.info.name]
        self._forget_queue(queue_id)
        return True

    def _forget_queue(self, queue_id: int) -> None:
        """Delete what else is stored about a queue; overridden by other parts."""

    def _fenced(self, queue_id: int, epoch: int) -> StoredQueue | None:
        """Return the queue if `epoch` is its owner's, else None."""
        replica = self._replicas.get(queue_id)
        return replica if replica is not None and replica.epoch == epoch else None


# A queue of the in-memory store: its owner and everything stored in it.


Ranges = list[tuple[int, int]]
# Of a producer that puts to several queues and so leaves gaps in each, only this many of the last
# batches are kept.
_GAPS_MAX = 2048
# Of a producer below 0, whose batches come in any order, this many runs are kept. A forgotten batch
# counts as not stored.
_RUNS_MAX = 4096


class StoredBatchMarks:
    """Batches of a producer whose segments are deleted; existing segments have their own."""

    def __init__(self) -> None:
        self.batches: Ranges = []
        self.seen_at = 0.0


class StoredQueue:
    """A queue: its owner, and everything stored in it."""

    def __init__(self, info: QueueInfo) -> None:
        self.info = info
        self.owner: int | None = None
        self.epoch = 0
        self.next_id = 1
        self.segments: dict[int, Segment] = {}
        # First id -> producer and number of each batch that the segment contains.
        self.batches: dict[int, list[tuple[int, int]]] = {}
        self.acks: dict[int, Ranges] = {}
        # First id -> offset -> the failed deliveries of the message.
        self.attempts: dict[int, dict[int, FailedDelivery]] = {}
        # Dedup id -> when it was stored.
        self.dedup: dict[str, float] = {}
        self.marks: dict[int, StoredBatchMarks] = {}

    def insert(self, segment: Segment, batches: list[tuple[int, int]]) -> None:
        if segment.first_id in self.segments:
            raise UniqueConstraint(f"segment {segment.first_id} of {self.info.name!r} is stored")
        self.segments[segment.first_id] = copy_segment(segment)
        self.batches[segment.first_id] = batches

    def drop(self, first_id: int, now: float) -> None:
        """Delete a segment and record its batches."""
        self.acks.pop(first_id, None)
        self.attempts.pop(first_id, None)
        if self.segments.pop(first_id, None) is not None:
            self.mark(first_id, now)

    def drop_done(self, now: float) -> None:
        """Delete segments whose messages are all done."""
        for first_id in list(self.acks):
            segment = self.segments.get(first_id)
            if segment is not None and self.read(segment).open <= 0:
                self.drop(first_id, now)

    def mark(self, first_id: int, now: float) -> None:
        """Record the batches of a segment that is no longer here."""
        for producer, batch in self.batches.pop(first_id):
            marks = self.marks.setdefault(producer, StoredBatchMarks())
            marks.batches = union_ranges(marks.batches, [(batch, batch + 1)])
            marks.seen_at = now

    def move_to(self, first_id: int, target: StoredQueue, new_first_id: int, now: float) -> None:
        """Move a segment to another queue; its batches stay recorded here."""
        segment = copy_segment(self.segments.pop(first_id))
        segment.queue_id, segment.first_id = target.info.queue_id, new_first_id
        segment.due_at = None
        target.insert(segment, [])
        if first_id in self.acks:
            target.acks[new_first_id] = self.acks.pop(first_id)
        if first_id in self.attempts:
            target.attempts[new_first_id] = self.attempts.pop(first_id)
        self.mark(first_id, now)

    def forget_marks(self, before: float) -> int:
        """Delete the records of producers that were silent since `before`; return how many."""
        for producer, marks in self.marks.items():
            if producer < 0:
                marks.batches = marks.batches[-_RUNS_MAX:]
            elif len(marks.batches) > _GAPS_MAX:
                oldest = marks.batches[-1][1] - _GAPS_MAX
                marks.batches = [(max(a, oldest), b) for a, b in marks.batches if b > oldest]
        kept = {p: marks for p, marks in self.marks.items() if marks.seen_at >= before}
        forgotten = len(self.marks) - len(kept)
        self.marks = kept
        return forgotten

    def all_marks(self) -> dict[int, Ranges]:
        found = {producer: list(marks.batches) for producer, marks in self.marks.items()}
        for living in self.batches.values():
            for producer, batch in living:
                found[producer] = union_ranges(found.get(producer, []), [(batch, batch + 1)])
        return found

    def in_order(self) -> list[Segment]:
        return [self.segments[first_id] for first_id in sorted(self.segments)]

    def read(self, segment: Segment) -> Segment:
        """Return a segment as read from the store: a new object with its acknowledgements."""
        copy = copy_segment(segment, reloaded=True)
        for low, high in self.acks.get(segment.first_id, ()):
            copy.mark_done(low, high)
        for offset, attempt in self.attempts.get(segment.first_id, {}).items():
            copy.remember(offset, attempt.failed, attempt.due_at, attempt.failures)
        return copy


def copy_segment(segment: Segment, *, reloaded: bool = False) -> Segment:
    """Return a copy: changes that a node makes to its own object must not affect the store."""
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


def union_ranges(ranges: Ranges, added: Ranges) -> Ranges:
    """Return the union of ranges [low, high), in order and merged, like a multirange."""
    if len(added) == 1 and ranges and ranges[-1][1] == added[0][0]:
        return [*ranges[:-1], (ranges[-1][0], added[0][1])]
    joined: Ranges = []
    for low, high in sorted([*ranges, *added]):
        if joined and joined[-1][1] >= low:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


# Topics in memory, and the queues that are subscribed to them.


class _Topic:
    """A topic: its queues, each with its filter and, if temporary, the member it belongs to."""

    def __init__(self, topic_id: int, name: str) -> None:
        self.topic_id = topic_id
        self.name = name
        self.subscriptions: dict[int, tuple[Filter | None, int | None]] = {}


class MemoryTopics(MemoryQueues):
    """The part of an in-memory store that manages topics."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._topics: dict[str, _Topic] = {}
        # Like PostgreSQL's sequences: an id is never used again.
        self._last_topic = 0

    def _forget_queue(self, queue_id: int) -> None:
        super()._forget_queue(queue_id)
        for topic in self._topics.values():
            topic.subscriptions.pop(queue_id, None)

    async def create_topic(self, name: str) -> TopicInfo | None:
        await asyncio.sleep(0)
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
        await asyncio.sleep(0)
        return self._topics.pop(name, None) is not None

    async def find_topic(self, name: str) -> TopicInfo | None:
        await asyncio.sleep(0)
        topic = self._topics.get(name)
        return None if topic is None else self._topic_info(topic)

    async def list_topics(self) -> list[TopicInfo]:
        await asyncio.sleep(0)
        return [self._topic_info(self._topics[name]) for name in sorted(self._topics)]

    async def add_subscription(
        self, topic: str, queue: str, header_filter: Filter | None, member_id: int | None
    ) -> QueueInfo | None:
        await asyncio.sleep(0)
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
        await asyncio.sleep(0)
        found = self._topics.get(topic)
        return found is not None and found.subscriptions.pop(queue_id, None) is not None

    async def lost_subscriptions(self) -> list[int]:
        await asyncio.sleep(0)
        return [
            queue_id
            for topic in self._topics.values()
            for queue_id, (_, member_id) in topic.subscriptions.items()
            if member_id is not None and member_id not in self._members
        ]


class MemoryUsers:
    """The part of an in-memory store that manages users."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._users_version = 0
        self._secret: bytes | None = None

    async def add_user(self, user: User) -> bool:
        await asyncio.sleep(0)
        if user.name in self._users:
            return False
        self._change(user)
        return True

    async def set_user_keys(self, name: str, keys: PasswordKeys) -> bool:
        await asyncio.sleep(0)
        user = self._users.get(name)
        if user is not None:
            self._change(msgspec.structs.replace(user, keys=keys))
        return user is not None

    async def set_user_grants(self, name: str, grants: list[Grant]) -> bool:
        await asyncio.sleep(0)
        user = self._users.get(name)
        if user is not None:
            self._change(msgspec.structs.replace(user, grants=list(grants)))
        return user is not None

    def _change(self, user: User) -> None:
        self._users[user.name] = user
        self._users_version += 1

    async def remove_user(self, name: str) -> bool:
        await asyncio.sleep(0)
        self._forget_clients_of(name)
        if self._users.pop(name, None) is None:
            return False
        self._users_version += 1
        return True

    def _forget_clients_of(self, name: str) -> None:
        """Delete the clients of a user; implemented by `MemoryClients`."""

    async def list_users(self) -> list[User]:
        await asyncio.sleep(0)
        return [self._users[name] for name in sorted(self._users)]

    async def users_version(self) -> int:
        await asyncio.sleep(0)
        return self._users_version

    async def cluster_secret(self, candidate: bytes) -> bytes:
        await asyncio.sleep(0)
        if self._secret is None:
            self._secret = candidate
        return self._secret


class MemoryClients(MemoryUsers):
    """The part of an in-memory store that manages clients."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[int, tuple[str, ClientMode | None]] = {}
        self._client_ids: dict[str, int] = {}
        self._client_users: dict[int, str | None] = {}
        # Like PostgreSQL's sequences: an id is never used again.
        self._last_client = 0

    async def register_client(
        self, name: str, mode: ClientMode, user: str | None = None
    ) -> ClientInfo | None:
        await asyncio.sleep(0)
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
        # Without a mode: a message was addressed to the name before its client registered.
        self._clients[self._last_client] = (name, None)
        return self._last_client

    async def find_client(
        self, client_id: int | None, name: str | None, user: str | None = None
    ) -> ClientInfo | None:
        await asyncio.sleep(0)
        if client_id is None and name is not None:
            client_id = self._client_ids.get(name)
        found = self._clients.get(client_id) if client_id is not None else None
        if client_id is None or found is None or found[1] is None:
            return None
        if user is not None and self._client_users.get(client_id) != user:
            return None
        return ClientInfo(client_id, found[0], found[1])

    async def reserve_client(self, name: str) -> int:
        await asyncio.sleep(0)
        client_id = self._client_ids.get(name)
        return self._new_client(name) if client_id is None else client_id

    async def delete_client(self, client_id: int) -> bool:
        await asyncio.sleep(0)
        found = self._clients.get(client_id)
        if found is None or found[1] is None:
            return False
        del self._clients[client_id], self._client_ids[found[0]]
        self._client_users.pop(client_id, None)
        return True

    def _forget_clients_of(self, name: str) -> None:
        for client_id in [c for c, user in self._client_users.items() if user == name]:
            del self._client_ids[self._clients.pop(client_id)[0]], self._client_users[client_id]
