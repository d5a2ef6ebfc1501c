"""The policy "feed-forward" of Tidegate: the number of replicas from the predicted arrival rate.

    rate_ahead = level + max(trend, 0) · min(lead_s, how long it has been rising)
    needed     = ((1 + short) · rate_ahead + excess / work_off_s) / (busy · capacity_per_s)
    replicas   = needed + spare, rounded up to whole machines

The papers react when messages have piled up, and then wait for a machine to boot. This law predicts
the arrival rate (feed-forward): it extrapolates level and trend over the time until a new replica
serves. That time is a few seconds while slots are free, and a boot otherwise. The forecast over a
boot orders replicas only beyond the free slots.

Backlog and message age correct errors of capacity and forecast (feedback). `excess` is the number
of messages beyond what a calm queue holds. `short` grows while the oldest message is older than it
should be, and decays otherwise. Until a replica has been measured at its limit, its capacity is
unknown and the policy "load" decides alone. Its gradual removal of replicas makes the capacity
measurable.

**Level and trend.** Three averages of the rate forget after `level_s`, `fast_s` and `slow_s`. On a
ramp each average lags by slope · its time constant. So trend = (fast − slow) / (slow_s − fast_s),
and the level lacks trend · level_s, which is added. A difference that noise alone could cause is no
trend. The trend is read over a longer time than the level, because a step is a new level and not a
ramp. A step is two consecutive rates on the same side of the level that are each off by more than
`leap` deviations. It shifts all three averages at once, so that it leaves no apparent trend. The
law assumes that a rise continues for at most as long as it has lasted.

**Reserve.** No trend predicts a step, so some replicas are kept in reserve (`spare`). If a machine
is needed, all its slots are filled, because they cost nothing more. A part of the messages that
will pile up during a boot (`foresee`) is ordered for at once; otherwise it would need a second
boot. If a machine is kept warm, that machine is the reserve. Then `spare` is below 0: part of a
replica may be missing while the rate does not rise, and shows as a backlog. Peaks are remembered
for less time.

**Scaling up is immediate, scaling down is slow.** `needed`, less what noise may have added, is
rounded up and ordered at once; a real shortage that this hides shows in the backlog. A replica is
removed only if the largest `needed` of the last `down_s` fits into fewer replicas with `down_room`
to spare. Between the two limits nothing changes, so a load that swings by less causes no reversal.
As in the policy "agreement", the law checks a removal against the remaining replicas: evaluated for
them and their capacities alone, it must not propose more.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.core.reasons import Explanation, Reason
from tidegate.laws.scaling import Proposal, QueueSituation
from tidegate.laws.scaling.load import LoadLaw


@dataclass(frozen=True)
class FeedForwardSettings:
    """The settings of the policy "feed-forward". The defaults were found by simulation."""

    # Time constants of the averages that give level and trend, in seconds.
    level_s: float = 5.0
    fast_s: float = 15.0
    slow_s: float = 60.0
    # Standard errors of the fast average that a difference must exceed to count as a trend.
    significant: float = 2.0
    # Standard errors subtracted from the level before a replica is added for it.
    sure: float = 3.0
    # Deviations of a single rate from the level beyond which two in a row are a step.
    leap: float = 5.0
    # Part of a replica's capacity to plan with.
    busy: float = 1.0
    # Replicas in reserve beyond the needed ones. Below 0, this part of a replica may be missing.
    spare: float = 1.1
    # Whether to fill all slots of a machine that is needed anyway, since they cost nothing more.
    fill: bool = True
    # Fraction of max_load that may wait in each replica before it counts as a backlog.
    calm: float = 0.25
    # Time within which a backlog is to be worked off.
    work_off_s: float = 120.0
    # Fraction of the messages piling up during a boot for which machines are ordered at once.
    foresee: float = 0.5
    # Fraction of the tolerated wait; an oldest message beyond it means that capacity is short.
    age_part: float = 0.5
    # Growth of `short` per second when the oldest message has twice that age or more, and the
    # maximum of `short`.
    age_gain_per_s: float = 0.01
    short_max: float = 0.5
    # `short` halves in this time while messages are young.
    forget_s: float = 120.0
    # How long a peak of `needed` prevents a removal.
    down_s: float = 100.0
    # Fraction of a replica that must stay free on the remaining ones after a removal.
    down_room: float = 0.15


DEFAULT_FEED_FORWARD = FeedForwardSettings()
# A warm machine is the reserve, seconds away. It also replaces quickly a replica removed too early.
WARM_FEED_FORWARD = FeedForwardSettings(spare=-0.2, foresee=0.0, down_s=30.0, down_room=0.05)


def feed_forward_for(*, keeps_warm: bool) -> FeedForwardSettings:
    """Return the settings that suit a queue with or without a warm machine."""
    return WARM_FEED_FORWARD if keeps_warm else DEFAULT_FEED_FORWARD


class RateEstimate(NamedTuple):
    """The arrival rate, its trend, and the standard error of the level."""

    level_per_s: float
    trend_per_s2: float
    error_per_s: float = 0.0
    # How long the rate has been rising, in seconds.
    rising_s: float = 0.0


class _Averages(NamedTuple):
    """The averages before a possible step, and the side of the level that the rate was on."""

    level: float
    fast: float
    slow: float
    noise2: float
    side: float


class RateFilter:
    """A `RateFilter` estimates level and trend of a noisy rate."""

    def __init__(self, setting: FeedForwardSettings = DEFAULT_FEED_FORWARD) -> None:
        self._set = setting
        self._at: float | None = None
        self._last = 0.0
        self._level = 0.0
        self._fast = 0.0
        self._slow = 0.0
        self._noise2 = 0.0
        self._before: _Averages | None = None
        self._rising_since: float | None = None

    def step(self, at: float, rate_per_s: float) -> RateEstimate:
        """Add the next measurement and return the estimate."""
        if self._at is None:
            self._at = at
            self._last = self._level = self._fast = self._slow = rate_per_s
            # Messages that arrive at random (Poisson) have a variance equal to their number.
            self._noise2 = rate_per_s
            return RateEstimate(rate_per_s, 0.0)
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
        # Neighbouring rates differ by noise alone, also on a ramp. A step is one outlier, so it is
        # limited.
        jump = 0.5 * (rate_per_s - self._last) ** 2
        self._last = rate_per_s
        self._noise2 += late * (min(jump, 9.0 * max(self._noise2, rate_per_s)) - self._noise2)
        # The variance of an exponential average of independent values is w / (2 − w) times theirs.
        off = math.sqrt(self._noise2 * new / (2.0 - new))
        error = math.sqrt(self._noise2 * newer / (2.0 - newer))
        difference = self._fast - self._slow
        if difference <= self._set.significant * error:
            self._rising_since = None
        elif self._rising_since is None:
            self._rising_since = at
        if abs(difference) <= self._set.significant * error:
            return RateEstimate(self._level, 0.0, off)
        trend = difference / (self._set.slow_s - self._set.fast_s)
        rising_s = 0.0 if self._rising_since is None else at - self._rising_since
        return RateEstimate(max(self._level + trend * self._set.level_s, 0.0), trend, off, rising_s)

    def _follow_leap(self, rate_per_s: float) -> None:
        """Shift all averages if a second rate in a row is far off the level on the same side."""
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
    """The replicas needed ahead of time, counted as replicas of mean capacity."""

    replicas: float
    # Seconds until they must serve.
    within_s: float
    # Number of replicas to order.
    wanted: int
    # Part of the rate that works off the backlog.
    behind_per_s: float
    # Reserve in replicas; below 0, what may be missing.
    spare: float


class FeedForwardLaw:
    """A `FeedForwardLaw` orders by predicted arrival rate, and corrects by backlog and age."""

    def __init__(self, setting: FeedForwardSettings | None = None) -> None:
        # `None` selects the settings by whether a machine is kept warm.
        self._given = setting
        self._set = setting or DEFAULT_FEED_FORWARD
        self._filter = RateFilter(self._set)
        self._load_law = LoadLaw()
        self._at: float | None = None
        self._short = 0.0
        # Maximum of a sliding window: the largest `needed` first, later smaller ones behind it.
        self._needed: deque[tuple[float, float]] = deque()

    def step(self, now: QueueSituation) -> Proposal:
        """Return the number of replicas that the time ahead needs."""
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
            # On the first sample the replicas that exist may have been needed a moment ago.
            self._remember(now.at, float(now.replicas))
        # Replicas ordered ahead are kept as long as needed ones, or a trend that ends would remove
        # at once what it has ordered.
        self._remember(now.at, need.replicas)
        count, usable = now.replicas, self._set.busy * capacity
        seen = Reason.RATE_NEEDS(
            level_per_s=rates.level_per_s,
            trend_per_s2=rates.trend_per_s2,
            behind_per_s=need.behind_per_s,
            usable_per_s=usable,
            needed=need.replicas,
            within_s=need.within_s,
        )
        if need.wanted > count:
            full_per_s = self._full_at(count, usable, need.spare)
            more = Reason.MORE_NEEDED(count=count, full_per_s=full_per_s)
            return Proposal(need.wanted, "needed > replicas", (seen, more))
        return self._maybe_down(now, rates, usable, need.spare, seen)

    def _need(self, now: QueueSituation, rates: RateEstimate, capacity: float) -> _Need:
        """Compute the need when a free slot would serve, or after a boot if slots run out."""
        usable = self._set.busy * capacity
        excess = max(now.waiting - self._set.calm * now.max_load * max(now.serving, 1), 0.0)
        behind = excess / self._set.work_off_s
        needed = ((1.0 + self._short) * self._ahead(rates, now.start_s) + behind) / usable
        # Do not add a replica for what noise alone may have caused.
        unsure = self._set.sure * rates.error_per_s / usable
        # While the rate rises nothing may be missing, because the shortage would grow with each
        # sample.
        spare = max(self._set.spare, 0.0) if rates.trend_per_s2 > 0.0 else self._set.spare
        wanted, within_s = self._whole(needed - unsure, now, spare), now.start_s
        if now.boot_s > now.start_s:
            # What piles up until a machine has booted must be worked off then.
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
        self,
        now: QueueSituation,
        rates: RateEstimate,
        usable: float,
        spare: float,
        seen: Explanation,
    ) -> Proposal:
        count, peak = now.replicas, self._needed[0][1]
        # Noise is subtracted before a replica is added, but not before one is removed.
        whole, fits = rates._replace(error_per_s=0.0), count
        while fits and self._are_enough(now.with_fewer(fits - 1), whole, peak * usable):
            fits -= 1
        slots = now.slots_per_machine if self._set.fill else 1
        kept = max(self._set.spare, 0.0)
        bar = self._full_at(count - slots, usable, kept) - self._set.down_room * usable
        if fits < count and not now.draining:
            enough = Reason.FEWER_ARE_ENOUGH(
                peak=peak, down_s=self._set.down_s, fits=fits, count=count, bar_per_s=bar
            )
            return Proposal(fits, "needed < replicas − room", (seen, enough))
        reason = Reason.AS_MANY_AS_NEEDED if bar > 0.0 else Reason.LAST_ONES_NEEDED
        as_many = reason(
            count=count,
            peak=peak,
            down_s=self._set.down_s,
            full_per_s=self._full_at(count, usable, spare),
            bar_per_s=bar,
        )
        return Proposal(count, "needed ≈ replicas", (seen, as_many))

    def _are_enough(self, left: QueueSituation, rates: RateEstimate, peak_per_s: float) -> bool:
        """Return whether the remaining replicas suffice now and at the recent peak, with room."""
        capacity = left.capacity_per_s
        if capacity is None or not capacity > 0.0:
            return False
        now_needed = self._need(left, rates, capacity).replicas
        needed = max(now_needed, peak_per_s / (self._set.busy * capacity))
        # A replica may be missing before one is added, but not because one was removed.
        return self._whole(needed + self._set.down_room, left, max(self._set.spare, 0.0)) <= (
            left.replicas
        )

    def _whole(self, needed: float, now: QueueSituation, spare: float) -> int:
        """Return the number of replicas to have: `needed` plus the reserve, in whole machines."""
        # An idle queue needs no reserve. A queue that keeps one replica busy needs all of it.
        count = math.ceil(needed + spare * min(max(needed, 0.0), 1.0) - 1e-9)
        slots = now.slots_per_machine if self._set.fill else 1
        return math.ceil(count / slots) * slots

    def _full_at(self, count: int, usable: float, spare: float) -> float:
        """Return the arrival rate up to which `count` replicas, the reserve included, suffice."""
        # Below one needed replica the reserve is a fraction of it: n + spare · n.
        needed = count - spare if count >= 1.0 + spare else count / (1.0 + spare)
        return max(needed, 0.0) * usable

    def _without_capacity(self, now: QueueSituation) -> Proposal:
        """Use the policy "load" until a replica has been measured at its limit."""
        wish = self._load_law.step(now)
        return wish._replace(
            rule=f"capacity unknown: {wish.rule}",
            reasons=(Reason.CAPACITY_UNKNOWN(), *wish.reasons),
        )

    def _ahead(self, rates: RateEstimate, lead_s: float) -> float:
        growth = max(rates.trend_per_s2, 0.0) * min(lead_s, rates.rising_s)
        return rates.level_per_s + growth

    def _feel_age(self, now: QueueSituation, capacity: float, passed_s: float) -> None:
        tolerated_s = now.max_load / capacity
        limit_s = self._set.age_part * tolerated_s
        if now.oldest_age_s > limit_s > 0.0:
            # Replicas that are coming already answer the shortage.
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
