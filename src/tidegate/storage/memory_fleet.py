"""Members, machines and the leader in memory, as in sql/0008_fleet.sql and 0017."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from tidegate.core.errors import StaleEpoch
from tidegate.core.fleet import MachineInfo, MachineState, told
from tidegate.core.ports import Clock
from tidegate.storage.postgres_fleet import DECISIONS_KEPT


class StoredMember:
    """A member and the time until which its lease is valid."""

    def __init__(self, member_id: int, name: str, address: str, alive_until: float) -> None:
        self.member_id = member_id
        self.name = name
        self.address = address
        self.alive_until = alive_until


class MemoryFleet:
    """The part of an in-memory store that manages machines and the leader."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or Clock()
        self._members: dict[int, StoredMember] = {}
        self._machines: dict[int, MachineInfo] = {}
        self._last_machine = 0
        self._leader: tuple[int | None, int] = (None, 0)
        self._machines_bound: int | None = None
        self._decisions: dict[str, deque[bytes]] = {}

    def _is_alive(self, member_id: int | None) -> bool:
        member = self._members.get(member_id) if member_id is not None else None
        return member is not None and member.alive_until > self._clock.monotonic()

    async def lead(self, member_id: int) -> int | None:
        await asyncio.sleep(0)
        leading, epoch = self._leader
        # A leader that is alive stays leader.
        heir = min(filter(self._is_alive, self._members), default=None)
        if member_id != (leading if self._is_alive(leading) else heir):
            return None
        if leading != member_id:
            self._leader = (member_id, epoch + 1)
        return self._leader[1]

    async def leader(self) -> tuple[int | None, int]:
        await asyncio.sleep(0)
        return self._leader

    async def bound_machines(self, machines_max: int, leader_epoch: int) -> None:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        self._machines_bound = machines_max

    async def machines_bound(self) -> int | None:
        await asyncio.sleep(0)
        return self._machines_bound

    def _fence_leader(self, leader_epoch: int) -> None:
        if leader_epoch != self._leader[1]:
            raise StaleEpoch("somebody else leads: nothing was done")

    async def add_machine(
        self, provider: str, slots: int, host: str | None, leader_epoch: int
    ) -> MachineInfo:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        self._last_machine += 1
        self._machines[self._last_machine] = MachineInfo(
            machine_id=self._last_machine,
            provider=provider,
            slots=slots,
            state=MachineState.BOOTING,
            host=host,
            ordered_at=self._clock.wall(),
        )
        return self._machines[self._last_machine]

    async def set_machine_state(
        self, machine_id: int, state: MachineState, leader_epoch: int, detail: str = ""
    ) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        machine = self._machines.get(machine_id)
        if machine is None:
            return False
        self._machines[machine_id] = msgspec.structs.replace(
            machine, state=state, detail=told(detail)
        )
        return True

    async def machine_joined(self, machine_id: int, member_id: int) -> bool:
        await asyncio.sleep(0)
        machine = self._machines.get(machine_id)
        if machine is None or machine.state in (MachineState.HALTING, MachineState.FAILED):
            return False
        state = MachineState.UP if machine.state is MachineState.BOOTING else machine.state
        self._machines[machine_id] = msgspec.structs.replace(
            machine, member_id=member_id, state=state, joined_at=self._clock.wall()
        )
        return True

    async def report_machine(self, machine_id: int, detail: str) -> bool:
        await asyncio.sleep(0)
        machine = self._machines.get(machine_id)
        if machine is None or machine.state in (MachineState.HALTING, MachineState.FAILED):
            return False
        self._machines[machine_id] = msgspec.structs.replace(machine, detail=told(detail))
        return True

    async def remove_machine(self, machine_id: int, leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        self._unassign(machine_id)
        return self._machines.pop(machine_id, None) is not None

    def _unassign(self, machine_id: int) -> None:
        """Release the replicas and instances of a machine; overridden by other parts."""

    async def machines(self) -> list[MachineInfo]:
        await asyncio.sleep(0)
        return [self._seen(machine) for machine in self._machines.values()]

    def _seen(self, machine: MachineInfo) -> MachineInfo:
        member = self._members.get(machine.member_id) if machine.member_id is not None else None
        return msgspec.structs.replace(
            machine,
            alive=self._is_alive(machine.member_id),
            address=None if member is None else member.address,
        )

    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        kept = self._decisions.setdefault(service, deque(maxlen=DECISIONS_KEPT))
        kept.appendleft(bytes(document))

    async def decisions(self, service: str, count: int) -> list[bytes]:
        await asyncio.sleep(0)
        return list(self._decisions.get(service, ()))[:count]
