"""How an agreement about an HTTP service is kept: what was seen in, a decision with reasons out.

    1  what there is     gone ones are removed, failed and overloaded ones replaced   service_upkeep
    2  a new version     +1 new, READY → −1 old, which drains                         service_upkeep
    3  inside            requests at a time by the measured knee, weights of slow ones        inside
    4  how many          by what is in hand, by warnings, and fewer when it is calm     service_size
                         spares serve at once, then more are ordered, then spares are refilled
    5  admission         nothing is left to take: no more in hand than is answered before the breach

What a person has said about a service (core.by_hand) goes before 3, 4 and 5: how many there are,
between which bounds, how many requests each has and how many are let in.

Without measurements nothing changes about the load: only 1 and 2 go on. Synchronous and without a
clock of its own, so that the simulation runs it unchanged.
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

# One that is slower or shorter of memory than the others for so many readings is no matter of the
# moment.
OVERLOADED_READINGS = 20


class Configuration:
    """Decides for one service; `kept` is where the last leader left it."""

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
        # What is wrong, for people; "": nothing.
        self.detail = ""
        # Why there are fewer instances than are needed; "": there are enough, or they come.
        self.lacks = ""

    @property
    def agreement(self) -> Agreement:
        return self._size.agreement

    @agreement.setter
    def agreement(self, agreement: Agreement) -> None:
        """Other bounds, or other warnings: what is known of the instances stays."""
        self._size.agreement = agreement

    @property
    def wanted(self) -> int:
        """How many are to serve, once it was decided."""
        return self._size.wanted

    def to_keep(self) -> KeptConfiguration:
        """What the next leader is to know, once something was decided."""
        learned = self.performance.usual_per_s if self.performance.is_learned else None
        return KeptConfiguration(wanted=self.wanted, capacity_per_s=learned)

    def decide(self, seen: Seen) -> Decision:
        """What to do now."""
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
            # Who is missing comes all the same.
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
        # While others are refused there is too little, however few are in hand by that.
        is_shedding = admitted is not None and by_hand.in_flight_max is None
        self.lacks = short or (f"{admitted} requests at a time are let in" if is_shedding else "")
        if admitted is not None:
            why = "reduced" if by_hand.in_flight_max is None else "held by hand"
            crew.trouble.append(f"{why}: {admitted} requests at a time, others are refused")
        self.detail = "; ".join(dict.fromkeys(crew.trouble))
        return self._decision(crew, seen, load)

    def _adapt(self, crew: Crew, seen: Seen, load: Load) -> None:
        """Inside first, then who is overloaded, then how many."""
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
            # While one version follows another there is one more than wanted, and each that is
            # renewed takes its time; one that does not start may never be followed by another.
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
        """Why there are fewer than are needed, and will be; "": there are enough to come."""
        unplaced = len(self._upkeep.unplaced(crew, seen.at))
        # Where all that are wanted serve, those that drain will leave their slots to them.
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

    # For people

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
