"""The target rate of a prefetch loop: the wanted rate, or the rate that the handler sustains.

    wanted                     while the handler can do as much: μ = processed / busy ≥ wanted
    min(wanted, kept up)       while it cannot, and what waits in the consumer can be seen
    kept up                    where no rate is wanted (`HandlerRateTarget`)

A handler that is slower than the target is beyond the knee: more prefetch gives no more rate. An
integral would grow to its limit and fill the consumer with messages. These must be worked off
before a change of the handler shows. So the loop keeps up with the handler instead. That keeps the
handler equally busy at the knee, and the recovery is short when it becomes fast again.

The number of held messages must be measured for this. If a node only estimates it, the wanted rate
stays the target, because an estimation error would keep the loop below its target. P has no
integral, and its output is a formula of the target, so its target stays unchanged.
"""

from __future__ import annotations

import math

from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal
from tidegate.laws.keep_up import KeepUp
from tidegate.laws.least_squares import Model
from tidegate.laws.model_in_use import ModelInUse


class PrefetchTarget:
    """The target of one goal for one consumer."""

    def __init__(self, goal: PrefetchGoal, known: ModelInUse) -> None:
        self._known = known
        self._keep_up: KeepUp | None = None
        if known.model is not None:
            self._keep_up = KeepUp(Model(0.0, known.worth_per_s, 0.0), held=goal.held)
        # Whether the handler cannot reach the wanted rate, so that the loop keeps up with it
        # instead.
        self.is_out_of_reach = False
        self.change(goal)

    def change(self, goal: PrefetchGoal) -> None:
        """Use another wanted rate, or none. Knowledge about the handler stays."""
        # NaN means that no rate is wanted.
        self.wanted_per_s = math.nan if goal.rate_per_s is None else goal.rate_per_s
        self._may_keep_up = goal.controller is not ControllerKind.P

    def retune(self) -> None:
        """Update the worth of a unit of prefetch, and of a held message, after a model change."""
        if self._keep_up is not None:
            self._keep_up.retune(Model(0.0, self._known.worth_per_s, 0.0))

    def now(self, sample: ConsumerSample, prefetch: float) -> float:
        """Return the target for this sample, or NaN while nothing is known."""
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
                # The guess of a unit's worth assumed that nothing waits, so it cannot show what
                # waits.
                return math.nan
            # By Little's law, the prefetch that is neither in flight nor being processed.
            held = max(prefetch - sample.arrived_per_s / worth_per_s, 0.0)
        if sample.busy is None or sample.processed_per_s is None:
            wanted = keep_up.held_wanted(prefetch - held)
            return sample.arrived_per_s + worth_per_s * (wanted - held)
        return keep_up.target_per_s(
            sample.processed_per_s, sample.busy, held, in_flight=prefetch - held
        )
