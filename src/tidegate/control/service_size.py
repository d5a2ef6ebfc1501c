"""The number of instances that a service needs.

    more     the requests in hand, now or soon, cannot be answered in time      laws.http_sizing
             a warning that this does not explain: one more, if load can be the reason
    fewer    one fewer would have been enough, with reserve, for the whole cool-down
    floor    a number that was too low at a load is not used again at that load for a while
    override a number set by hand replaces all of these

The loop stores the number before it orders anything. The next leader continues with it, and not
with the number of instances that happen to run in the middle of a rollout.
"""

from __future__ import annotations

import math

from tidegate.agreement.document import Agreement
from tidegate.control.performance import Performance
from tidegate.control.promised_responses import points_of
from tidegate.control.service_crew import Crew
from tidegate.control.service_seen import Seen
from tidegate.core.by_hand import NOTHING_SAID
from tidegate.laws.http_sizing import NO_POINTS, Load, ScaleIn, needed, needed_with_room

COOLDOWN_S = 15.0
# Seconds until a change shows: a door reports every second and follows the store four times a
# second.
SENSED_S = 1.5
# Seconds for which a number stays too low for a load.
REMEMBERED_S = 300.0
# Loads whose ratio is above this count as equal.
_SAME_LOAD = 0.9
# Seconds after a scale-in in which adding again shows that the scale-in was wrong.
_REGRET_S = 30.0
# A missing part of an instance below this is ignored.
_PART = 0.25


