"""OpenSLO durations: whole minutes, hours, days and weeks; months vary in length."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NoReturn

import yaml

from tidegate.agreements import (
    BY_PERCENTILE,
    PLAIN,
    Metric,
    MetricKind,
    Unit,
    Worse,
    percentile_name,
)
from tidegate.agreements.document import (
    LEARNED,
    Agreement,
    AgreementInvalid,
    Resources,
    agreement_from_keys,
    format_margin,
)
from tidegate.agreements.problems import (
    DocumentProblem,
    Key,
    format_exact_duration,
    format_exact_size,
    format_plain_number,
    is_number,
    line_of,
)
from tidegate.core.errors import InvalidValue
from tidegate.core.text import parse_duration_s, redacted_value, suggestion_for

_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_SHORTHAND = re.compile(r"(?P<number>\d{1,9})(?P<unit>[mhdwMQY])")
# About two thousand years.
_MINUTES_MAX = 1_000_000_000

SHORTHAND_IS = "a whole number and one of m, h, d, w, such as 5m or 28d"


def shorthand_s(said: object) -> float | None:
    """Return the seconds of a shorthand; None if its length is not fixed.

    A bare number means minutes.
    """
    if isinstance(said, int | float) and not isinstance(said, bool):
        return float(said) * 60.0 if 0.0 < said < _MINUTES_MAX else None
    match = _SHORTHAND.fullmatch(said.strip()) if isinstance(said, str) else None
    if match is None or match["unit"] not in _SECONDS:
        return None
    return float(int(match["number"]) * _SECONDS[match["unit"]])


def shorthand(duration_s: float) -> str:
    """Return the shorthand of a duration, rounded up to whole minutes."""
    minutes = math.ceil(duration_s / 60.0)
    for unit in ("d", "h"):
        scale = _SECONDS[unit] // 60
        if minutes % scale == 0:
            return f"{minutes // scale}{unit}"
    return f"{minutes}m"


# Export of an agreement to OpenSLO v1: one SLO for each promise.
#
#     breach of a percentile     thresholdMetric, op lt, value; timeSliceTarget is the percentile
#     breach of availability     ratioMetric; timeSliceTarget is the breach
#     breach of others           thresholdMetric, op lt or gte, value, timeSliceTarget 1
#     window, objective, period  timeSliceWindow, target, timeWindow
#
# A slice of a percentile is good when that fraction of its durations was shorter than the value.
#
# `metricSource.spec` is free for each source type. The type Tidegate stores the metric and the
# warning there, so that an import of the exported text returns the same agreement. Some parts of an
# agreement have no counterpart in OpenSLO; the export returns a note for each of them.


API_VERSION = "openslo/v1"
SOURCE_TYPE = "Tidegate"
# A name is a DNS label.
_NAME_LETTERS_MAX = 63


def export_openslo(
    agreement: Agreement, lines: Mapping[Key, int]
) -> tuple[str, list[DocumentProblem]]:
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
        DocumentProblem(agreement.source, line_of(lines, key), ".".join(key), reason)
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
    margin = LEARNED if metric.learned else format_margin(metric)
    says["warning"] = _scalar(metric.unit, metric.warning) if margin is None else margin
    if metric.slope_per_s is not None:
        says["slope"] = _scalar(metric.unit, metric.slope_per_s)
    for word, duration_s in (("window", agreement.window_s), ("period", agreement.period_s)):
        if _is_rounded(duration_s):
            says[word] = format_exact_duration(duration_s)
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
            return format_exact_duration(value)
        case Unit.BYTES:
            return format_exact_size(value)
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
                f"for {format_exact_duration(duration_s)}",
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


# Import of agreements from OpenSLO v1: the SLOs of one service are the promises of one agreement.
#
# The import reads SLOs that count windows (budgetingMethod Timeslices) over a rolling period. A
# metric source of type Tidegate names the metric. Another source, such as a Prometheus query, does
# not. The caller must then name the metric and its unit (`Assumption`).
#
# The import refuses parts that would mean something else in an agreement. It leaves out parts
# without a counterpart (alert policies, labels), with a note. Problems and notes have line, key and
# reason.


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
) -> tuple[list[Agreement], list[DocumentProblem]]:
    """Return the agreements in a text, and notes on the parts that were left out.

    Raise `AgreementInvalid` if a part cannot be imported. `assumptions` are keyed by the name of an
    SLO. `governs` is ("queue" or "http", its name), and applies to SLOs that name neither.
    """
    try:
        documents = yaml_documents(text)
    except YamlRefused as refused:
        wrong = DocumentProblem(source, refused.line, "", refused.reason)
        raise AgreementInvalid([wrong]) from refused
    reading = SloReader(source, _indicators(documents), assumptions or {}, governs)
    slos = [slo for document in documents if (slo := reading.read(document)) is not None]
    if not slos and not reading.wrong:
        reading.wrong.append(DocumentProblem(source, None, "kind", "there is no SLO in it"))
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


def _grouped(slos: Sequence[Slo], source: str, wrong: list[DocumentProblem]) -> list[list[Slo]]:
    groups: dict[str, list[Slo]] = {}
    for slo in slos:
        group = groups.setdefault(slo.agreement, [])
        if group:
            first = group[0]
            for key, called in _SHARED.items():
                if slo.shared.get(key) != first.shared.get(key):
                    wrong.append(
                        DocumentProblem(
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
            wrong.append(DocumentProblem(source, slo.lines[()], "metadata.name", reason, slo.name))
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
    return agreement_from_keys(document, lines, source)


def _renamed(complaint: DocumentProblem, group: Sequence[Slo]) -> DocumentProblem:
    """Return the problem with OpenSLO's key, and without the remedy, which is written for TOML."""
    names = dict(_SHARED)
    for slo in group:
        at = f"metrics.{slo.metric}"
        names |= {at: "metadata.name", f"{at}.breach": slo.breach_called}
        names |= {f"{at}.{word}": f"{_SOURCE}.{word}" for word in ("warning", "slope")}
    return replace(complaint, key=names.get(complaint.key, complaint.key), instead="")


