"""The [metrics.*] tables of an agreement: promises with breaching and warning points."""

from __future__ import annotations

from typing import Any

from tidegate.agreement.complaints import Complaints
from tidegate.agreement.lines import Key
from tidegate.agreement.metrics import (
    Metric,
    MetricKind,
    Worse,
    kind_of,
    metric_names,
    refused_percentile,
    warning_point,
)
from tidegate.core.complaint import meant

MARGIN = 0.2  # TAPAS: 6 s and 20 % give 4.8 s
LEARNED = "learned"

_KEYS = ("breach", "warning", "slope")
_WARNING_IS = 'a margin such as "20%", or "learned"'


def promises(document: dict[str, Any], complaints: Complaints) -> tuple[Metric, ...]:
    """Return every promised metric of a document; report the problems of the others."""
    tables = document.get("metrics")
    if not isinstance(tables, dict) or not tables:
        what = "must promise at least one metric, such as [metrics.wait_p99] with a breach"
        complaints.add(("metrics",), what)
        return ()
    default = document.get("warning", f"{MARGIN:.0%}")
    if default != LEARNED:
        _margin(("warning",), default, complaints)
    on_http = "http" in document
    found = [_promise(name, table, default, on_http, complaints) for name, table in tables.items()]
    return tuple(metric for metric in found if metric is not None)


def _promise(
    name: str, table: Any, default: Any, on_http: bool, complaints: Complaints
) -> Metric | None:
    key = ("metrics", name)
    kind = kind_of(name)
    if kind is None:
        what = refused_percentile(name) or (
            f"there is no such metric{meant(name, metric_names(on_http=on_http))}"
        )
        complaints.add(key, what)
        return None
    if on_http and not kind.of_http:
        what = "is known of queues only, and this agreement is about http"
        complaints.add(key, what, instead="response_p99, or queue in place of http")
        return None
    if not isinstance(table, dict):
        complaints.add(key, f"must be a table, written [metrics.{name}]", table)
        return None
    complaints.refuse_unknown(key, table, _KEYS)
    if "breach" not in table:
        complaints.add((*key, "breach"), "must be given: the breaching point")
        return None
    breach = complaints.measure((*key, "breach"), kind.unit, table["breach"])
    if breach is None:
        return None
    said = table.get("warning", default)
    warning = _warning((*key, "warning"), kind, breach, said, complaints)
    slope = None
    if "slope" in table:
        slope = complaints.measure(
            (*key, "slope"), kind.unit, table["slope"], ": by so much it gets worse in a second"
        )
    if warning is None:
        return None
    learned = said == LEARNED
    return Metric(name, kind.worse, kind.unit, breach, warning, learned, slope)


def _warning(
    key: Key, kind: MetricKind, breach: float, said: Any, complaints: Complaints
) -> float | None:
    """Return the warning point, from a margin or given directly; None after a reported problem."""
    point: float | None
    if said == LEARNED:
        point = warning_point(kind, breach, MARGIN)
    elif isinstance(said, str) and said.strip().endswith("%"):
        margin = _margin(key, said, complaints)
        point = None if margin is None else warning_point(kind, breach, margin)
    else:
        point = complaints.measure(key, kind.unit, said, f"; or {_WARNING_IS}")
    # A margin can fail this check, too: a tiny margin can vanish in floating-point rounding.
    if point is None:
        return None
    if (point >= breach) if kind.worse is Worse.LARGER else (point <= breach):
        side = "below" if kind.worse is Worse.LARGER else "above"
        complaints.add(
            key,
            f"must lie {side} the breaching point: a warning that comes with the breach, or after "
            "it, warns nobody",
            said,
            instead=f'warning = "{MARGIN:.0%}"',
        )
        return None
    return point


def _margin(key: Key, said: Any, complaints: Complaints) -> float | None:
    if isinstance(said, str) and said.strip().endswith("%"):
        try:
            margin = float(said.strip().removesuffix("%")) / 100.0
        except ValueError:
            margin = 0.0
        if 0.0 < margin < 1.0:
            return margin
    complaints.add(key, f"must be {_WARNING_IS}; a margin lies between 0% and 100%", said)
    return None
