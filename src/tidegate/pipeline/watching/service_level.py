"""How well each agreement is kept, sliding along: the last minutes, hours, and the budget's period.

Verdicts on windows come in; out goes a row for each agreement and window, with the counts of the
hour that ends with it, burn rates over the spans of both alarms, and what is left of the budget.
The arithmetic is `agreement.history`'s, which loops and the simulation use as well.
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
        pa.field("window", pa.timestamp("us", "UTC")),  # its beginning
        pa.field("window_s", pa.float64()),
        pa.field("verdict", pa.string()),
        # Of the hour that ends with the window.
        pa.field("met", pa.int64()),
        pa.field("warned", pa.int64()),
        pa.field("breached", pa.int64()),
        pa.field("no_data", pa.int64()),
        # How many times faster than allowed; null when nothing was judged.
        pa.field("burn_hour", pa.float64()),
        pa.field("alarm", pa.string()),  # fast, slow, or null
        # Of the agreement's whole period.
        pa.field("budget_left", pa.float64()),
    ]
)


class Carried(msgspec.Struct):
    """What the next batch needs to know, by agreement."""

    histories: dict[str, History] = {}


def slide(
    carried: Carried,
    verdicts: Iterable[tuple[str, datetime, Verdict]],
    agreements: Sequence[Agreement],
) -> tuple[pa.Table, Carried]:
    """Take windows in the order of time; a row for each, and what to carry on."""
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
    # The window counts where it ends.
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