# The conversion of one OpenSLO SLO to one promise; openslo.py has the mapping.


_PERIOD = "28d"
_KINDS: Mapping[str, MetricKind] = {**BY_PERCENTILE, **PLAIN}
_OURS = ("agreement", "queue", "http", "metric", "warning", "slope", "window", "period")
_OBJECTIVE = (
    *("displayName", "op", "value", "target", "targetPercent"),
    *("timeSliceTarget", "timeSliceWindow"),
)
# First the operator with our meaning, then the one that differs only at the breaching point itself.
_OPERATORS = {Worse.LARGER: ("lt", "lte"), Worse.SMALLER: ("gte", "gt")}
# Larger values are integers of hundreds of digits, which are no measurements.
_NUMBER_MAX = 1e300
_UNITS = {Unit.SECONDS: "s", Unit.BYTES: "B"}


@dataclass(frozen=True)
class Assumption:
    """The metric that an SLO measures, as given by the caller of the import."""

    metric: str
    # The unit of its value, such as ms or MiB; empty means seconds or bytes.
    unit: str = ""


@dataclass
class Slo:
    """One promise, with the keys of an agreement document."""

    name: str
    agreement: str
    metric: str
    # The keys of the metric, and the keys that all promises of the agreement share.
    table: dict[str, Any]
    shared: dict[str, Any]
    # The OpenSLO key that holds the breaching point.
    breach_called: str
    lines: dict[Key, int] = field(default_factory=dict)


class _Wrong(Exception):
    """The SLO cannot be read further; the problem is already recorded."""


class SloReader:
    """Reads the SLO documents of one text, and collects problems and notes."""

    def __init__(
        self,
        source: str,
        indicators: Mapping[str, YamlDocument],
        assumptions: Mapping[str, Assumption],
        governs: tuple[str, str] | None,
    ) -> None:
        self._source = source
        self._indicators = indicators
        self._assumptions = assumptions
        self._governs = governs
        self.wrong: list[DocumentProblem] = []
        self.notes: list[DocumentProblem] = []

    def read(self, document: YamlDocument) -> Slo | None:
        """Return the promise of an SLO; None for another kind, and after a recorded problem."""
        try:
            return _OneSlo(self, document).read()
        except _Wrong:
            return None

    def assumed(self, name: str) -> Assumption | None:
        return self._assumptions.get(name)

    @property
    def governs(self) -> tuple[str, str] | None:
        return self._governs

    def indicator(self, name: str) -> YamlDocument | None:
        return self._indicators.get(name)

    def complaint(
        self, document: YamlDocument, key: Key, reason: str, value: Any = None, instead: str = ""
    ) -> DocumentProblem:
        line = line_of(document.lines, key) or document.lines.get(())
        said = None if value is None else redacted_value(value)
        return DocumentProblem(self._source, line, ".".join(key), reason, said, instead)


