"""How many replicas the arrival rate will ask for by the time they serve: "feed-forward", ours.

    rate_ahead = level + max(trend, 0) · min(lead_s, how long it has been rising)
    needed     = ((1 + short) · rate_ahead + excess / work_off_s) / (busy · capacity_per_s)
    replicas   = needed + spare, rounded up to whole machines

The papers wait until messages pile up, and then for a machine to boot. Here the arrival rate speaks
first (feed-forward): its level and trend, carried ahead over the time until a replica serves. That
is a few seconds while slots are free and a boot when none is; a boot's horizon orders replicas only
as far as slots run out. The backlog and the age of the oldest message correct what capacity and
forecast got wrong (feedback): `excess` is what waits beyond a calm queue, `short` grows while the
oldest message is older than it should be and falls back slowly when it is not. Until a replica was
seen at its limit its capacity is not known, and the waiting messages speak alone (the policy
"load"), whose gradual removal shows it.

Level and trend come from averages of the rate that forget after `level_s`, `fast_s` and `slow_s`.
On a ramp each lags behind by slope · its time, so trend = (fast − slow) / (slow_s − fast_s), and
trend · level_s is what the level lacks. A difference that noise alone would make is no trend. A
trend is read over a longer time than the level: a step is a level that has changed, and no ramp.
Two rates one after the other that are both above the level, or both below, by more than `leap`
deviations are such a step: all three averages go there with them, and none of it is left to look
like a trend. What has been rising for a while is believed to rise for as long again, and no longer.

A step is foretold by nothing, so some replicas stand by (`spare`), and a machine that is needed is
filled: its other slots cost nothing more. What will pile up while machines boot is ordered for in
part at once (`foresee`), or it would wait for a second boot. Where a machine is kept warm, that is
the reserve: a part of a replica may then be missing (`spare` below 0) as long as the rate does not
rise, and shows as a backlog; and peaks are remembered for less time.

Up at once, down slowly: `needed`, less what noise may have put on top, is rounded up and ordered
at once (a real shortage that it hides shows in the backlog); a replica goes only when the
largest `needed` of the last `down_s` would have fitted into one replica less, with `down_room` to
spare. Between the two nothing moves, so a load that swings by less causes no reversal. And a
removal is decided by those that stay, as under an agreement (laws/wait_sizing.py): this law, asked
the moment after with the same facts and their capacities alone, must not want more than them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.laws.elasticity import LoadLaw
from tidegate.laws.wish import Situation, Wish


@dataclass(frozen=True)
class FeedForward:
    """How the law is set; found by simulation (docs/simulation.md)."""

    level_s: float = 5.0
    fast_s: float = 15.0
    slow_s: float = 60.0
    # Standard errors of the fast average that a difference must exceed to be a trend.
    significant: float = 2.0
    # Standard errors of the level that are taken off before a replica is added for it.
    sure: float = 3.0
    # Deviations of a single rate that two of them must be off the level to be a step.
    leap: float = 5.0
    # Of a replica's capacity: how much of it to plan with.
    busy: float = 1.0
    # Replicas beyond what is needed, for what no trend foretells; below 0: so much may be missing.
    spare: float = 1.1
    # Whether slots of a machine that is needed anyway are filled: they cost nothing more.
    fill: bool = True
    # Of max_load: what may wait in each replica before it counts as a backlog.
    calm: float = 0.25
    # Within how long a backlog is to be worked off.
    work_off_s: float = 120.0
    # Of what will pile up during a boot: how much machines are ordered for at once.
    foresee: float = 0.5
    # Of the tolerated wait: from which age of the oldest message on capacity counts as short.
    age_part: float = 0.5
    # How much `short` grows in a second at twice that age, and at most.
    age_gain_per_s: float = 0.01
    short_max: float = 0.5
    # `short` halves in this time when messages are young.
    forget_s: float = 120.0
    down_s: float = 100.0
    # Of a replica: how much of the remaining ones must stay free when one goes.
    down_room: float = 0.15


DEFAULT_FEED_FORWARD = FeedForward()
# A warm machine is the reserve, seconds away, and what went too early is as soon back.
WARM_FEED_FORWARD = FeedForward(spare=-0.2, foresee=0.0, down_s=30.0, down_room=0.05)


def feed_forward_for(*, keeps_warm: bool) -> FeedForward:
    """As the law is at its best."""
    return WARM_FEED_FORWARD if keeps_warm else DEFAULT_FEED_FORWARD


class Rates(NamedTuple):
    """The arrival rate now, how it changes, and how far the level may be off by noise."""

    level_per_s: float
    trend_per_s2: float
    error_per_s: float = 0.0
    # For how long it has been rising.
    rising_s: float = 0.0


class _Averages(NamedTuple):
    """As they were before a rate that may be a step, and the rate's side of the level."""

    level: float
    fast: float
    slow: float
    noise2: float
    side: float


