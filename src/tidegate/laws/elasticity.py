"""How many replicas the waiting messages ask for: the papers' policy "load".

    avg_load = waiting messages / replicas
    avg_load > max_load and not inhibited          one replica more
    avg_load will be, by the time one serves       the same
    avg_load < min_load and no plan                plan: the last added goes, share by share
    avg_load > min_load while a plan runs          the plan is cancelled, the share comes back
    max_load = tolerated waiting time · consumption rate of a replica, when an agreement says so

Left open by the paper: on a constant load it plans, cancels and plans again for ever, or removes
and adds. So it is remembered at which arrival rate a number of replicas was too few, be it that a
plan had to be cancelled or that a replica had to be added, and no plan goes back to that number
before the arrival rate has fallen a tenth below. What was remembered is tried again after an hour,
and after twice as long each time that it proves right. A load that falls while arrivals are lower
than what is consumed is an old backlog, and says nothing about how many replicas are too few.

Who acts when the load is above max_load has let it come so far: with every worker on the ramp of
the paper the load was above for as long as it took to notice. So it is carried ahead to when a
replica that has a slot would serve, and the loop would look again:

    growth   the slope of what waits over the last six looks, if it is four times its own error and
             went on at the last; else 0
    soon     (waiting + growth · (start_s + period)) / replicas > max_load      one replica more

What varies without growing has no such slope. Workers that take many at once make what waits a saw:
a load is believed to double at most, so that below half of max_load nothing is added. A boot is not
looked ahead to: that needs arrival rates (laws/feed_forward.py). Without `looks_ahead` it is the
paper's own rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression
from typing import NamedTuple

from tidegate.laws.wish import Situation, Wish

REMEMBERED_S = 3600.0
# Looks that growth is read from, and of how many of its own errors it must be.
LOOKS = 6
SIGNIFICANT = 4.0
# After a gap of so many times the one before it growth is read anew.
_GAP_MAX = 10.0


@dataclass(frozen=True)
class Elasticity:
    """How cautious the law is."""

    # By how much the arrival rate must have fallen before a cancelled plan is tried again.
    fall: float = 0.1
    remembered_s: float = REMEMBERED_S
    # Replicas that one decision may add.
    step_max: int = 1
    # Whether a replica is added before the load is above max_load.
    looks_ahead: bool = True


DEFAULT_ELASTICITY = Elasticity()


class TooFew(NamedTuple):
    """At this arrival rate, so many replicas were too few."""

    arrived_per_s: float
    until: float
    times: int


class LoadLaw:
    """Keeps the average load between min_load and max_load."""

    def __init__(self, elasticity: Elasticity = DEFAULT_ELASTICITY) -> None:
        self._set = elasticity
        # By number of replicas.
        self._too_few: dict[int, TooFew] = {}
        self._waited: deque[tuple[float, int]] = deque(maxlen=LOOKS)

    def step(self, now: Situation) -> Wish:
        """What the next period asks for."""
        count = now.replicas
        load = now.average_load
        soon = self._soon(now)
        if load > now.max_load:
            seen = f"The average load is {load:.0f} messages, above max_load {now.max_load:g}"
            return self._above(now, count, "avg_load > max_load", seen)
        if now.draining and load > now.min_load:
            self._note(now, count)
            return Wish(
                count + now.draining,
                "avg_load > min_load: plan cancelled",
                f"The average load rose to {load:.0f} messages, above min_load {now.min_load:g}, "
                f"while a replica's share went down: {count} replicas are too few for "
                f"{now.arrived_per_s:.0f} msg/s, so it stays.",
                f"At or below {now.min_load:g} messages the removal would have gone on.",
            )
        if soon > now.max_load and not now.draining:
            seen = (
                f"The average load is {load:.0f} messages and grows: before a replica that is "
                f"added now serves it may be {soon:.0f}, above max_load {now.max_load:g}"
            )
            return self._above(now, count, "avg_load > max_load soon", seen)
        if load < now.min_load:
            return self._below(now, count, load)
        return Wish(
            count,
            "min_load ≤ avg_load ≤ max_load",
            f"The average load of {load:.0f} messages lies between min_load {now.min_load:g} and "
            f"max_load {now.max_load:g}.",
            f"Above {now.max_load:g}, now or soon, a replica would have been added, below "
            f"{now.min_load:g} one would have begun to go.",
        )

    def _soon(self, now: Situation) -> float:
        """The average load by the time that a replica would serve, when it grows."""
        last = self._waited
        if last and not self._goes_on(now.at):
            last.clear()
        last.append((now.at, now.waiting))
        if not self._set.looks_ahead or len(last) < LOOKS:
            return now.average_load
        grown = growth_per_s(last) * (now.start_s + last[-1][0] - last[-2][0])
        return now._replace(waiting=now.waiting + round(min(grown, now.waiting))).average_load

    def _goes_on(self, at: float) -> bool:
        """Whether this look follows the last ones, with no clock set back and no long silence."""
        last = self._waited
        gap_s = at - last[-1][0]
        return gap_s > 0.0 and (len(last) < 2 or gap_s <= _GAP_MAX * (last[-1][0] - last[-2][0]))

    def _above(self, now: Situation, count: int, rule: str, seen: str) -> Wish:
        if now.draining:
            self._note(now, count)
            return Wish(
                count + now.draining,
                f"{rule}: plan cancelled",
                f"{seen}, while a replica is going: it stays.",
                f"At or below min_load {now.min_load:g} the removal would have gone on.",
            )
        if now.inhibited:
            return Wish(
                count,
                "held: inhibited",
                f"{seen}, but the last scale-up is still to show what it does.",
                "If that is still so when it serves and the inhibition is over, another comes.",
            )
        self._note(now, count)
        more = math.ceil(now.waiting / now.max_load) - count if now.max_load > 0.0 else 1
        more = min(max(more, 1), self._set.step_max)
        return Wish(
            count + more,
            rule,
            f"{seen}, and nothing is on its way.",
            f"At or below {now.max_load:g} messages, now and soon, nothing would have been added.",
        )

    def _below(self, now: Situation, count: int, load: float) -> Wish:
        seen = f"The average load is {load:.0f} messages, below min_load {now.min_load:g}"
        if now.draining:
            return Wish(
                count,
                "avg_load < min_load: plan goes on",
                f"{seen}, and a replica is already going.",
                f"Above {now.min_load:g} messages it would stay.",
            )
        if not count:
            return Wish(
                0,
                "avg_load < min_load",
                f"{seen}, and there is no replica that could go.",
                "Messages that wait would bring a replica.",
            )
        known = self._too_few.get(count - 1)
        bar = self._bar(known) if known else math.inf
        if known is not None and now.at < known.until and now.arrived_per_s >= bar:
            return Wish(
                count,
                "held: backed off",
                f"{seen}, but {count - 1} replicas were too few at {known.arrived_per_s:.0f} msg/s "
                f"and {now.arrived_per_s:.0f} msg/s arrive now.",
                f"Below {bar:.0f} msg/s, or in {known.until - now.at:.0f} s, it is tried again.",
            )
        return Wish(
            count - 1,
            "avg_load < min_load",
            f"{seen}: the last added replica is to go, a step of its share each period.",
            f"At or above {now.min_load:g} messages all would stay.",
        )

    def _note(self, now: Situation, count: int) -> None:
        """So many were too few at this rate, unless it is an old backlog that is worked off."""
        if now.arrived_per_s < now.consumed_per_s * 0.95 and not now.draining:
            return
        if not now.arrived_per_s > 0.0:
            # Nothing arrives, and no rate could ever fall below that: it says nothing.
            return
        known = self._too_few.get(count)
        # What is known and was not tried has not proved right once more.
        times = known.times if known else 0
        if known is None or now.at >= known.until or now.arrived_per_s < self._bar(known):
            times += 1
        lasts_s = self._set.remembered_s * 2.0 ** min(times - 1, 10)
        self._too_few[count] = TooFew(now.arrived_per_s, now.at + lasts_s, times)

    def _bar(self, known: TooFew) -> float:
        """Below this arrival rate it is tried again."""
        return known.arrived_per_s * (1.0 - self._set.fall)


def growth_per_s(looks: Sequence[tuple[float, int]]) -> float:
    """The slope of what waits, by least squares; 0 where chance may have made it, or it is over."""
    if looks[-1][1] <= looks[-2][1]:
        return 0.0
    times = [at - looks[0][0] for at, _ in looks]
    slope, begin = linear_regression(times, [waiting for _, waiting in looks])
    left_over = sum(
        (waiting - begin - slope * at) ** 2 for at, (_, waiting) in zip(times, looks, strict=True)
    )
    middle = fmean(times)
    error = math.sqrt(left_over / (len(looks) - 2) / sum((at - middle) ** 2 for at in times))
    return slope if slope > SIGNIFICANT * error else 0.0
