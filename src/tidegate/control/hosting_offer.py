"""Whether a service can be kept as agreed, before it is deployed: the offer, or a refusal.

    insufficient = "refuse"     LimitReached, with what is missing; nothing is deployed
    insufficient = "reduce"     what can be kept with this, in a sentence: the service's detail

What nobody knows is not guessed: without a load or a capacity the least number of instances is all
that can be asked for (control/agreement_plan.py). Spares are part of it: who is to be replaced at
once needs a slot that is taken already. What others have, or are entitled to, is not there for it
(control/slot_claims.py).
"""

from __future__ import annotations

from tidegate.agreement.document import Agreement, Insufficient
from tidegate.agreement.quantity_words import worded
from tidegate.control.agreement_figures import Asked, figures
from tidegate.control.agreement_plan import Plan, plan
from tidegate.control.room import Room
from tidegate.core.errors import LimitReached
from tidegate.core.hosting import ServiceSpec
from tidegate.telemetry.knowledge import Knowledge


def offered(
    agreement: Agreement,
    spec: ServiceSpec,
    room: Room | None,
    knowledge: Knowledge | None = None,
) -> str:
    """What is offered less than agreed, "" if nothing; LimitReached if it is refused.

    `room` is all that the service may have; None: as much as it takes.
    """
    asked = Asked(slots_per_machine=spec.slots_per_machine, spares=spec.spares, room=room)
    found = plan(agreement, figures(agreement, asked, knowledge), asked)
    if not found.missing:
        return ""
    if found.offer is None:
        raise LimitReached(_refusal(agreement, found))
    return f"reduced: {'; '.join(found.missing)}; {_offer_words(found)}"


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


def _offer_words(found: Plan) -> str:
    assert found.offer is not None
    said = [
        f"{found.replicas} instance(s)",
        *(
            f"a throughput of {worded(metric.unit, metric.breach)}"
            for metric in found.offer.metrics
            if metric.name == "throughput"
        ),
    ]
    if found.offer.load_max_per_s is not None:
        said.append(f"kept up to {found.offer.load_max_per_s:.3g}/s")
    return f"offered are {', '.join(said)}"
