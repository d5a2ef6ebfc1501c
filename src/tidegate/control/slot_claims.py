"""Which slots are used or reserved, and how many that leaves for one service.

    entitled    a service: as many instances as its agreement needs, and its spares;
                a queue: its minimum of replicas; an override replaces either
    left        slots that no other service or queue uses, and those of machines that may still be
                booted, minus what others are entitled to and do not have yet

A service or queue may use more slots than it is entitled to. It keeps them, and they are not left
for this service. Draining instances and replicas do not count. Missing entitlements are filled as
the provisioner does it: free slots first, then machines booted for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.agreement.document import AgreementInvalid, parse_agreement
from tidegate.control.agreement_figures import Asked, figures
from tidegate.control.agreement_plan import plan
from tidegate.control.room import Room
from tidegate.core.fleet import MachineInfo, MachineState
from tidegate.core.hosting import Instance, InstanceState, Service, ServiceSpec
from tidegate.core.replication import ReplicaState, Topology
from tidegate.core.scaling import Steering
from tidegate.telemetry.knowledge import Knowledge

_GONE = (MachineState.FAILED, MachineState.HALTING)


@dataclass(frozen=True)
class Claim:
    """The slots that one service or queue has and is entitled to."""

    name: str
    placed: int
    entitled: int
    slots_per_machine: int

    @property
    def slots(self) -> int:
        return max(self.placed, self.entitled)


def claims(
    services: Iterable[Service],
    instances: Sequence[Instance],
    topologies: Iterable[Topology],
    knowledge: Knowledge | None = None,
) -> list[Claim]:
    """Return the claims of all services and queues."""
    found = [
        Claim(
            name=service.spec.name,
            placed=_placed(service.spec.name, instances),
            entitled=_entitled(service, knowledge),
            slots_per_machine=service.spec.slots_per_machine,
        )
        for service in services
    ]
    for topology in topologies:
        scaling = topology.scaling
        said = scaling.replicas_wanted if scaling.steering is Steering.MANUAL else None
        found.append(
            Claim(
                name=f"queue {topology.queue}",
                placed=sum(
                    one.machine_id is not None and one.state is not ReplicaState.DRAINING
                    for one in topology.replicas
                ),
                entitled=scaling.replicas.min if said is None else said,
                slots_per_machine=scaling.slots_per_machine,
            )
        )
    return found


def room_for(
    spec: ServiceSpec,
    machines: Iterable[MachineInfo],
    machines_most: int,
    everybody: Iterable[Claim] = (),
) -> Room:
    """Return the slots a service can get on existing machines and on bootable ones."""
    there = [one for one in machines if one.state not in _GONE]
    others = [one for one in everybody if one.name != spec.name and one.slots]
    bootable = max(machines_most - len(there), 0)
    free = sum(one.slots for one in there) - sum(one.placed for one in others)
    for other in others:
        lacking = max(other.entitled - other.placed, 0)
        found = min(lacking, max(free, 0))
        free, lacking = free - found, lacking - found
        booted = min(math.ceil(lacking / max(other.slots_per_machine, 1)), bootable)
        bootable -= booted
        free += max(booted * other.slots_per_machine - lacking, 0)
    slots = max(free, 0) + bootable * spec.slots_per_machine
    return Room(slots, _words(slots, others, bool(there) or machines_most > 0))


def _words(slots: int, others: Sequence[Claim], has_machines: bool) -> str:
    if not has_machines:
        return "there is no machine, and nobody boots any: set fleet.provider of the nodes"
    taken = ", ".join(f"{one.slots} of {one.name}" for one in others)
    return f"{slots} slot(s) are there for it" + (f" beside {taken}" if taken else "")


def _placed(service: str, instances: Iterable[Instance]) -> int:
    return sum(
        one.service == service
        and one.machine_id is not None
        and one.state is not InstanceState.DRAINING
        for one in instances
    )


def _entitled(service: Service, knowledge: Knowledge | None) -> int:
    spec, by_hand = service.spec, service.by_hand
    try:
        agreement = parse_agreement(spec.agreement, spec.name)
    except AgreementInvalid:
        # An agreement that cannot be read entitles to nothing. The service keeps the slots it has.
        return 0
    if by_hand.instances is not None:
        return by_hand.instances + spec.spares
    asked = Asked(slots_per_machine=spec.slots_per_machine)
    needed = plan(agreement, figures(agreement, asked, knowledge), asked).replicas
    uses = agreement.resources
    least, most = by_hand.bounds(uses.replicas_min, uses.replicas_max)
    return min(max(needed, least), most) + spec.spares
