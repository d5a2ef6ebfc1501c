"""Export of an agreement to OpenSLO v1: one SLO for each promise.

    breach of a percentile     thresholdMetric, op lt, value; timeSliceTarget is the percentile
    breach of availability     ratioMetric; timeSliceTarget is the breach
    breach of others           thresholdMetric, op lt or gte, value, timeSliceTarget 1
    window, objective, period  timeSliceWindow, target, timeWindow

A slice of a percentile is good when that fraction of its durations was shorter than the value.

`metricSource.spec` is free for each source type. The type Tidegate stores the metric and the
warning there, so that an import of the exported text returns the same agreement. Some parts of an
agreement have no counterpart in OpenSLO; the export returns a note for each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from tidegate.agreement.complaints import Complaint
from tidegate.agreement.document import Agreement
from tidegate.agreement.lines import Key, line_of
from tidegate.agreement.metrics import Metric, Unit, Worse
from tidegate.agreement.openslo_durations import shorthand, shorthand_s
from tidegate.agreement.promises import LEARNED
from tidegate.agreement.quantity_words import duration_word, size_word
from tidegate.agreement.resources import Resources
from tidegate.agreement.writing import margin_word

API_VERSION = "openslo/v1"
SOURCE_TYPE = "Tidegate"
# A name is a DNS label.
_NAME_LETTERS_MAX = 63


def openslo(agreement: Agreement, lines: Mapping[Key, int]) -> tuple[str, list[Complaint]]:
    """Return the YAML of an agreement, and notes on the parts that OpenSLO cannot express.

    `lines` are the lines of the agreement's own document, for the notes.
    """
    text = yaml.safe_dump_all(
        [_slo(agreement, metric) for metric in agreement.metrics],
        sort_keys=False,
        explicit_start=True,
        # Some characters are line breaks in YAML and not in TOML. Escape them.
        allow_unicode=f"{agreement.name}{agreement.queue}{agreement.http}".isprintable(),
    )
    notes = [
        Complaint(agreement.source, line_of(lines, key), ".".join(key), reason)
        for key, reason in _unsaid(agreement)
    ]
    return text, notes


def _slo(agreement: Agreement, metric: Metric) -> dict[str, Any]:
    name = _label(f"{agreement.name}-{metric.name}")
    return {
        "apiVersion": API_VERSION,
        "kind": "SLO",
        "metadata": {"name": name, "displayName": f"{agreement.name}: {metric.name}"},
        "spec": {
            "service": _label(agreement.name),
            "indicator": {"metadata": {"name": name}, "spec": _indicator(agreement, metric)},
            "timeWindow": [{"duration": shorthand(agreement.period_s), "isRolling": True}],
            "budgetingMethod": "Timeslices",
            "objectives": [_objective(agreement, metric)],
        },
    }


def _indicator(agreement: Agreement, metric: Metric) -> dict[str, Any]:
    governs = {"http": agreement.http} if agreement.queue is None else {"queue": agreement.queue}
    says: dict[str, Any] = {"agreement": agreement.name, **governs, "metric": metric.stem}
    margin = LEARNED if metric.learned else margin_word(metric)
    says["warning"] = _scalar(metric.unit, metric.warning) if margin is None else margin
    if metric.slope_per_s is not None:
        says["slope"] = _scalar(metric.unit, metric.slope_per_s)
    for word, duration_s in (("window", agreement.window_s), ("period", agreement.period_s)):
        if _is_rounded(duration_s):
            says[word] = duration_word(duration_s)
    source = {"metricSource": {"type": SOURCE_TYPE, "spec": says}}
    if metric.unit is Unit.FRACTION:
        return {"ratioMetric": {"counter": False, "rawType": "success", "raw": source}}
    return {"thresholdMetric": source}


def _objective(agreement: Agreement, metric: Metric) -> dict[str, Any]:
    target = {
        "target": agreement.objective,
        "timeSliceTarget": metric.percentile or 1.0,
        "timeSliceWindow": shorthand(agreement.window_s),
    }
    if metric.unit is Unit.FRACTION:
        return target | {"timeSliceTarget": metric.breach}
    op = "lt" if metric.worse is Worse.LARGER else "gte"
    return {"op": op, "value": metric.breach, **target}


def _scalar(unit: Unit, value: float) -> str | float:
    """Return a quantity as an agreement document writes it."""
    match unit:
        case Unit.SECONDS:
            return duration_word(value)
        case Unit.BYTES:
            return size_word(value)
        case _:
            return value


def _is_rounded(duration_s: float) -> bool:
    return shorthand_s(shorthand(duration_s)) != duration_s


def _unsaid(agreement: Agreement) -> Iterator[tuple[Key, str]]:
    for word, duration_s in (("window", agreement.window_s), ("period", agreement.period_s)):
        if _is_rounded(duration_s):
            yield (
                (word,),
                f"OpenSLO counts in whole minutes: other tools will see {shorthand(duration_s)} "
                f"for {duration_word(duration_s)}",
            )
    if len(agreement.metrics) > 1:
        yield (
            ("objective",),
            f"OpenSLO keeps an error budget for each of the {len(agreement.metrics)} SLOs; here "
            "all promises share one",
        )
    for metric in agreement.metrics:
        if metric.name == "throughput":
            yield (
                ("metrics", metric.name, "breach"),
                "OpenSLO cannot say that low throughput counts only if the load was there",
            )
    uses, unsaid = agreement.resources, Resources()
    for word, is_said in (
        ("replicas", (uses.replicas_min, uses.replicas_max) != (1, None)),
        ("sla_delta", uses.sla_delta_per_s2 is not None),
        ("capacity", uses.capacity_per_s is not None),
        ("reconfiguration", uses.reconfiguration_s is not None),
        ("insufficient", uses.insufficient is not unsaid.insufficient),
        ("load_max", uses.load_max_per_s is not None),
        ("reduced", bool(uses.reduced)),
    ):
        if is_said:
            yield (word,), "OpenSLO has no word for what a service may use: left out"


def _label(text: str) -> str:
    """Return a DNS label that resembles a text."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_NAME_LETTERS_MAX].strip("-")
    return label or "agreement"
