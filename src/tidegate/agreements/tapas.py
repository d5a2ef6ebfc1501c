"""Import of an agreement from TAPAS XML: the parameters of the report with their points.

    <HostingSLA application="shop">
        <Cluster minMembers="1" maxMembers="4" reconfigurationTime="1s"/>
        <ResponseTime percentile="99" breachingPoint="6s" warningPoint="4.8s"/>
        <Throughput breachingPoint="100"/>
        <FreeMemory breachingPoint="64MB" warningMargin="25%"/>
    </HostingSLA>

The TAPAS report (§2.1, §2.2.1) names parameters and points but prints no schema, so the element
names are ours. The import reports each part that has no place in an agreement, with its line. The
code for TOML checks everything else.

A warning point is in the metric's unit, and a margin is a percentage of the breaching point. TOML
distinguishes them by the percent sign. In XML each value must match the name of its attribute.
Otherwise `warningMargin="1s"` would warn at 1 s, and not 1 s before the breach.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any
from xml.parsers import expat

from tidegate.agreements.document import LEARNED, Agreement, AgreementInvalid, agreement_from_keys
from tidegate.agreements.problems import DocumentProblem, Key
from tidegate.core.text import suggestion_for

# TAPAS promises every request. A worst case can be measured but not promised, so the default is
# p99.
_PERCENTILE = "99"
_PERCENT = re.compile(r"[0-9]{1,2}(?:\.[0-9]{0,5})?")

_ROOT = "HostingSLA"
_ROOT_KEYS = {
    "name": "name",
    "application": "http",
    "queue": "queue",
    "window": "window",
    "objective": "objective",
    "period": "period",
}
_CLUSTER_KEYS = {
    "minMembers": "min",
    "maxMembers": "max",
    "slaDelta": "sla_delta",
    "memberCapacity": "capacity",
    "reconfigurationTime": "reconfiguration",
    "insufficientResources": "insufficient",
    "loadMax": "load_max",
}
_METRICS = {
    "ResponseTime": "response",
    "WaitingTime": "wait",
    "ServiceTime": "service",
    "Throughput": "throughput",
    "FreeMemory": "free_memory",
    "OldestAge": "oldest_age",
    "Availability": "availability",
}
_BY_PERCENTILE = ("ResponseTime", "WaitingTime", "ServiceTime")
_METRIC_KEYS = {
    "breachingPoint": "breach",
    "warningPoint": "warning",
    "warningMargin": "warning",
    "slope": "slope",
}
_NUMBERS = {"objective", "min", "max", "sla_delta", "capacity", "load_max"}
_NUMERIC_METRICS = {"throughput", "availability"}


def parse_tapas(content: bytes, source: str) -> tuple[Agreement, list[DocumentProblem]]:
    """Return the agreement in an XML document, and notes on parts that were interpreted.

    Raise `AgreementInvalid` if the document cannot be imported.
    """
    try:
        root = element_tree(content)
    except XmlRefused as refused:
        wrong = DocumentProblem(source, refused.line, "", refused.reason)
        raise AgreementInvalid([wrong]) from refused
    reading = _Reading(source)
    reading.root(root)
    if reading.wrong:
        raise AgreementInvalid(reading.wrong)
    try:
        return agreement_from_keys(reading.document, reading.lines, source), reading.notes
    except AgreementInvalid as invalid:
        # Name the XML attribute. Drop the remedy, which is written for TOML.
        raise AgreementInvalid(
            [
                replace(one, key=reading.names.get(one.key, one.key), instead="")
                for one in invalid.found
            ]
        ) from None


class _Reading:
    """Collects the keys of an agreement from XML elements, with the line of each key."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.document: dict[str, Any] = {}
        self.lines: dict[Key, int] = {}
        # Maps a key of the agreement document to its name in XML.
        self.names: dict[str, str] = {}
        self.wrong: list[DocumentProblem] = []
        self.notes: list[DocumentProblem] = []

    def root(self, root: Element) -> None:
        if root.name != _ROOT:
            self._refuse(root, "", f"an agreement is a <{_ROOT}>, and this is a <{root.name}>")
            return
        self._attributes(root, _ROOT_KEYS, self.document, ())
        if "name" not in self.document and (called := root.attributes.get("application")):
            self.document["name"] = called
        metrics: dict[str, Any] = {}
        is_clustered = False
        for child in root.children:
            if child.name == "Cluster":
                if is_clustered:
                    self._refuse(child, "", "stands there twice: leave one out")
                is_clustered = True
                self._cluster(child)
            elif child.name in _METRICS:
                self._metric(child, metrics)
            else:
                words = [*_METRICS, "Cluster"]
                self._refuse(
                    child, "", f"there is no such element{suggestion_for(child.name, words)}"
                )
        self._refuse_content(root, children=True)
        self.document["metrics"] = metrics
        self.lines.setdefault(("metrics",), root.line)
        for key in ("name", "queue", "period"):
            self.lines.setdefault((key,), root.line)

    def _cluster(self, element: Element) -> None:
        found: dict[str, Any] = {}
        self._attributes(element, _CLUSTER_KEYS, found, ())
        bounds = {key: found.pop(key) for key in ("min", "max") if key in found}
        self._refuse_content(element)
        if bounds:
            self.document["replicas"] = bounds
            self.lines[("replicas",)] = element.line
            self.names |= {
                "replicas.min": "Cluster.minMembers",
                "replicas.max": "Cluster.maxMembers",
            }
        self.document |= found

    def _metric(self, element: Element, metrics: dict[str, Any]) -> None:
        stem = _METRICS[element.name]
        attributes = dict(element.attributes)
        name = stem
        if element.name in _BY_PERCENTILE:
            if "percentile" not in attributes:
                self.notes.append(
                    self._complaint(
                        element,
                        "percentile",
                        "no worst case can be promised: taken as the 99th percentile",
                        f'percentile="{_PERCENTILE}"',
                    )
                )
            digits = attributes.pop("percentile", _PERCENTILE).strip()
            name = f"{stem}_p{self._digits(element, digits)}"
        if {"warningPoint", "warningMargin"} <= attributes.keys():
            self._refuse(element, "warningMargin", "says the same as warningPoint: leave one out")
        self._refuse_crossed(element, attributes)
        if name in metrics:
            self._refuse(element, "", f"{name} is promised twice: leave one out")
        table: dict[str, Any] = {}
        key = ("metrics", name)
        self.lines[key] = element.line
        self.names[".".join(key)] = element.name
        self._attributes(
            Element(element.name, attributes, element.line),
            _METRIC_KEYS,
            table,
            key,
            numeric=stem in _NUMERIC_METRICS,
        )
        self._refuse_content(element)
        metrics[name] = table

    def _refuse_crossed(self, element: Element, attributes: dict[str, str]) -> None:
        """Report a margin without a percent sign, and a point with one."""
        margin, point = (
            attributes.get(one, "").strip() for one in ("warningMargin", "warningPoint")
        )
        if margin and margin != LEARNED and not margin.endswith("%"):
            self._refuse(
                element,
                "warningMargin",
                "is no part of the breaching point: say it in percent, or say the warningPoint",
                'warningMargin="20%"',
            )
        if point.endswith("%"):
            self._refuse(
                element,
                "warningPoint",
                "is a part of the breaching point, and no point: a warningMargin is in percent",
            )

    def _digits(self, element: Element, said: str) -> str:
        """Return the digits of a percentile (99.9 gives 999); 99 after a reported problem."""
        # Allow digits and a point only. Python also reads 9e1 as a number, which is hardly
        # intended.
        if _PERCENT.fullmatch(said) is None or not 0.0 < float(said) < 100.0:
            self._refuse(
                element,
                "percentile",
                "must lie above 0 and below 100",
                f'percentile="{_PERCENTILE}"',
                said,
            )
            return _PERCENTILE
        whole, _, rest = said.partition(".")
        return whole.zfill(2) + rest.rstrip("0")

    def _attributes(
        self,
        element: Element,
        known: dict[str, str],
        table: dict[str, Any],
        key: Key,
        *,
        numeric: bool = False,
    ) -> None:
        for attribute, said in element.attributes.items():
            if attribute not in known:
                self._refuse(
                    element,
                    attribute,
                    f"there is no such attribute{suggestion_for(attribute, known)}",
                )
                continue
            name = known[attribute]
            self.lines[(*key, name)] = element.line
            self.names[".".join((*key, name))] = f"{element.name}.{attribute}"
            is_number = name in _NUMBERS or (numeric and not said.strip().endswith("%"))
            table[name] = _number(said) if is_number else said.strip()

    def _refuse_content(self, element: Element, *, children: bool = False) -> None:
        if element.text.strip():
            self._refuse(element, "", "says something between its tags: attributes say it all")
        if element.children and not children:
            child = element.children[0]
            self._refuse(child, "", f"stands in a <{element.name}>, which holds no elements")

    def _refuse(
        self, element: Element, attribute: str, reason: str, instead: str = "", value: str = ""
    ) -> None:
        self.wrong.append(self._complaint(element, attribute, reason, instead, value))

    def _complaint(
        self, element: Element, attribute: str, reason: str, instead: str = "", value: str = ""
    ) -> DocumentProblem:
        key = f"{element.name}.{attribute}" if attribute else element.name
        said = (
            repr(value or element.attributes[attribute])
            if (value or attribute in element.attributes)
            else None
        )
        return DocumentProblem(self._source, element.line, key, reason, said, instead)


