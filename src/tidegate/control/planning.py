"""Capacity planning: what an agreement needs, and what can be offered if that is not available.

Theory of operation
-------------------

`plan_capacity` is a pure function from an agreement and known figures to a `CapacityPlan`. Commands
call it before anything starts, and slot claims call it to see what a service is entitled to.

    replicas   ceil(load / (busy · capacity of one)), within the agreement's bounds
    busy       the utilisation that the loops plan for: of a queue from its promised waits
               (laws.scaling.wait), of an HTTP service with reserve for bursts (laws.http.sizing)
    machines   ceil(replicas / slots), and warm machines in addition
    warm       NPP = ceil(sla_delta · boot_s / machine_capacity)                laws.placement

An unknown figure is reported and not guessed. Without a capacity the plan is the minimum of
replicas, and says that this may not suffice.

If resources do not suffice, the agreement says what happens. Either it is refused, or it is reduced
to a lower throughput with the warning and breaching points in the same ratio. Resources go to
serving replicas first, then to spares, then to warm machines. Below the minimum of replicas nothing
can be offered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from tidegate.agreements import Metric
from tidegate.agreements.document import (
    Agreement,
    AgreementInvalid,
    Insufficient,
    format_agreement,
    parse_agreement,
)
from tidegate.agreements.problems import format_quantity
from tidegate.control.queues.agreement import QueueAgreement
from tidegate.control.services.performance import ServicePerformance
from tidegate.core.errors import LimitReached
from tidegate.core.services import ServiceSpec
from tidegate.core.topology import REPLICAS_MAX
from tidegate.laws.http.sizing import NO_TARGETS, UTILISATION, ResponseTargets, in_hand_max
from tidegate.laws.placement import ROUNDING, warm_machines
from tidegate.laws.scaling.wait import DEFAULT_WAIT_LAW_SETTINGS, usable_part
from tidegate.telemetry.models import ModelRegistry, StoredModel


@dataclass(frozen=True)
class Offer:
    """The quality that can be promised: every metric with its warning and breaching point."""

    metrics: tuple[Metric, ...]
    # Growth of the load that is kept up with; None if not known.
    sla_delta_per_s2: float | None
    # Load up to which everything holds; None if not known.
    load_max_per_s: float | None


@dataclass(frozen=True)
class CapacityPlan:
    """What an agreement needs, which resources are missing, and the offer."""

    replicas: int
    slots: int
    machines_working: int
    # None if not known.
    machines_warm: int | None
    # "keep-up" for a queue, None for an HTTP service.
    prefetch: str | None
    consumer_rate_per_s: float | None
    figures: PlanningInputs
    # Sentences: the reasons, the unknown figures, and the insufficient resources.
    because: tuple[str, ...]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    # None if the agreement is refused.
    offer: Offer | None
    spares: int = 0
    # Whether slots are missing, and not only a bound of the agreement.
    lacks_room: bool = False

    @property
    def machines(self) -> int:
        return self.machines_working + (self.machines_warm or 0)

    @property
    def state(self) -> str:
        """The result in a word: refused, reduced, offered or not known."""
        if self.offer is None:
            return "refused"
        if self.missing:
            return "reduced"
        # Without both figures nothing shows that the agreement can be met.
        suffices = self.figures.load_per_s.is_known and self.figures.capacity_per_s.is_known
        return "offered" if suffices else "not known"


def plan_capacity(
    agreement: Agreement, known: PlanningInputs, asked: PlanningRequest
) -> CapacityPlan:
    """Return the plan for an agreement with these figures and the available resources."""
    needed, because = _replicas(agreement, known)
    slots = asked.slots_per_machine
    warm, spares = warm_machines_of(known), asked.spares
    missing: list[str] = []
    uses = agreement.resources
    had, kept_spares, kept_warm = needed, spares, warm
    most = REPLICAS_MAX if uses.replicas_max is None else uses.replicas_max
    if needed > most:
        missing.append(f"{needed} replicas are needed, and replicas.max is {most}")
        had = most
    lacks_room = False
    if asked.room is not None:
        fit = asked.room.slots
        if had + spares > fit:
            spare = f" and {spares} spare(s)" if spares else ""
            missing.append(f"{had} replicas{spare} are needed, and {asked.room.words}")
            lacks_room = True
            had = min(had, fit)
            kept_spares = min(spares, fit - had)
        left = (fit - had - kept_spares) // slots
        if warm is not None and warm > left:
            missing.append(
                f"{warm} machine(s) are to be kept warm, and there is room for {left} beside those "
                "at work"
            )
            lacks_room = True
            kept_warm = left
    offer, refusal = _offer(agreement, known, had, kept_warm, bool(missing))
    if refusal:
        missing.append(refusal)
    if offer is not None and missing:
        needed, spares, warm = had, kept_spares, kept_warm
    keeps_up = None if agreement.queue is None else "keep-up"
    return CapacityPlan(
        replicas=needed,
        slots=slots,
        machines_working=math.ceil((needed + spares) / slots),
        machines_warm=warm,
        prefetch=keeps_up,
        consumer_rate_per_s=None if keeps_up is None else _consumer_rate(known, needed),
        figures=known,
        because=(because, *_warm_text(known, warm_machines_of(known))),
        unknown=tuple(_unknown(known)),
        missing=tuple(missing),
        offer=offer,
        spares=spares,
        lacks_room=lacks_room,
    )


def _replicas(agreement: Agreement, known: PlanningInputs) -> tuple[int, str]:
    least = agreement.resources.replicas_min
    load, capacity = known.load_per_s.value, known.capacity_per_s.value
    if load is None or not capacity:
        return max(least, 1), (
            f"{max(least, 1)} replica(s), the least that is agreed: whether they suffice is not "
            "known"
        )
    busy = _busy(agreement, capacity)
    needed = _ceiling(load / (busy * capacity) * (1.0 - ROUNDING))
    said = (
        f"{load:.4g}/s at {capacity:.4g}/s each, no busier than {busy:.0%}, take {needed} "
        "replica(s)"
    )
    if needed < least:
        return least, f"{said}; at least {least} are agreed"
    return needed, said


def _busy(agreement: Agreement, capacity_per_s: float) -> float:
    """Return the part of a replica's capacity that the loops would use."""
    if agreement.queue is None:
        return UTILISATION
    pledge = QueueAgreement(agreement, agreement.queue).wait_target(None)
    return usable_part(pledge, capacity_per_s, DEFAULT_WAIT_LAW_SETTINGS)


