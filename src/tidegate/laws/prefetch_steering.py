"""The heart of prefetch control, the same in a worker, in a node and in the lab.

    steering = PrefetchSteering(PrefetchGoal(rate_per_s=400.0), model, start=10)
    step = steering.step(sample)        once a sample: what to set, and why
    prefetch = steering.tick()          several times a sample: the whole number to set now

From the outside inwards: what rate is to be had now (prefetch_target), what the model is now
(model_in_use), the way back when it has gone too far (way_back), and the controller with its layers
(prefetch_controller). Three things are held rather than steered: a lost measurement, a starved
queue, and a consumer that nothing is known of yet. Never raises for what it measures; a goal that
makes no sense raises InvalidValue at once. Standard library only.
"""

from __future__ import annotations

import math

import msgspec

from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.laws.actuation import Modulator, Steady
from tidegate.laws.adaptation import Adaptive
from tidegate.laws.control_step import Controller, ControlStep, Mode, Sample, Saturation
from tidegate.laws.controller_design import DesignRefused
from tidegate.laws.model_in_use import ModelInUse
from tidegate.laws.pole_placement import Gains, Kind
from tidegate.laws.prefetch_controller import Practice, PrefetchController
from tidegate.laws.prefetch_design import Designed, designed_for, requirement_of, words_of_offset
from tidegate.laws.prefetch_target import PrefetchTarget
from tidegate.laws.swing import Calmed
from tidegate.laws.way_back import BUSY_LEARNED_MAX, WayBack
from tidegate.laws.workload_schedule import WorkloadSchedule

# Without a measurement for so long, and for so many samples, the fallback is set.
PATIENCE_S, PATIENCE_SAMPLES = 10.0, 3.5
# More is a broken clock, and no consumer.
RATE_MAX_PER_S = 1e9
# How far what was set may lie off what we asked for.
ASIDE, ASIDE_AT_LEAST = 0.1, 1.0


