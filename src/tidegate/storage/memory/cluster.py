"""Members, machines and the leader in memory, as in sql/0008_fleet.sql and 0017."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from tidegate.core.errors import StaleEpoch
from tidegate.core.machines import MachineInfo, MachineState, machine_detail
from tidegate.core.services import (
    DoorSample,
    Instance,
    InstanceState,
    Service,
    ServiceOverride,
    ServiceSpec,
)
from tidegate.core.store import Clock
from tidegate.storage.postgres.services import (
    DOOR_FRESH_S,
    KEYS_OF_VERSION,
    PACKAGE_KEPT_S,
    check_spec,
    check_weight,
    new_secret,
    no_such_service,
    override_changed_meanwhile,
    package_digest,
)
from tidegate.storage.postgres.topology import DECISIONS_KEPT


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
            machine, state=state, detail=machine_detail(detail)
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
        self._machines[machine_id] = msgspec.structs.replace(machine, detail=machine_detail(detail))
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


# The fields of an instance that depend on its machine.
_UNPLACED = {
    "machine_id": None,
    "address": None,
    "free_memory_bytes": None,
    "resident_bytes": None,
    "ready_at": None,
}
_SETTLED = (InstanceState.DRAINING, InstanceState.FAILED)


class MemoryHosting(MemoryFleet):
    """The part of an in-memory store that manages services."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._services: dict[str, Service] = {}
        # Of versions that are deployed or still have instances.
        self._specs: dict[tuple[str, int], ServiceSpec] = {}
        self._instances: dict[int, Instance] = {}
        self._last_instance = 0
        # Instances that the leader has marked as draining or failed: machines cannot change that
        # state.
        self._settled: set[int] = set()
        # (service, door) -> time of the report, and the sample.
        self._door_samples: dict[tuple[str, str], tuple[float, DoorSample]] = {}
        self._admissions: dict[str, int | None] = {}
        self._configurations: dict[str, bytes] = {}
        # Digest -> time of the last put, and the code.
        self._packages: dict[str, tuple[float, bytes]] = {}
        self._standings: dict[str, bytes] = {}

    async def deploy(self, spec: ServiceSpec) -> Service:
        await asyncio.sleep(0)
        check_spec(spec)
        known = self._services.get(spec.name)
        if known is None:
            service = Service(spec=spec, version=1, secret=new_secret())
        else:
            is_new = any(getattr(known.spec, k) != getattr(spec, k) for k in KEYS_OF_VERSION)
            service = msgspec.structs.replace(known, spec=spec, version=known.version + is_new)
        self._services[spec.name] = service
        self._specs[spec.name, service.version] = spec
        self._forget_versions()
        self._forget_packages()
        return service

    def _forget_versions(self) -> None:
        """Delete versions that are not deployed and have no instances."""
        kept = {(name, service.version) for name, service in self._services.items()}
        kept |= {(one.service, one.version) for one in self._instances.values()}
        self._specs = {key: spec for key, spec in self._specs.items() if key in kept}

    def _forget_packages(self) -> None:
        """Delete packages that no service deploys, except new ones, which may be deployed soon."""
        deployed = {spec.package for spec in self._specs.values()}
        oldest = self._clock.monotonic() - PACKAGE_KEPT_S
        self._packages = {
            digest: (put_at, content)
            for digest, (put_at, content) in self._packages.items()
            if digest in deployed or put_at >= oldest
        }

    async def undeploy(self, name: str) -> bool:
        await asyncio.sleep(0)
        if self._services.pop(name, None) is None:
            return False
        for instance in list(self._instances.values()):
            if instance.service == name:
                self._forget_instance(instance.instance_id)
        self._door_samples = {
            key: known for key, known in self._door_samples.items() if key[0] != name
        }
        self._admissions.pop(name, None)
        self._configurations.pop(name, None)
        self._forget_versions()
        return True

    async def services(self) -> list[Service]:
        await asyncio.sleep(0)
        return sorted(self._services.values(), key=lambda service: service.spec.name)

    async def steer_service(
        self, name: str, by_hand: ServiceOverride, before: ServiceOverride
    ) -> bool:
        await asyncio.sleep(0)
        known = self._services.get(name)
        if known is None:
            return False
        if known.by_hand != before:
            raise override_changed_meanwhile(name)
        self._services[name] = msgspec.structs.replace(known, by_hand=by_hand)
        return True

    async def spec_of(self, service: str, version: int) -> ServiceSpec | None:
        await asyncio.sleep(0)
        return self._specs.get((service, version))

    async def set_service_detail(self, name: str, detail: str, leader_epoch: int) -> None:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        known = self._services.get(name)
        if known is not None:
            self._services[name] = msgspec.structs.replace(known, detail=machine_detail(detail))

    # Instances

    async def add_instance(self, service: str, weight: float, leader_epoch: int) -> Instance:
        await asyncio.sleep(0)
        check_weight(weight)
        self._fence_leader(leader_epoch)
        known = self._services.get(service)
        if known is None:
            raise no_such_service(service)
        self._last_instance += 1
        made = Instance(
            instance_id=self._last_instance,
            service=service,
            version=known.version,
            state=InstanceState.ORDERED,
            weight=weight,
            ordered_at=self._clock.wall(),
        )
        self._instances[made.instance_id] = made
        return made

    def _change_instance(self, instance: Instance, **fields: object) -> None:
        self._instances[instance.instance_id] = msgspec.structs.replace(instance, **fields)

    def _forget_instance(self, instance_id: int) -> bool:
        self._settled.discard(instance_id)
        return self._instances.pop(instance_id, None) is not None

    def _ordered_anew(self, instance: Instance) -> dict[str, object]:
        """Return the fields of an instance that is ordered again.

        The order time is kept if the instance still waits for its first machine.
        """
        waits = instance.machine_id is None and instance.state is InstanceState.ORDERED
        ordered_at = instance.ordered_at if waits else self._clock.wall()
        return {**_UNPLACED, "state": InstanceState.ORDERED, "ordered_at": ordered_at}

    async def assign_instance(self, instance_id: int, machine_id: int, leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        instance = self._instances.get(instance_id)
        if instance is None or machine_id not in self._machines:
            return False
        if instance.machine_id == machine_id:
            return True
        if instance_id in self._settled:
            return False
        self._change_instance(
            instance,
            **{**self._ordered_anew(instance), "machine_id": machine_id},
            detail="",
        )
        return True

    async def set_instance(
        self,
        instance_id: int,
        leader_epoch: int,
        *,
        state: InstanceState | None = None,
        weight: float | None = None,
        concurrency: int | None = None,
        detail: str | None = None,
        sessions_until: float | None = None,
    ) -> bool:
        await asyncio.sleep(0)
        if weight is not None:
            check_weight(weight)
        self._fence_leader(leader_epoch)
        instance = self._instances.get(instance_id)
        if instance is None:
            return False
        if state is InstanceState.ORDERED:
            self._change_instance(instance, **self._ordered_anew(instance))
            instance = self._instances[instance_id]
        if state in _SETTLED:
            self._settled.add(instance_id)
        elif state is not None:
            self._settled.discard(instance_id)
        if state is None:
            sessions_until = instance.sessions_until
        elif state is not InstanceState.DRAINING:
            sessions_until = None
        self._change_instance(
            instance,
            sessions_until=sessions_until,
            state=instance.state if state is None else state,
            weight=instance.weight if weight is None else weight,
            concurrency=instance.concurrency if concurrency is None else concurrency,
            detail=instance.detail if detail is None else machine_detail(detail),
        )
        return True

    async def remove_instance(self, instance_id: int, leader_epoch: int) -> bool:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        return self._forget_instance(instance_id)

    async def instances(self, service: str | None = None) -> list[Instance]:
        await asyncio.sleep(0)
        return [i for i in self._instances.values() if service is None or i.service == service]

    async def report_instance(
        self,
        instance_id: int,
        machine_id: int,
        state: InstanceState,
        address: str | None,
        free_memory_bytes: float | None,
        detail: str,
        resident_bytes: float | None = None,
    ) -> bool:
        await asyncio.sleep(0)
        instance = self._instances.get(instance_id)
        if instance is None or instance.machine_id != machine_id:
            return False
        # The machine ends the instance, so its sessions cannot continue there.
        is_ending = state is InstanceState.DRAINING
        measured: dict[str, object] = {
            "address": address,
            "free_memory_bytes": free_memory_bytes,
            "resident_bytes": resident_bytes,
            "sessions_until": None if is_ending else instance.sessions_until,
        }
        if instance_id in self._settled:
            self._change_instance(instance, **measured)
            return True
        ready_at = instance.ready_at or self._clock.wall()
        self._change_instance(
            instance,
            **measured,
            state=state,
            detail=machine_detail(detail),
            ready_at=ready_at if state is InstanceState.READY else None,
        )
        return True

    def _unassign(self, machine_id: int) -> None:
        super()._unassign(machine_id)
        for instance in list(self._instances.values()):
            if instance.machine_id != machine_id:
                continue
            if instance.state is InstanceState.DRAINING:
                self._forget_instance(instance.instance_id)
                continue
            is_settled = instance.instance_id in self._settled
            self._change_instance(
                instance, **(_UNPLACED if is_settled else self._ordered_anew(instance))
            )

    # Doors

    async def report_door(self, sample: DoorSample) -> None:
        await asyncio.sleep(0)
        if sample.service in self._services:
            now = self._clock.monotonic()
            self._door_samples[sample.service, sample.door] = (now, sample)

    async def door_samples(self, service: str) -> list[DoorSample]:
        await asyncio.sleep(0)
        oldest = self._clock.monotonic() - DOOR_FRESH_S
        self._door_samples = {
            key: known for key, known in self._door_samples.items() if known[0] >= oldest
        }
        return [known[1] for key, known in sorted(self._door_samples.items()) if key[0] == service]

    async def set_admission(
        self, service: str, in_flight_max: int | None, leader_epoch: int
    ) -> None:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        if service in self._services:
            self._admissions[service] = in_flight_max

    async def admission(self, service: str) -> int | None:
        await asyncio.sleep(0)
        return self._admissions.get(service)

    async def keep_configuration(self, service: str, document: bytes, leader_epoch: int) -> None:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        if service in self._services:
            self._configurations[service] = bytes(document)

    async def kept_configuration(self, service: str) -> bytes | None:
        await asyncio.sleep(0)
        return self._configurations.get(service)

    # Packages and agreement statuses

    async def put_package(self, content: bytes) -> str:
        await asyncio.sleep(0)
        digest = package_digest(content)
        self._packages[digest] = (self._clock.monotonic(), bytes(content))
        return digest

    async def package(self, digest: str) -> bytes | None:
        await asyncio.sleep(0)
        known = self._packages.get(digest)
        return None if known is None else known[1]

    async def keep_standing(self, agreement: str, document: bytes, leader_epoch: int) -> None:
        await asyncio.sleep(0)
        self._fence_leader(leader_epoch)
        self._standings[agreement] = bytes(document)

    async def standings(self) -> dict[str, bytes]:
        await asyncio.sleep(0)
        return dict(sorted(self._standings.items()))