def warm_machines_of(known: PlanningInputs) -> int | None:
    """Return the number of warm machines; None if not known."""
    delta, boot_s = known.sla_delta_per_s2.value, known.boot_s.value
    capacity = known.machine_capacity_per_s.value
    if delta == 0.0:
        return 0
    if delta is None or boot_s is None or not capacity:
        return None
    try:
        return warm_machines(delta, boot_s, capacity)
    except OverflowError:
        return REPLICAS_MAX + 1


def _ceiling(number: float) -> int:
    """Round up; a number beyond every limit becomes one more than the limit."""
    return math.ceil(min(number, REPLICAS_MAX + 1.0))


def _warm_text(known: PlanningInputs, warm: int | None) -> list[str]:
    delta, boot_s = known.sla_delta_per_s2.value, known.boot_s.value
    if warm is None or not delta or boot_s is None:
        return []
    return [
        f"While a machine boots ({boot_s:.4g} s) the load may grow by {delta * boot_s:.4g}/s, and "
        f"a machine does {known.machine_capacity_per_s.value:.4g}/s: {warm} warm"
    ]


def _offer(
    agreement: Agreement, known: PlanningInputs, replicas: int, warm: int | None, is_short: bool
) -> tuple[Offer | None, str]:
    """Return what can be kept with these replicas; or None, and why nothing can be offered."""
    uses, capacity = agreement.resources, known.capacity_per_s.value
    most = capacity and _busy(agreement, capacity) * capacity * replicas
    if not is_short:
        return Offer(agreement.metrics, known.sla_delta_per_s2.value, most), ""
    if uses.insufficient is Insufficient.REFUSE:
        return None, ""
    least = max(uses.replicas_min, 1)
    if replicas < least:
        return None, f"even reduced it needs {least} replica(s), and there is room for {replicas}"
    metrics = tuple(_reduced(metric, most) for metric in agreement.metrics)
    return Offer(metrics, _growth(known, warm), most), ""


