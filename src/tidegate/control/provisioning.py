"""The provisioner: replicas and instances without a slot in; boots, places and halts out.

    place   each pending replica or instance gets a free slot on a running machine, urgent ones
            first; instances of one service go to different machines (laws/placement.py)
    boot    for the rest; machines that already boot are counted first, so that nothing is booted
            twice for the same request
    warm    NPP = ceil(sla_delta · boot_s / machine_capacity) machines stay without work, refilled
            in the background; the largest request of all queues and services counts
    halt    empty machines beyond the warm ones

A failed or halting machine has no capacity. A booting machine is future capacity: enough to boot no
second machine for the same replica, but nothing is placed on it yet.

The provisioner is synchronous and has no clock, so the simulation runs it unchanged.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from tidegate.agreements.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.control.planning import (
    AvailableSlots,
    ModelSource,
    PlanningRequest,
    plan_capacity,
    planning_inputs,
    warm_machines_of,
)
from tidegate.core.decisions import Boot, Decision, FleetAction, Halt, MachineSample, Place
from tidegate.core.machines import MachineInfo, MachineState, SlotKind
from tidegate.core.reasons import Explanation, Reason, otherwise_text, reason_text
from tidegate.core.services import Instance, InstanceState, Service, ServiceSpec
from tidegate.core.topology import ControlMode, Provisioning, ReplicaState, Scaling, Topology
from tidegate.laws.placement import (
    RUNNING,
    host_for,
    place_replica,
    place_replica_apart,
    used_by_host,
    warm_machines,
)
from tidegate.telemetry.models import ModelRegistry

# Machines that one decision may boot at most.
BOOTS_MAX = 16


class SlotRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The slots that a queue or a service requests."""

    # Name of the queue or service, and whether replicas or instances are placed.
    queue: str
    kind: SlotKind = SlotKind.REPLICA
    # Replicas or instances without a slot, and how many of them are urgent.
    pending: int = 0
    urgent: int = 0
    slots_per_machine: int = 1
    provisioning: Provisioning = Provisioning.ENERGY
    # How many instances of the same service each machine has, if they are to be on different
    # machines; None if it does not matter.
    together: dict[int, int] | None = None
    # Machines to keep warm. None means NPP from the next three values, or none if one is unknown.
    warm: int | None = None
    boot_s: float | None = None
    sla_delta: float | None = None
    machine_capacity_per_s: float | None = None

    @classmethod
    def of(
        cls, queue: str, scaling: Scaling, pending: int, capacity_per_s: float | None = None
    ) -> SlotRequest:
        """Create a request from a queue's scaling settings.

        `capacity_per_s` is the measured capacity of one replica; a value in the settings wins.
        """
        one = scaling.capacity_per_s or capacity_per_s or scaling.rate_max_per_s
        return cls(
            queue=queue,
            pending=pending,
            slots_per_machine=scaling.slots_per_machine,
            provisioning=scaling.provisioning,
            warm=scaling.warm,
            boot_s=scaling.boot_s,
            sla_delta=scaling.sla_delta,
            machine_capacity_per_s=None if one is None else one * scaling.slots_per_machine,
        )

    @property
    def key(self) -> tuple[SlotKind, str]:
        """Includes the kind, because a service may have the name of a queue."""
        return self.kind, self.queue

    @property
    def warm_wanted(self) -> int:
        if self.warm is not None:
            return max(self.warm, 0)
        known = (self.sla_delta, self.boot_s, self.machine_capacity_per_s)
        if any(figure is None or not math.isfinite(figure) for figure in known):
            return 0
        delta, boot_s, capacity = (figure or 0.0 for figure in known)
        return warm_machines(delta, boot_s, capacity) if capacity > 0.0 else 0


def warm_machines_needed(wants: Sequence[SlotRequest]) -> int:
    """Return the number of machines to keep warm: the largest of all requests, since they share."""
    return max((want.warm_wanted for want in wants), default=0)


