"""The summary of the service level: the status of each agreement, and the rest of its error budget.

An agreement is breached if its newest window with data is breached, as `tidegate watch` reports it,
or if its error budget is overdrawn. It is warned if that window is warned, or if the burn rate is
above 1. Otherwise it is met. The newest window counts because a budget of several weeks hardly
changes when the first minutes are all breached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict
from tidegate.agreement.metrics import Metric, Unit, Worse
from tidegate.report.chart import Card, Section, Standing
from tidegate.report.figures import (
    clock,
    count,
    counted,
    duration,
    number,
    percent,
    rate,
    with_unit,
)
from tidegate.report.learned import Learned, Row
from tidegate.report.verdicts import Ribbon, Worst, ribbons, worst_promises

CARDS_MAX = 60
_COLUMNS = (
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
_ORDER = (Standing.BREACHED, Standing.WARNED, Standing.NO_DATA, Standing.MET)


@dataclass(frozen=True)
class Kept:
    """How well one agreement was kept."""

    name: str
    says: str
    met: int
    warned: int
    breached: int
    no_data: int
    budget_left: float | None
    burn_rate: float | None
    ribbon: Ribbon | None
    worst: Worst | None
    # The promise of the worst window; `None` without the agreement's document.
    worst_promise: Metric | None
    of_http: bool = False

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    @property
    def standing(self) -> Standing:
        if not self.judged:
            return Standing.NO_DATA
        newest = self.ribbon.newest if self.ribbon else Verdict.NO_DATA
        is_overdrawn = self.budget_left is not None and self.budget_left < 0
        if is_overdrawn or newest is Verdict.BREACHED:
            return Standing.BREACHED
        is_burning = self.burn_rate is not None and self.burn_rate > 1
        if is_burning or newest is Verdict.WARNED:
            return Standing.WARNED
        return Standing.MET


def glance_section(learned: Learned, agreements: Sequence[Agreement]) -> Section:
    """Return a card for each agreement, the worst first; without any, how to declare one."""
    title = "At a glance"
    rows = learned.rows("service_levels", _COLUMNS, order=("agreement",))
    if not rows:
        return Section("glance", title, missing=_NOT_JUDGED if learned.run.agreements else _DECLARE)
    declared = {agreement.name: agreement for agreement in agreements}
    drawn, worst = ribbons(learned), worst_promises(learned)
    kept = [
        _kept(row, declared.get(row["agreement"]), drawn, worst.get(row["agreement"]))
        for row in rows
    ]
    kept.sort(key=lambda one: (_ORDER.index(one.standing), one.name))
    left_out = len(kept) - CARDS_MAX
    return Section(
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


def _kept(
    row: Row, agreement: Agreement | None, drawn: dict[str, Ribbon], worst: Worst | None
) -> Kept:
    promised = agreement.metrics if agreement else ()
    return Kept(
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
    promised = ", ".join(promise(metric, of_http=of_http) for metric in agreement.metrics)
    of = agreement.queue or agreement.http
    return f"{of}: {promised} in {windows} over {duration(agreement.period_s)}"


def promise(metric: Metric, *, of_http: bool = False) -> str:
    """Describe a promise: `wait p99 below 6 s`."""
    side = "below" if metric.worse is Worse.LARGER else "at least"
    point = measured(metric.breach, metric.unit, of_http=of_http)
    return f"{metric.name.replace('_', ' ')} {side} {point}"


def _summary(standings: Sequence[Standing]) -> str:
    words = {
        Standing.BREACHED: "breached",
        Standing.WARNED: "warned",
        Standing.MET: "met",
        Standing.NO_DATA: "without data",
    }
    parts = [
        f"{count(standings.count(standing))} {word}"
        for standing, word in words.items()
        if standing in standings
    ]
    return f"{counted(len(standings), 'agreement')}: {', '.join(parts)}."


def card_of(kept: Kept) -> Card:
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
        ribbon=[Standing(verdict.value) for verdict in ribbon.verdicts] if ribbon else (),
        ribbon_says=f"{clock(ribbon.begins)} to {clock(ribbon.ends)} UTC; the taller, the worse"
        if ribbon
        else "",
    )


def _measured_worst(worst: Worst, promised: Metric | None, *, of_http: bool) -> str:
    """Describe the worst window: `0 % of waits below 500 ms`, `throughput 12 msg/s`."""
    if worst.within is None:
        value = measured(worst.value, worst.unit, of_http=of_http)
        return f"{worst.metric.replace('_', ' ')} {value}"
    stem, _, percentile = worst.metric.partition("_")
    times = f"{percent(worst.within)} of {_TIMES.get(stem, stem)} below"
    if promised is None:
        return f"{times} the limit of {percentile}"
    return f"{times} {measured(promised.breach, promised.unit)}"


def measured(value: float | None, unit: Unit, *, of_http: bool = False) -> str:
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
