"""Sliding service levels: the last minutes and hours of each agreement, and its period's budget.

The input is a verdict per agreement and window. The output is a row for each: the counts of the
hour that ends with the window, the burn rate, the alarm, and the remaining budget. The arithmetic
is that of `agreement.history`, which the control loops and the simulation use too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import Verdict, worst
from tidegate.agreement.history import History, terms_of

SCHEMA = pa.schema(
    [
        pa.field("agreement", pa.string()),
        pa.field("window", pa.timestamp("us", "UTC")),  # start of the window
        pa.field("window_s", pa.float64()),
        pa.field("verdict", pa.string()),
        # Counts of the hour that ends with the window.
        pa.field("met", pa.int64()),
        pa.field("warned", pa.int64()),
        pa.field("breached", pa.int64()),
        pa.field("no_data", pa.int64()),
        # How many times faster than allowed the budget is used; null if nothing was judged.
        pa.field("burn_hour", pa.float64()),
        pa.field("alarm", pa.string()),  # fast, slow or null
        # Of the agreement's whole period.
        pa.field("budget_left", pa.float64()),
    ]
)


class Carried(msgspec.Struct):
    """The state for the next batch: a history per agreement."""

    histories: dict[str, History] = {}


def slide(
    carried: Carried,
    verdicts: Iterable[tuple[str, datetime, Verdict]],
    agreements: Sequence[Agreement],
) -> tuple[pa.Table, Carried]:
    """Add verdicts in the order of time; return a row for each window, and the new state.

    The history of an agreement whose terms have changed starts again.
    """
    by_name = {agreement.name: agreement for agreement in agreements}
    histories = {
        name: history
        for name, agreement in by_name.items()
        if (history := carried.histories.get(name)) and history.terms == terms_of(agreement)
    }
    together: dict[tuple[datetime, str], list[Verdict]] = {}
    for name, window, verdict in verdicts:
        if name in by_name:
            together.setdefault((window, name), []).append(verdict)
    rows = []
    for (window, name), found in sorted(together.items()):
        agreement = by_name[name]
        history = histories.setdefault(name, History(terms_of(agreement), {}, {}))
        rows.append(_row(agreement, history, window, worst(found)))
    return pa.Table.from_pylist(rows, SCHEMA), Carried(histories)


def _row(
    agreement: Agreement, history: History, window: datetime, verdict: Verdict
) -> dict[str, object]:
    # A window counts at its end.
    standing = history.take(agreement, window.timestamp() + agreement.window_s, verdict)
    return {
        "agreement": agreement.name,
        "window": window.astimezone(UTC),
        "window_s": agreement.window_s,
        "verdict": verdict.value,
        "met": standing.last_hour.met,
        "warned": standing.last_hour.warned,
        "breached": standing.last_hour.breached,
        "no_data": standing.last_hour.no_data,
        "burn_hour": standing.burn_hour,
        "alarm": standing.alarm,
        "budget_left": standing.budget_left,
    }
