"""Members and queue owners in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidegate.core.ports import Claim, Clock, Location, MemberInfo
from tidegate.storage.memory_fleet import StoredMember
from tidegate.storage.memory_replication import MemoryReplication


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

    async def claim(self, queue_id: int, member_id: int) -> Claim | None:
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
        return Claim(replica.epoch, replica.next_id)

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
