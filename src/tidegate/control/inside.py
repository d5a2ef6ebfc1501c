"""What can be tuned in running instances before another one is ordered: concurrency and weights.

    concurrency   lowered to twice the knee if the service is under pressure, the instance takes
                  twice its best time, and its limit is above four times the knee
                  raised again if the instance is at its limit and still quick
    weights       an instance that takes twice as long as the others for three samples gets less,
                  and a lower limit, because a busy door uses every free place of any instance;
                  raised again step by step

The service's setting is the upper bound of the concurrency, and the knee is searched below it. A
request that waits in the door, instead of inside an instance, can go to the first free instance and
can be rejected in time. An override of the concurrency is not changed.
"""

from __future__ import annotations

import math
from statistics import median

from tidegate.control.performance import Performance
from tidegate.control.service_crew import Crew
from tidegate.core.steering import SetConcurrency, Weigh

_KNEES = 4
_INFLATED = 2.0
# In best response times: below this an instance has room for more.
_QUICK = 1.5
_LOWERED_TO_KNEES = 2
_RAISED_BY = 1.5
# Seconds between two changes of an instance's concurrency, so that the effect shows first.
_CONCURRENCY_S = 10.0

SLOW = 2.0
_WELL = 1.3
_READINGS = 3
WEIGHT_MIN = 0.1
_BACK_BY = 1.5
# Weights that differ by less are not changed: each change goes to every door.
_STEP_MIN = 0.15


class Inside:
    """Tunes the instances of one service."""

    def __init__(self) -> None:
        self._changed_at: dict[int, float] = {}
        # By instance: the number of consecutive samples in which it was slow.
        self._slow: dict[int, int] = {}
        # When waiting requests were last moved from inside an instance to the door.
        self.relieved_at = -math.inf

    def adapt(self, crew: Crew, performance: Performance, at: float, *, is_pressed: bool) -> None:
        """Tune the instances by the last sample."""
        there = crew.instances.keys()
        self._changed_at = {k: v for k, v in self._changed_at.items() if k in there}
        self._slow = {k: v for k, v in self._slow.items() if k in there}
        for instance in crew.ready:
            self._concurrency(crew, performance, instance.instance_id, at, is_pressed)
        self._weigh(crew, performance, at)

    def _concurrency(
        self, crew: Crew, performance: Performance, one: int, at: float, is_pressed: bool
    ) -> None:
        rate, known = performance.rate(one), performance.capacity(one)
        if crew.service.by_hand.concurrency is not None:
            return
        if rate is None or known is None or known.knee is None:
            return
        if at - self._changed_at.get(one, -math.inf) < _CONCURRENCY_S:
            return
        limit, most, knee = rate.concurrency, crew.service.spec.concurrency, known.knee
        waits_inside = known.inflation(rate) >= _INFLATED
        if is_pressed and waits_inside and limit > _KNEES * knee:
            target = max(_LOWERED_TO_KNEES * knee, 2)
            self._set(crew, one, target, at)
            self.relieved_at = at
            crew.because(
                f"Instance {one} takes {known.inflation(rate):.1f} times as long as at its best, "
                f"and {knee} at a time keep it busy: {target} instead of {limit}, the others wait "
                "in the door."
            )
        elif self._slow.get(one):
            return
        elif limit < most and rate.outstanding >= limit and known.inflation(rate) < _QUICK:
            target = min(math.ceil(limit * _RAISED_BY), most)
            self._set(crew, one, target, at)
            crew.because(
                f"Instance {one} has all the {limit} requests that it may have and is quick: "
                f"{target} at a time."
            )

    def _set(self, crew: Crew, one: int, target: int, at: float) -> None:
        self._changed_at[one] = at
        crew.do(SetConcurrency(one, target))
        crew.rule = crew.rule or "inside first"

    def _weigh(self, crew: Crew, performance: Performance, at: float) -> None:
        ready = {one.instance_id: one for one in crew.ready}
        means = performance.mean_responses([one for one in ready if ready[one].weight < 1.0])
        weights: dict[int, float] = {}
        for one, instance in ready.items():
            others = [means[other] for other in ready if other != one and other in means]
            if one not in means or not others:
                continue
            ratio = means[one] / max(median(others), 1e-6)
            self._slow[one] = self._slow.get(one, 0) + 1 if ratio >= SLOW else 0
            if self._slow[one] >= _READINGS:
                target = max(1.0 / ratio, WEIGHT_MIN)
                if target < instance.weight * (1.0 - _STEP_MIN):
                    weights[one] = target
                    crew.because(
                        f"Instance {one} takes {ratio:.1f} times as long as the others: it gets "
                        "less."
                    )
                    limit = instance.concurrency or crew.service.spec.concurrency
                    if crew.service.by_hand.concurrency is None:
                        self._set(crew, one, max(int(limit / ratio), 1), at)
            elif ratio < _WELL and instance.weight < 1.0:
                weights[one] = min(instance.weight * _BACK_BY, 1.0)
        if weights:
            crew.do(Weigh(weights))
            crew.rule = crew.rule or "inside first"

    @property
    def is_any_slow(self) -> bool:
        """Whether any instance takes far longer than the others now."""
        return any(self._slow.values())

    def slow_readings(self, instance_id: int) -> int:
        """Return the number of consecutive samples in which the instance was slow."""
        return self._slow.get(instance_id, 0)
