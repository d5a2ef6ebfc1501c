"""What an agreement may use, and what is to happen when that does not suffice.

    replicas = { min = 1, max = 4 }
    sla_delta = 4                   # growth of the load that is kept up with, a second per second
    capacity = 120                  # of one replica, a second: until it is learned
    reconfiguration = "30s"         # from a warning to where it helps
    insufficient = "reduce"         # or "refuse", which is what happens unless said
    load_max = 60                   # up to which it is kept: what more than that breaches is not
    reduced = "…"                   # why less is offered than was asked for: written by the offer

Bounds are those of the loops that scale (core/scaling_words.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tidegate.agreement.complaints import Complaints
from tidegate.agreement.metrics import Unit
from tidegate.core.complaint import meant
from tidegate.core.scaling import REPLICAS_MAX

KEYS = (
    *("replicas", "sla_delta", "capacity", "reconfiguration", "insufficient"),
    *("load_max", "reduced"),
)


class Insufficient(StrEnum):
    """What to do with an agreement that resources do not suffice for."""

    REFUSE = "refuse"
    REDUCE = "reduce"


@dataclass(frozen=True)
class Resources:
    """What a service may use; None is what nobody has said."""

    replicas_min: int = 1
    replicas_max: int | None = None
    sla_delta_per_s2: float | None = None
    capacity_per_s: float | None = None
    reconfiguration_s: float | None = None
    insufficient: Insufficient = Insufficient.REFUSE
    # Up to which all of it is kept; None: whatever comes.
    load_max_per_s: float | None = None
    # What is offered less than was asked for, and why; "": all of it is.
    reduced: str = ""


def resources(document: dict[str, Any], complaints: Complaints) -> Resources:
    """What a document says of resources."""
    least, most = _replicas(document, complaints)
    said = document.get
    return Resources(
        replicas_min=least,
        replicas_max=most,
        sla_delta_per_s2=None
        if "sla_delta" not in document
        else complaints.number(
            ("sla_delta",),
            said("sla_delta"),
            "the growth of the load that is kept up with, 0 or more a second per second",
        ),
        capacity_per_s=None
        if "capacity" not in document
        else complaints.measure(("capacity",), Unit.PER_SECOND, said("capacity")),
        reconfiguration_s=None
        if "reconfiguration" not in document
        else complaints.measure(("reconfiguration",), Unit.SECONDS, said("reconfiguration")),
        insufficient=_insufficient(document, complaints),
        load_max_per_s=None
        if "load_max" not in document
        else complaints.measure(("load_max",), Unit.PER_SECOND, said("load_max")),
        reduced=""
        if "reduced" not in document
        else complaints.text(("reduced",), said("reduced")) or "",
    )


def _replicas(document: dict[str, Any], complaints: Complaints) -> tuple[int, int | None]:
    table = document.get("replicas", {})
    if not isinstance(table, dict):
        complaints.add(
            ("replicas",), "must be a table", table, instead="replicas = { min = 1, max = 4 }"
        )
        return 1, None
    complaints.refuse_unknown(("replicas",), table, ("min", "max"))
    bounds = {
        word: complaints.count(
            ("replicas", word), table[word], least=1 if word == "max" else 0, most=REPLICAS_MAX
        )
        for word in ("min", "max")
        if word in table
    }
    least, most = bounds.get("min"), bounds.get("max")
    if least is not None and most is not None and least > most:
        complaints.add(
            ("replicas", "min"),
            f"is more than max = {most}: no number of replicas is both",
            least,
            instead=f"replicas = {{ min = {most}, max = {least} }}",
        )
    # One that is only bounded above may begin with one, as it would without bounds.
    return (1 if least is None else least), most


def _insufficient(document: dict[str, Any], complaints: Complaints) -> Insufficient:
    value = document.get("insufficient", Insufficient.REFUSE.value)
    words = [one.value for one in Insufficient]
    if value in words:
        return Insufficient(value)
    close = meant(value, words) if isinstance(value, str) else f"; there are {', '.join(words)}"
    complaints.add(
        ("insufficient",),
        f"says what to do when resources do not suffice, and there is no such word{close}",
        value,
    )
    return Insufficient.REFUSE