class RateFilter:
    """Level and trend of a noisy rate."""

    def __init__(self, setting: FeedForward = DEFAULT_FEED_FORWARD) -> None:
        self._set = setting
        self._at: float | None = None
        self._last = 0.0
        self._level = 0.0
        self._fast = 0.0
        self._slow = 0.0
        self._noise2 = 0.0
        self._before: _Averages | None = None
        self._rising_since: float | None = None

    def step(self, at: float, rate_per_s: float) -> Rates:
        """Take the next measurement in."""
        if self._at is None:
            self._at = at
            self._last = self._level = self._fast = self._slow = rate_per_s
            # Messages that come at random vary by as many as there are.
            self._noise2 = rate_per_s
            return Rates(rate_per_s, 0.0)
        passed_s = max(at - self._at, 0.0)
        if at < self._at:
            self._rising_since = None
        self._at = at
        if passed_s > 0.0:
            self._follow_leap(rate_per_s)
        new = 1.0 - math.exp(-passed_s / self._set.level_s)
        newer = 1.0 - math.exp(-passed_s / self._set.fast_s)
        late = 1.0 - math.exp(-passed_s / self._set.slow_s)
        self._level += new * (rate_per_s - self._level)
        self._fast += newer * (rate_per_s - self._fast)
        self._slow += late * (rate_per_s - self._slow)
        # Neighbours differ by noise alone, on a ramp too; a step is one outlier, and is cut.
        jump = 0.5 * (rate_per_s - self._last) ** 2
        self._last = rate_per_s
        self._noise2 += late * (min(jump, 9.0 * max(self._noise2, rate_per_s)) - self._noise2)
        # An average of independent values varies w / (2 − w) as much as one of them.
        off = math.sqrt(self._noise2 * new / (2.0 - new))
        error = math.sqrt(self._noise2 * newer / (2.0 - newer))
        difference = self._fast - self._slow
        if difference <= self._set.significant * error:
            self._rising_since = None
        elif self._rising_since is None:
            self._rising_since = at
        if abs(difference) <= self._set.significant * error:
            return Rates(self._level, 0.0, off)
        trend = difference / (self._set.slow_s - self._set.fast_s)
        rising_s = 0.0 if self._rising_since is None else at - self._rising_since
        return Rates(max(self._level + trend * self._set.level_s, 0.0), trend, off, rising_s)

    def _follow_leap(self, rate_per_s: float) -> None:
        """A second rate far off the level, on the same side: that is where the level is now."""
        before = self._before or _Averages(self._level, self._fast, self._slow, self._noise2, 0.0)
        far = self._set.leap * math.sqrt(max(before.noise2, before.level, 1.0))
        off = rate_per_s - before.level
        side = math.copysign(1.0, off) if abs(off) > far else 0.0
        if side and side == before.side:
            moved = 0.5 * (self._last + rate_per_s) - before.level
            self._level = before.level + moved
            self._fast = before.fast + moved
            self._slow = before.slow + moved
            self._before = None
        else:
            self._before = before._replace(side=side) if side else None


