"""How well each agreement is kept, sliding along: the last minutes, hours, and the budget's period.

Verdicts on windows come in; out goes a row for each agreement and window, with the counts of the
hour that ends with it, burn rates over the spans of both alarms, and what is left of the budget.
Counts are kept by the minute, and by the hour once they are only needed for the budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import (
    FAST_BURN,
    SLOW_BURN,
    BurnAlarm,
    Counts,
    Verdict,
    budget_left,
    burn_rate,
    worst,
)

_MINUTE_S = 60
_HOUR_S = 3600
_FINE_S = max(FAST_BURN.long_s, SLOW_BURN.long_s)
SLIDING_S = 3600.0
ALARMS = {"fast": FAST_BURN, "slow": SLOW_BURN}

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


class History(msgspec.Struct):
    """What is remembered of one agreement."""

    # What it said: counts made under another document are not mixed with those of this one.
    terms: str
    # By the number of the minute, and of the hour, since 1970.
    minutes: dict[int, Counts] = {}
    hours: dict[int, Counts] = {}


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


def terms_of(agreement: Agreement) -> str:
    """All that an agreement says, wherever it was read."""
    return repr(replace(agreement, source=""))


def _row(
    agreement: Agreement, history: History, window: datetime, verdict: Verdict
) -> dict[str, object]:
    # The window counts where it ends.
    end_s = window.timestamp() + agreement.window_s
    minute, hour = int(-(-end_s // _MINUTE_S)), int(-(-end_s // _HOUR_S))
    one = Counts.of([verdict])
    history.minutes[minute] = history.minutes.get(minute, Counts()) + one
    history.hours[hour] = history.hours.get(hour, Counts()) + one
    _forget(history, end_s, agreement.period_s)

    def lately(span_s: float) -> Counts:
        return _sum(history.minutes, minute - span_s / _MINUTE_S)

    def rings(alarm: BurnAlarm) -> bool:
        return bool(
            alarm.rings(
                *(_burn_at_least(agreement, lately(s), s) for s in (alarm.long_s, alarm.short_s))
            )
        )

    last_hour = lately(SLIDING_S)
    # By the minute as long as those are remembered: hours are too coarse for a short period.
    period = (
        lately(agreement.period_s)
        if agreement.period_s <= _FINE_S
        else _sum(history.hours, hour - agreement.period_s / _HOUR_S)
    )
    return {
        "agreement": agreement.name,
        "window": window.astimezone(UTC),
        "window_s": agreement.window_s,
        "verdict": verdict.value,
        "met": last_hour.met,
        "warned": last_hour.warned,
        "breached": last_hour.breached,
        "no_data": last_hour.no_data,
        "burn_hour": _burn(agreement, last_hour),
        "alarm": next((name for name, alarm in ALARMS.items() if rings(alarm)), None),
        "budget_left": budget_left(
            period.breached, agreement.windows_in_period, agreement.objective
        ),
    }


def _burn(agreement: Agreement, counts: Counts) -> float | None:
    if not counts.judged:
        return None
    return float(burn_rate(counts.breached, counts.judged, agreement.objective))


def _burn_at_least(agreement: Agreement, counts: Counts, span_s: float) -> float:
    # Shortly after the start, or after a silence, one breach is all there is: windows that are
    # missing count as met, or the first breach would always ring.
    windows = max(span_s / agreement.window_s, counts.judged)
    return float(burn_rate(counts.breached, windows, agreement.objective))


def _sum(by_number: Mapping[int, Counts], after: float) -> Counts:
    # Plain sums: this is done for every window, some hundreds at a time.
    met = warned = breached = no_data = 0
    for number, one in by_number.items():
        if number > after:
            met += one.met
            warned += one.warned
            breached += one.breached
            no_data += one.no_data
    return Counts(met, warned, breached, no_data)


def _forget(history: History, end_s: float, period_s: float) -> None:
    for counts, width_s, span_s in (
        (history.minutes, _MINUTE_S, _FINE_S),
        (history.hours, _HOUR_S, period_s),
    ):
        for number in [one for one in counts if one * width_s <= end_s - span_s - width_s]:
            del counts[number]
