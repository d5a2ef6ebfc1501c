"""The policy "agreement": the number of replicas that keeps a promised wait.

    expected wait   = messages ahead / (replicas · capacity)        of a message that arrives now
    busy            = 1 − ln(1 / (1 − p)) / (capacity · warning)    within 0.5 and 0.95
    ahead(t)        = waiting + (rate(t) − serving · capacity) · t  when a new replica would serve
    needed          = (rate(t) + ahead(t) / work_off) / (busy · capacity)
                      and, while the promise can still be kept, ahead(t) / (capacity · aim)

A promise has a warning point. The law plans for a part of it, the `aim`, so that it acts before the
percentile of any window reaches the warning point. A message that arrives when new replicas serve,
t seconds from now, finds ahead(t) messages before it. It waits for less than the aim if enough
replicas work on them. The queue does not grow further if the replicas also handle the arrival rate.

There are two values of t: a free slot serves within seconds, a machine must boot first. The time of
a boot orders replicas only beyond the free slots. If t is longer than the promised wait, no number
of replicas can keep the promise any more, and the backlog is worked off within t.

The percentile determines how busy replicas may be. Arrivals are random, and a replica with the
utilisation ρ makes its p-th percentile wait for ln(ρ / (1 − p)) / (capacity · (1 − ρ)) (M/M/1, the
conservative case). A replica that handles a hundred messages per second needs little reserve; a
replica that handles five needs much.

rate(t) is the level plus a rising trend (`RateFilter`). If the agreement names a larger growth
(`sla_delta`), that counts instead, so that capacity follows the promised growth before it happens.
The age of the oldest message corrects errors of capacity and rate. If it reaches the aim and no
scale-up is still taking effect, the law adds a replica. A promised throughput adds replicas only
while messages wait.

Scaling up is immediate. The law scales down when the largest `needed` of the last `down_s` fits
into fewer replicas with `down_room` to spare. It never does while the last window was in warning or
breached.

Replicas differ, and their mean capacity does not describe the remaining ones. Before a removal the
law is therefore evaluated for the situation right after it, with the capacities of the remaining
replicas alone. The removal begins only if the law would not propose more than them. The same check
with the same sum applies when the replica is to go. So only a change can cancel a removal: more
arrivals, more waiting messages, or less capacity. On a constant load no replica leaves and comes
back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.laws.scaling import Proposal, QueueSituation
from tidegate.laws.scaling.feed_forward import FeedForwardSettings, RateEstimate, RateFilter
from tidegate.laws.scaling.load import LoadLaw

# An upper bound far beyond any real number of replicas, so that rounding never meets infinity.
_MOST = 1_000_000
# A promise is judged over windows of a few seconds, so a level that lags by five seconds is too
# slow.
_RATES = FeedForwardSettings(level_s=2.0)


class WaitTarget(NamedTuple):
    """The promises of an agreement, in the terms that the law computes with."""

    # The smallest warning point of the promised waits. `None` means that no wait is promised.
    wait_s: float | None = None
    # The metric that promises it, for people, such as "wait_p99".
    metric: str = "throughput"
    percentile: float = 0.99
    # The warning point of the throughput while more load is offered. `None` means not promised.
    throughput_per_s: float | None = None
    # Growth of the load that the agreement names, in msg/s². `None` means that it names none.
    growth_per_s2: float | None = None
    # The last window was in warning or breached.
    endangered: bool = False


@dataclass(frozen=True)
class WaitLawSettings:
    """The settings of the policy "agreement"."""

    # Fraction of the warning point to plan for.
    aim: float = 0.5
    # Limits of the usable fraction of the capacity. The maximum also applies where no wait is
    # promised.
    busy_max: float = 0.95
    busy_min: float = 0.5
    # Standard errors subtracted from the level before a replica is added for it.
    sure: float = 2.0
    # The largest trend that is believed, as a fraction of the level.
    growth_max: float = 0.5
    # How long a peak of `needed` prevents a removal. A queue sets it by its cool-down.
    down_s: float = 60.0
    # Fraction of a replica that must stay free on the remaining ones after a removal.
    down_room: float = 0.15
    rates: FeedForwardSettings = _RATES


DEFAULT_WAIT_LAW_SETTINGS = WaitLawSettings()


def usable_part(pledge: WaitTarget, capacity_per_s: float, setting: WaitLawSettings) -> float:
    """Return the fraction of a replica's capacity that may be used without late messages."""
    if pledge.wait_s is None:
        return setting.busy_max
    room_per_s = math.log(1.0 / (1.0 - pledge.percentile)) / pledge.wait_s
    return min(max(1.0 - room_per_s / capacity_per_s, setting.busy_min), setting.busy_max)


