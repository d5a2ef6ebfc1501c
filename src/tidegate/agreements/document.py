"""An agreement as a TOML document: one document per service.

    name = "orders"
    queue = "orders.*"              # the queues it governs; or http = "shop"
    window = "10s"                  # length of one evaluation window
    objective = 0.99                # fraction of the windows that must be met
    period = "28d"                  # period of the error budget

    [metrics.wait_p99]
    breach = "6s"
    warning = "20%"                 # margin before the breach: 4.8s. Or a value, or "learned"
    slope = "500ms"                 # fastest worsening of the metric per second

    [metrics.throughput]
    breach = 100                    # messages per second

`resources` reads the keys that limit what the service may use, such as `replicas`.

The reader reports all problems of a document at once. Each problem has a file, a line, a key and a
reason. It also refuses promises that contradict each other, because such an agreement would
otherwise fail only when the first warning comes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from tidegate.agreements import (
    Metric,
    MetricKind,
    Unit,
    Worse,
    metric_kind,
    metric_names,
    refused_percentile,
    warning_point,
)
from tidegate.agreements.problems import (
    DocumentProblem,
    DocumentProblems,
    format_exact_duration,
    format_exact_size,
    format_plain_number,
    is_number,
    lines_of_keys,
    refuse_contradictions,
)
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.text import format_duration, suggestion_for
from tidegate.core.topology import REPLICAS_MAX, Range, Scaling

if TYPE_CHECKING:
    from tidegate.agreements.problems import Key


# The resources a service may use, and what to do when they do not suffice.
#
#     replicas = { min = 1, max = 4 }
#     sla_delta = 4                   # growth of the load to keep up with, per second per second
#     capacity = 120                  # of one replica, per second; used until one is measured
#     reconfiguration = "30s"         # time from a warning until added capacity helps
#     insufficient = "reduce"         # or "refuse", the default
#     load_max = 60                   # load per second above which a breach does not count
#     reduced = "…"                   # why an offer promises less than was asked for
#
# The bounds are those of the scaling settings (core/topology.py).


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


def parse_resources(document: dict[str, Any], complaints: DocumentProblems) -> Resources:
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


def _replicas(document: dict[str, Any], complaints: DocumentProblems) -> tuple[int, int | None]:
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


def _insufficient(document: dict[str, Any], complaints: DocumentProblems) -> Insufficient:
    value = document.get("insufficient", Insufficient.REFUSE.value)
    words = [one.value for one in Insufficient]
    if value in words:
        return Insufficient(value)
    close = (
        suggestion_for(value, words)
        if isinstance(value, str)
        else f"; there are {', '.join(words)}"
    )
    complaints.add(
        ("insufficient",),
        f"says what to do when resources do not suffice, and there is no such word{close}",
        value,
    )
    return Insufficient.REFUSE


WINDOW_S = 10.0
WINDOW_S_MIN = 1.0  # nodes record one sample a second
OBJECTIVE = 0.99
PERIOD_S = 28 * 86400.0
# Far larger than any agreement written by hand, and small enough to read into memory.
FILE_BYTES_MAX = 1_000_000

_DOCUMENT_KEYS = (
    *("name", "queue", "http", "window", "objective", "period", "warning", "metrics"),
    *KEYS,
)
# A line feed in a queue name matches like any other character.
_WILD = {"*": "(?s:.*)", "?": "(?s:.)"}


@dataclass(frozen=True)
class Agreement:
    """The promises of one service."""

    name: str
    # Exactly one of the two is set. A queue name may be a pattern with * and ?.
    queue: str | None
    http: str | None
    metrics: tuple[Metric, ...]
    window_s: float
    objective: float
    period_s: float
    # The file or other origin, for messages.
    source: str = ""
    resources: Resources = field(default=Resources())

    @property
    def windows_in_period(self) -> float:
        """The number of windows that share the error budget; may be fractional."""
        return self.period_s / self.window_s

    def governs_queue(self, queue: str) -> bool:
        """Return whether the agreement applies to the queue of that name."""
        if self.queue is None:
            return False
        pattern = "".join(_WILD.get(letter, re.escape(letter)) for letter in self.queue)
        return re.fullmatch(pattern, queue) is not None


class AgreementInvalid(TidegateError):
    """An agreement cannot be used; each line of the text gives a place, a key and a reason."""

    name: ClassVar[str] = "AGREEMENT_INVALID"

    def __init__(self, complaints: Sequence[DocumentProblem | str]) -> None:
        self.complaints = [str(one) for one in complaints]
        # For programs. A problem that is not about a document has neither file nor key.
        self.found = [
            one if isinstance(one, DocumentProblem) else DocumentProblem("", None, "", one)
            for one in complaints
        ]
        super().__init__("\n".join(self.complaints))


def parse_agreement(text: str, source: str) -> Agreement:
    """Return the agreement in a TOML text, or raise `AgreementInvalid`.

    `source` names the text in the problems.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AgreementInvalid([_no_toml(source, text, error)]) from error
    except ValueError as error:
        # For example, an integer has more digits than Python converts.
        raise AgreementInvalid(
            [DocumentProblem(source, None, "", f"is not TOML: {error}")]
        ) from error
    except RecursionError:
        deep = DocumentProblem(source, None, "", "is nested too deeply to be an agreement")
        raise AgreementInvalid([deep]) from None
    return agreement_from_keys(document, lines_of_keys(text), source)


