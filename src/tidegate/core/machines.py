"""Machines, their slots, the providers that boot them, and the leader."""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

from tidegate.core.text import escape_control_characters, redact_secrets

# The most characters of a text about a machine.
DETAIL_MAX = 2000


def machine_detail(text: str) -> str:
    """Return a text of a command or worker about a machine, safe to store and show."""
    return escape_control_characters(redact_secrets(text))[:DETAIL_MAX]


class MachineState(enum.StrEnum):
    """The state of a machine. Only `up` and `warm` count as running."""

    BOOTING = "booting"
    WARM = "warm"  # booted, and kept without work
    UP = "up"
    HALTING = "halting"
    FAILED = "failed"  # did not boot, or died: reported, and never counted as running


class MachineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as the catalogue knows it."""

    machine_id: int
    provider: str
    slots: int
    state: MachineState
    # Its physical host, if the provider knows it.
    host: str | None = None
    # The member id of its node; `None` before it joins.
    member_id: int | None = None
    # Whether its node's lease is valid.
    alive: bool = False
    address: str | None = None
    # Seconds since 1970.
    ordered_at: float = 0.0
    joined_at: float | None = None
    # Why it failed, or the latest output of its boot command.
    detail: str = ""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as its provider lists it."""

    machine_id: int
    host: str | None = None
    # The provider's state: "booting", "running", "halted" or "stopped" (in an orderly way, and not
    # by a leader).
    state: str = "running"
    detail: str = ""


class SlotKind(enum.StrEnum):
    """What can occupy a slot."""

    REPLICA = "replica"  # of a queue
    INSTANCE = "instance"  # of a service, that is an HTTP application


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """An occupied slot: a replica of a queue, or an instance of a service, on a machine."""

    machine_id: int
    # The name of the queue or service, and the number of the replica or instance.
    queue: str
    number: int
    # Of a replica: starting, serving or draining. Of an instance: ordered, starting, ready and so
    # on.
    state: str
    # The share of new messages; of an instance, its weight.
    share: float = 0.0
    kind: SlotKind = SlotKind.REPLICA

    @property
    def name(self) -> str:
        is_instance = self.kind is SlotKind.INSTANCE
        return f"{self.queue}/i{self.number}" if is_instance else f"{self.queue}#{self.number}"


class FleetInfo(msgspec.Struct, frozen=True, kw_only=True):
    """All machines, the leader, and the occupied slots."""

    # The member id of the leader; `None` means that no live node leads.
    leader: int | None = None
    epoch: int = 0
    machines: list[MachineInfo] = []
    slots: list[Slot] = []
    # Running machines without work.
    warm: int = 0
    # Replicas without a machine, which any node may serve.
    unplaced: int = 0
    # Instances of services that wait for a slot.
    instances_waiting: int = 0

    def held_by(self, machine_id: int) -> list[str]:
        """Return the names of the replicas and instances on a machine."""
        return [one.name for one in self.slots if one.machine_id == machine_id]


class Provider(Protocol):
    """A provider of machines. Calls are limited in time and raise `RetryLater` on failure."""

    name: str

    # Begin to boot. The machine runs `tidegate machine`, which joins the store by itself. A second
    # call with the same id boots nothing.
    async def boot(self, machine_id: int, slots: int, host: str | None) -> Machine: ...
    # Also for a machine that no longer runs.
    async def halt(self, machine_id: int) -> None: ...
    async def list(self) -> list[Machine]: ...
    async def close(self) -> None: ...


class FleetStore(Protocol):
    """The part of a store that keeps machines and the leader.

    Changes with an epoch that is not the leader's raise `StaleEpoch`.
    """

    # Returns the epoch if this node leads, and `None` if another does. A live leader stays leader.
    # After it the live node with the smallest id leads.
    async def lead(self, member_id: int) -> int | None: ...
    # The leader's member id, and its epoch.
    async def leader(self) -> tuple[int | None, int]: ...
    # The leader's limit on the number of machines; 0 means that none is booted.
    async def bound_machines(self, machines_max: int, leader_epoch: int) -> None: ...
    # `None` means that no leader has set it.
    async def machines_bound(self) -> int | None: ...
    async def add_machine(
        self, provider: str, slots: int, host: str | None, leader_epoch: int
    ) -> MachineInfo: ...
    async def set_machine_state(
        self, machine_id: int, state: MachineState, leader_epoch: int, detail: str = ""
    ) -> bool: ...
    # Called by the machine, without the leader. `False` means that it is not wanted and is to end.
    async def machine_joined(self, machine_id: int, member_id: int) -> bool: ...
    # The same, with its problem (empty: none). `False` means that it is not wanted.
    async def report_machine(self, machine_id: int, detail: str) -> bool: ...
    async def remove_machine(self, machine_id: int, leader_epoch: int) -> bool: ...
    async def machines(self) -> list[MachineInfo]: ...
    # Recent decisions as JSON; the latest 500 of a service are kept.
    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None: ...
    # The latest first.
    async def decisions(self, service: str, count: int) -> list[bytes]: ...
