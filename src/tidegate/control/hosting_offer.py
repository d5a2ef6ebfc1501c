"""Whether a service can be kept as agreed, before it is deployed: the offer, or a refusal.

    insufficient = "refuse"     LimitReached, with what is missing; nothing is deployed
    insufficient = "reduce"     what can be kept with this, in a sentence: the service's detail

What nobody knows is not guessed: without a load or a capacity the least number of instances is all
that can be asked for (control/agreement_plan.py). Spares are part of it: who is to be replaced at
once needs a slot that is taken already.
"""

from __future__ import annotations

from tidegate.agreement.document import Agreement, Insufficient
from tidegate.agreement.quantity_words import worded
from tidegate.control.agreement_figures import Asked, figures
from tidegate.control.agreement_plan import Plan, plan
from tidegate.core.errors import LimitReached
from tidegate.telemetry.knowledge import Knowledge


def offered(
    agreement: Agreement, spares: int, slots: int | None, knowledge: Knowledge | None = None
) -> str:
    """What is offered less than agreed, "" if nothing; LimitReached if it is refused.

    `slots` are all that the service may have, free or booted for it; None: as many as it takes.
    """
    asked = Asked(slots_per_machine=1, machines=slots)
    found = plan(agreement, figures(agreement, asked, knowledge), asked)
    missing = list(found.missing)
    if slots is not None and found.replicas + spares > slots and not missing:
        missing.append(f"{found.replicas} instance(s) and {spares} spare(s) need more than {slots}")
    if not missing:
        return ""
    lacks = "; ".join(missing)
    if agreement.resources.insufficient is Insufficient.REFUSE or found.offer is None:
        raise LimitReached(
            f"{agreement.name} cannot be kept with {slots} slot(s): {lacks}. Add machines, promise "
            'less, or say insufficient = "reduce"'
        )
    return f"reduced: {lacks}; {_offer_words(found)}"


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