def agreement_from_keys(
    document: dict[str, Any], lines: Mapping[Key, int], source: str
) -> Agreement:
    """Return the agreement in the keys of a parsed document, or raise `AgreementInvalid`.

    `lines` maps each key to its line, for the problems. Importers of other formats use this
    function.
    """
    complaints = DocumentProblems(lines, source)
    agreement = _read(document, source, complaints)
    if complaints.all:
        raise AgreementInvalid(complaints.all)
    return agreement


def read_agreement(file: Path) -> Agreement:
    """Return the agreement in one TOML file, or raise `AgreementInvalid`."""
    return parse_agreement(read_text(file, "TOML"), str(file))


def read_text(file: Path, format_name: str) -> str:
    """Return the text of a file; raise `AgreementInvalid` if it is unreadable or not UTF-8."""
    try:
        # Accept the byte order mark that some Windows editors write.
        return read_bytes(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"is not {format_name}: {error}"
    raise AgreementInvalid([DocumentProblem(str(file), None, "", wrong)])


def read_bytes(file: Path) -> bytes:
    """Return the content of a file; raise `AgreementInvalid` if it is unreadable or too large.

    The limit also stops the read of an endless file, such as a device.
    """
    try:
        with file.open("rb") as source:
            content = source.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    else:
        if len(content) <= FILE_BYTES_MAX:
            return content
        wrong = f"is larger than {FILE_BYTES_MAX} bytes, which no agreement is"
    raise AgreementInvalid([DocumentProblem(str(file), None, "", wrong)])


def _no_toml(source: str, text: str, error: tomllib.TOMLDecodeError) -> DocumentProblem:
    found = re.search(r"at line (\d+)", str(error))
    line = int(found[1]) if found else None
    return DocumentProblem(source, line, "", f"is not TOML: {error}")


def read_agreements(places: Sequence[Path]) -> list[Agreement]:
    """Return the agreements in files, and in every *.toml of folders, sorted by name.

    Raise `AgreementInvalid` with the problems of all files. Two agreements of one name are a
    problem.
    """
    complaints: list[DocumentProblem] = []
    found: dict[str, Agreement] = {}
    for file in _files(places, complaints):
        try:
            agreement = read_agreement(file)
        except AgreementInvalid as error:
            complaints += error.found
        else:
            if agreement.name in found:
                same = f"{found[agreement.name].source} has the same name: rename one of them"
                complaints.append(
                    DocumentProblem(str(file), None, "name", same, repr(agreement.name))
                )
            found[agreement.name] = agreement
    if complaints:
        raise AgreementInvalid(complaints)
    return [found[name] for name in sorted(found)]


def _files(places: Sequence[Path], complaints: list[DocumentProblem]) -> list[Path]:
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(place.glob("*.toml"))
            files += inside
            if not inside:
                none = "there is no agreement (*.toml) in this folder"
                complaints.append(DocumentProblem(str(place), None, "", none))
        elif place.exists():
            files.append(place)
        else:
            gone = "there is no such file or folder"
            complaints.append(DocumentProblem(str(place), None, "", gone))
    # A file that is given together with its folder is read only once.
    return list(dict.fromkeys(files))


def _read(document: dict[str, Any], source: str, complaints: DocumentProblems) -> Agreement:
    complaints.refuse_unknown((), document, _DOCUMENT_KEYS)
    if "name" not in document:
        complaints.add(("name",), "must be given: it is what reports call the agreement")
    if ("queue" in document) == ("http" in document):
        which = "both are set" if "queue" in document else "neither is set"
        complaints.add(("queue",), f"of queue and http {which}: say which one it governs")
    agreement = Agreement(
        name=_text(document, "name", complaints) or "",
        queue=_text(document, "queue", complaints),
        http=_text(document, "http", complaints),
        metrics=parse_promises(document, complaints),
        window_s=_duration_s(document, "window", WINDOW_S, complaints),
        objective=_objective(document, complaints),
        period_s=_duration_s(document, "period", PERIOD_S, complaints),
        source=source,
        resources=parse_resources(document, complaints),
    )
    refuse_contradictions(agreement.metrics, agreement.resources, complaints)
    # Below one window, the first breach would overdraw the budget. The tolerance is for rounding.
    if (1.0 - agreement.objective) * agreement.windows_in_period < 1.0 - 1e-9:
        complaints.add(
            ("period",),
            f"an objective of {agreement.objective:g} over {format_duration(agreement.period_s)} "
            f"leaves less than one window of {format_duration(agreement.window_s)} to breach: "
            "lengthen the period or lower the objective",
        )
    return agreement


def _text(document: dict[str, Any], key: str, complaints: DocumentProblems) -> str | None:
    return complaints.text((key,), document[key]) if key in document else None


def _duration_s(
    document: dict[str, Any], key: str, default_s: float, complaints: DocumentProblems
) -> float:
    if key not in document:
        return default_s
    duration_s = complaints.measure((key,), Unit.SECONDS, document[key])
    if duration_s is None:
        return default_s
    if duration_s < WINDOW_S_MIN:
        what = "must be 1s or longer: nodes record once a second"
        complaints.add((key,), what, document[key])
        return default_s
    return duration_s


def _objective(document: dict[str, Any], complaints: DocumentProblems) -> float:
    value = document.get("objective", OBJECTIVE)
    if is_number(value) and 0.0 < value < 1.0:
        return float(value)
    more = ": an objective of 1 leaves no budget at all, try 0.999" if value == 1 else ""
    complaints.add(("objective",), f"must be a number between 0 and 1{more}", value)
    return OBJECTIVE


# The [metrics.*] tables of an agreement: promises with breaching and warning points.


MARGIN = 0.2  # TAPAS: 6 s and 20 % give 4.8 s
LEARNED = "learned"

_PROMISE_KEYS = ("breach", "warning", "slope")
_WARNING_IS = 'a margin such as "20%", or "learned"'


def parse_promises(document: dict[str, Any], complaints: DocumentProblems) -> tuple[Metric, ...]:
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
    name: str, table: Any, default: Any, on_http: bool, complaints: DocumentProblems
) -> Metric | None:
    key = ("metrics", name)
    kind = metric_kind(name)
    if kind is None:
        what = refused_percentile(name) or (
            f"there is no such metric{suggestion_for(name, metric_names(on_http=on_http))}"
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
    complaints.refuse_unknown(key, table, _PROMISE_KEYS)
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
    key: Key, kind: MetricKind, breach: float, said: Any, complaints: DocumentProblems
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


def _margin(key: Key, said: Any, complaints: DocumentProblems) -> float | None:
    if isinstance(said, str) and said.strip().endswith("%"):
        try:
            margin = float(said.strip().removesuffix("%")) / 100.0
        except ValueError:
            margin = 0.0
        if 0.0 < margin < 1.0:
            return margin
    complaints.add(key, f"must be {_WARNING_IS}; a margin lies between 0% and 100%", said)
    return None


# The scaling settings that a queue takes from its agreement.
#
#     replicas       the agreement's bounds, if the queue's own bounds are the default, 1 to 1
#     sla_delta      the agreement's growth of load, if the queue has none
#
# A setting of the queue itself takes precedence: it is more specific and newer. The document's
# `capacity` is not among these settings, because it is an estimate and not a promise
# (docs/decisions/0008-whose-word-counts.md).


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
    text = read_text(file, "TOML")
    return agreement_for(text, queue, str(file)), text


def with_agreed_scaling(scaling: Scaling, agreement: Agreement) -> Scaling:
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


# An agreement as TOML, so that parsing the text returns an equal agreement.
#
# Only values that differ from their defaults are written. A warning is written as a margin if a
# whole percentage gives it exactly. Comments and the order of keys of an input document are not
# kept.


def format_agreement(agreement: Agreement) -> str:
    """Return the TOML document of an agreement."""
    return "\n".join([*_head(agreement), *_resources(agreement.resources), *_metrics(agreement)])


def toml_quoted(text: str) -> str:
    """Return a text as a quoted TOML string."""
    # A JSON string is a valid basic string of TOML, except for the character DEL.
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007F")


def format_metric_value(unit: Unit, value: float) -> str:
    """Return a quantity as a TOML value."""
    match unit:
        case Unit.SECONDS:
            return toml_quoted(format_exact_duration(value))
        case Unit.BYTES:
            return toml_quoted(format_exact_size(value))
        case _:
            return format_plain_number(value)


def format_margin(metric: Metric) -> str | None:
    """Return the margin of a warning in whole percent; None if no whole percentage gives it."""
    kind = metric_kind(metric.name)
    assert kind is not None, "a metric has a kind"
    for percent in (round(100 * MARGIN), *range(1, 100)):
        if warning_point(kind, metric.breach, percent / 100.0) == metric.warning:
            return f"{percent}%"
    return None


def _head(agreement: Agreement) -> Iterator[str]:
    yield f"name = {toml_quoted(agreement.name)}"
    if agreement.queue is not None:
        yield f"queue = {toml_quoted(agreement.queue)}"
    if agreement.http is not None:
        yield f"http = {toml_quoted(agreement.http)}"
    if agreement.window_s != WINDOW_S:
        yield f"window = {format_metric_value(Unit.SECONDS, agreement.window_s)}"
    if agreement.objective != OBJECTIVE:
        yield f"objective = {format_plain_number(agreement.objective)}"
    if agreement.period_s != PERIOD_S:
        yield f"period = {format_metric_value(Unit.SECONDS, agreement.period_s)}"


def _resources(uses: Resources) -> Iterator[str]:
    if uses.replicas_max is not None:
        yield f"replicas = {{ min = {uses.replicas_min}, max = {uses.replicas_max} }}"
    elif uses.replicas_min != 1:
        yield f"replicas = {{ min = {uses.replicas_min} }}"
    if uses.sla_delta_per_s2 is not None:
        yield f"sla_delta = {format_plain_number(uses.sla_delta_per_s2)}"
    if uses.capacity_per_s is not None:
        yield f"capacity = {format_plain_number(uses.capacity_per_s)}"
    if uses.reconfiguration_s is not None:
        yield f"reconfiguration = {format_metric_value(Unit.SECONDS, uses.reconfiguration_s)}"
    if uses.insufficient is not Insufficient.REFUSE:
        yield f"insufficient = {toml_quoted(uses.insufficient)}"
    if uses.load_max_per_s is not None:
        yield f"load_max = {format_plain_number(uses.load_max_per_s)}"
    if uses.reduced:
        yield f"reduced = {toml_quoted(uses.reduced)}"


def _metrics(agreement: Agreement) -> Iterator[str]:
    for metric in agreement.metrics:
        yield f"\n[metrics.{metric.name}]"
        yield f"breach = {format_metric_value(metric.unit, metric.breach)}"
        if metric.learned:
            yield f"warning = {toml_quoted(LEARNED)}"
        elif (margin := format_margin(metric)) is None:
            yield f"warning = {format_metric_value(metric.unit, metric.warning)}"
        elif margin != f"{MARGIN:.0%}":
            yield f"warning = {toml_quoted(margin)}"
        if metric.slope_per_s is not None:
            yield f"slope = {format_metric_value(metric.unit, metric.slope_per_s)}"
    yield ""
