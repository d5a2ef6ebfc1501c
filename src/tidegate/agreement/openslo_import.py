"""Import of agreements from OpenSLO v1: the SLOs of one service are the promises of one agreement.

The import reads SLOs that count windows (budgetingMethod Timeslices) over a rolling period. A
metric source of type Tidegate names the metric. Another source, such as a Prometheus query, does
not. The caller must then name the metric and its unit (`Assumption`).

The import refuses parts that would mean something else in an agreement. It leaves out parts without
a counterpart (alert policies, labels), with a note. Problems and notes have line, key and reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate.agreement.complaints import Complaint
from tidegate.agreement.document import Agreement, AgreementInvalid, agreement_of
from tidegate.agreement.lines import Key
from tidegate.agreement.openslo_slo import Assumption, Slo, SloReading
from tidegate.agreement.yaml_documents import YamlDocument, YamlRefused, yaml_documents

__all__ = ["Assumption", "parse_openslo"]

_SOURCE = "metricSource.spec"
# Keys that all promises of an agreement share, with their OpenSLO names.
_SHARED = {
    "queue": f"{_SOURCE}.queue",
    "http": f"{_SOURCE}.http",
    "window": "spec.objectives.0.timeSliceWindow",
    "objective": "spec.objectives.0.target",
    "period": "spec.timeWindow.0.duration",
}


def parse_openslo(
    text: str,
    source: str,
    assumptions: Mapping[str, Assumption] | None = None,
    governs: tuple[str, str] | None = None,
) -> tuple[list[Agreement], list[Complaint]]:
    """Return the agreements in a text, and notes on the parts that were left out.

    Raise `AgreementInvalid` if a part cannot be imported. `assumptions` are keyed by the name of an
    SLO. `governs` is ("queue" or "http", its name), and applies to SLOs that name neither.
    """
    try:
        documents = yaml_documents(text)
    except YamlRefused as refused:
        wrong = Complaint(source, refused.line, "", refused.reason)
        raise AgreementInvalid([wrong]) from refused
    reading = SloReading(source, _indicators(documents), assumptions or {}, governs)
    slos = [slo for document in documents if (slo := reading.read(document)) is not None]
    if not slos and not reading.wrong:
        reading.wrong.append(Complaint(source, None, "kind", "there is no SLO in it"))
    groups = _grouped(slos, source, reading.wrong)
    if reading.wrong:
        raise AgreementInvalid(reading.wrong)
    agreements = []
    for group in groups:
        try:
            agreements.append(_agreement(group, source))
        except AgreementInvalid as invalid:
            reading.wrong += [_renamed(complaint, group) for complaint in invalid.found]
    if reading.wrong:
        raise AgreementInvalid(reading.wrong)
    return agreements, reading.notes


def _indicators(documents: Sequence[YamlDocument]) -> dict[str, YamlDocument]:
    """Return the SLI documents by name; SLOs may refer to them."""
    found = {}
    for document in documents:
        value = document.value
        if isinstance(value, dict) and value.get("kind") == "SLI":
            metadata = value.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if isinstance(name, str):
                found[name] = document
    return found


def _grouped(slos: Sequence[Slo], source: str, wrong: list[Complaint]) -> list[list[Slo]]:
    groups: dict[str, list[Slo]] = {}
    for slo in slos:
        group = groups.setdefault(slo.agreement, [])
        if group:
            first = group[0]
            for key, called in _SHARED.items():
                if slo.shared.get(key) != first.shared.get(key):
                    wrong.append(
                        Complaint(
                            source,
                            slo.lines.get((key,)),
                            called,
                            f"differs from that of the SLO {first.name}, and promises of one "
                            "agreement share it: make them equal, or name another service",
                            str(slo.shared.get(key)),
                        )
                    )
        if any(slo.metric == other.metric for other in group):
            reason = f"{slo.metric} of {slo.agreement} is promised twice: leave one out"
            wrong.append(Complaint(source, slo.lines[()], "metadata.name", reason, slo.name))
        group.append(slo)
    return list(groups.values())


def _agreement(group: Sequence[Slo], source: str) -> Agreement:
    first = group[0]
    document: dict[str, Any] = {"name": first.agreement, **first.shared}
    document["metrics"] = {slo.metric: slo.table for slo in group}
    lines: dict[Key, int] = {}
    for slo in group:
        at = slo.lines[()]
        for word in ("name", "queue", "period", "metrics"):
            lines.setdefault((word,), at)
        lines[("metrics", slo.metric)] = at
        for key, line in slo.lines.items():
            if key and key[0] in _SHARED:
                lines[key] = line
            elif key:
                lines[("metrics", slo.metric, *key)] = line
    return agreement_of(document, lines, source)


def _renamed(complaint: Complaint, group: Sequence[Slo]) -> Complaint:
    """Return the problem with OpenSLO's key, and without the remedy, which is written for TOML."""
    names = dict(_SHARED)
    for slo in group:
        at = f"metrics.{slo.metric}"
        names |= {at: "metadata.name", f"{at}.breach": slo.breach_called}
        names |= {f"{at}.{word}": f"{_SOURCE}.{word}" for word in ("warning", "slope")}
    return replace(complaint, key=names.get(complaint.key, complaint.key), instead="")
