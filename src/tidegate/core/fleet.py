"""Machines: what boots, holds workloads in its slots, and halts; who leads them."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from tidegate.core.harmless import harmless
from tidegate.core.secrecy import without_secrets

# Characters of what is said about a machine.
DETAIL_MAX = 2000


def told(text: str) -> str:
    """What is said about a machine, as it may be kept: commands and workers say what they like."""
    return harmless(without_secrets(text))[:DETAIL_MAX]


class MachineState(enum.StrEnum):
    """The life of a machine. Only `up` and `warm` count as running."""

    BOOTING = "booting"
    WARM = "warm"  # booted, and kept without work
    UP = "up"
    HALTING = "halting"
    FAILED = "failed"  # it did not boot, or died: reported, and never counted as running


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as the catalogue knows it."""

    machine_id: int
    provider: str
    slots: int
    state: MachineState
    # Where it sits, when the provider knows.
    host: str | None = None
    # The member that its node is; None: it has not joined yet.
    member_id: int | None = None
    # Whether that member's lease holds.
    alive: bool = False
    address: str | None = None
    # Seconds since 1970.
    ordered_at: float = 0.0
    joined_at: float | None = None
    # Why it failed, or what its boot command said last.
    detail: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider lists it."""

    machine_id: int
    host: str | None = None
    # "booting", "running", "halted", "stopped" (in good order, and not by a leader): in the
    # provider's own eyes.
    state: str = "running"
    detail: str = ""


class SlotKind(enum.StrEnum):
    """What may be in a slot."""

    REPLICA = "replica"  # of a queue
    INSTANCE = "instance"  # of a service, which is an HTTP application


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """A replica of a queue, or an instance of a service, that has its place on a machine."""

    machine_id: int
    # The queue or the service as people know it, and which of its replicas or instances.
    queue: str
    number: int
    # Of the replica: starting, serving, draining; of the instance: ordered, starting, ready …
    state: str
    # Of the messages; of an instance the weight that doors give it.
    share: float = 0.0
    kind: SlotKind = SlotKind.REPLICA

    @property
    def name(self) -> str:
        is_instance = self.kind is SlotKind.INSTANCE
        return f"{self.queue}/i{self.number}" if is_instance else f"{self.queue}#{self.number}"


class FleetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All machines, who leads them, and what is in which slot."""

    # The member that leads; None: nobody does, or nobody who lives.
    leader: int | None = None
    epoch: int = 0
    machines: list[MachineInfo] = []
    slots: list[Slot] = []
    # Machines that run without work.
    warm: int = 0
    # Replicas that no machine serves: any node may.
    unplaced: int = 0
    # Instances of services that wait for a slot.
    instances_waiting: int = 0

    def held_by(self, machine_id: int) -> list[str]:
        """The names of the replicas and instances of a machine."""
        return [one.name for one in self.slots if one.machine_id == machine_id]


class Provider(Protocol):
    """Whoever makes machines. Calls are bounded in time and raise RetryLater when they fail."""

    name: str

    # Begin to boot; a machine that runs `tidegate machine` joins the store by itself. A second
    # call with the same id boots nothing twice.
    async def boot(self, machine_id: int, slots: int, host: str | None) -> Machine: ...
    # Whether or not it still runs.
    async def halt(self, machine_id: int) -> None: ...
    async def list(self) -> list[Machine]: ...
    async def close(self) -> None: ...


class FleetStore(Protocol):
    """The part of a store that knows machines and the leader (the catalogue's).

    Changes under an epoch that is no longer the leader's raise StaleEpoch.
    """

    # The epoch of a member that leads; None: another does. Whoever leads and lives stays; after it
    # comes the living one with the smallest id.
    async def lead(self, member_id: int) -> int | None: ...
    # Who leads, and in which epoch.
    async def leader(self) -> tuple[int | None, int]: ...
    # How many machines there may be, as whoever leads has said; 0: nobody boots any.
    async def bound_machines(self, machines_max: int, leader_epoch: int) -> None: ...
    # None: nobody has said it yet.
    async def machines_bound(self) -> int | None: ...
    async def add_machine(
        self, provider: str, slots: int, host: str | None, leader_epoch: int
    ) -> MachineInfo: ...
    async def set_machine_state(
        self, machine_id: int, state: MachineState, leader_epoch: int, detail: str = ""
    ) -> bool: ...
    # The machine itself says so, whoever leads; False: nobody wants it, it is to end.
    async def machine_joined(self, machine_id: int, member_id: int) -> bool: ...
    # The same, with what is wrong with it ("": nothing); False: nobody wants it.
    async def report_machine(self, machine_id: int, detail: str) -> bool: ...
    async def remove_machine(self, machine_id: int, leader_epoch: int) -> bool: ...
    async def machines(self) -> list[MachineInfo]: ...
    # Recent decisions, each a JSON document; the newest 500 of a service are kept.
    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None: ...
    # The newest first.
    async def decisions(self, service: str, count: int) -> list[bytes]: ...