class PrefetchSteering:
    """Steers one consumer's prefetch to a goal."""

    def __init__(
        self,
        goal: PrefetchGoal,
        model: PrefetchModel | None,
        start: int,
        *,
        schedule: WorkloadSchedule | None = None,
    ) -> None:
        """`schedule` has the models of several workloads, of which the one at hand is chosen."""
        goal.check()
        self.goal = goal
        self._known = ModelInUse(model or goal.model, goal.sample_s, schedule)
        self._level = float(min(max(start, goal.low), goal.high))
        self._modulator = Modulator()
        self._steady = Steady()
        self._way_back = WayBack(self._known)
        self._at = 0.0
        # y(k−1), as measured; NaN: it was not.
        self._rate_before = math.nan
        self._build()

    # What is known

    @property
    def level(self) -> float:
        """What is set on average."""
        return self._level

    @property
    def gains(self) -> Gains:
        """All 0 while nothing is known."""
        return self._calmed.gains

    @property
    def given_up(self) -> str:
        """What of the goal no controller can keep; "": nothing."""
        return self._given_up or self._words_of_offset(self._target.wanted_per_s)

    @property
    def is_guessed(self) -> bool:
        """Whether nothing better than a guess is in use."""
        return self._known.is_guessed

    @property
    def model(self) -> PrefetchModel | None:
        """The one in use: given, learned or guessed; None before the first guess."""
        return self._known.described(self.goal.sample_s)

    # Steering

    def step(self, sample: ConsumerSample | None) -> ControlStep:
        """Once a sampling interval: what to set from now on. None: the measurement was lost."""
        if sample is None or not 0.0 <= sample.arrived_per_s <= RATE_MAX_PER_S:
            return self.lose(None if sample is None else sample.at)
        self._at = sample.at
        notes = [self._follow(sample.prefetch), self._choose(sample), self._look(sample)]
        target = self._target.now(sample, self._prefetch_of(sample))
        notes.append(self._come_back(sample))
        is_known = self._is_designed and math.isfinite(target)
        asked = Sample(
            sample.at,
            sample.arrived_per_s,
            # Not known: held, which is not the same as lost.
            target if is_known else sample.arrived_per_s,
            starved=sample.starved or not is_known,
            expected_per_s=self._expected_per_s,
            round_per_s=self._level / sample.interval_s if sample.interval_s > 0.0 else 0.0,
        )
        self._rate_before = sample.arrived_per_s
        step = self._taken(self._bounded(self._outermost.step(asked)))
        if not is_known:
            words = "held: no controller" if self._given_up else "nothing is known yet: held"
            step = step._replace(target_per_s=target, notes=(words,))
        self._learn()
        notes += [self._words_of_ceiling(step), self._words_of_guess()]
        if step.mode is Mode.AUTOMATIC:
            notes.append(self._words_of_offset(target))
        return step._replace(notes=(*step.notes, *(note for note in notes if note)))

    def lose(self, at: float | None = None) -> ControlStep:
        """Nothing was measured: hold, and fall back when that lasts."""
        self._at = self._at + self.goal.sample_s if at is None else at
        self._rate_before = math.nan
        lost = Sample(self._at, None, self._target.wanted_per_s)
        return self._taken(self._outermost.step(lost))

    def tick(self) -> int:
        """The whole number to set until the next tick; of a wanted rate their mean counts."""
        is_stock = self.goal.rate_per_s is None and not self._controller.manual.is_manual
        if not is_stock:
            return self._modulator.next(self._level)
        return min(max(self._steady.next(self._level), self.goal.low), self.goal.high)

    def change(self, goal: PrefetchGoal) -> None:
        """Another goal from the next step on, without a bump.

        A model that is taken away is no longer believed: what was learned of the consumer itself
        while it ran stays, and else it is held until there is a guess.
        """
        goal.check()
        before, self.goal = self.goal, goal
        # A target and a person's value are no matter of design.
        unchanged = {"rate_per_s": None, "manual": None}
        if msgspec.structs.replace(before, **unchanged) == msgspec.structs.replace(
            goal, **unchanged
        ):
            self._target.change(goal)
            self._calmed.begin()
            self._set_by_hand()
            return
        known = self._known
        if goal.model is not None and goal.model != before.model:
            # It counts more than what was learned of other consumers.
            known.schedule = None
            known.take(goal.model, goal.sample_s)
        elif goal.model is None and before.model is not None and known.given == before.model:
            known.disbelieve(before.sample_s, goal.sample_s)
        elif goal.sample_s != before.sample_s:
            known.stretch(goal.sample_s / before.sample_s)
        self._level = min(max(self._level, float(goal.low)), float(goal.high))
        self._build()

    def use(self, model: PrefetchModel) -> None:
        """Another model from the next step on, such as that of another workload."""
        self._known.take(model, self.goal.sample_s)
        self._build()

    def schedule(self, schedule: WorkloadSchedule) -> None:
        """Choose among these models from now on."""
        self._known.schedule = schedule
        self.use(schedule.model)

    # The model and its controller

    def _build(self) -> None:
        """The controller for the goal and the model, from what is set now."""
        designed = self._designed()
        goal, model = self.goal, self._known.model
        practice = Practice(
            low=goal.low,
            high=goal.high,
            fallback=goal.fallback,
            patience_s=max(PATIENCE_S, PATIENCE_SAMPLES * goal.sample_s),
            whole=False,
        )
        self._controller = PrefetchController(designed.gains, self._level, practice)
        self._calmed = Calmed(self._controller, self._controller.tunable)
        self._outermost: Controller = self._calmed
        self._adaptive: Adaptive | None = None
        if model is not None and (goal.adaptive or self._known.is_guessed):
            self._adaptive = Adaptive(self._calmed, self._calmed, model, designed.requirement)
            self._outermost = self._adaptive
        self._given_up = designed.given_up
        self._is_designed = designed.gains.proportional != 0.0 or designed.gains.integral != 0.0
        self._target = PrefetchTarget(goal, self._known)
        self._set_by_hand()

    def _designed(self) -> Designed:
        if self._known.model is None:
            kind = Kind(self.goal.controller.value)
            return Designed(Gains(kind, 0.0), requirement_of(self.goal), "")
        return designed_for(self.goal, self._known.model)

    def _choose(self, sample: ConsumerSample) -> str:
        """Take the model of another workload, if this has become one."""
        schedule = self._known.schedule
        if schedule is None or self._way_back.is_beyond(self._level):
            return ""
        if not schedule.see(sample, self._prefetch_of(sample)):
            return ""
        self.use(schedule.model)
        return f"scheduled: the workload is that of {schedule.name}"

    def _look(self, sample: ConsumerSample) -> str:
        """Guess, while nothing better is known."""
        if self._adaptive is not None:
            # Beyond the knee the rate does not answer, and a model learned there is wrong.
            is_busy = sample.busy is not None and sample.busy > BUSY_LEARNED_MAX
            self._adaptive.is_learning = not is_busy and not self._way_back.is_beyond(self._level)
            self._adaptive.is_doubted = self._calmed.is_lowered
        known = self._known
        if not known.see(sample, self._prefetch_of(sample)):
            return ""
        if self._adaptive is None:
            self._build()
            return ""
        assert known.model is not None
        try:
            self._adaptive.use(known.model)
        except DesignRefused as refused:
            known.model = self._adaptive.model
            return f"guessed, but not redesigned: {refused}"
        self._target.retune()
        return ""

    def _learn(self) -> None:
        """Take over what the adaptive layer has redesigned for."""
        if self._adaptive is None or self._adaptive.model is self._known.model:
            return
        self._known.learn(self._adaptive.model)
        if not self.goal.adaptive:
            # It was to learn until there is a model, and no longer.
            self._outermost, self._adaptive = self._calmed, None
        self._target.retune()

    @property
    def _expected_per_s(self) -> float | None:
        return self._known.expected_per_s(self._rate_before, self._level)

    # What was set

    def _taken(self, step: ControlStep) -> ControlStep:
        self._level = step.level
        return step

    def _prefetch_of(self, sample: ConsumerSample) -> float:
        return sample.prefetch if math.isfinite(sample.prefetch) else self._level

    def _set_by_hand(self) -> None:
        manual = self._controller.manual
        if self.goal.manual is None:
            manual.release()
        else:
            manual.take(float(self.goal.manual))

    def _follow(self, prefetch: float) -> str:
        """Go on from what was really set, if somebody else has set it."""
        aside = abs(prefetch - self._level)
        if not aside > ASIDE_AT_LEAST + ASIDE * self._level:
            return ""
        self._outermost.track(prefetch)
        asked, self._level = self._level, prefetch
        return f"{prefetch:g} was set in place of {asked:g}"

    def _come_back(self, sample: ConsumerSample) -> str:
        """From beyond the knee to the knee, as soon as the target is within reach."""
        wanted_per_s = self._target.wanted_per_s
        knee = self._way_back.knee(sample, wanted_per_s, self._level, self._expected_per_s)
        if knee is None or self._controller.manual.is_manual:
            return ""
        self._outermost.track(knee)
        if self._adaptive is not None and not self._calmed.is_swinging:
            # Some of it was learned beyond the knee, before anybody could know.
            self._adaptive.forget()
        return f"back from beyond the knee at {knee:.3g}"

    def _bounded(self, step: ControlStep) -> ControlStep:
        """No further than where more brings more; P, whose output is a formula, is left alone."""
        bound = max(self._way_back.bound, float(self.goal.low))
        is_free = step.mode is not Mode.AUTOMATIC or self.goal.controller is ControllerKind.P
        if is_free or step.level <= bound:
            return step
        self._outermost.track(bound)
        held = step.set_to(bound)._replace(saturated=Saturation.NONE)
        return held.noted(f"held at the knee at {bound:.3g}")

    # What is said of it

    def _words_of_ceiling(self, step: ControlStep) -> str:
        return self._way_back.words_of_ceiling(
            step, self._target.wanted_per_s, is_kept_up=self._target.is_out_of_reach
        )

    def _words_of_guess(self) -> str:
        guess = self._known.guess
        if guess is None or self._known.model is None:
            return self._given_up
        return (
            f"no model: guessed {guess.worth_per_s:.3g} msg/s per unit of prefetch, and "
            "cautious until it is learned"
        )

    def _words_of_offset(self, target_per_s: float) -> str:
        if self._known.model is None or not self._is_designed:
            return ""
        return words_of_offset(self.goal, self._known.model, self.gains, target_per_s)
