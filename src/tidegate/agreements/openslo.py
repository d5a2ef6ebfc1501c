"""The conversion of one OpenSLO SLO to one promise; openslo_export.py has the mapping."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn

from tidegate.agreement.complaints import Complaint, is_number
from tidegate.agreement.lines import Key, line_of
from tidegate.agreement.metrics import (
    BY_PERCENTILE,
    PLAIN,
    MetricKind,
    Unit,
    Worse,
    percentile_name,
)
from tidegate.agreement.openslo_durations import SHORTHAND_IS, shorthand, shorthand_s
from tidegate.agreement.openslo_export import API_VERSION, SOURCE_TYPE
from tidegate.agreement.quantity_words import duration_word, plain
from tidegate.agreement.yaml_documents import YamlDocument
from tidegate.core.complaint import meant, shown
from tidegate.core.errors import InvalidValue
from tidegate.core.quantities import parse_duration_s

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


class SloReading:
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
        self.wrong: list[Complaint] = []
        self.notes: list[Complaint] = []

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
    ) -> Complaint:
        line = line_of(document.lines, key) or document.lines.get(())
        said = None if value is None else shown(value)
        return Complaint(self._source, line, ".".join(key), reason, said, instead)


class _OneSlo:
    def __init__(self, reading: SloReading, document: YamlDocument) -> None:
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
            said = meant(str(metric), _KINDS)
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
                self._refuse((*way, word), f"there is no such key{meant(word, _OURS)}", home=home)
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
                self._refuse((*at, word), f"has no place in a promise{meant(word, _OBJECTIVE)}")
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
        return f"{plain(value)}{unit or _UNITS[kind.unit]}"

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
            return duration_word(found_s)
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
