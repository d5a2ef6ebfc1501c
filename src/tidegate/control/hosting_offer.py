"""Whether a service can be kept as agreed, before it is deployed: the offer, or a refusal.

    insufficient = "refuse"     LimitReached, with what is missing; nothing is deployed
    insufficient = "reduce"     what can be kept with this: another agreement (reduced_agreement),
                                which is deployed in its place, judged and shown

What nobody knows is not guessed: without a load or a capacity the least number of instances is all
that can be asked for (control/agreement_plan.py). Spares are part of it: who is to be replaced at
once needs a slot that is taken already. What others have, or are entitled to, is not there for it
(control/slot_claims.py).
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
    """What is offered: all that was asked for, or less of it; LimitReached if it is refused.

    `room` is all that the service may have; None: as much as it takes.
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
    """What is missing, and all that would help."""
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
