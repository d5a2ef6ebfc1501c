"""The agreement that is offered where resources do not suffice: it is what is kept and judged.

    throughput    no more than the replicas do, its points as far apart as before
    load_max      what the replicas do: beyond it, what more load makes worse is no breach
    sla_delta     the growth that the warm machines are enough for
    reduced       why, and what is offered, in a sentence

An agreement like any other: whoever reads it again later knows no more than it says.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.agreement.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.agreement.quantity_words import worded
from tidegate.agreement.writing import written
from tidegate.control.agreement_plan import Offer, Plan
from tidegate.core.errors import LimitReached


def reduced_agreement(agreement: Agreement, found: Plan, kind: str) -> tuple[Agreement, str]:
    """What is offered of an agreement by its plan, and as it is written; `kind` of replicas.

    LimitReached: what is left of it contradicts itself.
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
            reduced="; ".join((*found.missing, _words(found, found.offer, load_max_per_s, kind))),
        ),
    )
    text = written(offered)
    try:
        return parse_agreement(text, agreement.source), text
    except AgreementInvalid as wrong:
        raise LimitReached(
            f"{agreement.name} cannot be kept: {'; '.join(found.missing)}; and what could be "
            f"offered instead cannot be kept either: {wrong}"
        ) from None


def _words(found: Plan, offer: Offer, load_max_per_s: float | None, kind: str) -> str:
    spares = f" and {found.spares} spare(s)" if found.spares else ""
    said = [
        f"{found.replicas} {kind}(s){spares}",
        *(
            f"a throughput of {worded(metric.unit, metric.breach)}"
            for metric in offer.metrics
            if metric.name == "throughput"
        ),
    ]
    if load_max_per_s is not None:
        said.append(f"kept up to {load_max_per_s:.3g}/s")
    return f"offered are {', '.join(said)}"
