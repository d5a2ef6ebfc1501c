"""The autoscaler of one HTTP service: one sample in, one explained decision out.

Theory of operation
-------------------

A `ServiceAutoscaler` belongs to one service. Its loop calls `decide` about twice a second with a
`ServiceSample`, and executes the actions of the `Decision`. It does no I/O and reads no clock, so
the simulation runs it unchanged. `decide` goes through these steps:

    1. instances  drained ones are removed, failed ones replaced, hanging ones drained
    2. inside     concurrency follows the measured knee, slow instances get a smaller weight
    3. overload   an instance that stays slow or short of memory is replaced
    4. number     the requests in hand, warnings and calm give the wanted number
    5. fill       spares serve at once, then instances are ordered, then spares are refilled;
                  instances of an old version are replaced one by one
    6. admission  if nothing more can be added, doors reject what would be answered too late

    module        1, 5: service_upkeep   2: inside   3: memory_shortage   4: service_size
                  6: service_admission   all actions are collected in service_crew

Rules:

- Steps 2, 3, 4 and 6 need a new measurement. Without one only instances are repaired and renewed,
  and the wanted number does not change.
- An override (core.by_hand) replaces the result of step 2, 4 or 6: the concurrency, the number of
  instances or its bounds, and the admission limit.
- The number does not shrink during a rollout, because then one instance more than wanted is normal.
  It may shrink if the new version does not start.
- Each step sees the effect of the steps before: `InstanceSet` applies every action to its copy.

`wanted` and the measured capacity are stored by the loop before its orders, and a new leader begins
with them. Everything else is learned again.
"""

from __future__ import annotations

import math
from statistics import median

import msgspec

from tidegate.agreements.document import Agreement
from tidegate.agreements.evaluation import Verdict, worst_verdict
from tidegate.control.planning import admissible_requests, response_targets
from tidegate.control.services.instances import InstanceReconciler, InstanceSet, MemoryShortage
from tidegate.control.services.performance import ServicePerformance, ServiceSample
from tidegate.core.decisions import Admit, Decision, SetConcurrency, Weigh
from tidegate.core.reasons import Explanation, Reason, otherwise_text, reason_text
from tidegate.core.services import NO_OVERRIDE, InstanceState, ServiceOverride, decision_subject
from tidegate.laws.http.sizing import (
    NO_TARGETS,
    ScaleIn,
    ServiceLoad,
    needed_instances,
    needed_instances_with_reserve,
)

# The number of instances that a service needs.
#
#     more     the requests in hand, now or soon, cannot be answered in time      laws.http.sizing
#              a warning that this does not explain: one more, if load can be the reason
#     fewer    one fewer would have been enough, with reserve, for the whole cool-down
#     floor    a number that was too low at a load is not used again at that load for a while
#     override a number set by hand replaces all of these
#
# The loop stores the number before it orders anything. The next leader continues with it, and not
# with the number of instances that happen to run in the middle of a rollout.


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