class Provisioner:
    """Decides which machines to boot and halt, and what to place on them."""

    def __init__(self, name: str = "fleet", machines_max: int | None = None) -> None:
        self._name = name
        # Machines that may exist at most; None means unlimited.
        self._machines_max = machines_max

    def decide(
        self, machines: Sequence[MachineSample], wants: Sequence[SlotRequest], at: float = 0.0
    ) -> Decision:
        """Return the decision about machines for these requests."""
        plan = _Plan(machines, self._machines_max)
        for want in _in_turn(wants):
            plan.place(want)
        # Requests for whole machines come first; the others share the slots that remain.
        for want in sorted(wants, key=lambda want: want.provisioning is Provisioning.ENERGY):
            plan.boot_for(want)
        warm = warm_machines_needed(wants)
        plan.keep_warm(warm, wants)
        reasons = plan.explained(warm)
        return Decision(
            at=at,
            loop="fleet",
            service=self._name,
            law="provisioning",
            rule=plan.rule,
            inputs=_inputs(machines, wants, warm),
            outputs={
                "placed": float(plan.placed),
                "boots": float(plan.boots),
                "halts": float(plan.halts),
            },
            actions=list(plan.actions),
            reason=reason_text(reasons),
            otherwise=otherwise_text(reasons),
        )


class _Plan:
    """A decision being made: the machines as they will be after its actions."""

    def __init__(self, machines: Sequence[MachineSample], machines_max: int | None) -> None:
        self._machines = {machine.machine_id: machine for machine in machines}
        self._left: dict[tuple[SlotKind, str], int] = {}
        # Instances of one service go to different machines if possible. This is the number of them
        # on each machine, with those that this round has placed.
        self._together: dict[tuple[SlotKind, str], Counter[int]] = {}
        self.actions: list[FleetAction] = []
        self.reasons: list[Explanation] = []
        self.placed = self.boots = self.halts = 0
        alive = sum(
            machine.state in RUNNING or machine.state is MachineState.BOOTING
            for machine in machines
        )
        self._room = BOOTS_MAX
        self._limited = False
        if machines_max is not None:
            self._room = min(self._room, max(machines_max - alive, 0))
        # Booting machines that no request of this decision has claimed, the largest first; and free
        # slots on the claimed ones.
        self._booting = sorted(
            (machine.slots for machine in machines if machine.state is MachineState.BOOTING),
            reverse=True,
        )
        self._slots_coming = 0

    @property
    def rule(self) -> str:
        if self.placed:
            return "a free slot"
        if self.boots:
            return "no free slot" if any(self._left.values()) else "warm pool below NPP"
        if self.halts:
            return "warm pool above NPP"
        return "waiting for a boot" if any(self._left.values()) else "nothing to do"

    def explained(self, warm: int) -> list[Explanation]:
        """Return the reasons of the decision; the last one says what would have changed it."""
        waits = any(self._left.values())
        if self._limited:
            last = Reason.MACHINES_LIMITED()
        elif self.boots and waits:
            last = Reason.BOOTS_FOR_REPLICAS(warm=warm)
        elif self.halts:
            last = Reason.HALTS()
        elif self.placed:
            last = Reason.PLACES()
        elif self.boots:
            last = Reason.BOOTS_WARM()
        elif waits:
            last = Reason.WAITS_FOR_BOOT()
        else:
            last = Reason.NOTHING_TO_PLACE()
        if not self.reasons:
            return [Reason.ALL_PLACED(), last]
        return [*self.reasons, last]

    def place(self, want: SlotRequest) -> None:
        """Place one replica or instance of the request, or count it as left over."""
        machine_id = self._choose(want)
        if machine_id is None:
            self._left[want.key] = self._left.get(want.key, 0) + 1
            return
        machine = self._machines[machine_id]
        self._machines[machine_id] = msgspec.structs.replace(
            machine, used=machine.used + 1, state=MachineState.UP
        )
        self.actions.append(Place(want.queue, machine_id, want.kind))
        self.placed += 1
        reason = Reason.REPLICA_PLACED if want.kind is SlotKind.REPLICA else Reason.INSTANCE_PLACED
        self.reasons.append(
            reason(
                queue=want.queue,
                machine_id=machine_id,
                free=machine.slots - machine.used,
                slots=machine.slots,
            )
        )

    def _choose(self, want: SlotRequest) -> int | None:
        machines = list(self._machines.values())
        if want.together is None:
            return place_replica(machines, want.provisioning)
        together = self._together.setdefault(want.key, Counter(want.together))
        machine_id = place_replica_apart(machines, together)
        if machine_id is not None:
            together[machine_id] += 1
        return machine_id

    def boot_for(self, want: SlotRequest) -> None:
        """Boot machines for what found no slot."""
        left = self._left.get(want.key, 0)
        if not left:
            return
        alone = want.provisioning is Provisioning.PERFORMANCE
        # Booting machines serve these requests first.
        coming = self._claim_alone(left) if alone else self._claim_slots(left)
        if coming:
            self.reasons.append(
                Reason.BOOTS_CLAIMED(count=coming, kind=want.kind, queue=want.queue)
            )
        left -= coming
        slots = max(want.slots_per_machine, 1)
        needed = left if alone else math.ceil(left / slots)
        booted = self._boot(needed, slots, want, warm=False)
        if booted:
            self.reasons.append(
                Reason.NO_FREE_SLOT(
                    count=left, kind=want.kind, queue=want.queue, booted=booted, slots=slots
                )
            )
        if not alone:
            self._slots_coming += max(booted * slots - left, 0)
        if booted < needed:
            self._limited = True
            self.reasons.append(Reason.TOO_FEW_BOOTS(lacking=needed - booted))

    def _claim_alone(self, count: int) -> int:
        """Claim one booting machine per replica, the smallest first, and return how many."""
        claimed = min(count, len(self._booting))
        if claimed:
            del self._booting[-claimed:]
        return claimed

    def _claim_slots(self, count: int) -> int:
        """Claim slots on booting machines and return how many.

        Slots of machines that are already claimed are used first, then the largest machines.
        """
        while self._slots_coming < count and self._booting:
            self._slots_coming += self._booting.pop(0)
        claimed = min(count, self._slots_coming)
        self._slots_coming -= claimed
        return claimed

    def keep_warm(self, warm: int, wants: Sequence[SlotRequest]) -> None:
        """Boot missing warm machines, or halt surplus ones."""
        idle = [
            machine
            for machine in self._machines.values()
            if machine.state in RUNNING and not machine.used
        ]
        missing = warm - len(idle) - len(self._booting)
        if missing > 0:
            ask = max(wants, key=lambda want: (want.warm_wanted, want.slots_per_machine))
            booted = self._boot(missing, max(ask.slots_per_machine, 1), ask, warm=True)
            if booted:
                self.reasons.append(
                    Reason.WARM_MISSING(
                        warm=warm, idle=len(idle), booting=len(self._booting), booted=booted
                    )
                )
            return
        # Something waits for a slot, so an idle machine is not surplus.
        if any(self._left.values()):
            return
        on_host = used_by_host(self._machines.values())
        idle.sort(key=lambda one: (on_host[one.host], -one.added_at, -one.machine_id))
        for machine in idle[: max(len(idle) - warm, 0)]:
            self.actions.append(Halt(machine.machine_id))
            self.halts += 1
            self.reasons.append(Reason.WARM_SURPLUS(machine_id=machine.machine_id, warm=warm))

    def _boot(self, count: int, slots: int, want: SlotRequest, *, warm: bool) -> int:
        count = min(count, self._room)
        for _ in range(count):
            host = host_for(list(self._machines.values()), want.provisioning)
            self.actions.append(Boot(slots=slots, warm=warm, host=host))
        self._room -= count
        self.boots += count
        return count


