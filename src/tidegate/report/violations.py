"""Violations as the leader noticed them: begin, end, worst value and evidence.

An episode begins when a promise is breached. It ends when the promise eases or is kept again. An
episode without an end is still open at the end of the report.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.agreement.metrics import kind_of
from tidegate.agreement.violations import Turn
from tidegate.report.chart import Section, Table
from tidegate.report.figures import clock, counted, duration
from tidegate.report.glance import measured
from tidegate.report.learned import Learned, Row, grouped

_ROWS_MAX = 24
_COLUMNS = ("agreement", "at", "metric", "turn", "worst", "evidence")
_ENDS = (Turn.EASED, Turn.KEPT)


@dataclass(frozen=True)
class Episode:
    """A time in which a promise was broken."""

    agreement: str
    metric: str
    begins: datetime
    # `None` means that it is still open.
    ends: datetime | None
    worst: float | None
    evidence: str

    def lasted_s(self, until: datetime) -> float:
        """Return the length in seconds, up to `until` if it is still open."""
        return ((self.ends or until) - self.begins).total_seconds()


@dataclass(frozen=True)
class Turns:
    """The violations and warnings of one or more agreements."""

    episodes: Sequence[Episode] = ()
    warned: Sequence[datetime] = ()


def turns(learned: Learned) -> dict[str, Turns]:
    """Return violations and warnings by agreement, oldest first."""
    rows = learned.rows("violations", _COLUMNS, order=("agreement", "metric", "at"))
    return {name: _turns(found) for name, found in grouped(rows, "agreement").items()}


def together(found: dict[str, Turns], agreements: Collection[str]) -> Turns:
    """Merge the records of some agreements, oldest first."""
    chosen = [found[name] for name in agreements if name in found]
    return Turns(
        sorted((one for each in chosen for one in each.episodes), key=lambda one: one.begins),
        sorted(at for each in chosen for at in each.warned),
    )


def _turns(rows: Sequence[Row]) -> Turns:
    episodes: list[Episode] = []
    warned: list[datetime] = []
    for of_metric in grouped(rows, "metric").values():
        begun: Row | None = None
        for row in of_metric:
            if row["turn"] == Turn.WARNED:
                warned.append(row["at"])
            elif row["turn"] == Turn.BREACHED:
                if begun is not None:
                    # The end was not recorded: the leader changed in between.
                    episodes.append(_episode(begun, row))
                begun = row
            elif row["turn"] in _ENDS and begun is not None:
                episodes.append(_episode(begun, row))
                begun = None
        if begun is not None:
            episodes.append(_episode(begun, None))
    return Turns(sorted(episodes, key=lambda one: one.begins), sorted(warned))


def _episode(begins: Row, ends: Row | None) -> Episode:
    # The transition that ends an episode holds the worst value since its beginning.
    worst = ends["worst"] if ends is not None and ends["worst"] is not None else begins["worst"]
    return Episode(
        agreement=begins["agreement"],
        metric=begins["metric"],
        begins=begins["at"],
        ends=None if ends is None else ends["at"],
        worst=worst,
        evidence=begins["evidence"],
    )


def violations_table(found: Turns, until: datetime, *, of_http: bool = False) -> Table:
    """Return a table of the longest violations, oldest first."""
    longest = sorted(found.episodes, key=lambda one: -one.lasted_s(until))[:_ROWS_MAX]
    return Table(
        "Violations as the leader noticed them, oldest first; the worst that was measured.",
        ("began (UTC)", "lasted", "agreement", "promise", "worst", "evidence"),
        [
            (
                clock(one.begins),
                duration(one.lasted_s(until)) + (" so far" if one.ends is None else ""),
                one.agreement,
                one.metric.replace("_", " "),
                _worst(one, of_http=of_http),
                one.evidence,
            )
            for one in sorted(longest, key=lambda one: one.begins)
        ],
        rows_in_all=len(found.episodes),
    )


def _worst(one: Episode, *, of_http: bool) -> str:
    kind = kind_of(one.metric)
    return "–" if kind is None else measured(one.worst, kind.unit, of_http=of_http)


def violations_section(
    found: dict[str, Turns], shown: Collection[str], until: datetime
) -> Section | None:
    """Return the violations of agreements outside `shown`, or `None` if there are none.

    `shown` are the agreements whose violations other sections contain.
    """
    rest = together(found, [name for name in found if name not in shown])
    if not rest.episodes:
        return None
    return Section(
        "violations",
        "Violations",
        f"{counted(len(rest.episodes), 'violation')}, after "
        f"{counted(len(rest.warned), 'warning')}.",
        tables=[violations_table(rest, until)],
    )