def _reduced(metric: Metric, load_max_per_s: float | None) -> Metric:
    """Return the promise; a throughput is limited to the load that can be served."""
    if metric.name != "throughput" or load_max_per_s is None or metric.warning <= load_max_per_s:
        return metric
    share = load_max_per_s / metric.warning
    return replace(metric, breach=metric.breach * share, warning=load_max_per_s)


def _growth(known: PlanningInputs, warm: int | None) -> float | None:
    """Return the growth of the load for which the warm machines suffice."""
    delta, boot_s = known.sla_delta_per_s2.value, known.boot_s.value
    capacity = known.machine_capacity_per_s.value
    if warm is None or delta is None or not boot_s or capacity is None:
        return delta
    return min(delta, warm * capacity / boot_s)


def _consumer_rate(known: PlanningInputs, replicas: int) -> float | None:
    load, consumers = known.load_per_s.value, known.consumers.value
    return load / (replicas * consumers) if load is not None and consumers else None


def _unknown(known: PlanningInputs) -> list[str]:
    words = {
        "the load": known.load_per_s,
        "a replica's capacity": known.capacity_per_s,
        "the growth of the load": known.sla_delta_per_s2,
        "how long a machine boots": known.boot_s,
    }
    return [
        f"{what} is not known: {figure.origin}"
        for what, figure in words.items()
        if not figure.is_known
    ]


# The figures that a plan is made from, each with its origin.
#
# A value that the user gives with the request counts most. Capacities and boot times are facts:
# there a learned value wins over the agreement's. The growth to keep up with is a promise: there
# the agreement wins over the learned value. Loops with an agreement use the same order
# (docs/decisions/0008-whose-word-counts.md).


FROM_REQUEST = "said with the question"
FROM_AGREEMENT = "said in the agreement"
_FLEET = "fleet"


@dataclass(frozen=True)
class PlanningInput:
    """A number with its origin; without a value, `origin` says how to provide one."""

    value: float | None
    origin: str

    @property
    def is_known(self) -> bool:
        return self.value is not None


class ModelSource(Protocol):
    """A source of accepted models: the knowledge folder, or what the loops have read of it."""

    def accepted(self, kind: str) -> Mapping[str, StoredModel]: ...


@dataclass(frozen=True)
class PlanningRequest:
    """Values that the user gives with the request."""

    load_per_s: float | None = None
    capacity_per_s: float | None = None
    boot_s: float | None = None
    slots_per_machine: int = 1
    # Instances kept ready in addition to those that serve.
    spares: int = 0
    # The available slots; None means unlimited.
    room: AvailableSlots | None = None


@dataclass(frozen=True)
class PlanningInputs:
    """All figures of a plan."""

    # The load to be served without a warning.
    load_per_s: PlanningInput
    # Of one replica with its workers.
    capacity_per_s: PlanningInput
    # Of a machine with all slots in use.
    machine_capacity_per_s: PlanningInput
    sla_delta_per_s2: PlanningInput
    boot_s: PlanningInput
    # Consumers with which a replica has its largest capacity.
    consumers: PlanningInput


def planning_inputs(
    agreement: Agreement, asked: PlanningRequest, knowledge: ModelSource | None
) -> PlanningInputs:
    """Return the figures for an agreement from the request, the models and the agreement."""
    queue = None if knowledge is None else _capacity(agreement, knowledge)
    fleet = None if knowledge is None else knowledge.accepted("provisioning").get(_FLEET)
    uses = agreement.resources
    capacity = replica_capacity(agreement, asked.capacity_per_s, queue)
    filled = capacity.value and capacity.value * asked.slots_per_machine
    return PlanningInputs(
        load_per_s=_load(agreement, asked),
        capacity_per_s=capacity,
        machine_capacity_per_s=_first(
            _learned(fleet, "machine_capacity_per_s"),
            (filled, f"{asked.slots_per_machine} slot(s) of it, {capacity.origin}"),
            unknown="it follows from a replica's capacity",
        ),
        sla_delta_per_s2=_first(
            (uses.sla_delta_per_s2, FROM_AGREEMENT),
            _learned(fleet, "sla_delta"),
            unknown="say `sla_delta`, or let `tidegate learn` see the load grow",
        ),
        boot_s=_first(
            (asked.boot_s, FROM_REQUEST),
            _learned(fleet, "boot_s"),
            unknown="say --boot, or let `tidegate learn` see machines boot",
        ),
        consumers=_first(
            _learned(queue, "best_consumers"), unknown="`tidegate learn` finds it of queues"
        ),
    )


