"""The offer for a service before it is deployed: as agreed, reduced, or a refusal.

    insufficient = "refuse"     `LimitReached` names the missing resources; nothing is deployed
    insufficient = "reduce"     an agreement that can be met (reduced_agreement) is deployed, judged
                                and shown instead

Unknown figures are not guessed. Without a load or a capacity the minimum of instances is planned
(control/agreement_plan.py). Spares need slots in advance and are part of the plan. Slots that other
services and queues use or are entitled to are not available (control/slot_claims.py).
"""

from __future__ import annotations

import msgspec

from tidegate.agreement.document import Agreement, Insufficient
from tidegate.control.agreement_figures import Asked, figures
from tidegate.control.agreement_plan import Plan, plan
from tidegate.control.reduced_agreement import reduced_agreement
from tidegate.control.room import Room
from tidegate.core.errors import LimitReached
from tidegate.core.hosting import ServiceSpec
from tidegate.telemetry.knowledge import Knowledge


def offered(
    agreement: Agreement,
    spec: ServiceSpec,
    room: Room | None,
    knowledge: Knowledge | None = None,
) -> tuple[Agreement, ServiceSpec]:
    """Return the agreement and the service to deploy: as requested, or reduced.

    Raises `LimitReached` if the agreement is refused. `room` is what the service may use; None
    means unlimited.
    """
    asked = Asked(slots_per_machine=spec.slots_per_machine, spares=spec.spares, room=room)
    found = plan(agreement, figures(agreement, asked, knowledge), asked)
    if not found.missing:
        return agreement, spec
    if found.offer is None:
        raise LimitReached(_refusal(agreement, found))
    less, text = reduced_agreement(agreement, found, "instance")
    return less, msgspec.structs.replace(spec, agreement=text, spares=found.spares)


def _refusal(agreement: Agreement, found: Plan) -> str:
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
