"""Messages in memory: storing, settling and reading, and the records of batches and dedup ids.

A change is all or nothing: each method checks everything before its first change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tidegate.core.errors import Unavailable
from tidegate.core.ports import LaneSummary, Publication, Settlement, Write
from tidegate.core.segment import Segment
from tidegate.storage.memory_queue import Ranges, StoredQueue, union
from tidegate.storage.memory_replication import MemoryReplication


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
            replica.acks[first_id] = union(replica.acks.get(first_id, []), done)
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