def _number(said: str) -> float | int | str:
    """Return a text as a number if it looks like one; the agreement's checks handle other texts."""
    text = said.strip()
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


# XML elements with their lines, read safely from untrusted input.
#
# The parser is expat of the standard library. A DOCTYPE is refused: without one there are no
# entities to expand ("billion laughs") and no external references to fetch. Size and depth are
# limited.


# Far larger than any agreement written by hand, and small enough to hold in memory.
TEXT_BYTES_MAX = 1_000_000
_DEPTH_MAX = 16


@dataclass
class Element:
    """One element: its line, attributes, children and text."""

    name: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    text: str = ""


class XmlRefused(Exception):
    """The content is not XML, or contains XML that the reader refuses."""

    def __init__(self, reason: str, line: int | None) -> None:
        self.reason, self.line = reason, line
        super().__init__(reason)


def element_tree(content: bytes) -> Element:
    """Return the root element of a document; raise `XmlRefused` if it is invalid or refused."""
    if len(content) > TEXT_BYTES_MAX:
        raise XmlRefused(f"is larger than {TEXT_BYTES_MAX} bytes, which no agreement is", 1)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    top = Element("", {}, 0)
    stack = [top]

    def begin(name: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if len(stack) > _DEPTH_MAX:
            raise XmlRefused(f"is nested deeper than {_DEPTH_MAX} elements", line)
        element = Element(name, attributes, line)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_name: str) -> None:
        stack.pop()

    def characters(text: str) -> None:
        stack[-1].text += text

    def refuse(*_said: Any) -> None:
        raise XmlRefused(
            "has a DOCTYPE, which may define entities without end: leave it out",
            parser.CurrentLineNumber,
        )

    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise XmlRefused(f"is not XML: {expat.ErrorString(error.code)}", error.lineno) from error
    except (LookupError, ValueError) as error:
        raise XmlRefused(f"is not XML: {error}", None) from error
    return top.children[0]