def replica_capacity(
    agreement: Agreement, said_per_s: float | None, learned: StoredModel | None
) -> PlanningInput:
    """Return the capacity of one replica: the user's value, the learned one, or the agreement's."""
    return _first(
        (said_per_s, FROM_REQUEST),
        _learned(learned, "throughput_per_s"),
        (agreement.resources.capacity_per_s, FROM_AGREEMENT),
        unknown="say `capacity`, or --capacity; `tidegate learn` finds it of what was at its limit",
    )


def _load(agreement: Agreement, asked: PlanningRequest) -> PlanningInput:
    promised = next((one for one in agreement.metrics if one.name == "throughput"), None)
    return _first(
        (asked.load_per_s, FROM_REQUEST),
        (None if promised is None else promised.warning, "the throughput's warning point"),
        (agreement.resources.load_max_per_s, "the load up to which it is kept"),
        unknown="promise a throughput, or say `load_max`, or --load",
    )


def _capacity(agreement: Agreement, knowledge: ModelSource) -> StoredModel | None:
    """Return the learned capacity: of a queue's replica, or of an HTTP service's instance."""
    if agreement.http is not None:
        return knowledge.accepted("http_capacity").get(agreement.http)
    return _careful(agreement, knowledge.accepted("capacity"))


def _careful(agreement: Agreement, learned: Mapping[str, StoredModel]) -> StoredModel | None:
    """Return the model of the governed queue with the lowest capacity, as the safe choice."""
    governed = [
        model
        for queue, model in learned.items()
        if agreement.governs_queue(queue) and model.parameters.get("throughput_per_s", 0.0) > 0.0
    ]
    return min(governed, key=lambda model: model.parameters["throughput_per_s"], default=None)


def _learned(model: StoredModel | None, parameter: str) -> tuple[float | None, str]:
    if model is None:
        return None, ""
    return model.parameters.get(parameter), f"learned of {model.subject}"


def _first(*said: tuple[float | None, str], unknown: str) -> PlanningInput:
    for value, origin in said:
        if value is not None and math.isfinite(value) and value >= 0.0:
            return PlanningInput(value, origin)
    return PlanningInput(None, unknown)


# The reduced agreement: offered if resources do not suffice, then measured and judged.
#
#     throughput    no more than the replicas can do; its two points stay in the same ratio
#     load_max      what the replicas can do; above this load a worse service is no breach
#     sla_delta     the growth of the load that the warm machines cover
#     reduced       a sentence with the reason and the offer
#
# It is written as an agreement like any other, so a later reader needs nothing else.


def reduced_agreement(
    agreement: Agreement, found: CapacityPlan, kind: str
) -> tuple[Agreement, str]:
    """Return the reduced agreement and its text; `kind` is the word for a replica.

    Raises `LimitReached` if the reduced agreement would contradict itself.
    """
    assert found.offer is not None, "what is refused is not reduced"
    uses, load_per_s = agreement.resources, found.figures.load_per_s.value
    load_max_per_s, most = uses.load_max_per_s, found.offer.load_max_per_s
    if most is not None and load_per_s is not None and most < load_per_s:
        load_max_per_s = most
    said_growth = uses.sla_delta_per_s2 is not None
    offered = replace(
        agreement,
        metrics=found.offer.metrics,
        resources=replace(
            uses,
            sla_delta_per_s2=found.offer.sla_delta_per_s2 if said_growth else None,
            load_max_per_s=load_max_per_s,
            reduced="; ".join(
                (*found.missing, _reduced_text(found, found.offer, load_max_per_s, kind))
            ),
        ),
    )
    text = format_agreement(offered)
    try:
        return parse_agreement(text, agreement.source), text
    except AgreementInvalid as wrong:
        raise LimitReached(
            f"{agreement.name} cannot be kept: {'; '.join(found.missing)}; and what could be "
            f"offered instead cannot be kept either: {wrong}"
        ) from None