def _in_turn(wants: Sequence[SlotRequest]) -> list[SlotRequest]:
    """Return the requests in the order of placement, urgent ones first.

    They take turns, one replica each, so that no request takes all slots.
    """
    turns = []
    rounds = max((want.pending for want in wants), default=0)
    for turn in range(rounds):
        turns += [want for want in wants if want.urgent > turn]
    for turn in range(rounds):
        turns += [want for want in wants if want.pending - want.urgent > turn]
    return turns


def _inputs(
    machines: Sequence[MachineSample], wants: Sequence[SlotRequest], warm: int
) -> dict[str, float]:
    states = dict.fromkeys(MachineState, 0)
    for machine in machines:
        states[machine.state] += 1
    running = [machine for machine in machines if machine.state in RUNNING]
    return {
        "pending": float(sum(want.pending for want in wants)),
        "slots": float(sum(machine.slots for machine in running)),
        "used": float(sum(machine.used for machine in running)),
        "warm_wanted": float(warm),
        **{f"machines_{state}": float(count) for state, count in states.items()},
    }


# Which slots are used or reserved, and how many that leaves for one service.
#
#     entitled    a service: as many instances as its agreement needs, and its spares;
#                 a queue: its minimum of replicas; an override replaces either
#     left        slots that no other service or queue uses, and those of machines that may still be
#                 booted, minus what others are entitled to and do not have yet
#
# A service or queue may use more slots than it is entitled to. It keeps them, and they are not left
# for this service. Draining instances and replicas do not count. Missing entitlements are filled as
# the provisioner does it: free slots first, then machines booted for them.


_GONE = (MachineState.FAILED, MachineState.HALTING)


