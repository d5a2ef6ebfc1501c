"""The resources a service may use, and what to do when they do not suffice.

    replicas = { min = 1, max = 4 }
    sla_delta = 4                   # growth of the load to keep up with, per second per second
    capacity = 120                  # of one replica, per second; used until one is measured
    reconfiguration = "30s"         # time from a warning until added capacity helps
    insufficient = "reduce"         # or "refuse", the default
    load_max = 60                   # load per second above which a breach does not count
    reduced = "…"                   # why an offer promises less than was asked for

The bounds are those of the scaling settings (core/scaling_words.py).
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
    """The response to an agreement for which the resources do not suffice."""

    REFUSE = "refuse"
    REDUCE = "reduce"


@dataclass(frozen=True)
class Resources:
    """The resources a service may use. None means not specified."""

    replicas_min: int = 1
    replicas_max: int | None = None
    sla_delta_per_s2: float | None = None
    capacity_per_s: float | None = None
    reconfiguration_s: float | None = None
    insufficient: Insufficient = Insufficient.REFUSE
    # All promises hold up to this load; None means for any load.
    load_max_per_s: float | None = None
    # What the offer reduces and why; empty if it reduces nothing.
    reduced: str = ""


def resources(document: dict[str, Any], complaints: Complaints) -> Resources:
    """Return the resources in a document; report the problems of the keys."""
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
    # Without `min` the lower bound is 1, as it is without any bounds.
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