class _Need(NamedTuple):
    """What the time ahead asks for, of replicas as they are on average."""

    replicas: float
    # When they must serve.
    within_s: float
    # What to order for it.
    wanted: int
    # Of it, to work off what waits.
    behind_per_s: float
    # Beyond it, or what of it may be missing.
    spare: float


class FeedForwardLaw:
    """Orders ahead by arrival rate, corrects by backlog and age."""

    def __init__(self, setting: FeedForward | None = None) -> None:
        # None: as is best with or without a machine that is kept warm.
        self._given = setting
        self._set = setting or DEFAULT_FEED_FORWARD
        self._filter = RateFilter(self._set)
        self._load_law = LoadLaw()
        self._at: float | None = None
        self._short = 0.0
        # The largest needed of the window first, later smaller ones behind it.
        self._needed: deque[tuple[float, float]] = deque()

    def step(self, now: Situation) -> Wish:
        """What the time ahead asks for."""
        self._set = self._given or feed_forward_for(keeps_warm=now.keeps_warm)
        rates = self._filter.step(now.at, now.arrived_per_s)
        passed_s = 0.0 if self._at is None else max(now.at - self._at, 0.0)
        self._at = now.at
        capacity = now.capacity_per_s
        if capacity is None or not capacity > 0.0:
            return self._without_capacity(now)
        self._feel_age(now, capacity, passed_s)
        need = self._need(now, rates, capacity)
        if not self._needed:
            # It has just begun to look: what is there may have been needed a moment ago.
            self._remember(now.at, float(now.replicas))
        # What was ordered ahead is kept as long as what was needed: a trend that ends is no reason
        # to send away at once what it has called.
        self._remember(now.at, need.replicas)
        count, usable = now.replicas, self._set.busy * capacity
        text = (
            f"{rates.level_per_s:.0f} msg/s arrive, changing by {rates.trend_per_s2:+.2f} msg/s²; "
            f"with {need.behind_per_s:.0f} msg/s to catch up and {usable:.0f} msg/s planned per "
            f"replica, {need.replicas:.2f} replicas are needed in {need.within_s:.0f} s"
        )
        if need.wanted > count:
            return Wish(
                need.wanted,
                "needed > replicas",
                f"{text}; there are {count}.",
                f"Up to {self._full_at(count, usable, need.spare):.0f} msg/s nothing would have "
                "been added.",
            )
        return self._maybe_down(now, rates, usable, need.spare, text)

    def _need(self, now: Situation, rates: Rates, capacity: float) -> _Need:
        """Within the time that a free slot takes, or that of a boot if slots run out."""
        usable = self._set.busy * capacity
        excess = max(now.waiting - self._set.calm * now.max_load * max(now.serving, 1), 0.0)
        behind = excess / self._set.work_off_s
        needed = ((1.0 + self._short) * self._ahead(rates, now.start_s) + behind) / usable
        # What noise alone may have put on top is no reason to add.
        unsure = self._set.sure * rates.error_per_s / usable
        # While it rises nothing may be missing: it would be more at each look.
        spare = max(self._set.spare, 0.0) if rates.trend_per_s2 > 0.0 else self._set.spare
        wanted, within_s = self._whole(needed - unsure, now, spare), now.start_s
        if now.boot_s > now.start_s:
            # What will pile up until a machine has booted is there to be worked off then.
            piling = max(rates.level_per_s - capacity * now.serving, 0.0) * now.boot_s
            then_behind = behind + self._set.foresee * piling / self._set.work_off_s
            later = ((1.0 + self._short) * self._ahead(rates, now.boot_s) + then_behind) / usable
            # What free slots can take in time need not be ordered a boot ahead.
            then_wanted = self._whole(later - unsure, now, spare)
            if then_wanted > now.replicas + (now.slots_free or 0):
                wanted = max(wanted, then_wanted)
                needed, within_s = max(needed, later), now.boot_s
        return _Need(needed, within_s, wanted, behind, spare)

    def _maybe_down(
        self, now: Situation, rates: Rates, usable: float, spare: float, text: str
    ) -> Wish:
        count, peak = now.replicas, self._needed[0][1]
        # What noise may have put on top is taken off before one is added, not before one goes.
        whole, fits = rates._replace(error_per_s=0.0), count
        while fits and self._are_enough(now.with_fewer(fits - 1), whole, peak * usable):
            fits -= 1
        slots = now.slots_per_machine if self._set.fill else 1
        kept = max(self._set.spare, 0.0)
        bar = self._full_at(count - slots, usable, kept) - self._set.down_room * usable
        if fits < count and not now.draining:
            return Wish(
                fits,
                "needed < replicas − room",
                f"{text}, and {peak:.2f} at most in the last {self._set.down_s:.0f} s: "
                f"{fits} of {count} are enough.",
                f"Above {bar:.0f} msg/s within that time all would have stayed.",
            )
        return Wish(
            count,
            "needed ≈ replicas",
            f"{text}; there are {count}, and {peak:.2f} were needed at most in the last "
            f"{self._set.down_s:.0f} s.",
            f"Above {self._full_at(count, usable, spare):.0f} msg/s one would be added; "
            + (
                f"below {bar:.0f} for {self._set.down_s:.0f} s one would go."
                if bar > 0.0
                else "the last ones stay."
            ),
        )

    def _are_enough(self, left: Situation, rates: Rates, peak_per_s: float) -> bool:
        """Whether those that are left would do, and would have done at the peak, with room."""
        capacity = left.capacity_per_s
        if capacity is None or not capacity > 0.0:
            return False
        now_needed = self._need(left, rates, capacity).replicas
        needed = max(now_needed, peak_per_s / (self._set.busy * capacity))
        # What may be missing before one comes may not be missing because one went.
        return self._whole(needed + self._set.down_room, left, max(self._set.spare, 0.0)) <= (
            left.replicas
        )

    def _whole(self, needed: float, now: Situation, spare: float) -> int:
        """Replicas to have for so many that are needed: with what is spare, machines full."""
        # A queue that sleeps needs no reserve; one that keeps a replica busy needs all of it.
        count = math.ceil(needed + spare * min(max(needed, 0.0), 1.0) - 1e-9)
        slots = now.slots_per_machine if self._set.fill else 1
        return math.ceil(count / slots) * slots

    def _full_at(self, count: int, usable: float, spare: float) -> float:
        """The arrival rate that so many replicas, with the reserve among them, are enough for."""
        # Below one needed replica the reserve is a part of it: n + spare · n.
        needed = count - spare if count >= 1.0 + spare else count / (1.0 + spare)
        return max(needed, 0.0) * usable

    def _without_capacity(self, now: Situation) -> Wish:
        """Nobody has seen a replica at its limit yet: until then the waiting messages speak."""
        wish = self._load_law.step(now)
        return wish._replace(
            rule=f"capacity unknown: {wish.rule}",
            reason=f"What a replica can do is not known yet. {wish.reason}",
            otherwise="capacity_per_s in the config, or a replica seen busy, lets the rate speak. "
            + wish.otherwise,
        )

    def _ahead(self, rates: Rates, lead_s: float) -> float:
        growth = max(rates.trend_per_s2, 0.0) * min(lead_s, rates.rising_s)
        return rates.level_per_s + growth

    def _feel_age(self, now: Situation, capacity: float, passed_s: float) -> None:
        tolerated_s = now.max_load / capacity
        limit_s = self._set.age_part * tolerated_s
        if now.oldest_age_s > limit_s > 0.0:
            # While replicas are coming the shortage is known already.
            if not now.coming:
                over = min(now.oldest_age_s / limit_s - 1.0, 1.0)
                self._short += self._set.age_gain_per_s * over * passed_s
                self._short = min(self._short, self._set.short_max)
        else:
            self._short *= 0.5 ** (passed_s / self._set.forget_s)

    def _remember(self, at: float, needed: float) -> None:
        window = self._needed
        while window and window[-1][1] <= needed:
            window.pop()
        window.append((at, needed))
        while window[0][0] < at - self._set.down_s:
            window.popleft()
