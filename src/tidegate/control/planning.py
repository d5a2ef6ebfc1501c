"""Capacity planning: what an agreement needs, and what can be offered if that is not available.

Theory of operation
-------------------

`plan_capacity` is a pure function from an agreement and known figures to a `CapacityPlan`. Commands
call it before anything starts, and slot claims call it to see what a service is entitled to.

    replicas   ceil(load / (busy · capacity of one)), within the agreement's bounds
    busy       the utilisation that the loops plan for: of a queue from its promised waits
               (laws.wait_sizing), of an HTTP service with reserve for bursts (laws.http_sizing)
    machines   ceil(replicas / slots), and warm machines in addition
    warm       NPP = ceil(sla_delta · boot_s / machine_capacity)                laws.warm_pool

An unknown figure is reported and not guessed. Without a capacity the plan is the minimum of
replicas, and says that this may not suffice.

If resources do not suffice, the agreement says what happens. Either it is refused, or it is reduced
to a lower throughput with the warning and breaching points in the same ratio. Resources go to
serving replicas first, then to spares, then to warm machines. Below the minimum of replicas nothing
can be offered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tidegate.agreement.document import Agreement, Insufficient
from tidegate.agreement.metrics import Metric
from tidegate.control.agreement_figures import Asked, Figures
from tidegate.control.queue_agreement import QueueAgreement
from tidegate.core.scaling import REPLICAS_MAX
from tidegate.laws.http_sizing import UTILISATION
from tidegate.laws.wait_sizing import DEFAULT_WAIT_SIZING, busy_part
from tidegate.laws.warm_pool import ROUNDING, warm_machines


@dataclass(frozen=True)
class Offer:
    """The quality that can be promised: every metric with its warning and breaching point."""

    metrics: tuple[Metric, ...]
    # Growth of the load that is kept up with; None if not known.
    sla_delta_per_s2: float | None
    # Load up to which everything holds; None if not known.
    load_max_per_s: float | None


@dataclass(frozen=True)
class Plan:
    """What an agreement needs, which resources are missing, and the offer."""

    replicas: int
    slots: int
    machines_working: int
    # None if not known.
    machines_warm: int | None
    # "keep-up" for a queue, None for an HTTP service.
    prefetch: str | None
    consumer_rate_per_s: float | None
    figures: Figures
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


def plan(agreement: Agreement, known: Figures, asked: Asked) -> Plan:
    """Return the plan for an agreement with these figures and the available resources."""
    needed, because = _replicas(agreement, known)
    slots = asked.slots_per_machine
    warm, spares = warm_of(known), asked.spares
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
    return Plan(
        replicas=needed,
        slots=slots,
        machines_working=math.ceil((needed + spares) / slots),
        machines_warm=warm,
        prefetch=keeps_up,
        consumer_rate_per_s=None if keeps_up is None else _consumer_rate(known, needed),
        figures=known,
        because=(because, *_warm_words(known, warm_of(known))),
        unknown=tuple(_unknown(known)),
        missing=tuple(missing),
        offer=offer,
        spares=spares,
        lacks_room=lacks_room,
    )


def _replicas(agreement: Agreement, known: Figures) -> tuple[int, str]:
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
    pledge = QueueAgreement(agreement, agreement.queue).pledge(None)
    return busy_part(pledge, capacity_per_s, DEFAULT_WAIT_SIZING)


def warm_of(known: Figures) -> int | None:
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


def _warm_words(known: Figures, warm: int | None) -> list[str]:
    delta, boot_s = known.sla_delta_per_s2.value, known.boot_s.value
    if warm is None or not delta or boot_s is None:
        return []
    return [
        f"While a machine boots ({boot_s:.4g} s) the load may grow by {delta * boot_s:.4g}/s, and "
        f"a machine does {known.machine_capacity_per_s.value:.4g}/s: {warm} warm"
    ]


def _offer(
    agreement: Agreement, known: Figures, replicas: int, warm: int | None, is_short: bool
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


def _growth(known: Figures, warm: int | None) -> float | None:
    """Return the growth of the load for which the warm machines suffice."""
    delta, boot_s = known.sla_delta_per_s2.value, known.boot_s.value
    capacity = known.machine_capacity_per_s.value
    if warm is None or delta is None or not boot_s or capacity is None:
        return delta
    return min(delta, warm * capacity / boot_s)


def _consumer_rate(known: Figures, replicas: int) -> float | None:
    load, consumers = known.load_per_s.value, known.consumers.value
    return load / (replicas * consumers) if load is not None and consumers else None


def _unknown(known: Figures) -> list[str]:
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
