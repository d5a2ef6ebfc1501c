"""The rate to steer to now: the one that is wanted, or what the handler can do.

    wanted                     while the handler can do as much: μ = processed / busy ≥ wanted
    min(wanted, kept up)       while it cannot, and what waits in the consumer can be seen
    kept up                    where no rate is wanted (keep_up)

A handler that is slower than its target is beyond the knee: more prefetch brings no more rate, and
an integral climbs to its limit and fills the consumer with messages that have to be worked off
before anything it does shows again. To keep up with the handler instead keeps it as busy, at the
knee: when it is quick again, the way back is short. What only a node guesses to be held does not
count here: a loop that rests below its target for an error of an estimate would be worse.
P has no integral, and its output is a formula of the target: it is left alone.
"""

from __future__ import annotations

import math

from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal
from tidegate.laws.keep_up import KeepUp
from tidegate.laws.least_squares import Model
from tidegate.laws.model_in_use import ModelInUse


class PrefetchTarget:
    """Of one goal, for a consumer of which so much is known."""

    def __init__(self, goal: PrefetchGoal, known: ModelInUse) -> None:
        self._known = known
        self._keep_up: KeepUp | None = None
        if known.model is not None:
            self._keep_up = KeepUp(Model(0.0, known.worth_per_s, 0.0), held=goal.held)
        # Whether the handler cannot do what is wanted, and is kept up with instead.
        self.is_out_of_reach = False
        self.change(goal)

    def change(self, goal: PrefetchGoal) -> None:
        """Another rate, or none; what is known of the handler stays."""
        # NaN: none is wanted, or none yet.
        self.wanted_per_s = math.nan if goal.rate_per_s is None else goal.rate_per_s
        self._may_keep_up = goal.controller is not ControllerKind.P

    def retune(self) -> None:
        """A unit of prefetch, and so a message that is held, is worth something else now."""
        if self._keep_up is not None:
            self._keep_up.retune(Model(0.0, self._known.worth_per_s, 0.0))

    def now(self, sample: ConsumerSample, prefetch: float) -> float:
        """The target of this sample; NaN while nothing is known."""
        self.is_out_of_reach = False
        if self._keep_up is None:
            return self.wanted_per_s
        if math.isnan(self.wanted_per_s):
            return self._kept_up(self._keep_up, sample, prefetch)
        seen = (sample.processed_per_s, sample.busy, sample.held)
        processed_per_s, busy, held = (math.nan if one is None else one for one in seen)
        if not (math.isfinite(processed_per_s + busy + held) and self._may_keep_up):
            return self.wanted_per_s
        kept_up = self._keep_up.target_per_s(processed_per_s, busy, held, in_flight=prefetch - held)
        capacity_per_s = self._keep_up.capacity_per_s
        if capacity_per_s is None or not capacity_per_s < self.wanted_per_s:
            return self.wanted_per_s
        self.is_out_of_reach = kept_up < self.wanted_per_s
        return min(self.wanted_per_s, kept_up)

    def _kept_up(self, keep_up: KeepUp, sample: ConsumerSample, prefetch: float) -> float:
        worth_per_s = self._known.worth_per_s
        held = sample.held
        if held is None:
            if self._known.is_guessed:
                # What a unit is worth was guessed as if nothing waited: it cannot tell what does.
                return math.nan
            # By Little's law, what is neither on its way nor at work.
            held = max(prefetch - sample.arrived_per_s / worth_per_s, 0.0)
        if sample.busy is None or sample.processed_per_s is None:
            wanted = keep_up.held_wanted(prefetch - held)
            return sample.arrived_per_s + worth_per_s * (wanted - held)
        return keep_up.target_per_s(
            sample.processed_per_s, sample.busy, held, in_flight=prefetch - held
        )
