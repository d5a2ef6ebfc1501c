"""The history of one agreement: verdict counts, burn rates and the error budget.

    alarm     the burn rates over a long and a short span are both high     evaluation.BurnAlarm
    budget    over the whole period

Windows arrive in time order. Counts are kept per minute for the spans of the alarms, and per hour
for the budget. The history therefore stays small for any period.
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
    """The status of an agreement after a window."""

    # The hour that ends with the window.
    last_hour: Counts
    # How many times faster than allowed the budget is used; None if no window was judged.
    burn_hour: float | None
    # For each alarm, the burn rates of its long and its short span.
    burn_rates: dict[str, tuple[float, float]]
    # "fast" or "slow"; None without an alarm.
    alarm: str | None
    # The fraction left of the whole period's budget: 1 is untouched, below 0 is overdrawn.
    budget_left: float


class History(msgspec.Struct):
    """The verdict counts of one agreement."""

    # The terms of the agreement that was judged. Counts under different terms are not mixed.
    terms: str
    # Keys are the number of the minute, or hour, since 1970 in which a window ends.
    minutes: dict[int, Counts] = {}
    hours: dict[int, Counts] = {}

    @staticmethod
    def of(agreement: Agreement) -> History:
        """Return an empty history."""
        return History(terms_of(agreement), {}, {})

    def take(self, agreement: Agreement, end_s: float, verdict: Verdict) -> Standing:
        """Count the verdict of the window that ends at `end_s`, and return the status after it."""
        # A window belongs to the minute and hour in which it ends.
        minute, hour = int(-(-end_s // _MINUTE_S)), int(-(-end_s // _HOUR_S))
        one = Counts.of([verdict])
        self.minutes[minute] = self.minutes.get(minute, Counts()) + one
        self.hours[hour] = self.hours.get(hour, Counts()) + one
        self._forget(end_s, agreement.period_s)

        def lately(span_s: float) -> Counts:
            return _sum(self.minutes, minute - span_s / _MINUTE_S)

        burns = {name: _burns(agreement, alarm, lately) for name, alarm in ALARMS.items()}
        last_hour = lately(SLIDING_S)
        # A short period is summed by minutes, because hours are too coarse for it.
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
        """Remove the counts after a time that a clock, later set back, had reached by mistake."""
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
    """Return the terms that charge the budget: breaching points, and how windows are counted.

    Warning points, resources and the source of the document are not part of them. A change of those
    must not restore used budget.
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
    # Plain sums, for speed: this runs for every window and sums some hundreds of entries.
    met = warned = breached = no_data = 0
    for number, one in by_number.items():
        if number > after:
            met += one.met
            warned += one.warned
            breached += one.breached
            no_data += one.no_data
    return Counts(met, warned, breached, no_data)