class ServiceSize:
    """Decides how many instances of one service are to serve."""

    def __init__(
        self, agreement: Agreement, performance: Performance, cooldown_s: float = COOLDOWN_S
    ) -> None:
        self.agreement = agreement
        # The override: a number, or bounds that replace the agreed ones.
        self.by_hand = NOTHING_SAID
        self._performance = performance
        self._scale_in = ScaleIn(cooldown_s)
        # How many instances are to serve; None before the first decision.
        self._wanted: int | None = None
        # A number that is needed at a load, the load, and until when.
        self._floor: tuple[int, float, float] | None = None
        self._fewer_at = -math.inf
        self._raised_at = -math.inf
        # Whether a warning stays although nothing waits, so that more instances would not help.
        self.is_unhelped = False

    @property
    def wanted(self) -> int:
        """How many instances are to serve; `begin` must have been called."""
        assert self._wanted is not None, "nobody has begun yet"
        return self._wanted

    def begin(self, wanted: int) -> None:
        """Start with this number unless one is known already; apply the bounds in any case."""
        self._wanted = self._bounded(wanted if self._wanted is None else self._wanted)

    def hold(self, crew: Crew, instances: int, at: float) -> None:
        """Use an override; without it the law continues from this number."""
        self._wanted = self._bounded(instances)
        self._scale_in.again(at)
        self._floor = None
        self.is_unhelped = False
        crew.rule = crew.rule or "manual"
        crew.because(f"A person has said {self._wanted}.")

    def step(
        self,
        crew: Crew,
        seen: Seen,
        load: Load,
        *,
        is_any_slow: bool,
        may_shrink: bool,
        relieved_at: float = -math.inf,
    ) -> None:
        """Adapt the number to the last sample.

        `relieved_at` is when the concurrency of an instance was last lowered. `may_shrink` is False
        during a rollout.
        """
        before, at = self.wanted, seen.at
        asked = self.needed(load)
        if asked is not None:
            lacks = asked - self._performance.effective(crew.counted_ids)
            if lacks > _PART:
                self._raise(len(crew.counted_ids) + math.ceil(lacks - _PART), load, at)
                if self.wanted > before:
                    crew.rule = "more in hand than is answered in time"
                    crew.because(self._words(load, asked))
        is_pressed = seen.is_pressed(self.agreement.window_s)
        self.is_unhelped = self.is_unhelped and is_pressed
        if self.wanted == before and is_pressed:
            self._feed_back(crew, seen, load, is_any_slow, relieved_at)
        floor = self._floor_now(load, at)
        if floor > self.wanted:
            self._wanted = self._bounded(floor)
        # Unanswered requests do not count as in hand, so a low number in hand means nothing then.
        is_calm = self.wanted <= before and not (is_pressed or seen.leaves_unanswered)
        self._lower(crew, load, at, may_shrink=may_shrink and is_calm)

    def needed(self, load: Load) -> int | None:
        """Return how many instances answer the load in time; None if the capacity is not known."""
        hoped = self._performance.hoped_per_s
        points = points_of(self.agreement, self._performance)
        if not hoped or (points is NO_POINTS and not load.is_open):
            return None
        return needed(load, hoped, points)

    def load(self, crew: Crew) -> Load:
        """Return the load now, and the load when an instance ordered now would serve."""
        lead_s, trend = self._lead_s(crew), self._performance.trend
        ahead = trend.ahead(lead_s)
        delta = self.agreement.resources.sla_delta_per_s2
        limit_s = points_of(self.agreement, self._performance).limit_s
        if delta and math.isfinite(limit_s):
            # The agreement promises to keep up with this growth although it has not been seen yet.
            ahead = max(ahead, trend.in_hand + delta * lead_s * limit_s)
        return Load(trend.in_hand, self._performance.answered_per_s, ahead, trend.is_open)

    # Scaling out

    def _raise(self, wanted: int, load: Load, at: float) -> None:
        # Double at most in one step: a short burst may look like a flood.
        wanted = self._bounded(min(wanted, 2 * max(self.wanted, 1)))
        if wanted <= self.wanted:
            return
        if at - self._fewer_at < _REGRET_S:
            self._floor = (self.wanted + 1, load.in_hand, at + REMEMBERED_S)
        self._wanted = wanted
        self._raised_at = at
        self._scale_in.again(at)

    def _feed_back(
        self, crew: Crew, seen: Seen, load: Load, is_any_slow: bool, relieved_at: float
    ) -> None:
        """Add one for a warning that the law does not explain, if load can be its reason."""
        # The last order or change must have had its effect in a whole window first.
        helped_at = max(self._raised_at + self._lead_s(crew), relieved_at)
        if seen.at < helped_at + self.agreement.window_s or crew.coming:
            return
        if not self._is_loaded(crew):
            crew.rule = crew.rule or "not a matter of load"
            crew.because("Nothing waits for an instance: more of them would answer no sooner.")
            self.is_unhelped = True
            return
        more = self._bounded(self.wanted + 1)
        if more > self.wanted:
            crew.rule = "warned"
            evidence = [] if seen.window is None else seen.window.evidence
            crew.because(f"What is in hand does not explain it: {'; '.join(evidence)}.")
            # If an instance is slow, hangs or is being replaced, that may be the reason instead.
            if not (crew.ejected or crew.is_rolling or is_any_slow):
                self._floor = (more, load.in_hand, seen.at + REMEMBERED_S)
            self._raise(more, load, seen.at)

    def _is_loaded(self, crew: Crew) -> bool:
        """Return whether more instances could help.

        They can if requests wait, or if an instance is at half of its limit or capacity.
        """
        for instance in crew.ready:
            rate = self._performance.rate(instance.instance_id)
            known = self._performance.capacity(instance.instance_id)
            if rate is None or known is None:
                continue
            if known.had_waiting(rate) or 2 * rate.outstanding >= rate.concurrency:
                return True
            if known.per_s is not None and 2.0 * rate.per_s >= known.per_s:
                return True
        return False

    def _floor_now(self, load: Load, at: float) -> int:
        if self._floor is None or at >= self._floor[2]:
            self._floor = None
            return 0
        count, in_hand, _ = self._floor
        return count if load.in_hand >= _SAME_LOAD * in_hand else 0

    # Scaling in

    def _lower(self, crew: Crew, load: Load, at: float, *, may_shrink: bool) -> None:
        proven = self._performance.proven_per_s
        if not proven:
            return
        room = needed_with_room(load, proven, points_of(self.agreement, self._performance))
        # A slow instance is worth less than one.
        slow = len(crew.counted_ids) - self._performance.effective(crew.counted_ids)
        self._scale_in.see(at, max(room + math.ceil(slow - _PART), self._floor_now(load, at)))
        fewer = self._bounded(self.wanted - 1)
        if may_shrink and fewer < self.wanted and self._scale_in.may_go(at, self.wanted):
            self._wanted = fewer
            self._scale_in.again(at)
            self._fewer_at = at
            crew.rule = "one fewer holds with room"
            crew.because(
                f"In the last {self._scale_in.cooldown_s:.0f} s {fewer} would have been enough, "
                "with room to spare."
            )

    # Values

    def _lead_s(self, crew: Crew) -> float:
        """Return the seconds from an order until it has an effect."""
        if crew.ready_spares:
            return SENSED_S
        said_s = self.agreement.resources.reconfiguration_s
        return (said_s or self._performance.start_s) + SENSED_S

    @property
    def bounds(self) -> tuple[int, int]:
        """The minimum and maximum: of the override, else of the agreement."""
        uses = self.agreement.resources
        return self.by_hand.bounds(uses.replicas_min, uses.replicas_max)

    def _bounded(self, wanted: int) -> int:
        least, most = self.bounds
        return max(min(wanted, most), least)

    def _words(self, load: Load, asked: int) -> str:
        usual = self._performance.hoped_per_s
        target_s = points_of(self.agreement, self._performance).target_s
        origin = "as its limit allows"
        if self._performance.usual_per_s:
            origin = "as was seen" if self._performance.is_learned else "as the agreement says"
        said = f"{load.in_hand:.3g} requests in hand"
        grows = self._performance.trend.growth_per_s
        if grows > 0.0:
            said += f" (growing by {grows:.2g}/s)"
        promised = f" within a mean of {target_s:.2g} s" if math.isfinite(target_s) else ""
        return (
            f"{said}, and an instance answers {usual:.3g}/s ({origin}): {asked} answer all of them"
            f"{promised}."
        )
