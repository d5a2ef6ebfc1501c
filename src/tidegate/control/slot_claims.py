"""Who has which slots or is entitled to them, and what that leaves for one service.

    entitled    of a service as many instances as its agreement takes, and its spares; of a queue
                its least number of replicas; of either what a person has said
    left        the slots that nobody else is in, and those of machines that may still be booted,
                without what others are entitled to and have not got yet

What somebody has beyond that is in a slot all the same, and nobody is put out of one: it is left to
whoever is there. Whoever drains is leaving. Others find their place as the provisioner does it: in
free slots first, then on machines that are booted for them.
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
    """What one service or queue has of the slots, and may ask for."""

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
    """Of everybody."""
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
    """What a service may have of the machines that there are, and of those that may be booted."""
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
        # What cannot be read entitles to nothing, and keeps what it has.
        return 0
    if by_hand.instances is not None:
        return by_hand.instances + spec.spares
    asked = Asked(slots_per_machine=spec.slots_per_machine)
    needed = plan(agreement, figures(agreement, asked, knowledge), asked).replicas
    uses = agreement.resources
    least, most = by_hand.bounds(uses.replicas_min, uses.replicas_max)
    return min(max(needed, least), most) + spec.spares