class _Need(NamedTuple):
    """The replicas that the promise needs, counted as replicas of mean capacity."""

    replicas: float
    # Seconds until they must serve.
    within_s: float
    # Number of replicas to order.
    wanted: int
    usable_per_s: float


class WaitLaw:
    """A `WaitLaw` sizes a queue by its agreement. The caller may replace the target at any time."""

    def __init__(
        self, pledge: WaitTarget, setting: WaitLawSettings = DEFAULT_WAIT_LAW_SETTINGS
    ) -> None:
        self.target = pledge
        self._set = setting
        self._filter = RateFilter(setting.rates)
        self._load_law = LoadLaw()
        # Maximum of a sliding window: the largest `needed` first, later smaller ones behind it.
        self._needed: deque[tuple[float, float]] = deque()

    def step(self, now: QueueSituation) -> Proposal:
        """Return the number of replicas that the promise needs."""
        rates = self._filter.step(now.at, now.arrived_per_s)
        capacity = now.capacity_per_s
        if capacity is None or not capacity > 0.0:
            return self._without_capacity(now)
        count = now.replicas
        need = self._need(now, rates, capacity)
        horizon, usable = need.replicas, need.usable_per_s
        text = self._told(now, rates, capacity, usable, horizon, need.within_s)
        wanted, rule = need.wanted, "needed > replicas"
        aim_s = self._aim_s
        is_old = aim_s is not None and now.oldest_age_s >= aim_s
        if wanted <= count and is_old and not now.inhibited:
            wanted, rule = count + 1, "oldest age at the aim"
            horizon = max(horizon, count + 0.5)
            text += f"; yet the oldest message is {now.oldest_age_s:.3g} s old"
        if not self._needed:
            # On the first sample the current replicas count as needed.
            self._remember(now.at, count - self._set.down_room)
        self._remember(now.at, horizon)
        if wanted > count:
            return Proposal(
                wanted,
                rule,
                f"{text}; there are {count}.",
                f"Up to {count * usable:.4g} msg/s and {self._room(count, capacity)} waiting "
                "messages nothing would have been added.",
            )
        return self._maybe_down(now, rates, usable, text)

    def _need(self, now: QueueSituation, rates: RateEstimate, capacity: float) -> _Need:
        """Compute the need when a free slot would serve, or after a boot if slots run out."""
        usable = usable_part(self.target, capacity, self._set) * capacity
        # Do not add a replica for what noise alone may have caused.
        unsure = self._set.sure * rates.error_per_s / usable
        needed, within_s = self._needed_in(now.start_s, now, rates, capacity, usable), now.start_s
        if now.boot_s > now.start_s:
            later = self._needed_in(now.boot_s, now, rates, capacity, usable)
            # What free slots can take in time need not be ordered a boot ahead.
            if _whole(later - unsure) > now.replicas + (now.slots_free or 0):
                needed, within_s = max(needed, later), now.boot_s
        return _Need(needed, within_s, _whole(needed - unsure), usable)

    def _needed_in(
        self,
        lead_s: float,
        now: QueueSituation,
        rates: RateEstimate,
        capacity: float,
        usable: float,
    ) -> float:
        """Return the replicas that must serve `lead_s` from now."""
        pledge, level = self.target, rates.level_per_s
        seen = min(max(rates.trend_per_s2, 0.0) * lead_s, self._set.growth_max * level)
        growth = max(seen, (pledge.growth_per_s2 or 0.0) * lead_s)
        piled = now.waiting + (level + growth / 2.0 - capacity * now.serving) * lead_s
        ahead = max(piled, 0.0)
        aim_s = self._aim_s
        work_off_s = max(lead_s, aim_s or 0.0, 1e-3)
        needed = (level + growth + ahead / work_off_s) / usable
        if aim_s is not None and pledge.wait_s is not None and lead_s <= pledge.wait_s:
            needed = max(needed, ahead / (capacity * aim_s))
        if pledge.throughput_per_s is not None and ahead >= pledge.throughput_per_s:
            # More than one second's worth of the promised throughput waits, so the load is there.
            needed = max(needed, pledge.throughput_per_s / capacity)
        return min(needed, float(_MOST))

    @property
    def _aim_s(self) -> float | None:
        return None if self.target.wait_s is None else self._set.aim * self.target.wait_s

    def _told(
        self,
        now: QueueSituation,
        rates: RateEstimate,
        capacity: float,
        usable: float,
        needed: float,
        horizon_s: float,
    ) -> str:
        promised = self.target.metric
        expected_s = now.waiting / (capacity * max(now.serving + now.draining, 1))
        if self.target.wait_s is None:
            said = f"{promised} is promised, and {now.waiting} messages wait"
        else:
            said = (
                f"What arrives now waits for about {expected_s:.3g} s, and {promised} warns at "
                f"{self.target.wait_s:.4g} s"
            )
        return (
            f"{said}; {rates.level_per_s:.4g} msg/s arrive and {usable:.4g} of {capacity:.4g} "
            f"msg/s are planned per replica: {needed:.2f} replicas are needed in {horizon_s:.3g} s"
        )

    def _maybe_down(
        self, now: QueueSituation, rates: RateEstimate, usable: float, text: str
    ) -> Proposal:
        count, peak = now.replicas, self._needed[0][1]
        # Noise is subtracted before a replica is added, but not before one is removed.
        whole, fits = rates._replace(error_per_s=0.0), count
        while fits and self._are_enough(now.with_fewer(fits - 1), whole, peak * usable):
            fits -= 1
        bar = max((count - 1 - self._set.down_room) * usable, 0.0)
        if fits < count and self.target.endangered:
            return Proposal(
                count,
                "held: the agreement is in danger",
                f"{text}; {fits} would be enough, but a window was warned of or breached, and none "
                "was met since.",
                "With a window that is met a replica may go.",
            )
        if fits < count and not now.draining:
            return Proposal(
                fits,
                "needed < replicas − room",
                f"{text}, and {peak:.2f} at most in the last {self._set.down_s:.0f} s: {fits} of "
                f"{count} are enough.",
                f"Above {bar:.4g} msg/s within that time all would have stayed.",
            )
        return Proposal(
            count,
            "needed ≈ replicas",
            f"{text}; there are {count}.",
            f"Above {count * usable:.4g} msg/s one would be added; below {bar:.4g} for "
            f"{self._set.down_s:.0f} s one would go.",
        )

    def _are_enough(self, left: QueueSituation, rates: RateEstimate, peak_per_s: float) -> bool:
        """Return whether the remaining replicas suffice now and at the recent peak, with room."""
        capacity = left.capacity_per_s
        if capacity is None or not capacity > 0.0:
            return False
        need = self._need(left, rates, capacity)
        needed = max(need.replicas, peak_per_s / need.usable_per_s)
        return _whole(needed + self._set.down_room) <= left.replicas

    def _room(self, count: int, capacity: float) -> str:
        aim_s = self._aim_s
        return "any number of" if aim_s is None else f"{count * capacity * aim_s:.0f}"

    def _without_capacity(self, now: QueueSituation) -> Proposal:
        """Use the policy "load" until a replica has been measured at its limit.

        The rate that each replica consumes now replaces its capacity.
        """
        aim_s = self._aim_s
        each_per_s = now.consumed_per_s / max(now.serving + now.draining, 1)
        if aim_s is not None and each_per_s > 0.0:
            load = max(aim_s * each_per_s, 1.0)
            now = now._replace(max_load=load, min_load=0.1 * load)
        wish = self._load_law.step(now)
        if aim_s is not None and now.oldest_age_s >= aim_s and not now.inhibited:
            wish = wish._replace(
                replicas=max(wish.replicas, now.replicas + 1),
                reason=f"The oldest message is {now.oldest_age_s:.3g} s old. {wish.reason}",
            )
        return wish._replace(
            rule=f"capacity unknown: {wish.rule}",
            reason=f"What a replica can do is not known yet. {wish.reason}",
            otherwise="`capacity` in the agreement, or a replica seen busy, lets the rate speak. "
            + wish.otherwise,
        )

    def _remember(self, at: float, needed: float) -> None:
        window = self._needed
        while window and window[-1][1] <= needed:
            window.pop()
        window.append((at, needed))
        while window[0][0] < at - self._set.down_s:
            window.popleft()


def _whole(needed: float) -> int:
    return math.ceil(min(max(needed, 0.0), _MOST) - 1e-9)
