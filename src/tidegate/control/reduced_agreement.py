"""The reduced agreement: offered if resources do not suffice, then measured and judged.

    throughput    no more than the replicas can do; its two points stay in the same ratio
    load_max      what the replicas can do; above this load a worse service is no breach
    sla_delta     the growth of the load that the warm machines cover
    reduced       a sentence with the reason and the offer

It is written as an agreement like any other, so a later reader needs nothing else.
"""

from __future__ import annotations

from dataclasses import replace

from tidegate.agreement.document import Agreement, AgreementInvalid, parse_agreement
from tidegate.agreement.quantity_words import worded
from tidegate.agreement.writing import written
from tidegate.control.agreement_plan import Offer, Plan
from tidegate.core.errors import LimitReached


def reduced_agreement(agreement: Agreement, found: Plan, kind: str) -> tuple[Agreement, str]:
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
