"""How well one agreement is kept over time: the last hour, burn rates, what the budget has left.

    alarm     burning fast over a long and over a short span at once     evaluation.BurnAlarm
    budget    of the whole period

Windows come in the order of time. Counts are kept by the minute, and by the hour once they are only
needed for the budget, so that what is remembered stays small whatever the period.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from tidegate.agreement.document import Agreement
from tidegate.agreement.evaluation import (
    FAST_BURN,
    SLOW_BURN,
    BurnAlarm,
    Counts,
    Verdict,
    budget_left,
    burn_rate,
    burn_rate_over,
)

_MINUTE_S = 60
_HOUR_S = 3600
_FINE_S = max(FAST_BURN.long_s, SLOW_BURN.long_s)
SLIDING_S = 3600.0
ALARMS = {"fast": FAST_BURN, "slow": SLOW_BURN}


@dataclass(frozen=True)
class Standing:
    """Where an agreement stands after a window."""

    # The hour that ends with the window.
    last_hour: Counts
    # How many times faster than allowed; None when nothing was judged.
    burn_hour: float | None
    # Of each alarm the burn rates of its long and its short span.
    burn_rates: dict[str, tuple[float, float]]
    # fast, slow, or None when neither rings.
    alarm: str | None
    # Of the agreement's whole period: 1 untouched, below 0 overdrawn.
    budget_left: float


class History(msgspec.Struct):
    """What is remembered of one agreement."""

    # What it said: counts made under another document are not mixed with those of this one.
    terms: str
    # By the number of the minute, and of the hour, since 1970.
    minutes: dict[int, Counts] = {}
    hours: dict[int, Counts] = {}

    @staticmethod
    def of(agreement: Agreement) -> History:
        """An empty one."""
        return History(terms_of(agreement), {}, {})

    def take(self, agreement: Agreement, end_s: float, verdict: Verdict) -> Standing:
        """The window that ends then had this verdict."""
        # The window counts where it ends.
        minute, hour = int(-(-end_s // _MINUTE_S)), int(-(-end_s // _HOUR_S))
        one = Counts.of([verdict])
        self.minutes[minute] = self.minutes.get(minute, Counts()) + one
        self.hours[hour] = self.hours.get(hour, Counts()) + one
        self._forget(end_s, agreement.period_s)

        def lately(span_s: float) -> Counts:
            return _sum(self.minutes, minute - span_s / _MINUTE_S)

        burns = {name: _burns(agreement, alarm, lately) for name, alarm in ALARMS.items()}
        last_hour = lately(SLIDING_S)
        # By the minute as long as those are remembered: hours are too coarse for a short period.
        period = (
            lately(agreement.period_s)
            if agreement.period_s <= _FINE_S
            else _sum(self.hours, hour - agreement.period_s / _HOUR_S)
        )
        return Standing(
            last_hour=last_hour,
            burn_hour=_burn(agreement, last_hour),
            burn_rates=burns,
            alarm=next((name for name, alarm in ALARMS.items() if alarm.rings(*burns[name])), None),
            budget_left=float(
                budget_left(period.breached, agreement.windows_in_period, agreement.objective)
            ),
        )

    def forget_after(self, end_s: float) -> None:
        """What lies there has not been yet: a clock was ahead."""
        for counts, width_s in ((self.minutes, _MINUTE_S), (self.hours, _HOUR_S)):
            for number in [one for one in counts if one > -(-end_s // width_s)]:
                del counts[number]

    def _forget(self, end_s: float, period_s: float) -> None:
        for counts, width_s, span_s in (
            (self.minutes, _MINUTE_S, _FINE_S),
            (self.hours, _HOUR_S, period_s),
        ):
            for number in [one for one in counts if one * width_s <= end_s - span_s - width_s]:
                del counts[number]


def terms_of(agreement: Agreement) -> str:
    """What its budget is charged by: breaching points, and how windows are judged and counted.

    Where it warns, what it may use and where it was read are not promised to anybody: to change
    them gives no budget back.
    """
    breaches = sorted((metric.name, metric.breach) for metric in agreement.metrics)
    governs = (agreement.name, agreement.queue, agreement.http)
    counted = (agreement.window_s, agreement.objective, agreement.period_s)
    return repr((*governs, *counted, agreement.resources.load_max_per_s, breaches))


def _burn(agreement: Agreement, counts: Counts) -> float | None:
    if not counts.judged:
        return None
    return float(burn_rate(counts.breached, counts.judged, agreement.objective))


def _burns(
    agreement: Agreement, alarm: BurnAlarm, lately: Callable[[float], Counts]
) -> tuple[float, float]:
    long, short = (
        burn_rate_over(span_s, one.breached, one.judged, agreement.window_s, agreement.objective)
        for span_s in (alarm.long_s, alarm.short_s)
        for one in (lately(span_s),)
    )
    return long, short


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
