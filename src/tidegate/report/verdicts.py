"""Verdicts over time and the worst window, reduced from millions of windows to a card's size."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.agreement.evaluation import SEVERITY, Verdict
from tidegate.agreement.metrics import Unit, Worse, kind_of
from tidegate.report.figures import from_seconds
from tidegate.report.learned import Learned

SLICES_MAX = 120
_NAMES = pa.array([verdict.value for verdict in SEVERITY])


@dataclass(frozen=True)
class Ribbon:
    """The worst verdict of each slice of time, oldest first."""

    begins: datetime
    ends: datetime
    verdicts: list[Verdict]
    # The verdict of the newest window with data.
    newest: Verdict


@dataclass(frozen=True)
class Worst:
    """The window in which an agreement was kept worst, and the promise concerned."""

    metric: str
    unit: Unit
    at: datetime
    # A percentile has `within`, the fraction that kept the limit; other metrics have `value`.
    within: float | None
    value: float | None


def ribbons(learned: Learned) -> dict[str, Ribbon]:
    """Return the verdicts on each agreement over the whole time."""
    table = learned.table("compliance", ("agreement", "window", "window_s", "verdict"))
    if table is None:
        return {}
    return {
        name.as_py(): _ribbon(table.filter(pc.equal(table.column("agreement"), name)))
        for name in pc.unique(table.column("agreement"))
    }


def _ribbon(windows: pa.Table) -> Ribbon:
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
    return Ribbon(
        begins=from_seconds(float(begins_s[0])),
        ends=from_seconds(float(begins_s[-1] + width_s)),
        verdicts=[SEVERITY[one] for one in worst.tolist()],
        newest=SEVERITY[int(judged[-1])] if len(judged) else Verdict.NO_DATA,
    )


def worst_promises(learned: Learned) -> dict[str, Worst]:
    """Return the worst window of each agreement."""
    columns = ("agreement", "window", "metric", "value", "within", "verdict")
    table = learned.table("promises", columns)
    if table is None or not table.num_rows:
        return {}
    severity = pc.index_in(table.column("verdict"), value_set=_NAMES)
    table = table.append_column("severity", severity)
    table = table.filter(pc.greater(severity, SEVERITY.index(Verdict.NO_DATA)))
    found: dict[str, tuple[tuple[int, float, str], Worst]] = {}
    for pair in table.group_by(["agreement", "metric"]).aggregate([]).to_pylist():
        rows = table.filter(
            pc.and_(
                pc.equal(table.column("agreement"), pair["agreement"]),
                pc.equal(table.column("metric"), pair["metric"]),
            )
        )
        rank, worst = _worst(pair["metric"], rows)
        if worst is None:
            continue
        before = found.get(pair["agreement"])
        if before is None or rank < before[0]:
            found[pair["agreement"]] = rank, worst
    return {name: worst for name, (_, worst) in found.items()}


def _worst(metric: str, rows: pa.Table) -> tuple[tuple[int, float, str], Worst | None]:
    """Return the worst row of a metric, with a rank that is smaller for worse rows."""
    kind = kind_of(metric)
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
    return rank, Worst(metric, kind.unit, row["window"], row["within"], row["value"])
