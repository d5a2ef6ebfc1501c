"""What an agreement says about how its queue scales, where nobody has said otherwise.

    replicas       its bounds, unless a person has said others than 1 to 1
    sla_delta      the growth that is kept up with

A person's word about the queue itself counts more: it is about this queue, and was said later. The
document's `capacity` is no promise but a guess until somebody has measured it, and is not among
these (docs/decisions/0008-whose-word-counts.md).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from tidegate.agreement.document import Agreement, AgreementInvalid, parse_agreement, text_of
from tidegate.core.errors import InvalidValue
from tidegate.core.scaling import Range, Scaling

# What complaints call the text that is kept with a queue.
STORED = "agreement of queue {queue}"


@lru_cache(maxsize=1024)
def agreement_for(text: str, queue: str, source: str | None = None) -> Agreement:
    """The agreement of a queue by its text; AgreementInvalid if it is none, or not about it."""
    source = source or STORED.format(queue=queue)
    agreement = parse_agreement(text, source)
    if not agreement.governs_queue(queue):
        about = f"http = {agreement.http!r}" if agreement.queue is None else repr(agreement.queue)
        raise AgreementInvalid(
            [f"{source}: queue: it governs {about}, and not queue {queue!r}: name it, or a pattern"]
        )
    return agreement


def agreement_of_file(file: Path, queue: str) -> tuple[Agreement, str]:
    """The agreement of a queue in a file, and its text as it is kept with the queue."""
    text = text_of(file, "TOML")
    return agreement_for(text, queue, str(file)), text


def obeying(scaling: Scaling, agreement: Agreement) -> Scaling:
    """The same scaling with what the agreement says in place of what nobody has said."""
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
    """The same scaling from now on with this agreement; bounds that it says are the newest word."""
    says = agreement.resources
    least, most = scaling.replicas.min, scaling.replicas.max
    if says.replicas_max is not None:
        least, most = says.replicas_min, says.replicas_max
    elif says.replicas_min > least:
        least, most = says.replicas_min, max(says.replicas_min, most)
    return msgspec.structs.replace(scaling, agreement=text, replicas=Range(least, most))


def check_agreement(scaling: Scaling, queue: str) -> None:
    """Raises InvalidValue unless the agreement of a queue, if it has one, can be obeyed."""
    if scaling.agreement is None:
        return
    try:
        agreement_for(scaling.agreement, queue)
    except AgreementInvalid as wrong:
        raise InvalidValue(str(wrong)) from None
