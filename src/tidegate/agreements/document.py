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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tidegate.agreement.complaints import Complaint, Complaints, is_number
from tidegate.agreement.contradictions import refuse_contradictions
from tidegate.agreement.lines import Key, lines_of_keys
from tidegate.agreement.metrics import Metric, Unit, Worse
from tidegate.agreement.promises import promises
from tidegate.agreement.resources import KEYS as RESOURCE_KEYS
from tidegate.agreement.resources import Insufficient, Resources, resources
from tidegate.core.errors import TidegateError
from tidegate.core.quantities import format_duration

__all__ = [
    "Agreement",
    "AgreementInvalid",
    "Insufficient",
    "Metric",
    "Resources",
    "Unit",
    "Worse",
    "agreement_of",
    "parse_agreement",
    "read_agreement",
    "read_agreements",
]

WINDOW_S = 10.0
WINDOW_S_MIN = 1.0  # nodes record one sample a second
OBJECTIVE = 0.99
PERIOD_S = 28 * 86400.0
# Far larger than any agreement written by hand, and small enough to read into memory.
FILE_BYTES_MAX = 1_000_000

_KEYS = (
    *("name", "queue", "http", "window", "objective", "period", "warning", "metrics"),
    *RESOURCE_KEYS,
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

    def __init__(self, complaints: Sequence[Complaint | str]) -> None:
        self.complaints = [str(one) for one in complaints]
        # For programs. A problem that is not about a document has neither file nor key.
        self.found = [
            one if isinstance(one, Complaint) else Complaint("", None, "", one)
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
        raise AgreementInvalid([Complaint(source, None, "", f"is not TOML: {error}")]) from error
    except RecursionError:
        deep = Complaint(source, None, "", "is nested too deeply to be an agreement")
        raise AgreementInvalid([deep]) from None
    return agreement_of(document, lines_of_keys(text), source)


def agreement_of(document: dict[str, Any], lines: Mapping[Key, int], source: str) -> Agreement:
    """Return the agreement in the keys of a parsed document, or raise `AgreementInvalid`.

    `lines` maps each key to its line, for the problems. Importers of other formats use this
    function.
    """
    complaints = Complaints(lines, source)
    agreement = _read(document, source, complaints)
    if complaints.all:
        raise AgreementInvalid(complaints.all)
    return agreement


def read_agreement(file: Path) -> Agreement:
    """Return the agreement in one TOML file, or raise `AgreementInvalid`."""
    return parse_agreement(text_of(file, "TOML"), str(file))


def text_of(file: Path, format_name: str) -> str:
    """Return the text of a file; raise `AgreementInvalid` if it is unreadable or not UTF-8."""
    try:
        # Accept the byte order mark that some Windows editors write.
        return bytes_of(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        wrong = f"is not {format_name}: {error}"
    raise AgreementInvalid([Complaint(str(file), None, "", wrong)])


def bytes_of(file: Path) -> bytes:
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
    raise AgreementInvalid([Complaint(str(file), None, "", wrong)])


def _no_toml(source: str, text: str, error: tomllib.TOMLDecodeError) -> Complaint:
    found = re.search(r"at line (\d+)", str(error))
    line = int(found[1]) if found else None
    return Complaint(source, line, "", f"is not TOML: {error}")


def read_agreements(places: Sequence[Path]) -> list[Agreement]:
    """Return the agreements in files, and in every *.toml of folders, sorted by name.

    Raise `AgreementInvalid` with the problems of all files. Two agreements of one name are a
    problem.
    """
    complaints: list[Complaint] = []
    found: dict[str, Agreement] = {}
    for file in _files(places, complaints):
        try:
            agreement = read_agreement(file)
        except AgreementInvalid as error:
            complaints += error.found
        else:
            if agreement.name in found:
                same = f"{found[agreement.name].source} has the same name: rename one of them"
                complaints.append(Complaint(str(file), None, "name", same, repr(agreement.name)))
            found[agreement.name] = agreement
    if complaints:
        raise AgreementInvalid(complaints)
    return [found[name] for name in sorted(found)]


def _files(places: Sequence[Path], complaints: list[Complaint]) -> list[Path]:
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(place.glob("*.toml"))
            files += inside
            if not inside:
                none = "there is no agreement (*.toml) in this folder"
                complaints.append(Complaint(str(place), None, "", none))
        elif place.exists():
            files.append(place)
        else:
            gone = "there is no such file or folder"
            complaints.append(Complaint(str(place), None, "", gone))
    # A file that is given together with its folder is read only once.
    return list(dict.fromkeys(files))


def _read(document: dict[str, Any], source: str, complaints: Complaints) -> Agreement:
    complaints.refuse_unknown((), document, _KEYS)
    if "name" not in document:
        complaints.add(("name",), "must be given: it is what reports call the agreement")
    if ("queue" in document) == ("http" in document):
        which = "both are set" if "queue" in document else "neither is set"
        complaints.add(("queue",), f"of queue and http {which}: say which one it governs")
    agreement = Agreement(
        name=_text(document, "name", complaints) or "",
        queue=_text(document, "queue", complaints),
        http=_text(document, "http", complaints),
        metrics=promises(document, complaints),
        window_s=_duration_s(document, "window", WINDOW_S, complaints),
        objective=_objective(document, complaints),
        period_s=_duration_s(document, "period", PERIOD_S, complaints),
        source=source,
        resources=resources(document, complaints),
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


def _text(document: dict[str, Any], key: str, complaints: Complaints) -> str | None:
    return complaints.text((key,), document[key]) if key in document else None


def _duration_s(
    document: dict[str, Any], key: str, default_s: float, complaints: Complaints
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


def _objective(document: dict[str, Any], complaints: Complaints) -> float:
    value = document.get("objective", OBJECTIVE)
    if is_number(value) and 0.0 < value < 1.0:
        return float(value)
    more = ": an objective of 1 leaves no budget at all, try 0.999" if value == 1 else ""
    complaints.add(("objective",), f"must be a number between 0 and 1{more}", value)
    return OBJECTIVE
