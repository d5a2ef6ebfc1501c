"""How many replicas keep a promised wait: the policy "agreement".

    expected wait   = messages ahead / (replicas · capacity)        of what arrives now
    busy            = 1 − ln(1 / (1 − p)) / (capacity · warning)    within 0.5 and 0.95
    ahead(t)        = waiting + (rate(t) − serving · capacity) · t  when a new replica would serve
    needed          = (rate(t) + ahead(t) / work_off) / (busy · capacity)
                      and, while the promise can still be kept, ahead(t) / (capacity · aim)

A promise warns at `warning`; what is planned for is a part of it, the `aim`, so that the law has
acted before any window's percentile gets there. A message that comes when new replicas serve, t
from now, finds ahead(t) messages before it. It waits for less than the aim if enough replicas work
on them, and nothing more piles up if they can do what comes. Of t there are two: a free slot serves
within seconds, a machine has to boot; a boot's t orders replicas only as far as slots run out.
Where t is longer than the promise nothing keeps it any more: the backlog is worked off within t.

How busy replicas may be follows from the percentile: arrivals are random, and one that is busy by
the part ρ makes its p-th percentile wait for ln(ρ / (1 − p)) / (capacity · (1 − ρ)) (M/M/1, the
careful case). A hundred quick messages a second need little room, five slow ones much.

rate(t) is level and rising trend (feed_forward.RateFilter), or what the agreement says that the
load may grow by (`sla_delta`), if that is more: what is promised is kept up with before it is seen.
The oldest message's age corrects what capacity and rate got wrong: at the aim, and with nothing on
its way, one more. A throughput that is promised is had while messages wait.

Up at once; down when the largest `needed` of the last `down_s` would have fitted into fewer, with
`down_room` to spare, and never while a window was warned of or breached.

Replicas are not alike, and the mean of all says nothing of those that stay. So a removal is decided
by what is left: it begins only if this law, asked the moment after with the same facts and only the
survivors' capacities, would not want more than them. When the moment has come the same is asked of
the same sum, so what was begun can be cancelled only by something new: more arrivals, more that
waits, less capacity. On a constant load nothing goes and comes back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.laws.elasticity import LoadLaw
from tidegate.laws.feed_forward import FeedForward, RateFilter, Rates
from tidegate.laws.wish import Situation, Wish

# More than anybody has.
_MOST = 1_000_000
# A window is some seconds: a level that lags behind by five is too slow for it.
_RATES = FeedForward(level_s=2.0)


class Pledge(NamedTuple):
    """What an agreement promises, in what a law can reckon with."""

    # The warning point of waits: the nearest of all that are promised; None: none is.
    wait_s: float | None = None
    # By which of them, for people: "wait_p99".
    metric: str = "throughput"
    percentile: float = 0.99
    # The warning point of what is served a second while more is there; None: not promised.
    throughput_per_s: float | None = None
    # What the load may grow by, msg/s²; None: nobody has said.
    growth_per_s2: float | None = None
    # A window was warned of or breached, and none was met since.
    endangered: bool = False


@dataclass(frozen=True)
class WaitSizing:
    """How the law is set."""

    # Of the warning point: what is planned for.
    aim: float = 0.5
    # Of capacity: what is planned with where no wait is promised, and at most and at least.
    busy_max: float = 0.95
    busy_min: float = 0.5
    # Standard errors of the level that are taken off before a replica is added for it.
    sure: float = 2.0
    # Of the level: how much of a trend is believed at most.
    growth_max: float = 0.5
    # What was needed so long ago still counts; a queue says it by its cool-down.
    down_s: float = 60.0
    # Of a replica: how much of the remaining ones must stay free when one goes.
    down_room: float = 0.15
    rates: FeedForward = _RATES


DEFAULT_WAIT_SIZING = WaitSizing()


def busy_part(pledge: Pledge, capacity_per_s: float, setting: WaitSizing) -> float:
    """Of a replica's capacity, how much may be used if its waits are to keep the percentile."""
    if pledge.wait_s is None:
        return setting.busy_max
    room_per_s = math.log(1.0 / (1.0 - pledge.percentile)) / pledge.wait_s
    return min(max(1.0 - room_per_s / capacity_per_s, setting.busy_min), setting.busy_max)


class _Need(NamedTuple):
    """What the promise asks for, of replicas as they are on average."""

    replicas: float
    # When they must serve.
    within_s: float
    # What to order for it.
    wanted: int
    usable_per_s: float