class _OneSlo:
    def __init__(self, reading: SloReader, document: YamlDocument) -> None:
        self._reading = reading
        self._document = document
        self._lines: dict[Key, int] = {(): document.lines[()]}

    def read(self) -> Slo | None:
        value = self._document.value
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse((), "an OpenSLO document is a mapping with apiVersion, kind and spec")
        if value.get("apiVersion") != API_VERSION:
            self._refuse(("apiVersion",), f"{API_VERSION} is read here", value.get("apiVersion"))
        kind = value.get("kind")
        if kind != "SLO":
            if kind != "SLI":
                self._leave_out(("kind",), f"an agreement has no {kind}")
            return None
        self._notice(value)
        name = self._text(("metadata", "name"))
        self._only(("spec", "budgetingMethod"), "Timeslices", "it is windows that are counted here")
        home, way = self._indicator(name)
        says, kind_of_metric = self._measured(name, home, way)
        return self._slo(name, says, *kind_of_metric)

    # ---- the metric

    def _indicator(self, name: str) -> tuple[YamlDocument, Key]:
        """Return the document that defines the metric, and the path of the definition in it."""
        reference = self._get(("spec", "indicatorRef"))
        if reference is None:
            return self._document, ("spec", "indicator", "spec")
        found = self._reading.indicator(str(reference))
        if found is None:
            self._refuse(
                ("spec", "indicatorRef"), "there is no such SLI in this file: add it", reference
            )
        return found, ("spec",)

    def _measured(
        self, name: str, home: YamlDocument, way: Key
    ) -> tuple[dict[str, Any], tuple[str, str, bool]]:
        """Return the keys of a Tidegate source, and metric, unit, and whether it is a ratio."""
        spec = _at(home.value, way)
        table = spec if isinstance(spec, dict) else {}
        is_ratio = "ratioMetric" in table
        if is_ratio == ("thresholdMetric" in table):
            self._refuse(way, "must say one of thresholdMetric and ratioMetric", home=home)
        inside: Key = (*way, "ratioMetric", "raw") if is_ratio else (*way, "thresholdMetric")
        source = _at(home.value, (*inside, "metricSource"))
        assumed = self._reading.assumed(name)
        says: dict[str, Any] = {}
        if isinstance(source, dict) and source.get("type") == SOURCE_TYPE:
            says, at = self._ours(home, (*inside, "metricSource", "spec"), source.get("spec"))
            if is_ratio:
                rate = _at(home.value, (*way, "ratioMetric", "rawType"))
                if rate != "success":
                    key = (*way, "ratioMetric", "rawType")
                    self._refuse(key, "must be success: availability is what went well", rate, home)
            metric, unit = says.get("metric"), ""
        elif assumed is None:
            key = (*way, "ratioMetric") if is_ratio else (*inside, "metricSource")
            self._refuse(
                key,
                "nobody can tell what of ours this measures: say it when importing, as in "
                f"--metric {name}={'availability' if is_ratio else 'response:ms'}",
                home=home,
                instead=f"or type: {SOURCE_TYPE} with spec.metric",
            )
        else:
            metric, unit, at = assumed.metric, assumed.unit, inside
        if not isinstance(metric, str) or metric not in _KINDS:
            said = suggestion_for(str(metric), _KINDS)
            self._refuse((*at, "metric"), f"there is no such metric{said}", metric, home)
        if is_ratio != (_KINDS[metric].unit is Unit.FRACTION):
            word = "thresholdMetric" if is_ratio else "ratioMetric"
            self._refuse(way, f"{metric} must be a {word}", home=home)
        return says, (metric, unit, is_ratio)

    def _ours(self, home: YamlDocument, way: Key, spec: Any) -> tuple[dict[str, Any], Key]:
        if not isinstance(spec, dict):
            self._refuse(way, "must say metric, and queue or http", home=home)
        for word in spec:
            if word not in _OURS:
                self._refuse(
                    (*way, word), f"there is no such key{suggestion_for(word, _OURS)}", home=home
                )
            self._lines[(word,)] = line_of(home.lines, (*way, word)) or 0
        return spec, way

    # ---- the promise

    def _slo(self, name: str, says: dict[str, Any], metric: str, unit: str, is_ratio: bool) -> Slo:
        at: Key = ("spec", "objectives", "0")
        objectives = self._get(("spec", "objectives"))
        if not isinstance(objectives, list) or len(objectives) != 1:
            count = len(objectives) if isinstance(objectives, list) else 0
            what = f"must be one objective, and there are {count}: write an SLO for each"
            self._refuse(("spec", "objectives"), what)
        if not isinstance(objectives[0], dict):
            self._refuse(at, "must be a mapping with target, timeSliceTarget and timeSliceWindow")
        for word in objectives[0]:
            if word not in _OBJECTIVE:
                self._refuse(
                    (*at, word), f"has no place in a promise{suggestion_for(word, _OBJECTIVE)}"
                )
        slice_target = self._number((*at, "timeSliceTarget"))
        shared = {
            **self._governed(says),
            "window": self._duration((*at, "timeSliceWindow"), says.get("window"), "window"),
            "objective": self._target(at),
            "period": self._period(says.get("period")),
        }
        kind = _KINDS[metric]
        breach_at = (*at, "timeSliceTarget" if is_ratio else "value")
        self._lines[("breach",)] = self._line(breach_at)
        if is_ratio:
            table: dict[str, Any] = {"breach": slice_target}
        else:
            table = {"breach": self._breach(at, kind, unit)}
        metric = self._named(metric, kind, slice_target, at, is_ratio)
        table |= {word: says[word] for word in ("warning", "slope") if word in says}
        service = self._get(("spec", "service"))
        agreement = says.get("agreement", service)
        if not isinstance(agreement, str):
            self._refuse(("spec", "service"), "must be a text: it names the agreement", agreement)
        return Slo(name, agreement, metric, table, shared, ".".join(breach_at), self._lines)

    def _named(
        self, metric: str, kind: MetricKind, slice_target: float, at: Key, is_ratio: bool
    ) -> str:
        key = (*at, "timeSliceTarget")
        if metric in BY_PERCENTILE:
            if not 0.0 < slice_target < 1.0:
                what = "is the percentile, as a fraction, of a duration"
                self._refuse(key, what, slice_target, instead="0.99")
            return percentile_name(metric, slice_target)
        if not is_ratio and slice_target != 1.0:
            what = f"of {metric} there is one value in a window, and all of it counts"
            self._refuse(key, what, slice_target, instead="1")
        return metric

    def _breach(self, at: Key, kind: MetricKind, unit: str) -> str | float:
        value = self._number((*at, "value"))
        same, close = _OPERATORS[kind.worse]
        operator = self._get((*at, "op"))
        if operator == close:
            what = f"taken as {same}: at the very point a promise is "
            what += "breached" if kind.worse is Worse.LARGER else "kept"
            self._leave_out((*at, "op"), what, operator)
        elif operator != same:
            what = f"is worse when {kind.worse.value}, so what is good must be {same}"
            self._refuse((*at, "op"), what, operator, instead=f"op: {same}")
        if kind.unit not in _UNITS:
            return value
        return f"{format_plain_number(value)}{unit or _UNITS[kind.unit]}"

    def _target(self, at: Key) -> float:
        key = (*at, "target")
        self._lines[("objective",)] = self._line(key)
        if self._get(key) is not None:
            return self._number(key)
        # Decimal keeps the written digits: 99.9 / 100 is 0.9990000000000001 in floating point.
        return float(Decimal(repr(self._number((*at, "targetPercent")))) / 100)

    def _governed(self, says: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {word: says[word] for word in ("queue", "http") if word in says}
        if not found and self._reading.governs is not None:
            found = dict([self._reading.governs])
        if not found:
            self._refuse(
                ("spec", "service"),
                "of no queue and of no http is said that it is governed: say it when importing, "
                "with --queue or --http",
            )
        return found

    def _period(self, exact: Any) -> str:
        key: Key = ("spec", "timeWindow")
        windows = self._get(key)
        if windows is None:
            self._leave_out(key, f"nobody has said one: taken as {_PERIOD}")
            return _PERIOD
        if not isinstance(windows, list) or len(windows) != 1 or not isinstance(windows[0], dict):
            self._refuse(key, "must be one time window")
        if windows[0].get("isRolling") is not True or "calendar" in windows[0]:
            what = "the period of an error budget rolls here, and knows no calendar"
            self._refuse((*key, "0"), what, instead="isRolling: true, and no calendar")
        return self._duration((*key, "0", "duration"), exact, "period")

    def _duration(self, key: Key, exact: Any, word: str) -> str:
        said = self._get(key)
        self._lines[(word,)] = self._line(key)
        found_s = shorthand_s(said)
        if found_s is None:
            self._refuse(key, f"must be {SHORTHAND_IS}; months have no one length", said)
        if exact is None:
            return format_exact_duration(found_s)
        # The Tidegate source has the exact duration, while OpenSLO counts whole minutes.
        try:
            exact_s = parse_duration_s(str(exact))
        except InvalidValue as error:
            self._refuse(key, f"{word} of the metric source: {error}")
        if shorthand_s(shorthand(exact_s)) != found_s:
            what = f"differs from the {word} of the metric source, {exact}: leave that one out"
            self._refuse(key, what, said)
        return str(exact)

    # ---- access to the document

    def _notice(self, value: dict[str, Any]) -> None:
        for key in (
            *(("metadata", word) for word in ("labels", "annotations")),
            *(("spec", word) for word in ("description", "alertPolicies")),
        ):
            if _at(value, key):
                self._leave_out(key, "has no place in an agreement: left out")

    def _get(self, key: Key) -> Any:
        return _at(self._document.value, key)

    def _text(self, key: Key) -> str:
        found = self._get(key)
        if not isinstance(found, str) or not found.strip():
            self._refuse(key, "must be a text that is not empty", found)
        return str(found)

    def _number(self, key: Key) -> float:
        found = self._get(key)
        if not is_number(found) or abs(found) > _NUMBER_MAX:
            self._refuse(key, "must be a number", found)
        return float(found)

    def _only(self, key: Key, word: str, why: str) -> None:
        found = self._get(key)
        if found != word:
            self._refuse(key, f"must be {word}: {why}", found)

    def _line(self, key: Key) -> int:
        return line_of(self._document.lines, key) or self._document.lines[()]

    def _leave_out(self, key: Key, reason: str, value: Any = None) -> None:
        self._reading.notes.append(self._reading.complaint(self._document, key, reason, value))

    def _refuse(
        self,
        key: Key,
        reason: str,
        value: Any = None,
        home: YamlDocument | None = None,
        instead: str = "",
    ) -> NoReturn:
        found = self._reading.complaint(home or self._document, key, reason, value, instead)
        self._reading.wrong.append(found)
        raise _Wrong


def _at(value: Any, key: Iterable[str]) -> Any:
    """Return the value at a path; None if the path does not exist."""
    for step in key:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return None
    return value


# YAML documents as plain values with the line of every key, read safely from untrusted input.
#
# The reader uses PyYAML's safe loader and refuses aliases, because nested aliases can expand a
# small file to any size. It limits size and depth, and refuses a repeated key, which YAML would
# overwrite silently.
#
# PyYAML and ruamel.yaml both read safely and report lines. ruamel.yaml can also keep comments,
# which an import does not need. PyYAML has type stubs and more maintainers.


TEXT_LETTERS_MAX = 1_000_000
_DEPTH_MAX = 32
# Besides its own errors, the loader leaks errors of its constructors. `!!int ""` raises IndexError,
# `!!bool maybe` raises KeyError, and `!!timestamp soon` raises AttributeError.
_NOT_YAML = (yaml.YAMLError, ValueError, OverflowError, LookupError, AttributeError, TypeError)


class YamlRefused(Exception):
    """The text is not YAML, or contains YAML that the reader refuses."""

    def __init__(self, reason: str, line: int | None) -> None:
        self.reason, self.line = reason, line
        super().__init__(reason)


@dataclass(frozen=True)
class YamlDocument:
    """One document of a YAML text."""

    value: Any
    # Keys are paths; the index of a list item is one step of a path.
    lines: dict[Key, int]


def yaml_documents(text: str) -> list[YamlDocument]:
    """Return all documents of a text; raise `YamlRefused` if it is invalid or refused."""
    if len(text) > TEXT_LETTERS_MAX:
        raise YamlRefused(f"is longer than {TEXT_LETTERS_MAX} letters, which no agreement is", 1)
    try:
        _refuse_growth(text)
        return list(_documents(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise YamlRefused(f"is not YAML: {error.problem or error.context}", line) from error
    except _NOT_YAML as error:
        raise YamlRefused(f"is not YAML: {error}".replace("\n", " "), None) from error


def _refuse_growth(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise YamlRefused("repeats a part by an alias (*): write it out", line)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEPTH_MAX:
                raise YamlRefused(f"is nested deeper than {_DEPTH_MAX}", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _documents(text: str) -> Iterator[YamlDocument]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None, "there is one, it was asked for"
            lines = dict(_lines(node, ()))
            yield YamlDocument(loader.construct_document(node), lines)
    finally:
        loader.dispose()


def _lines(node: yaml.Node, way: Key) -> Iterator[tuple[Key, int]]:
    yield way, node.start_mark.line + 1
    if isinstance(node, yaml.SequenceNode):
        for index, one in enumerate(node.value):
            yield from _lines(one, (*way, str(index)))
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode) or name.tag != "tag:yaml.org,2002:str":
                raise YamlRefused("has a key that is no text", line)
            if name.value in seen:
                raise YamlRefused(f"has the key {name.value} twice: leave one out", line)
            seen.add(name.value)
            yield from ((key, where) for key, where in _lines(value, (*way, name.value)) if key)
            # A problem refers to the line of the key, even if the value begins on the next line.
            yield (*way, name.value), line
