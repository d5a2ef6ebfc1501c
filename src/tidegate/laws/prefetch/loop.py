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

from tidegate.core.decisions import Decision
from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchGoal, PrefetchModel
from tidegate.laws.prefetch.controller import (
    Controller,
    ControllerMode,
    ControllerSettings,
    ControlSample,
    ControlStep,
    Hysteresis,
    Modulator,
    PrefetchController,
    Saturation,
    WorkloadSchedule,
)
from tidegate.laws.prefetch.design import (
    ControllerType,
    DesignRefused,
    Gains,
    PrefetchDesign,
    describe_offset,
    design_for,
    design_requirement,
)
from tidegate.laws.prefetch.fit import LinearModel
from tidegate.laws.prefetch.knee import BUSY_LEARNED_MAX, GainReduction, SaturationRecovery
from tidegate.laws.prefetch.model import ActiveModel, AdaptiveLayer

# Seconds and samples without a measurement before the fallback is set; the longer time counts.
PATIENCE_S, PATIENCE_SAMPLES = 10.0, 3.5
# A larger rate comes from a broken clock.
RATE_MAX_PER_S = 1e9
# How far the prefetch of a sample may differ from the level: relative, and in units.
ASIDE, ASIDE_AT_LEAST = 0.1, 1.0


class PrefetchRegulator:
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
        self._known = ActiveModel(model or goal.model, goal.sample_s, schedule)
        self._level = float(min(max(start, goal.low), goal.high))
        self._modulator = Modulator()
        self._steady = Hysteresis()
        self._way_back = SaturationRecovery(self._known)
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
            return self.step_without_sample(None if sample is None else sample.at)
        self._at = sample.at
        notes = [self._follow(sample.prefetch), self._choose(sample), self._observe(sample)]
        target = self._target.now(sample, self._prefetch_of(sample))
        notes.append(self._come_back(sample))
        is_known = self._is_designed and math.isfinite(target)
        asked = ControlSample(
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
        if step.mode is ControllerMode.AUTOMATIC:
            notes.append(self._words_of_offset(target))
        return step._replace(notes=(*step.notes, *(note for note in notes if note)))

    def step_without_sample(self, at: float | None = None) -> ControlStep:
        """Hold the prefetch because nothing was measured, and fall back if that lasts."""
        self._at = self._at + self.goal.sample_s if at is None else at
        self._rate_before = math.nan
        lost = ControlSample(self._at, None, self._target.wanted_per_s)
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
            known.use_learned(goal.model, goal.sample_s)
        elif goal.model is None and before.model is not None and known.given == before.model:
            known.disbelieve(before.sample_s, goal.sample_s)
        elif goal.sample_s != before.sample_s:
            known.stretch(goal.sample_s / before.sample_s)
        self._level = min(max(self._level, float(goal.low)), float(goal.high))
        self._build()

    def use(self, model: PrefetchModel) -> None:
        """Use another model from the next step on, such as the model of another workload."""
        self._known.use_learned(model, self.goal.sample_s)
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
        practice = ControllerSettings(
            low=goal.low,
            high=goal.high,
            fallback=goal.fallback,
            patience_s=max(PATIENCE_S, PATIENCE_SAMPLES * goal.sample_s),
            whole=False,
        )
        self._controller = PrefetchController(designed.gains, self._level, practice)
        self._calmed = GainReduction(self._controller, self._controller.tunable)
        self._outermost: Controller = self._calmed
        self._adaptive: AdaptiveLayer | None = None
        if model is not None and (goal.adaptive or self._known.is_guessed):
            self._adaptive = AdaptiveLayer(self._calmed, self._calmed, model, designed.requirement)
            self._outermost = self._adaptive
        self._given_up = designed.given_up
        self._is_designed = designed.gains.proportional != 0.0 or designed.gains.integral != 0.0
        self._target = PrefetchTarget(goal, self._known)
        self._set_by_hand()

    def _designed(self) -> PrefetchDesign:
        if self._known.model is None:
            kind = ControllerType(self.goal.controller.value)
            return PrefetchDesign(Gains(kind, 0.0), design_requirement(self.goal), "")
        return design_for(self.goal, self._known.model)

    def _choose(self, sample: ConsumerSample) -> str:
        """Use the model of another workload if the current workload has become that one."""
        schedule = self._known.schedule
        if schedule is None or self._way_back.is_beyond(self._level):
            return ""
        if not schedule.observe(sample, self._prefetch_of(sample)):
            return ""
        self.use(schedule.model)
        return f"scheduled: the workload is that of {schedule.name}"

    def _observe(self, sample: ConsumerSample) -> str:
        """Update the guess while no better model is known."""
        if self._adaptive is not None:
            # Beyond the knee the rate does not respond, and a model learned there would be wrong.
            is_busy = sample.busy is not None and sample.busy > BUSY_LEARNED_MAX
            self._adaptive.is_learning = not is_busy and not self._way_back.is_beyond(self._level)
            self._adaptive.is_doubted = self._calmed.is_lowered
        known = self._known
        if not known.observe(sample, self._prefetch_of(sample)):
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
            manual.set_manual(float(self.goal.manual))

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
            self._adaptive.reset()
        return f"back from beyond the knee at {knee:.3g}"

    def _bounded(self, step: ControlStep) -> ControlStep:
        """Limit the level to where more prefetch still raises the rate, except for P."""
        bound = max(self._way_back.bound, float(self.goal.low))
        is_free = (
            step.mode is not ControllerMode.AUTOMATIC or self.goal.controller is ControllerKind.P
        )
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
        return describe_offset(self.goal, self._known.model, self.gains, target_per_s)


# -- prefetch_target --
# The target rate of a prefetch loop: the wanted rate, or the rate that the handler sustains.
#
#     wanted                     while the handler can do as much: μ = processed / busy ≥ wanted
#     min(wanted, kept up)       while it cannot, and what waits in the consumer can be seen
#     kept up                    where no rate is wanted (`HandlerRateTarget`)
#
# A handler that is slower than the target is beyond the knee: more prefetch gives no more rate. An
# integral would grow to its limit and fill the consumer with messages. These must be worked off
# before a change of the handler shows. So the loop keeps up with the handler instead. That keeps
# the handler equally busy at the knee, and the recovery is short when it becomes fast again.
#
# The number of held messages must be measured for this. If a node only estimates it, the wanted
# rate stays the target, because an estimation error would keep the loop below its target. P has no
# integral, and its output is a formula of the target, so its target stays unchanged.


class PrefetchTarget:
    """The target of one goal for one consumer."""

    def __init__(self, goal: PrefetchGoal, known: ActiveModel) -> None:
        self._known = known
        self._keep_up: HandlerRateTarget | None = None
        if known.model is not None:
            self._keep_up = HandlerRateTarget(
                LinearModel(0.0, known.worth_per_s, 0.0), held=goal.held
            )
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
            self._keep_up.retune(LinearModel(0.0, self._known.worth_per_s, 0.0))

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

    def _kept_up(
        self, keep_up: HandlerRateTarget, sample: ConsumerSample, prefetch: float
    ) -> float:
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


# -- prefetch_decision --
# Decisions of a prefetch loop, in the form that all loops share.
#
# Telemetry, metrics and `tidegate explain` use them.


LOOP = "prefetch"
_SIDE = {Saturation.NONE: 0.0, Saturation.LOW: -1.0, Saturation.HIGH: 1.0}
_DECIDES = {
    ControllerMode.AUTOMATIC: "the controller steers",
    ControllerMode.HELD: "held: nothing new was measured",
    ControllerMode.FALLBACK: "the fallback: measurements have stopped",
    ControllerMode.MANUAL: "set by hand",
}


def explain_step(
    step: ControlStep,
    goal: PrefetchGoal,
    model: PrefetchModel | None,
    *,
    service: str,
    output: int | None = None,
) -> Decision:
    """Return the decision that explains a step; `output` is the whole number that was set."""
    inputs = {
        "target_per_s": step.target_per_s,
        "rate_per_s": step.measured_per_s,
        "used_per_s": step.used_per_s,
        "error_per_s": step.error_per_s,
    }
    if model is not None:
        inputs |= {"a": model.a, "b": model.b}
    outputs = {
        "proportional": step.proportional,
        "integral": step.integral,
        "derivative": step.derivative,
        "wanted": step.wanted,
        "level": step.level,
        "output": step.output if output is None else float(output),
        "saturated": _SIDE[step.saturated],
    }
    return Decision(
        at=step.at,
        loop=LOOP,
        service=service,
        law=f"prefetch {goal.controller.value}",
        rule=_rule(step),
        inputs=_known(inputs),
        outputs=_known(outputs),
        reason=_reason(step, goal),
        otherwise=_otherwise(step, goal),
    )


def _rule(step: ControlStep) -> str:
    if step.saturated is Saturation.NONE:
        return step.mode.value
    return f"{step.mode.value}, saturated {step.saturated.value}"


def _reason(step: ControlStep, goal: PrefetchGoal) -> str:
    wanted = "keep up" if goal.rate_per_s is None else f"{goal.rate_per_s:g}/s"
    parts = [f"prefetch {step.level:.4g} for {wanted}: {_DECIDES[step.mode]}"]
    if math.isfinite(step.error_per_s):
        parts.append(
            f"{step.used_per_s:.4g}/s is {abs(step.error_per_s):.3g}/s "
            f"{'below' if step.error_per_s > 0.0 else 'above'} the target of "
            f"{step.target_per_s:.4g}/s, so P {step.proportional:.4g} + I {step.integral:.4g} + "
            f"D {step.derivative:.4g} = {step.wanted:.4g}"
        )
    if step.saturated is not Saturation.NONE:
        parts.append(f"held at its {step.saturated.value} limit")
    return "; ".join([*parts, *step.notes]) + "."


def _otherwise(step: ControlStep, goal: PrefetchGoal) -> str:
    match step.mode:
        case ControllerMode.MANUAL:
            return "Take the manual value away, and the controller goes on from it."
        case ControllerMode.HELD | ControllerMode.FALLBACK:
            return "With a measurement the controller goes on from here."
        case ControllerMode.AUTOMATIC if step.saturated is Saturation.HIGH:
            return (
                f"A prefetch above {goal.high} is not allowed: raise `high`, or lower the target."
            )
        case ControllerMode.AUTOMATIC if step.saturated is Saturation.LOW:
            return f"A prefetch below {goal.low} is not allowed."
    return ""


def _known(numbers: dict[str, float]) -> dict[str, float]:
    """Return the finite numbers only, because JSON has no NaN."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


# -- keep_up --
# The goal "keep up": messages arrive as fast as the handler can process them, and few wait.
#
#     μ = processed / busy                   what the handler could process if it were always busy
#     target = μ + b/(1−a) · (h* − h)        h messages wait unprocessed in the consumer, h* wanted
#
# Arrivals cannot stay above μ. Beyond the knee more prefetch only means more held messages, which
# no other consumer can reach, and the rate gives no information. But each further unit of prefetch
# adds one held message, and a unit is worth b/(1−a) msg/s. With the second term, error and prefetch
# have the same relation on both sides of the knee, so gains designed below it are right beyond it
# too. The loop comes to rest where arrivals are μ and h* messages wait.
#
#     h* = max(1, f · in flight)             unless the goal sets h*
#     f ← f + 2 · (idle − ¾ %)               by how long the handler was idle, ½ ≤ f ≤ 2
#
# One waiting message would suffice if messages arrived one by one. They do not: messages
# acknowledged together arrive together, up to a quarter of the prefetch, and may be late by any
# part of a round trip. This lateness is unknown, but the idle time of the handler is measured. So
# an integral adjusts the stock: it grows while the handler idles although the stock is present, and
# shrinks otherwise. On average the handler is then idle for less than one per cent of the time.
#
# The stock is at most twice the messages in flight, which lasts for two round trips. A handler that
# still idles does so for another reason. A node's estimate of held messages may be off by a
# fraction of the messages in flight. With a fixed h* a loop below the knee could take this error
# for a stock and stay there.


# Messages wanted in stock if the goal does not set them: the minimum, and per message in flight.
HELD_MIN = 1.0
EACH_MIN, EACH_FIRST, EACH_MAX = 0.5, 1.0, 2.0
# Fraction of the time that a handler may be idle.
IDLE_MAX = 0.0075
# Growth of f in a sample in which the handler was idle all the time.
STOCKED_UP = 2.0
# A smaller busy fraction does not show the handler's capacity.
BUSY_MIN = 0.05
# How far the target is below μ if held messages are not known, so that none accumulate.
SLACK = 0.05


class HandlerRateTarget:
    """Computes the target rate of each sample."""

    def __init__(
        self, model: LinearModel, *, held: float | None = None, memory_samples: float = 5.0
    ) -> None:
        """Create a target for this model.

        `held` messages may wait; `None` adapts it to those in flight.
        """
        if not (abs(model.a) < 1.0 and model.b > 0.0):
            raise ValueError(f"a = {model.a}, b = {model.b}: |a| < 1 and b > 0 are needed")
        if not ((held is None or held >= 0.0) and memory_samples >= 1.0):
            raise ValueError(
                f"{held} messages held and a memory of {memory_samples} samples: at least 0 and 1"
            )
        self.retune(model)
        self._held = held
        self._forget = 1.0 / memory_samples
        self._capacity_per_s: float | None = None
        self._held_for_each = EACH_FIRST

    def retune(self, model: LinearModel) -> None:
        """Use the worth of a unit, and so of a held message, of another model."""
        self._worth_per_s = float(model.b / (1.0 - model.a))

    @property
    def capacity_per_s(self) -> float | None:
        """μ in messages per second. `None` means that the handler has not been measured at work."""
        return self._capacity_per_s

    def held_wanted(self, in_flight: float) -> float:
        """Return h* for this number of messages in flight or in process."""
        return max(HELD_MIN, self._held_for_each * in_flight) if self._held is None else self._held

    def target_per_s(
        self,
        processed_per_s: float,
        busy: float,
        held: float | None = None,
        in_flight: float = 0.0,
    ) -> float:
        """Return the target rate, or NaN while nothing is known.

        `busy` is the fraction of the time in which the handler worked, from 0 to 1.
        """
        usable = math.isfinite(processed_per_s) and processed_per_s > 0.0 and busy >= BUSY_MIN
        if usable:
            capacity = processed_per_s / min(busy, 1.0)
            known = self._capacity_per_s
            self._capacity_per_s = (
                capacity if known is None else known + self._forget * (capacity - known)
            )
        if self._capacity_per_s is None:
            return math.nan
        if held is None or not math.isfinite(held):
            return (1.0 - SLACK) * self._capacity_per_s
        # Until the stock has built up, an idle handler does not show that h* is too small.
        if usable and held >= 0.5 * self.held_wanted(in_flight):
            self._stock_up(1.0 - busy)
        return self._capacity_per_s + self._worth_per_s * (self.held_wanted(in_flight) - held)

    def _stock_up(self, idle: float) -> None:
        """Increase the stock while the handler idles, and reduce it while it does not."""
        self._held_for_each += STOCKED_UP * (idle - IDLE_MAX)
        self._held_for_each = min(max(self._held_for_each, EACH_MIN), EACH_MAX)