class WaitLaw:
    """Sizes a queue by what its agreement promises; `pledge` may be set anew at any time."""

    def __init__(self, pledge: Pledge, setting: WaitSizing = DEFAULT_WAIT_SIZING) -> None:
        self.pledge = pledge
        self._set = setting
        self._filter = RateFilter(setting.rates)
        self._load_law = LoadLaw()
        # The largest needed of the window first, later smaller ones behind it.
        self._needed: deque[tuple[float, float]] = deque()

    def step(self, now: Situation) -> Wish:
        """What the promise asks for."""
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
            # It has just begun to look: what is there was asked for by somebody.
            self._remember(now.at, count - self._set.down_room)
        self._remember(now.at, horizon)
        if wanted > count:
            return Wish(
                wanted,
                rule,
                f"{text}; there are {count}.",
                f"Up to {count * usable:.4g} msg/s and {self._room(count, capacity)} waiting "
                "messages nothing would have been added.",
            )
        return self._maybe_down(now, rates, usable, text)

    def _need(self, now: Situation, rates: Rates, capacity: float) -> _Need:
        """Within the time that a free slot takes, or that of a boot if slots run out."""
        usable = busy_part(self.pledge, capacity, self._set) * capacity
        # What noise alone may have put on top is no reason to add.
        unsure = self._set.sure * rates.error_per_s / usable
        needed, within_s = self._needed_in(now.start_s, now, rates, capacity, usable), now.start_s
        if now.boot_s > now.start_s:
            later = self._needed_in(now.boot_s, now, rates, capacity, usable)
            # What free slots can take in time need not be ordered a boot ahead.
            if _whole(later - unsure) > now.replicas + (now.slots_free or 0):
                needed, within_s = max(needed, later), now.boot_s
        return _Need(needed, within_s, _whole(needed - unsure), usable)

    def _needed_in(
        self, lead_s: float, now: Situation, rates: Rates, capacity: float, usable: float
    ) -> float:
        """Replicas that must serve so long from now."""
        pledge, level = self.pledge, rates.level_per_s
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
            # More than a second of the promise waits: the load is there.
            needed = max(needed, pledge.throughput_per_s / capacity)
        return min(needed, float(_MOST))

    @property
    def _aim_s(self) -> float | None:
        return None if self.pledge.wait_s is None else self._set.aim * self.pledge.wait_s

    def _told(
        self,
        now: Situation,
        rates: Rates,
        capacity: float,
        usable: float,
        needed: float,
        horizon_s: float,
    ) -> str:
        promised = self.pledge.metric
        expected_s = now.waiting / (capacity * max(now.serving + now.draining, 1))
        if self.pledge.wait_s is None:
            said = f"{promised} is promised, and {now.waiting} messages wait"
        else:
            said = (
                f"What arrives now waits for about {expected_s:.3g} s, and {promised} warns at "
                f"{self.pledge.wait_s:.4g} s"
            )
        return (
            f"{said}; {rates.level_per_s:.4g} msg/s arrive and {usable:.4g} of {capacity:.4g} "
            f"msg/s are planned per replica: {needed:.2f} replicas are needed in {horizon_s:.3g} s"
        )

    def _maybe_down(self, now: Situation, rates: Rates, usable: float, text: str) -> Wish:
        count, peak = now.replicas, self._needed[0][1]
        # What noise may have put on top is taken off before one is added, not before one goes.
        whole, fits = rates._replace(error_per_s=0.0), count
        while fits and self._are_enough(now.with_fewer(fits - 1), whole, peak * usable):
            fits -= 1
        bar = max((count - 1 - self._set.down_room) * usable, 0.0)
        if fits < count and self.pledge.endangered:
            return Wish(
                count,
                "held: the agreement is in danger",
                f"{text}; {fits} would be enough, but a window was warned of or breached, and none "
                "was met since.",
                "With a window that is met a replica may go.",
            )
        if fits < count and not now.draining:
            return Wish(
                fits,
                "needed < replicas − room",
                f"{text}, and {peak:.2f} at most in the last {self._set.down_s:.0f} s: {fits} of "
                f"{count} are enough.",
                f"Above {bar:.4g} msg/s within that time all would have stayed.",
            )
        return Wish(
            count,
            "needed ≈ replicas",
            f"{text}; there are {count}.",
            f"Above {count * usable:.4g} msg/s one would be added; below {bar:.4g} for "
            f"{self._set.down_s:.0f} s one would go.",
        )

    def _are_enough(self, left: Situation, rates: Rates, peak_per_s: float) -> bool:
        """Whether those that are left would do, and would have done at the peak, with room."""
        capacity = left.capacity_per_s
        if capacity is None or not capacity > 0.0:
            return False
        need = self._need(left, rates, capacity)
        needed = max(need.replicas, peak_per_s / need.usable_per_s)
        return _whole(needed + self._set.down_room) <= left.replicas

    def _room(self, count: int, capacity: float) -> str:
        aim_s = self._aim_s
        return "any number of" if aim_s is None else f"{count * capacity * aim_s:.0f}"

    def _without_capacity(self, now: Situation) -> Wish:
        """Nobody has seen a replica at its limit yet: what is consumed now speaks for it."""
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
