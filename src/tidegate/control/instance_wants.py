"""Which instances of services need a slot, in which order, and what a service asks of the fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tidegate.agreement.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.control.agreement_figures import Accepted, Asked, figures
from tidegate.control.agreement_plan import warm_of
from tidegate.control.provisioner import Want
from tidegate.core.fleet import MachineState, SlotKind
from tidegate.core.hosting import Instance, InstanceState, Service, ServiceSpec
from tidegate.core.steering import MachineSample

# Those that are to answer, or to be ready to.
_WANTED = (InstanceState.ORDERED, InstanceState.STARTING, InstanceState.READY)
_GONE = (MachineState.FAILED, MachineState.HALTING)


def homeless(
    service: Service, instances: Iterable[Instance], machines: Iterable[MachineSample]
) -> list[Instance]:
    """Without a machine, or on one that is gone; spares last, then the oldest first."""
    homes = {one.machine_id for one in machines if one.state not in _GONE}
    found = [
        one
        for one in instances
        if one.service == service.spec.name and one.state in _WANTED and one.machine_id not in homes
    ]
    return sorted(found, key=lambda one: (one.is_spare, one.instance_id))


def want_of(
    service: Service,
    waiting: Sequence[Instance],
    instances: Iterable[Instance] = (),
    learned: Accepted | None = None,
) -> Want:
    """A slot for each; urgent are those that are to answer, for somebody waits for it.

    They are to be apart from those of the same service that there are among `instances`: a machine
    that dies must not take all of them along. One that drains is as good as gone.
    """
    homeless_ids = {one.instance_id for one in waiting}
    together = Counter(
        one.machine_id
        for one in instances
        if one.service == service.spec.name
        and one.state in _WANTED
        and one.machine_id is not None
        and one.instance_id not in homeless_ids
    )
    return Want(
        queue=service.spec.name,
        kind=SlotKind.INSTANCE,
        pending=len(waiting),
        urgent=sum(not one.is_spare for one in waiting),
        slots_per_machine=service.spec.slots_per_machine,
        together=dict(together),
        warm=_warm(service.spec, learned),
    )


def _warm(spec: ServiceSpec, learned: Accepted | None) -> int | None:
    """Machines that its agreement plans to keep warm; None: nobody knows how many."""
    agreement = _agreement(spec.agreement, spec.name)
    if agreement is None:
        return None
    return warm_of(figures(agreement, Asked(slots_per_machine=spec.slots_per_machine), learned))


@lru_cache(maxsize=256)
def _agreement(text: str, service: str) -> Agreement | None:
    # Twice a second of each service, and it hardly ever changes.
    try:
        return parse_agreement(text, service)
    except AgreementInvalid:
        return None
