"""The service level at a glance: how each agreement stands, and what is left of its budget.

An agreement is breached when more windows were than its objective allows: the error budget is
overdrawn. It is warned when the budget is used up faster than it lasts, or when the newest window
is not met. Otherwise it is met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tidegate.agreement.evaluation import SEVERITY, Verdict
from tidegate.report.chart import Card, Section, Standing
from tidegate.report.figures import clock, count, duration, number, percent, rate, with_unit
from tidegate.report.learned import Learned
from tidegate.report.series import slices

CARDS_MAX = 60
_SLICES_MAX = 120
_DECLARE = (
    "No agreement was declared, so nothing was promised. Write one into a file, such as "
    '`orders.toml` with `name = "orders"`, `queue = "orders.*"` and below `[metrics.wait_p99]` '
    '`breach = "6s"`; name it in `[pipeline] agreements` or with `--agreement`, and run `tidegate '
    "learn` again."
)
_NOT_JUDGED = (
    "Agreements were declared but not judged: the job `compliance` made no table. The last section "
    "says why; then run `tidegate learn` again."
)


@dataclass(frozen=True)
class Worst:
    """The worst measurement of one promise."""

    metric: str
    value: str
    at: datetime


@dataclass(frozen=True)
class Kept:
    """How one agreement was kept."""

    name: str
    says: str
    met: int
    warned: int
    breached: int
    no_data: int
    budget_left: float | None
    burn_rate: float | None
    worst: Worst | None
    # The verdict on each window, oldest first.
    verdicts: Sequence[tuple[datetime, Verdict]]

    @property
    def judged(self) -> int:
        return self.met + self.warned + self.breached

    @property
    def standing(self) -> Standing:
        if not self.judged:
            return Standing.NO_DATA
        if self.budget_left is not None and self.budget_left < 0:
            return Standing.BREACHED
        newest = self.verdicts[-1][1] if self.verdicts else Verdict.MET
        burns = self.burn_rate is not None and self.burn_rate > 1
        if burns or newest in (Verdict.WARNED, Verdict.BREACHED):
            return Standing.WARNED
        return Standing.MET


def card_of(kept: Kept) -> Card:
    """An agreement as a card."""
    facts = [
        ("Error budget left", percent(kept.budget_left)),
        ("Burn rate", f"{number(kept.burn_rate)} ×"),
        (
            "Windows kept",
            percent((kept.met + kept.warned) / kept.judged) if kept.judged else "–",
        ),
        (
            "Met, warned, breached",
            f"{count(kept.met)}, {count(kept.warned)}, {count(kept.breached)}",
        ),
    ]
    if kept.no_data:
        facts.append(("Without data", count(kept.no_data)))
    if kept.worst:
        facts.append((f"Worst {kept.worst.metric}", f"{kept.worst.value}, {clock(kept.worst.at)}"))
    parts = slices(kept.verdicts, _SLICES_MAX)
    ribbon = [Standing(max((verdict for _, verdict in part), key=SEVERITY.index)) for part in parts]
    says = ""
    if kept.verdicts:
        says = (
            f"{clock(kept.verdicts[0][0])} to {clock(kept.verdicts[-1][0])} UTC: tall is breached"
        )
    return Card(
        name=kept.name,
        says=kept.says,
        standing=kept.standing,
        facts=facts,
        budget_left=kept.budget_left,
        ribbon=ribbon,
        ribbon_says=says,
    )


def measured(value: float | None, unit: str) -> str:
    """A measurement in the unit of its metric."""
    if unit == "s":
        return duration(value)
    if unit == "per_s":
        return rate(value)
    if unit == "fraction":
        return percent(value)
    return with_unit(None if value is None else value / 2**20, "MiB")


def glance_section(learned: Learned) -> Section:
    """A card for each agreement; how to declare one if there are none."""
    return Section("glance", "At a glance", missing=_DECLARE)