class ServiceSizing:
    """Decides how many instances of one service are to serve."""

    def __init__(
        self, agreement: Agreement, performance: ServicePerformance, cooldown_s: float = COOLDOWN_S
    ) -> None:
        self.agreement = agreement
        # The override: a number, or bounds that replace the agreed ones.
        self.by_hand = NO_OVERRIDE
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

    def set_override(self, crew: InstanceSet, instances: int, at: float) -> None:
        """Use an override; without it the law continues from this number."""
        self._wanted = self._bounded(instances)
        self._scale_in.restart(at)
        self._floor = None
        self.is_unhelped = False
        crew.because(Reason.INSTANCES_SET_BY_HAND(wanted=self._wanted), rule="manual")

    def step(
        self,
        crew: InstanceSet,
        seen: ServiceSample,
        load: ServiceLoad,
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
                    self._explain_need(crew, load, asked)
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

    def needed(self, load: ServiceLoad) -> int | None:
        """Return how many instances answer the load in time; None if the capacity is not known."""
        hoped = self._performance.hoped_per_s
        points = response_targets(self.agreement, self._performance)
        if not hoped or (points is NO_TARGETS and not load.is_open):
            return None
        return needed_instances(load, hoped, points)

    def load(self, crew: InstanceSet) -> ServiceLoad:
        """Return the load now, and the load when an instance ordered now would serve."""
        lead_s, trend = self._lead_s(crew), self._performance.trend
        ahead = trend.ahead(lead_s)
        delta = self.agreement.resources.sla_delta_per_s2
        limit_s = response_targets(self.agreement, self._performance).limit_s
        if delta and math.isfinite(limit_s):
            # The agreement promises to keep up with this growth although it has not been seen yet.
            ahead = max(ahead, trend.in_hand + delta * lead_s * limit_s)
        return ServiceLoad(trend.in_hand, self._performance.answered_per_s, ahead, trend.is_open)

    # Scaling out

    def _raise(self, wanted: int, load: ServiceLoad, at: float) -> None:
        # Double at most in one step: a short burst may look like a flood.
        wanted = self._bounded(min(wanted, 2 * max(self.wanted, 1)))
        if wanted <= self.wanted:
            return
        if at - self._fewer_at < _REGRET_S:
            self._floor = (self.wanted + 1, load.in_hand, at + REMEMBERED_S)
        self._wanted = wanted
        self._raised_at = at
        self._scale_in.restart(at)

    def _feed_back(
        self,
        crew: InstanceSet,
        seen: ServiceSample,
        load: ServiceLoad,
        is_any_slow: bool,
        relieved_at: float,
    ) -> None:
        """Add one for a warning that the law does not explain, if load can be its reason."""
        # The last order or change must have had its effect in a whole window first.
        helped_at = max(self._raised_at + self._lead_s(crew), relieved_at)
        if seen.at < helped_at + self.agreement.window_s or crew.coming:
            return
        if not self._is_loaded(crew):
            crew.because(Reason.NOTHING_WAITS(), rule="not a matter of load")
            self.is_unhelped = True
            return
        more = self._bounded(self.wanted + 1)
        if more > self.wanted:
            crew.rule = "warned"
            evidence = [] if seen.window is None else seen.window.evidence
            crew.because(Reason.LOAD_DOES_NOT_EXPLAIN(evidence="; ".join(evidence)))
            # If an instance is slow, hangs or is being replaced, that may be the reason instead.
            if not (crew.ejected or crew.is_rolling or is_any_slow):
                self._floor = (more, load.in_hand, seen.at + REMEMBERED_S)
            self._raise(more, load, seen.at)

    def _is_loaded(self, crew: InstanceSet) -> bool:
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

    def _floor_now(self, load: ServiceLoad, at: float) -> int:
        if self._floor is None or at >= self._floor[2]:
            self._floor = None
            return 0
        count, in_hand, _ = self._floor
        return count if load.in_hand >= _SAME_LOAD * in_hand else 0

    # Scaling in

    def _lower(self, crew: InstanceSet, load: ServiceLoad, at: float, *, may_shrink: bool) -> None:
        proven = self._performance.proven_per_s
        if not proven:
            return
        room = needed_instances_with_reserve(
            load, proven, response_targets(self.agreement, self._performance)
        )
        # A slow instance is worth less than one.
        slow = len(crew.counted_ids) - self._performance.effective(crew.counted_ids)
        self._scale_in.observe(at, max(room + math.ceil(slow - _PART), self._floor_now(load, at)))
        fewer = self._bounded(self.wanted - 1)
        if may_shrink and fewer < self.wanted and self._scale_in.may_go(at, self.wanted):
            self._wanted = fewer
            self._scale_in.restart(at)
            self._fewer_at = at
            crew.rule = "one fewer holds with room"
            crew.because(
                Reason.ONE_FEWER_WAS_ENOUGH(cooldown_s=self._scale_in.cooldown_s, fewer=fewer)
            )

    # Values

    def _lead_s(self, crew: InstanceSet) -> float:
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

    def _explain_need(self, crew: InstanceSet, load: ServiceLoad, asked: int) -> None:
        """Add the reasons why this number is needed."""
        performance = self._performance
        growth = performance.trend.growth_per_s
        if growth > 0.0:
            crew.because(Reason.IN_HAND_GROWS(in_hand=load.in_hand, growth_per_s=growth))
        else:
            crew.because(Reason.IN_HAND(in_hand=load.in_hand))
        answers = Reason.ANSWERS_AS_ITS_LIMIT_ALLOWS
        if performance.usual_per_s:
            is_learned = performance.is_learned
            answers = Reason.ANSWERS_AS_SEEN if is_learned else Reason.ANSWERS_AS_AGREED
        crew.because(answers(per_s=performance.hoped_per_s or 0.0))
        target_s = response_targets(self.agreement, performance).target_s
        if math.isfinite(target_s):
            crew.because(Reason.NEEDED_IN_TIME(asked=asked, target_s=target_s))
        else:
            crew.because(Reason.NEEDED_FOR_ALL(asked=asked))


# Consecutive samples in which an instance must be slower or shorter of memory than the others
# before it is replaced; a shorter time may be chance.
OVERLOADED_READINGS = 20


class ServiceAutoscaler:
    """Decides for one service; `kept` is the state that the last leader stored."""

    def __init__(
        self,
        agreement: Agreement,
        kept: StoredServiceState | None = None,
        *,
        by_hand: ServiceOverride = NO_OVERRIDE,
        cooldown_s: float = COOLDOWN_S,
    ) -> None:
        self.performance = ServicePerformance()
        self._size = ServiceSizing(agreement, self.performance, cooldown_s)
        self._upkeep = InstanceReconciler()
        self._inside = InstanceTuning()
        self._memory = MemoryShortage()
        self._admission = ServiceAdmission()
        self._size.by_hand = by_hand
        if kept is not None:
            self._size.begin(kept.wanted)
            self.performance.remember(kept.capacity_per_s)
        # The problems of the service as text; empty if there are none.
        self.detail = ""
        # Why there are fewer instances than needed; empty if there are enough, or if they are
        # coming.
        self.lacks = ""

    @property
    def agreement(self) -> Agreement:
        return self._size.agreement

    @agreement.setter
    def agreement(self, agreement: Agreement) -> None:
        """Use other bounds or other warnings; what was learned of the instances stays."""
        self._size.agreement = agreement

    @property
    def wanted(self) -> int:
        """How many instances are to serve, after the first decision."""
        return self._size.wanted

    def to_keep(self) -> StoredServiceState:
        """Return the state to store for the next leader."""
        learned = self.performance.usual_per_s if self.performance.is_learned else None
        return StoredServiceState(wanted=self.wanted, capacity_per_s=learned)

    def decide(self, seen: ServiceSample) -> Decision:
        """Return the decision for this sample, with the sentences that explain it."""
        self.performance.said_per_s = self.agreement.resources.capacity_per_s
        by_hand = self._size.by_hand = seen.service.by_hand
        instances = seen.service.held(seen.instances)
        if seen.reading is not None:
            self.performance.observe(seen.reading, seen.service.spec, instances)
        crew = InstanceSet(seen.service, instances)
        self._size.begin(crew.wanted_before)
        if by_hand.instances is not None:
            self._size.set_override(crew, by_hand.instances, seen.at)
        self._upkeep.clean(crew, seen.reading, seen.at)
        is_measured = seen.reading is not None
        load = self._size.load(crew)
        if is_measured:
            self._adapt(crew, seen, load)
        self._upkeep.fill(crew, self.wanted, seen.at, seen.slots_free)
        if not is_measured and seen.is_silent:
            # Missing instances are replaced all the same.
            crew.because(Reason.DOORS_SILENT(), rule="held: no measurement")
        short = self._short(crew, seen, load)
        admitted = seen.admission if by_hand.in_flight_max is None else by_hand.in_flight_max
        if is_measured and by_hand.in_flight_max is None:
            admitted = self._admission.decide(crew, seen, self.agreement, self.performance, short)
        if self._size.is_unhelped:
            crew.trouble.append("slower than promised though nothing waits: more would not help")
        if self._memory.is_everybodys:
            crew.trouble.append("every instance is short of memory: another would be as well")
        if short:
            crew.because(
                Reason.NEEDS_MORE_THAN_THERE_IS(short=short), rule="nothing is left to take"
            )
            crew.trouble.append(short)
        # While requests are rejected there is a shortage, although fewer are in hand because of it.
        is_shedding = admitted is not None and by_hand.in_flight_max is None
        self.lacks = short or (f"{admitted} requests at a time are let in" if is_shedding else "")
        if admitted is not None:
            why = "reduced" if by_hand.in_flight_max is None else "held by hand"
            crew.trouble.append(f"{why}: {admitted} requests at a time, others are refused")
        self.detail = "; ".join(dict.fromkeys(crew.trouble))
        return self._decision(crew, seen, load)

    def _adapt(self, crew: InstanceSet, seen: ServiceSample, load: ServiceLoad) -> None:
        """Change settings of instances, replace overloaded ones, and decide on their number."""
        asked = self._size.needed(load)
        is_pressed = seen.is_pressed(self.agreement.window_s) or (
            asked is not None and asked > self.wanted
        )
        self._inside.adapt(crew, self.performance, seen.at, is_pressed=is_pressed)
        self._replace_overloaded(crew, seen.at)
        if seen.service.by_hand.instances is not None:
            return
        self._size.step(
            crew,
            seen,
            load,
            is_any_slow=self._inside.is_any_slow,
            relieved_at=self._inside.relieved_at,
            # During a rollout one more than wanted is normal, and each replacement takes its time.
            # A version that does not start would block shrinking for ever, so it is an exception.
            may_shrink=not crew.is_rolling or self._upkeep.is_stuck(crew),
        )

    def _replace_overloaded(self, crew: InstanceSet, at: float) -> None:
        memory = next((one for one in self.agreement.metrics if one.name == "free_memory"), None)
        self._memory.observe(crew, None if memory is None else memory.warning)
        for instance in crew.ready:
            if self._inside.slow_readings(instance.instance_id) >= OVERLOADED_READINGS:
                slow = Reason.INSTANCE_STAYS_SLOW(instance_id=instance.instance_id)
                self._upkeep.replace(crew, instance, slow, at)
            elif self._memory.readings(instance.instance_id) >= OVERLOADED_READINGS:
                short = Reason.INSTANCE_SHORT_OF_MEMORY(instance_id=instance.instance_id)
                self._upkeep.replace(crew, instance, short, at)

    def _short(self, crew: InstanceSet, seen: ServiceSample, load: ServiceLoad) -> str:
        """Return why fewer instances than needed will serve; empty if enough are coming."""
        unplaced = len(self._upkeep.unplaced(crew, seen.at))
        # If all wanted instances serve, the draining ones will free their slots for new ones.
        is_renewing = len(crew.ready) >= self.wanted and crew.of_state(InstanceState.DRAINING)
        if unplaced and not seen.slots_free and not is_renewing:
            why = seen.fleet_trouble or "no slot is free"
            return f"{unplaced} of {self.wanted} instance(s) have no place: {why}"
        asked, by_hand = self._size.needed(load), self._size.by_hand
        most, whose = self._size.bounds[1], "that is agreed"
        if by_hand.instances is not None:
            most, whose = self.wanted, "that a person has said"
        elif by_hand.most is not None:
            whose = "that a person allows"
        if asked is not None and asked > most:
            return f"more than {most} instance(s) would be needed, the most {whose}"
        return ""

    # The decision and its texts

    def _decision(self, crew: InstanceSet, seen: ServiceSample, load: ServiceLoad) -> Decision:
        points = response_targets(self.agreement, self.performance)
        inputs = {
            "in_hand": load.in_hand,
            "ahead": load.in_hand_ahead,
            "answered_per_s": load.answered_per_s,
            "ready": float(len(crew.ready)),
            "coming": float(len(crew.coming)),
            "spares": float(len(crew.ready_spares)),
        }
        if self.performance.usual_per_s:
            inputs["capacity_per_s"] = self.performance.usual_per_s
        if points is not NO_TARGETS:
            inputs["target_s"] = points.target_s
        if seen.window is not None:
            for finding in seen.window.findings:
                if finding.value is not None:
                    inputs[finding.metric.name] = finding.value
        outputs = {"wanted": float(self.wanted)}
        asked = self._size.needed(load)
        if asked is not None:
            outputs["needed"] = float(asked)
        reasons = [*(crew.reasons or [Reason.ANSWERED_IN_TIME()]), self._otherwise(crew, asked)]
        return Decision(
            at=seen.at,
            loop="http",
            service=decision_subject(seen.service.spec.name),
            law="http-sizing",
            rule=crew.rule or "enough",
            inputs=inputs,
            outputs=outputs,
            actions=crew.actions,
            reason=reason_text(reasons),
            otherwise=otherwise_text(reasons),
            outcome=self.detail,
        )

    def _otherwise(self, crew: InstanceSet, asked: int | None) -> Explanation:
        """Return what would have changed the decision."""
        if self._size.by_hand.instances is not None:
            return Reason.NUMBER_IS_OVERRIDDEN()
        if asked is None:
            return Reason.INSTANCE_CAPACITY_UNKNOWN()
        if crew.is_rolling:
            return Reason.ROLLOUT_RUNS()
        usual = self.performance.usual_per_s
        target_s = response_targets(self.agreement, self.performance).target_s
        bearable = max(len(crew.serving), 1) * (usual or math.inf) * target_s
        if not math.isfinite(bearable):
            return Reason.NO_LIMIT_KNOWN()
        return Reason.IN_HAND_BEARABLE(more=math.floor(bearable) + 1)


# Admission: rejects requests when no instance can be added and others would be too late.
#
#     limit   requests that the ready instances answer before the breaching point (Little's law),
#             times a trim
#     begins  when clearly more than that is in hand, or more and responses are breached already
#
# To reject a request certainly breaks a promise, while the limit is computed and only exact to
# about a tenth. Near the limit only measured breaches count, so requests that are just in time are
# not rejected.
#
# Excess requests are rejected at once. The admitted ones are answered in time, and the load of a
# failed instance does not bring down the next one. The trim goes down with each window in which
# responses are still breached, and up while they are not even warned of. Only answered requests
# change the trim: rejected requests break promises too, and to reject more would make that worse.
# Rejected requests are not in hand, so the limit is lifted when none was rejected for some seconds
# and the agreement is met.


# In limits: above this the requests in hand are certainly too many.
_CLEARLY = 1.08
# The limit is lifted when less than this part of it was in hand for this time.
_LIFT_BELOW = 0.7
_LIFT_S = 5.0
# Limits that differ by less are not changed.
_STEP = 0.05
_TRIM = 0.85
_TRIM_MIN, _TRIM_MAX = 0.3, 3.0
# Factor per sample.
_TRIM_UP = 1.02


class ServiceAdmission:
    """Decides the admission limit of one service."""

    def __init__(self) -> None:
        self._calm_since: float | None = None
        self._trim = 1.0
        self._trimmed_at = -math.inf

    def decide(
        self,
        crew: InstanceSet,
        seen: ServiceSample,
        agreement: Agreement,
        performance: ServicePerformance,
        short: str,
    ) -> int | None:
        """Return the limit from now on; None means unlimited.

        `short` says why there are too few instances; empty if there are enough.
        """
        reading, now = seen.reading, seen.admission
        assert reading is not None
        self._trim_bound(seen, agreement.window_s)
        bound = self._bound(crew, agreement, performance)
        if now is None:
            if not short or bound is None or not _is_too_much(reading.in_hand, bound, seen):
                return None
            self._calm_since = None
            crew.do(Admit(bound))
            crew.because(Reason.ADMISSION_BEGINS(ready=len(crew.ready), bound=bound))
            return bound
        is_well = seen.window is not None and seen.window.verdict is Verdict.MET
        is_calm = not reading.refused_per_s and (is_well or reading.in_hand < _LIFT_BELOW * now)
        if not is_calm:
            self._calm_since = None
        elif self._calm_since is None:
            self._calm_since = seen.at
        elif seen.at - self._calm_since >= _LIFT_S:
            self._calm_since = None
            crew.do(Admit(None))
            crew.because(Reason.ADMISSION_ENDS(), rule="there are enough again")
            return None
        if bound is not None and abs(now - bound) > _STEP * bound:
            crew.do(Admit(bound))
            crew.because(Reason.ADMISSION_CHANGES(bound=bound))
            return bound
        return now

    def _bound(
        self, crew: InstanceSet, agreement: Agreement, performance: ServicePerformance
    ) -> int | None:
        known = [performance.capacity_per_s(one.instance_id) for one in crew.ready]
        capacities = [one for one in known if one is not None]
        if not capacities or len(capacities) < len(known):
            return None
        if not (total := sum(capacities)):
            return None
        found = admissible_requests(agreement, performance, total)
        return None if found is None else max(int(found * self._trim), 1)

    def _trim_bound(self, seen: ServiceSample, window_s: float) -> None:
        window = seen.window
        if seen.admission is None or window is None:
            self._trim = 1.0
            return
        says = worst_verdict(
            one.of_answers.verdict for one in window.findings if one.metric.stem == "response"
        )
        if says is Verdict.MET:
            self._trim = min(self._trim * _TRIM_UP, _TRIM_MAX)
        elif says is not Verdict.BREACHED:
            return
        elif seen.is_pressed(window_s) and seen.at - self._trimmed_at >= window_s:
            self._trimmed_at = seen.at
            self._trim = max(self._trim * _TRIM, _TRIM_MIN)


def _is_too_much(in_hand: int, bound: int, seen: ServiceSample) -> bool:
    return in_hand >= (bound if seen.is_breached_for_certain else _CLEARLY * bound)


# What can be tuned in running instances before another one is ordered: concurrency and weights.
#
#     concurrency   lowered to twice the knee if the service is under pressure, the instance takes
#                   twice its best time, and its limit is above four times the knee
#                   raised again if the instance is at its limit and still quick
#     weights       an instance that takes twice as long as the others for three samples gets less,
#                   and a lower limit, because a busy door uses every free place of any instance;
#                   raised again step by step
#
# The service's setting is the upper bound of the concurrency, and the knee is searched below it. A
# request that waits in the door, instead of inside an instance, can go to the first free instance
# and can be rejected in time. An override of the concurrency is not changed.


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


class InstanceTuning:
    """Tunes the instances of one service."""

    def __init__(self) -> None:
        self._changed_at: dict[int, float] = {}
        # By instance: the number of consecutive samples in which it was slow.
        self._slow: dict[int, int] = {}
        # When waiting requests were last moved from inside an instance to the door.
        self.relieved_at = -math.inf

    def adapt(
        self, crew: InstanceSet, performance: ServicePerformance, at: float, *, is_pressed: bool
    ) -> None:
        """Tune the instances by the last sample."""
        there = crew.instances.keys()
        self._changed_at = {k: v for k, v in self._changed_at.items() if k in there}
        self._slow = {k: v for k, v in self._slow.items() if k in there}
        for instance in crew.ready:
            self._concurrency(crew, performance, instance.instance_id, at, is_pressed)
        self._weigh(crew, performance, at)

    def _concurrency(
        self,
        crew: InstanceSet,
        performance: ServicePerformance,
        one: int,
        at: float,
        is_pressed: bool,
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
                Reason.CONCURRENCY_LOWERED(
                    instance_id=one,
                    inflation=known.inflation(rate),
                    knee=knee,
                    target=target,
                    limit=limit,
                )
            )
        elif self._slow.get(one):
            return
        elif limit < most and rate.outstanding >= limit and known.inflation(rate) < _QUICK:
            target = min(math.ceil(limit * _RAISED_BY), most)
            self._set(crew, one, target, at)
            crew.because(Reason.CONCURRENCY_RAISED(instance_id=one, limit=limit, target=target))

    def _set(self, crew: InstanceSet, one: int, target: int, at: float) -> None:
        self._changed_at[one] = at
        crew.do(SetConcurrency(one, target))
        crew.rule = crew.rule or "inside first"

    def _weigh(self, crew: InstanceSet, performance: ServicePerformance, at: float) -> None:
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
                    crew.because(Reason.WEIGHT_LOWERED(instance_id=one, ratio=ratio))
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


# The part of a service's state that the next leader cannot see from the running instances.
#
# During a rollout there may be one instance more than wanted, or exactly as many. The capacity of
# an instance shows only while requests wait. Both values are therefore stored, before anything is
# ordered. A leader that dies between two orders leaves a number that the next one can reach.


# Relative change below which a capacity counts as unchanged.
_SAME = 0.05


class StoredServiceState(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted number and the measured capacity after the last decision."""

    wanted: int
    # Requests per second that one instance was measured to answer; None if not measured yet.
    capacity_per_s: float | None = None

    def is_news(self, before: StoredServiceState | None) -> bool:
        """Return whether this differs enough from `before` to be stored."""
        if before is None or before.wanted != self.wanted:
            return True
        if self.capacity_per_s is None or before.capacity_per_s is None:
            return self.capacity_per_s != before.capacity_per_s
        return abs(self.capacity_per_s - before.capacity_per_s) > _SAME * before.capacity_per_s

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(document: bytes) -> StoredServiceState | None:
        """Decode a stored document; None if another version wrote it in another form."""
        try:
            return msgspec.json.decode(document, type=StoredServiceState)
        except msgspec.DecodeError:
            return None
