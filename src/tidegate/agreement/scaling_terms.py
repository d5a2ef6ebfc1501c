"""The scaling settings that a queue takes from its agreement.

    replicas       the agreement's bounds, if the queue's own bounds are the default, 1 to 1
    sla_delta      the agreement's growth of load, if the queue has none

A setting of the queue itself takes precedence: it is more specific and newer. The document's
`capacity` is not among these settings, because it is an estimate and not a promise
(docs/decisions/0008-whose-word-counts.md).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from tidegate.agreement.document import Agreement, AgreementInvalid, parse_agreement, text_of
from tidegate.core.errors import InvalidValue
from tidegate.core.scaling import Range, Scaling

# The source that problems name for the text stored with a queue.
STORED = "agreement of queue {queue}"


@lru_cache(maxsize=1024)
def agreement_for(text: str, queue: str, source: str | None = None) -> Agreement:
    """Return the agreement in a text; raise `AgreementInvalid` if it does not govern the queue."""
    source = source or STORED.format(queue=queue)
    agreement = parse_agreement(text, source)
    if not agreement.governs_queue(queue):
        about = f"http = {agreement.http!r}" if agreement.queue is None else repr(agreement.queue)
        raise AgreementInvalid(
            [f"{source}: queue: it governs {about}, and not queue {queue!r}: name it, or a pattern"]
        )
    return agreement


def agreement_of_file(file: Path, queue: str) -> tuple[Agreement, str]:
    """Return the agreement of a queue in a file, and the text to store with the queue."""
    text = text_of(file, "TOML")
    return agreement_for(text, queue, str(file)), text


def obeying(scaling: Scaling, agreement: Agreement) -> Scaling:
    """Return the scaling settings, completed by the agreement where the queue uses defaults."""
    says = agreement.resources
    changes: dict[str, object] = {}
    if scaling.replicas == Range():
        most = says.replicas_max
        least = says.replicas_min
        changes["replicas"] = Range(least, max(least, 1) if most is None else most)
    if scaling.sla_delta is None and says.sla_delta_per_s2 is not None:
        changes["sla_delta"] = says.sla_delta_per_s2
    return msgspec.structs.replace(scaling, **changes)


def with_agreement(scaling: Scaling, agreement: Agreement, text: str) -> Scaling:
    """Return the scaling settings with this agreement and its text stored in them.

    Bounds of replicas that the agreement gives replace the present ones, because they are newer.
    """
    says = agreement.resources
    least, most = scaling.replicas.min, scaling.replicas.max
    if says.replicas_max is not None:
        least, most = says.replicas_min, says.replicas_max
    elif says.replicas_min > least:
        least, most = says.replicas_min, max(says.replicas_min, most)
    return msgspec.structs.replace(scaling, agreement=text, replicas=Range(least, most))


def check_agreement(scaling: Scaling, queue: str) -> None:
    """Raise `InvalidValue` if the queue's stored agreement is invalid or governs another queue."""
    if scaling.agreement is None:
        return
    try:
        agreement_for(scaling.agreement, queue)
    except AgreementInvalid as wrong:
        raise InvalidValue(str(wrong)) from None