def _reduced_text(
    found: CapacityPlan, offer: Offer, load_max_per_s: float | None, kind: str
) -> str:
    spares = f" and {found.spares} spare(s)" if found.spares else ""
    said = [
        f"{found.replicas} {kind}(s){spares}",
        *(
            f"a throughput of {format_quantity(metric.unit, metric.breach)}"
            for metric in offer.metrics
            if metric.name == "throughput"
        ),
    ]
    if load_max_per_s is not None:
        said.append(f"kept up to {load_max_per_s:.3g}/s")
    return f"offered are {', '.join(said)}"


# The offer for a service before it is deployed: as agreed, reduced, or a refusal.
#
#     insufficient = "refuse"     `LimitReached` names the missing resources; nothing is deployed
#     insufficient = "reduce"     an agreement that can be met (reduced_agreement) is deployed,
#     judged
#                                 and shown instead
#
# Unknown figures are not guessed. Without a load or a capacity the minimum of instances is planned
# (control/planning.py). Spares need slots in advance and are part of the plan. Slots that other
# services and queues use or are entitled to are not available (control/provisioning.py).


def make_offer(
    agreement: Agreement,
    spec: ServiceSpec,
    room: AvailableSlots | None,
    knowledge: ModelRegistry | None = None,
) -> tuple[Agreement, ServiceSpec]:
    """Return the agreement and the service to deploy: as requested, or reduced.

    Raises `LimitReached` if the agreement is refused. `room` is what the service may use; None
    means unlimited.
    """
    asked = PlanningRequest(slots_per_machine=spec.slots_per_machine, spares=spec.spares, room=room)
    found = plan_capacity(agreement, planning_inputs(agreement, asked, knowledge), asked)
    if not found.missing:
        return agreement, spec
    if found.offer is None:
        raise LimitReached(_refusal(agreement, found))
    less, text = reduced_agreement(agreement, found, "instance")
    return less, msgspec.structs.replace(spec, agreement=text, spares=found.spares)


def _refusal(agreement: Agreement, found: CapacityPlan) -> str:
    """Return a text that names the missing resources and the remedies."""
    uses = agreement.resources
    most = uses.replicas_max
    remedies = ["promise less"]
    if most is not None and found.replicas > most:
        remedies.append("allow more replicas")
    if found.lacks_room:
        remedies.append("add machines")
    if uses.insufficient is Insufficient.REFUSE:
        remedies.append('say insufficient = "reduce"')
    remedy = " or ".join(filter(None, (", ".join(remedies[:-1]), remedies[-1])))
    return f"{agreement.name} cannot be kept: {'; '.join(found.missing)}. What helps: {remedy}"


# Promised response times as mean response times, which the laws use.
#
#     target = warning / tail        limit = 0.95 · breach / tail        of the strictest promise
#
# The laws use means (Little's law), and agreements promise percentiles. The ratio of the two, the
# tail, is measured.


# Part of the breaching point before which the admitted requests must be answered.
NEARLY = 0.95


def response_targets(agreement: Agreement, performance: ServicePerformance) -> ResponseTargets:
    """Return the mean response times at which the strictest promise warns, and nearly breaches."""
    tails = [(metric, performance.tail(percentile)) for metric, percentile in _promised(agreement)]
    if not tails:
        return NO_TARGETS
    return ResponseTargets(
        target_s=min(metric.warning / tail for metric, tail in tails),
        limit_s=min(NEARLY * metric.breach / tail for metric, tail in tails),
    )


def admissible_requests(
    agreement: Agreement, performance: ServicePerformance, capacity_per_s: float
) -> int | None:
    """Return how many requests can be answered in time; None without a promise."""
    return min(
        (
            in_hand_max(capacity_per_s, NEARLY * metric.breach, performance.tail(percentile))
            for metric, percentile in _promised(agreement)
        ),
        default=None,
    )


def _promised(agreement: Agreement) -> list[tuple[Metric, float]]:
    return [
        (metric, metric.percentile)
        for metric in agreement.metrics
        if metric.stem == "response" and metric.percentile is not None
    ]


@dataclass(frozen=True)
class AvailableSlots:
    """A number of slots; `words` complete the sentence "… are needed, and"."""

    slots: int
    words: str

    @staticmethod
    def of_machines(machines: int, slots_per_machine: int) -> AvailableSlots:
        """Return all slots of this number of machines."""
        slots = machines * slots_per_machine
        return AvailableSlots(
            slots, f"{machines} machine(s) of {slots_per_machine} slot(s) take {slots}"
        )
