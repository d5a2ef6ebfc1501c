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

from tidegate.agreement.document import Agreement
from tidegate.control.inside import Inside
from tidegate.control.kept_configuration import KeptConfiguration
from tidegate.control.memory_shortage import MemoryShortage
from tidegate.control.performance import Performance
from tidegate.control.promised_responses import points_of
from tidegate.control.service_admission import ServiceAdmission
from tidegate.control.service_crew import Crew
from tidegate.control.service_seen import Seen
from tidegate.control.service_size import COOLDOWN_S, ServiceSize
from tidegate.control.service_upkeep import ServiceUpkeep
from tidegate.core.by_hand import NOTHING_SAID, ByHand
from tidegate.core.hosting import InstanceState, decided_about
from tidegate.core.steering import Decision
from tidegate.laws.http_sizing import NO_POINTS, Load

# Consecutive samples in which an instance must be slower or shorter of memory than the others
# before it is replaced; a shorter time may be chance.
OVERLOADED_READINGS = 20


class Configuration:
    """Decides for one service; `kept` is the state that the last leader stored."""

    def __init__(
        self,
        agreement: Agreement,
        kept: KeptConfiguration | None = None,
        *,
        by_hand: ByHand = NOTHING_SAID,
        cooldown_s: float = COOLDOWN_S,
    ) -> None:
        self.performance = Performance()
        self._size = ServiceSize(agreement, self.performance, cooldown_s)
        self._upkeep = ServiceUpkeep()
        self._inside = Inside()
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

    def to_keep(self) -> KeptConfiguration:
        """Return the state to store for the next leader."""
        learned = self.performance.usual_per_s if self.performance.is_learned else None
        return KeptConfiguration(wanted=self.wanted, capacity_per_s=learned)

    def decide(self, seen: Seen) -> Decision:
        """Return the decision for this sample, with the sentences that explain it."""
        self.performance.said_per_s = self.agreement.resources.capacity_per_s
        by_hand = self._size.by_hand = seen.service.by_hand
        instances = seen.service.held(seen.instances)
        if seen.reading is not None:
            self.performance.see(seen.reading, seen.service.spec, instances)
        crew = Crew(seen.service, instances)
        self._size.begin(crew.wanted_before)
        if by_hand.instances is not None:
            self._size.hold(crew, by_hand.instances, seen.at)
        self._upkeep.clean(crew, seen.reading, seen.at)
        is_measured = seen.reading is not None
        load = self._size.load(crew)
        if is_measured:
            self._adapt(crew, seen, load)
        self._upkeep.fill(crew, self.wanted, seen.at, seen.slots_free)
        if not is_measured and seen.is_silent:
            # Missing instances are replaced all the same.
            crew.rule = crew.rule or "held: no measurement"
            crew.because("No door has said anything for a while: the load is not known.")
        short = self._short(crew, seen, load)
        admitted = seen.admission if by_hand.in_flight_max is None else by_hand.in_flight_max
        if is_measured and by_hand.in_flight_max is None:
            admitted = self._admission.decide(crew, seen, self.agreement, self.performance, short)
        if self._size.is_unhelped:
            crew.trouble.append("slower than promised though nothing waits: more would not help")
        if self._memory.is_everybodys:
            crew.trouble.append("every instance is short of memory: another would be as well")
        if short:
            crew.rule = crew.rule or "nothing is left to take"
            crew.because(f"What is in hand needs more than there is: {short}.")
            crew.trouble.append(short)
        # While requests are rejected there is a shortage, although fewer are in hand because of it.
        is_shedding = admitted is not None and by_hand.in_flight_max is None
        self.lacks = short or (f"{admitted} requests at a time are let in" if is_shedding else "")
        if admitted is not None:
            why = "reduced" if by_hand.in_flight_max is None else "held by hand"
            crew.trouble.append(f"{why}: {admitted} requests at a time, others are refused")
        self.detail = "; ".join(dict.fromkeys(crew.trouble))
        return self._decision(crew, seen, load)

    def _adapt(self, crew: Crew, seen: Seen, load: Load) -> None:
        """Adapt inside instances, then replace overloaded ones, then decide their number."""
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

    def _replace_overloaded(self, crew: Crew, at: float) -> None:
        memory = next((one for one in self.agreement.metrics if one.name == "free_memory"), None)
        self._memory.see(crew, None if memory is None else memory.warning)
        for instance in crew.ready:
            if self._inside.slow_readings(instance.instance_id) >= OVERLOADED_READINGS:
                self._upkeep.replace(crew, instance, "stays slower than the others", at)
            elif self._memory.readings(instance.instance_id) >= OVERLOADED_READINGS:
                self._upkeep.replace(crew, instance, "stays short of memory", at)

    def _short(self, crew: Crew, seen: Seen, load: Load) -> str:
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

    def _decision(self, crew: Crew, seen: Seen, load: Load) -> Decision:
        points = points_of(self.agreement, self.performance)
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
        if points is not NO_POINTS:
            inputs["target_s"] = points.target_s
        if seen.window is not None:
            for finding in seen.window.findings:
                if finding.value is not None:
                    inputs[finding.metric.name] = finding.value
        outputs = {"wanted": float(self.wanted)}
        asked = self._size.needed(load)
        if asked is not None:
            outputs["needed"] = float(asked)
        return Decision(
            at=seen.at,
            loop="http",
            service=decided_about(seen.service.spec.name),
            law="http-sizing",
            rule=crew.rule or "enough",
            inputs=inputs,
            outputs=outputs,
            actions=crew.actions,
            reason=" ".join(crew.reasons) or "What is in hand is answered in time.",
            otherwise=self._otherwise(crew, asked),
            outcome=self.detail,
        )

    def _otherwise(self, crew: Crew, asked: int | None) -> str:
        if self._size.by_hand.instances is not None:
            return "Given back, the law would decide how many there are."
        if asked is None:
            return (
                "What an instance can do is not known until something waits for one; "
                "`capacity` in the agreement would say it."
            )
        if crew.is_rolling:
            return "With all instances of one version only the load would count."
        usual = self.performance.usual_per_s
        target_s = points_of(self.agreement, self.performance).target_s
        bearable = max(len(crew.serving), 1) * (usual or math.inf) * target_s
        if not math.isfinite(bearable):
            return "Another load would have changed it."
        more = math.floor(bearable) + 1
        return f"With {more} requests in hand or more another instance would be needed."
