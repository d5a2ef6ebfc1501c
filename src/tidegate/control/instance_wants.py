"""Which instances need a slot, in which order, and the slot request of a service."""

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

# States of instances that need a slot.
_WANTED = (InstanceState.ORDERED, InstanceState.STARTING, InstanceState.READY)
_GONE = (MachineState.FAILED, MachineState.HALTING)


def homeless(
    service: Service, instances: Iterable[Instance], machines: Iterable[MachineSample]
) -> list[Instance]:
    """Return the instances without a machine, or on one that is gone: spares last, oldest first."""
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
    """Return the machines that the agreement plans to keep warm; None if that is not known."""
    agreement = _agreement(spec.agreement, spec.name)
    if agreement is None:
        return None
    return warm_of(figures(agreement, Asked(slots_per_machine=spec.slots_per_machine), learned))


@lru_cache(maxsize=256)
def _agreement(text: str, service: str) -> Agreement | None:
    # Cached: it is parsed twice a second for each service and hardly ever changes.
    try:
        return parse_agreement(text, service)
    except AgreementInvalid:
        return None
