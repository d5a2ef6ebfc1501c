"""Violations as the leader noticed them: begin, end, worst value and evidence.

An episode begins when a promise is breached. It ends when the promise eases or is kept again. An
episode without an end is still open at the end of the report.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.agreements import Metric, Unit, Worse, metric_kind
from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import SEVERITY, Verdict
from tidegate.agreements.ledger import Transition
from tidegate.report.charts import (
    Card,
    ReportSection,
    ReportTable,
    StatusLight,
    clock,
    count,
    counted,
    duration,
    from_seconds,
    number,
    percent,
    rate,
    with_unit,
)
from tidegate.telemetry.learned import LearnedModels, Row, grouped

_ROWS_MAX = 24
_VIOLATION_COLUMNS = ("agreement", "at", "metric", "turn", "worst", "evidence")
_ENDS = (Transition.EASED, Transition.KEPT)


@dataclass(frozen=True)
class ViolationEpisode:
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
class ViolationRecord:
    """The violations and warnings of one or more agreements."""

    episodes: Sequence[ViolationEpisode] = ()
    warned: Sequence[datetime] = ()


def violation_records(learned: LearnedModels) -> dict[str, ViolationRecord]:
    """Return violations and warnings by agreement, oldest first."""
    rows = learned.rows("violations", _VIOLATION_COLUMNS, order=("agreement", "metric", "at"))
    return {name: _turns(found) for name, found in grouped(rows, "agreement").items()}


def merge_violations(
    found: dict[str, ViolationRecord], agreements: Collection[str]
) -> ViolationRecord:
    """Merge the records of some agreements, oldest first."""
    chosen = [found[name] for name in agreements if name in found]
    return ViolationRecord(
        sorted((one for each in chosen for one in each.episodes), key=lambda one: one.begins),
        sorted(at for each in chosen for at in each.warned),
    )


def _turns(rows: Sequence[Row]) -> ViolationRecord:
    episodes: list[ViolationEpisode] = []
    warned: list[datetime] = []
    for of_metric in grouped(rows, "metric").values():
        begun: Row | None = None
        for row in of_metric:
            if row["turn"] == Transition.WARNED:
                warned.append(row["at"])
            elif row["turn"] == Transition.BREACHED:
                if begun is not None:
                    # The end was not recorded: the leader changed in between.
                    episodes.append(_episode(begun, row))
                begun = row
            elif row["turn"] in _ENDS and begun is not None:
                episodes.append(_episode(begun, row))
                begun = None
        if begun is not None:
            episodes.append(_episode(begun, None))
    return ViolationRecord(sorted(episodes, key=lambda one: one.begins), sorted(warned))


def _episode(begins: Row, ends: Row | None) -> ViolationEpisode:
    # The transition that ends an episode holds the worst value since its beginning.
    worst = ends["worst"] if ends is not None and ends["worst"] is not None else begins["worst"]
    return ViolationEpisode(
        agreement=begins["agreement"],
        metric=begins["metric"],
        begins=begins["at"],
        ends=None if ends is None else ends["at"],
        worst=worst,
        evidence=begins["evidence"],
    )


def violations_table(
    found: ViolationRecord, until: datetime, *, of_http: bool = False
) -> ReportTable:
    """Return a table of the longest violations, oldest first."""
    longest = sorted(found.episodes, key=lambda one: -one.lasted_s(until))[:_ROWS_MAX]
    return ReportTable(
        "Violations as the leader noticed them, oldest first; the worst that was measured.",
        ("began (UTC)", "lasted", "agreement", "promise", "worst", "evidence"),
        [
            (
                clock(one.begins),
                duration(one.lasted_s(until)) + (" so far" if one.ends is None else ""),
                one.agreement,
                one.metric.replace("_", " "),
                _worst_text(one, of_http=of_http),
                one.evidence,
            )
            for one in sorted(longest, key=lambda one: one.begins)
        ],
        rows_in_all=len(found.episodes),
    )


def _worst_text(one: ViolationEpisode, *, of_http: bool) -> str:
    kind = metric_kind(one.metric)
    return "–" if kind is None else format_metric(one.worst, kind.unit, of_http=of_http)


def violations_section(
    found: dict[str, ViolationRecord], shown: Collection[str], until: datetime
) -> ReportSection | None:
    """Return the violations of agreements outside `shown`, or `None` if there are none.

    `shown` are the agreements whose violations other sections contain.
    """
    rest = merge_violations(found, [name for name in found if name not in shown])
    if not rest.episodes:
        return None
    return ReportSection(
        "violations",
        "Violations",
        f"{counted(len(rest.episodes), 'violation')}, after "
        f"{counted(len(rest.warned), 'warning')}.",
        tables=[violations_table(rest, until)],
    )


# The summary of the service level: the status of each agreement, and the rest of its error budget.
#
# An agreement is breached if its newest window with data is breached, as `tidegate watch` reports
# it, or if its error budget is overdrawn. It is warned if that window is warned, or if the burn
# rate is above 1. Otherwise it is met. The newest window counts because a budget of several weeks
# hardly changes when the first minutes are all breached.


CARDS_MAX = 60
_SERVICE_LEVEL_COLUMNS = (
    *("agreement", "window_s", "objective", "met", "warned", "breached", "no_data"),
    *("budget_left", "burn_rate"),
)
_DECLARE = (
    "No agreement was declared, so nothing was promised. Write one into a file, such as "
    '`orders.toml` with `name = "orders"`, `queue = "orders.*"` and below `[metrics.wait_p99]` '
    '`breach = "6s"`; name it in `[pipeline] agreements` or with `--agreement`, and run `tidegate '
    "learn` again."
)
_NOT_JUDGED = (
    "Agreements were declared but not judged: the job compliance made no table. The last section "
    "says why; then run `tidegate learn` again."
)
_TIMES = {"wait": "waits", "service": "service times", "response": "response times"}
_ORDER = (StatusLight.BREACHED, StatusLight.WARNED, StatusLight.NO_DATA, StatusLight.MET)


@dataclass(frozen=True)
class AgreementSummary:
    """How well one agreement was kept."""

    name: str
    says: str
    met: int
    warned: int
    breached: int
    no_data: int
    budget_left: float | None
    burn_rate: float | None
    ribbon: VerdictRibbon | None
    worst: WorstWindow | None
    # The promise of the worst window; `None` without the agreement's document.
    worst_promise: Metric | None
    of_http: bool = False

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    @property
    def standing(self) -> StatusLight:
        if not self.judged:
            return StatusLight.NO_DATA
        newest = self.ribbon.newest if self.ribbon else Verdict.NO_DATA
        is_overdrawn = self.budget_left is not None and self.budget_left < 0
        if is_overdrawn or newest is Verdict.BREACHED:
            return StatusLight.BREACHED
        is_burning = self.burn_rate is not None and self.burn_rate > 1
        if is_burning or newest is Verdict.WARNED:
            return StatusLight.WARNED
        return StatusLight.MET


def summary_section(learned: LearnedModels, agreements: Sequence[Agreement]) -> ReportSection:
    """Return a card for each agreement, the worst first; without any, how to declare one."""
    title = "At a glance"
    rows = learned.rows("service_levels", _SERVICE_LEVEL_COLUMNS, order=("agreement",))
    if not rows:
        return ReportSection(
            "glance", title, missing=_NOT_JUDGED if learned.run.agreements else _DECLARE
        )
    declared = {agreement.name: agreement for agreement in agreements}
    drawn, worst = ribbons(learned), worst_promises(learned)
    kept = [
        _agreement_summary(row, declared.get(row["agreement"]), drawn, worst.get(row["agreement"]))
        for row in rows
    ]
    kept.sort(key=lambda one: (_ORDER.index(one.standing), one.name))
    left_out = len(kept) - CARDS_MAX
    return ReportSection(
        "glance",
        title,
        _summary([one.standing for one in kept]),
        cards=[card_of(one) for one in kept[:CARDS_MAX]],
        notes=[
            "Breached: the newest window with data is, or the error budget is overdrawn. Warned: "
            "that window is, or the budget is used up faster than it lasts (a burn rate above 1).",
            *(
                [f"{counted(left_out, 'agreement')} more, none worse than these."]
                if left_out > 0
                else []
            ),
        ],
    )


def _agreement_summary(
    row: Row,
    agreement: Agreement | None,
    drawn: dict[str, VerdictRibbon],
    worst: WorstWindow | None,
) -> AgreementSummary:
    promised = agreement.metrics if agreement else ()
    return AgreementSummary(
        name=row["agreement"],
        says=_terms(row, agreement),
        met=row["met"],
        warned=row["warned"],
        breached=row["breached"],
        no_data=row["no_data"],
        budget_left=row["budget_left"],
        burn_rate=row["burn_rate"],
        ribbon=drawn.get(row["agreement"]),
        worst=worst,
        worst_promise=next((one for one in promised if worst and one.name == worst.metric), None),
        of_http=agreement is not None and agreement.http is not None,
    )


def _terms(row: Row, agreement: Agreement | None) -> str:
    windows = f"{percent(row['objective'])} of windows of {duration(row['window_s'])}"
    if agreement is None:
        return windows
    of_http = agreement.http is not None
    promised = ", ".join(format_promise(metric, of_http=of_http) for metric in agreement.metrics)
    of = agreement.queue or agreement.http
    return f"{of}: {promised} in {windows} over {duration(agreement.period_s)}"


def format_promise(metric: Metric, *, of_http: bool = False) -> str:
    """Describe a promise: `wait p99 below 6 s`."""
    side = "below" if metric.worse is Worse.LARGER else "at least"
    point = format_metric(metric.breach, metric.unit, of_http=of_http)
    return f"{metric.name.replace('_', ' ')} {side} {point}"


def _summary(standings: Sequence[StatusLight]) -> str:
    words = {
        StatusLight.BREACHED: "breached",
        StatusLight.WARNED: "warned",
        StatusLight.MET: "met",
        StatusLight.NO_DATA: "without data",
    }
    parts = [
        f"{count(standings.count(standing))} {word}"
        for standing, word in words.items()
        if standing in standings
    ]
    return f"{counted(len(standings), 'agreement')}: {', '.join(parts)}."


def card_of(kept: AgreementSummary) -> Card:
    """Return the card of an agreement."""
    facts = [
        ("Error budget left", percent(kept.budget_left)),
        ("Burn rate", number(kept.burn_rate)),
        ("Windows kept", percent((kept.met + kept.warned) / kept.judged) if kept.judged else "–"),
        (
            "Met, warned, breached",
            f"{count(kept.met)}, {count(kept.warned)}, {count(kept.breached)}",
        ),
    ]
    if kept.no_data:
        facts.append(("Windows without data", count(kept.no_data)))
    if kept.worst:
        facts += [
            ("Worst window", _measured_worst(kept.worst, kept.worst_promise, of_http=kept.of_http)),
            ("which began", f"{clock(kept.worst.at)} UTC"),
        ]
    ribbon = kept.ribbon
    return Card(
        name=kept.name,
        says=kept.says,
        standing=kept.standing,
        facts=facts,
        budget_left=kept.budget_left,
        ribbon=[StatusLight(verdict.value) for verdict in ribbon.verdicts] if ribbon else (),
        ribbon_says=f"{clock(ribbon.begins)} to {clock(ribbon.ends)} UTC; the taller, the worse"
        if ribbon
        else "",
    )


def _measured_worst(worst: WorstWindow, promised: Metric | None, *, of_http: bool) -> str:
    """Describe the worst window: `0 % of waits below 500 ms`, `throughput 12 msg/s`."""
    if worst.within is None:
        value = format_metric(worst.value, worst.unit, of_http=of_http)
        return f"{worst.metric.replace('_', ' ')} {value}"
    stem, _, percentile = worst.metric.partition("_")
    times = f"{percent(worst.within)} of {_TIMES.get(stem, stem)} below"
    if promised is None:
        return f"{times} the limit of {percentile}"
    return f"{times} {format_metric(promised.breach, promised.unit)}"


def format_metric(value: float | None, unit: Unit, *, of_http: bool = False) -> str:
    """Format a measurement in the unit of its metric."""
    match unit:
        case Unit.SECONDS:
            return duration(value)
        case Unit.PER_SECOND:
            return with_unit(value, "req/s") if of_http else rate(value)
        case Unit.FRACTION:
            return percent(value)
        case Unit.BYTES:
            return with_unit(None if value is None else value / 2**20, "MiB")


# Verdicts over time and the worst window, reduced from millions of windows to a card's size.


SLICES_MAX = 120
_NAMES = pa.array([verdict.value for verdict in SEVERITY])


@dataclass(frozen=True)
class VerdictRibbon:
    """The worst verdict of each slice of time, oldest first."""

    begins: datetime
    ends: datetime
    verdicts: list[Verdict]
    # The verdict of the newest window with data.
    newest: Verdict


@dataclass(frozen=True)
class WorstWindow:
    """The window in which an agreement was kept worst, and the promise concerned."""

    metric: str
    unit: Unit
    at: datetime
    # A percentile has `within`, the fraction that kept the limit; other metrics have `value`.
    within: float | None
    value: float | None


def ribbons(learned: LearnedModels) -> dict[str, VerdictRibbon]:
    """Return the verdicts on each agreement over the whole time."""
    table = learned.table("compliance", ("agreement", "window", "window_s", "verdict"))
    if table is None:
        return {}
    return {
        name.as_py(): _ribbon(table.filter(pc.equal(table.column("agreement"), name)))
        for name in pc.unique(table.column("agreement"))
    }


def _ribbon(windows: pa.Table) -> VerdictRibbon:
    windows = windows.sort_by("window")
    begins_s = windows.column("window").cast(pa.int64()).to_numpy() / 1e6
    width_s = windows.column("window_s")[0].as_py()
    severity = pc.index_in(windows.column("verdict"), value_set=_NAMES).to_numpy()
    whole_s = begins_s[-1] + width_s - begins_s[0]
    slices = int(min(max(round(whole_s / width_s), 1), SLICES_MAX))
    # Slices without a window have no data.
    worst = np.zeros(slices, dtype=np.int64)
    place = np.minimum(((begins_s - begins_s[0]) / whole_s * slices).astype(np.int64), slices - 1)
    np.maximum.at(worst, place, severity)
    judged = severity[severity > SEVERITY.index(Verdict.NO_DATA)]
    return VerdictRibbon(
        begins=from_seconds(float(begins_s[0])),
        ends=from_seconds(float(begins_s[-1] + width_s)),
        verdicts=[SEVERITY[one] for one in worst.tolist()],
        newest=SEVERITY[int(judged[-1])] if len(judged) else Verdict.NO_DATA,
    )


def worst_promises(learned: LearnedModels) -> dict[str, WorstWindow]:
    """Return the worst window of each agreement."""
    columns = ("agreement", "window", "metric", "value", "within", "verdict")
    table = learned.table("promises", columns)
    if table is None or not table.num_rows:
        return {}
    severity = pc.index_in(table.column("verdict"), value_set=_NAMES)
    table = table.append_column("severity", severity)
    table = table.filter(pc.greater(severity, SEVERITY.index(Verdict.NO_DATA)))
    found: dict[str, tuple[tuple[int, float, str], WorstWindow]] = {}
    for pair in table.group_by(["agreement", "metric"]).aggregate([]).to_pylist():
        rows = table.filter(
            pc.and_(
                pc.equal(table.column("agreement"), pair["agreement"]),
                pc.equal(table.column("metric"), pair["metric"]),
            )
        )
        rank, worst = _worst_row(pair["metric"], rows)
        if worst is None:
            continue
        before = found.get(pair["agreement"])
        if before is None or rank < before[0]:
            found[pair["agreement"]] = rank, worst
    return {name: worst for name, (_, worst) in found.items()}


def _worst_row(metric: str, rows: pa.Table) -> tuple[tuple[int, float, str], WorstWindow | None]:
    """Return the worst row of a metric, with a rank that is smaller for worse rows."""
    kind = metric_kind(metric)
    if kind is None:
        return (0, 0.0, metric), None
    is_larger_worse = kind.worse is Worse.LARGER
    rows = rows.sort_by(
        [
            ("severity", "descending"),
            ("within", "ascending"),
            ("value", "descending" if is_larger_worse else "ascending"),
            ("window", "ascending"),
        ]
    )
    row = rows.slice(0, 1).to_pylist()[0]
    rank = (-row["severity"], 1.0 if row["within"] is None else row["within"], metric)
    return rank, WorstWindow(metric, kind.unit, row["window"], row["within"], row["value"])
