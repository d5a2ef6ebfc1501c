"""Queues in memory, by id and by name, including replicas."""

from __future__ import annotations

import asyncio

import msgspec

from tidegate.core.model import DEFAULT_POLICY, QueueInfo, QueuePolicy, promised_by_another
from tidegate.core.ports import Clock
from tidegate.storage.memory_fleet import MemoryFleet
from tidegate.storage.memory_queue import StoredQueue


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
            raise promised_by_another(queue_id)
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
