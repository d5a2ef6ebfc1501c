"""Prefetch control: a `PrefetchRegulator` determines the prefetch of one consumer.

    regulator = PrefetchRegulator(PrefetchGoal(rate_per_s=400.0), model, start=10)
    step = regulator.step(sample)        once a sample: what to set, and why
    prefetch = regulator.tick()          several times a sample: the whole number to set now

Theory of operation

**Actors.** The caller runs in a worker, in a node or in an experiment. It measures the consumer
once per sampling interval and calls `step` with the sample, or with `None` if the measurement was
lost. Within the interval it calls `tick` several times and sets the number that `tick` returns. The
regulator has no clock and does no I/O. One task calls it.

**One step** does the following, in this order:
1. If the sample was measured with a clearly different prefetch than the regulator had set, it
   continues from that prefetch.
2. If several models are given, it chooses the best fit for the workload (`WorkloadSchedule`).
3. While no given or learned model is known, it updates the guess by Little's law (`InitialModel`).
4. It computes the target: the wanted rate, or the rate that the handler sustains
   (`PrefetchTarget`).
5. If the prefetch is beyond the knee and the target is within reach, it continues from the knee
   (`SaturationRecovery`).
6. The controller with its layers computes the new level (`PrefetchController`). If the loop
   oscillates, `GainReduction` halves the gains.
7. While the rate shows a plateau, the level is limited to the knee.
8. The adaptive layer may have redesigned the controller for a learned model; the regulator then
   uses that model for the target too (`AdaptiveLayer`).

**Modes.** Each step has a mode. AUTOMATIC means that the controller decides, and MANUAL that a
human does. HELD leaves the level unchanged after a lost measurement and while the queue is starved.
The level is also held while no model is known, and if no controller keeps the goal. FALLBACK sets
`goal.fallback` after measurements have been missing for `patience_s`.

**Invariants.**
- After each step the level is within `goal.low` and `goal.high`.
- PI and PID do not jump when goal, model, gains or mode change, because they compute only changes.
- Gains are those designed for the model in use, or fractions of them. Without a design they are 0.

**Failures.** No measurement raises an error: a rate that is negative, not finite or absurdly large
counts as lost. An invalid goal or model raises `InvalidValue` at once. The module uses the standard
library only.
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

# Seconds and samples without a measurement before the fallback is set; the longer time counts.
PATIENCE_S, PATIENCE_SAMPLES = 10.0, 3.5
# A larger rate comes from a broken clock.
RATE_MAX_PER_S = 1e9
# How far the prefetch of a sample may differ from the level: relative, and in units.
ASIDE, ASIDE_AT_LEAST = 0.1, 1.0


class PrefetchSteering:
    """Controls one consumer's prefetch towards a goal."""

    def __init__(
        self,
        goal: PrefetchGoal,
        model: PrefetchModel | None,
        start: int,
        *,
        schedule: WorkloadSchedule | None = None,
    ) -> None:
        """Create a regulator that starts from the prefetch `start`, clamped to the goal's limits.

        `schedule` has the models of several workloads; the regulator uses the best fit for the
        current workload. Raises `InvalidValue` if the goal or the model is invalid.
        """
        goal.check()
        self.goal = goal
        self._known = ModelInUse(model or goal.model, goal.sample_s, schedule)
        self._level = float(min(max(start, goal.low), goal.high))
        self._modulator = Modulator()
        self._steady = Steady()
        self._way_back = WayBack(self._known)
        self._at = 0.0
        # y(k−1), as measured. NaN means that it was not measured.
        self._rate_before = math.nan
        self._build()

    # Reading the state

    @property
    def level(self) -> float:
        """The prefetch that is set on average; it may be a fraction."""
        return self._level

    @property
    def gains(self) -> Gains:
        """The gains in use; all are 0 while nothing is known."""
        return self._calmed.gains

    @property
    def given_up(self) -> str:
        """The part of the goal that no controller can keep. Empty means that all of it is kept."""
        return self._given_up or self._words_of_offset(self._target.wanted_per_s)

    @property
    def is_guessed(self) -> bool:
        """Whether the model in use is a guess."""
        return self._known.is_guessed

    @property
    def model(self) -> PrefetchModel | None:
        """The model in use: given, learned or guessed. `None` before the first guess."""
        return self._known.described(self.goal.sample_s)

    # Control

    def step(self, sample: ConsumerSample | None) -> ControlStep:
        """Return what to set for the next interval; `None` means a lost measurement."""
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
            # Without a target the prefetch is held, which differs from a lost measurement.
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
        """Hold the prefetch because nothing was measured, and fall back if that lasts."""
        self._at = self._at + self.goal.sample_s if at is None else at
        self._rate_before = math.nan
        lost = Sample(self._at, None, self._target.wanted_per_s)
        return self._taken(self._outermost.step(lost))

    def tick(self) -> int:
        """Return the whole number to set until the next tick.

        For a wanted rate the mean of the numbers is the level. For the goal "keep up" the number
        changes only when the level is clearly off.
        """
        is_stock = self.goal.rate_per_s is None and not self._controller.manual.is_manual
        if not is_stock:
            return self._modulator.next(self._level)
        return min(max(self._steady.next(self._level), self.goal.low), self.goal.high)

    def change(self, goal: PrefetchGoal) -> None:
        """Use another goal from the next step on, without a jump.

        If the new goal withdraws a model, the regulator no longer uses it. A model that was
        learned from the consumer itself while the loop ran stays. Without one the prefetch is held
        until there is a guess.
        """
        goal.check()
        before, self.goal = self.goal, goal
        # The target and a manual value do not affect the design.
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
            # The user's model takes precedence over models that were learned from other consumers.
            known.schedule = None
            known.take(goal.model, goal.sample_s)
        elif goal.model is None and before.model is not None and known.given == before.model:
            known.disbelieve(before.sample_s, goal.sample_s)
        elif goal.sample_s != before.sample_s:
            known.stretch(goal.sample_s / before.sample_s)
        self._level = min(max(self._level, float(goal.low)), float(goal.high))
        self._build()

    def use(self, model: PrefetchModel) -> None:
        """Use another model from the next step on, such as the model of another workload."""
        self._known.take(model, self.goal.sample_s)
        self._build()

    def schedule(self, schedule: WorkloadSchedule) -> None:
        """Choose among these models from now on."""
        self._known.schedule = schedule
        self.use(schedule.model)

    # Model and controller

    def _build(self) -> None:
        """Build the controller for the goal and the model, starting from the current level."""
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
        """Use the model of another workload if the current workload has become that one."""
        schedule = self._known.schedule
        if schedule is None or self._way_back.is_beyond(self._level):
            return ""
        if not schedule.see(sample, self._prefetch_of(sample)):
            return ""
        self.use(schedule.model)
        return f"scheduled: the workload is that of {schedule.name}"

    def _look(self, sample: ConsumerSample) -> str:
        """Update the guess while no better model is known."""
        if self._adaptive is not None:
            # Beyond the knee the rate does not respond, and a model learned there would be wrong.
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
        """Use the model for which the adaptive layer has redesigned the controller."""
        if self._adaptive is None or self._adaptive.model is self._known.model:
            return
        self._known.learn(self._adaptive.model)
        if not self.goal.adaptive:
            # The layer was only to learn a first model, and this is done.
            self._outermost, self._adaptive = self._calmed, None
        self._target.retune()

    @property
    def _expected_per_s(self) -> float | None:
        return self._known.expected_per_s(self._rate_before, self._level)

    # Setting the level

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
        """Continue from the prefetch that was really set, if another party has set it."""
        aside = abs(prefetch - self._level)
        if not aside > ASIDE_AT_LEAST + ASIDE * self._level:
            return ""
        self._outermost.track(prefetch)
        asked, self._level = self._level, prefetch
        return f"{prefetch:g} was set in place of {asked:g}"

    def _come_back(self, sample: ConsumerSample) -> str:
        """Continue from the knee if the level is beyond it and the target is within reach."""
        wanted_per_s = self._target.wanted_per_s
        knee = self._way_back.knee(sample, wanted_per_s, self._level, self._expected_per_s)
        if knee is None or self._controller.manual.is_manual:
            return ""
        self._outermost.track(knee)
        if self._adaptive is not None and not self._calmed.is_swinging:
            # Some samples were learned beyond the knee, before that was known.
            self._adaptive.forget()
        return f"back from beyond the knee at {knee:.3g}"

    def _bounded(self, step: ControlStep) -> ControlStep:
        """Limit the level to where more prefetch still raises the rate, except for P."""
        bound = max(self._way_back.bound, float(self.goal.low))
        is_free = step.mode is not Mode.AUTOMATIC or self.goal.controller is ControllerKind.P
        if is_free or step.level <= bound:
            return step
        self._outermost.track(bound)
        held = step.set_to(bound)._replace(saturated=Saturation.NONE)
        return held.noted(f"held at the knee at {bound:.3g}")

    # Notes for people

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