@dataclass(frozen=True)
class SlotClaim:
    """The slots that one service or queue has and is entitled to."""

    name: str
    placed: int
    entitled: int
    slots_per_machine: int

    @property
    def slots(self) -> int:
        return max(self.placed, self.entitled)


def slot_claims(
    services: Iterable[Service],
    instances: Sequence[Instance],
    topologies: Iterable[Topology],
    knowledge: ModelRegistry | None = None,
) -> list[SlotClaim]:
    """Return the claims of all services and queues."""
    found = [
        SlotClaim(
            name=service.spec.name,
            placed=_placed(service.spec.name, instances),
            entitled=_entitled(service, knowledge),
            slots_per_machine=service.spec.slots_per_machine,
        )
        for service in services
    ]
    for topology in topologies:
        scaling = topology.scaling
        said = scaling.replicas_wanted if scaling.steering is ControlMode.MANUAL else None
        found.append(
            SlotClaim(
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


def available_slots(
    spec: ServiceSpec,
    machines: Iterable[MachineInfo],
    machines_most: int,
    everybody: Iterable[SlotClaim] = (),
) -> AvailableSlots:
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
    return AvailableSlots(slots, _slots_text(slots, others, bool(there) or machines_most > 0))


def _slots_text(slots: int, others: Sequence[SlotClaim], has_machines: bool) -> str:
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


def _entitled(service: Service, knowledge: ModelRegistry | None) -> int:
    spec, by_hand = service.spec, service.by_hand
    try:
        agreement = parse_agreement(spec.agreement, spec.name)
    except AgreementInvalid:
        # An agreement that cannot be read entitles to nothing. The service keeps the slots it has.
        return 0
    if by_hand.instances is not None:
        return by_hand.instances + spec.spares
    asked = PlanningRequest(slots_per_machine=spec.slots_per_machine)
    needed = plan_capacity(agreement, planning_inputs(agreement, asked, knowledge), asked).replicas
    uses = agreement.resources
    least, most = by_hand.bounds(uses.replicas_min, uses.replicas_max)
    return min(max(needed, least), most) + spec.spares


# Which instances need a slot, in which order, and the slot request of a service.


# States of instances that need a slot.
_SLOT_STATES = (InstanceState.ORDERED, InstanceState.STARTING, InstanceState.READY)
_GONE_STATES = (MachineState.FAILED, MachineState.HALTING)


def unplaced_instances(
    service: Service, instances: Iterable[Instance], machines: Iterable[MachineSample]
) -> list[Instance]:
    """Return the instances without a machine, or on one that is gone: spares last, oldest first."""
    homes = {one.machine_id for one in machines if one.state not in _GONE_STATES}
    found = [
        one
        for one in instances
        if one.service == service.spec.name
        and one.state in _SLOT_STATES
        and one.machine_id not in homes
    ]
    return sorted(found, key=lambda one: (one.is_spare, one.instance_id))


def slot_request(
    service: Service,
    waiting: Sequence[Instance],
    instances: Iterable[Instance] = (),
    learned: ModelSource | None = None,
) -> SlotRequest:
    """Return the slot request of a service for these waiting instances.

    Instances that are to answer requests are urgent; spares are not. All instances of one service
    are placed on different machines if possible, because a machine that dies takes all of its
    instances along. Draining instances do not count.
    """
    homeless_ids = {one.instance_id for one in waiting}
    together = Counter(
        one.machine_id
        for one in instances
        if one.service == service.spec.name
        and one.state in _SLOT_STATES
        and one.machine_id is not None
        and one.instance_id not in homeless_ids
    )
    return SlotRequest(
        queue=service.spec.name,
        kind=SlotKind.INSTANCE,
        pending=len(waiting),
        urgent=sum(not one.is_spare for one in waiting),
        slots_per_machine=service.spec.slots_per_machine,
        together=dict(together),
        warm=_warm(service.spec, learned),
    )


def _warm(spec: ServiceSpec, learned: ModelSource | None) -> int | None:
    """Return the machines that the agreement plans to keep warm; None if that is not known."""
    agreement = _agreement(spec.agreement, spec.name)
    if agreement is None:
        return None
    return warm_machines_of(
        planning_inputs(
            agreement, PlanningRequest(slots_per_machine=spec.slots_per_machine), learned
        )
    )


@lru_cache(maxsize=256)
def _agreement(text: str, service: str) -> Agreement | None:
    # Cached: it is parsed twice a second for each service and hardly ever changes.
    try:
        return parse_agreement(text, service)
    except AgreementInvalid:
        return None
