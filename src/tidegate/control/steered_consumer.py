"""One consumer under prefetch control: sense, step, set, record.

    credit.sense → regulator.step → level → (each tick) prefetch

`PrefetchRegulator` decides; this class connects it to the node's consumer. It is synchronous. A new
consumer, and one whose queue has a new owner, starts from the prefetch it has, so nothing jumps.
"""

from __future__ import annotations

import math
from collections import deque

from tidegate.adapters.native.credit import ConsumerCredit, Sensed
from tidegate.control.learned_prefetch import LearnedPrefetch
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.steering import Decision
from tidegate.laws.control_step import ControlStep, Mode, Saturation
from tidegate.laws.prefetch_decision import explained
from tidegate.laws.prefetch_steering import PrefetchSteering
from tidegate.node.consumer import Consumer
from tidegate.telemetry.numbers import ControlNumbers
from tidegate.telemetry.recorder import Row

# Steps kept for `tidegate explain QUEUE --prefetch`.
STEPS_KEPT = 60
# Observations per sample at least, and seconds between two observations at most.
_LOOKS_PER_SAMPLE = 5
_LOOK_S_MAX = 0.5
# If a sample is shorter than this many sojourn times, its rate is mostly chance.
_ROUNDS = 4.0
# Beginnings of notes that are worth a decision in the journal.
_NEWS = (
    "redesigned",
    "swings",
    "scheduled",
    "drifted",
    "the ceiling",
    "no controller",
    "back from",
    "P keeps",
)


class SteeredConsumer:
    """A consumer, its credit, and the regulator of its prefetch."""

    def __init__(
        self,
        consumer: Consumer,
        goal: PrefetchGoal,
        names: tuple[str, str, int],
        learned: LearnedPrefetch,
        now: float,
        delay_s: float,
    ) -> None:
        self.consumer = consumer
        self.goal = goal
        self._node, self.queue, self._replica = names
        self._learned = learned
        client = consumer.outlet.client_name
        self.steering = PrefetchSteering(
            goal,
            learned.of(goal, self.queue, client),
            max(consumer.prefetch, 1),
            schedule=learned.schedule(goal, self.queue, client),
        )
        self.credit = ConsumerCredit(consumer, now, keep_up=goal.rate_per_s is None)
        self.steps: deque[ControlNumbers] = deque(maxlen=STEPS_KEPT)
        consumer.control = self.steps
        self.due_at = now + goal.sample_s + delay_s
        self.look_at = now
        self._mode: Mode | None = None
        self._saturated = Saturation.NONE
        # Kinds of notes of the step before.
        self._noted: set[str] = set()
        # Whether the next tick must set something; False once a whole level has been set.
        self.is_moving = True
        # Whether one of its steps has failed and this was logged.
        self.has_failed = False

    def change(self, goal: PrefetchGoal, now: float) -> None:
        """Change the goal without a jump of the prefetch."""
        before, self.goal = self.goal, goal
        self.steering.change(goal)
        if (before.rate_per_s is None) != (goal.rate_per_s is None):
            self.credit.close()
            self.credit = ConsumerCredit(self.consumer, now, keep_up=goal.rate_per_s is None)
        self.due_at = min(self.due_at, now + goal.sample_s)
        self.is_moving = True

    # Several times a sample

    def look(self, now: float) -> None:
        """Observe the consumer; call it several times per sample."""
        self.credit.look(now)
        if self.credit.probing is None:
            self.look_at = now + min(self.goal.sample_s / _LOOKS_PER_SAMPLE, _LOOK_S_MAX)
        else:
            self.is_moving = True

    def next_prefetch(self, now: float) -> int:
        """Return the prefetch to set now."""
        wanted = self.credit.wanted(self.steering.tick(), now)
        self.is_moving = wanted != self.steering.level
        return wanted

    # Once a sample

    def step(self, now: float, wall_s: float) -> tuple[Row, Decision | None, str]:
        """Make one control step and return its row for the lake, with a decision if there is news.

        The decision is None and the text empty if nothing noteworthy has changed. `wall_s` is in
        seconds since 1970.
        """
        # Keep a steady interval; after a delay, skip samples instead of catching up.
        self.due_at = max(self.due_at + self.goal.sample_s, now + 0.5 * self.goal.sample_s)
        sensed = self.credit.sense(now)
        step = self._taken(sensed)
        self.is_moving = True
        self.credit.tell(step.level)
        if self._learned.has_any and self.steering.is_guessed:
            self._look_up()
        numbers = self._numbers(step, sensed, wall_s)
        self.steps.append(numbers)
        news = self._news(step)
        decision = None
        if news:
            decision = explained(
                step,
                self.goal,
                self.steering.model,
                service=self.queue,
            )
        return self._row(numbers), decision, news

    def _taken(self, sensed: Sensed) -> ControlStep:
        if not sensed.is_probe:
            step = self.steering.step(sensed.sample)
            return step if self._is_long_enough(sensed) else step.noted(_short(sensed))
        level, rate = self.steering.level, sensed.sample.arrived_per_s
        unknown = (math.nan,) * 6
        return ControlStep(sensed.sample.at, math.nan, rate, *unknown, level, level)._replace(
            mode=Mode.HELD, notes=("credit cut for a moment, to see what is held",)
        )

    def _look_up(self) -> None:
        """Replace a guessed model by a model learned meanwhile."""
        client = self.consumer.outlet.client_name
        model = self._learned.of(self.goal, self.queue, client)
        if model is not None:
            self.steering.use(model)
            return
        schedule = self._learned.schedule(self.goal, self.queue, client)
        if schedule is not None:
            self.steering.schedule(schedule)

    def _is_long_enough(self, sensed: Sensed) -> bool:
        """Return whether the sample is several sojourn times long.

        Credit circulates: a sample of two or three rounds counts either two or three of them.
        """
        return sensed.sojourn_s * _ROUNDS <= self.goal.sample_s

    def _news(self, step: ControlStep) -> str:
        """Return what has changed since the last step and is worth a decision; empty if nothing."""
        # Compare kinds of notes, not their numbers, and ignore what was noted before.
        kinds = {kind for kind in _NEWS for note in step.notes if note.startswith(kind)}
        found = sorted(kinds - self._noted)
        self._noted = kinds
        if step.mode is not self._mode and step.mode is not Mode.HELD:
            self._mode = step.mode
            found.append(step.mode.value)
        if step.saturated is not self._saturated:
            self._saturated = step.saturated
            found += [f"saturated {step.saturated.value}"] if step.saturated else []
        return ", ".join(found)

    def _numbers(self, step: ControlStep, sensed: Sensed, wall_s: float) -> ControlNumbers:
        sample = sensed.sample
        return ControlNumbers(
            at=wall_s,
            interval_s=sample.interval_s,
            mode=step.mode.value,
            target_per_s=_known(step.target_per_s),
            rate_per_s=_known(step.measured_per_s),
            used_per_s=_known(step.used_per_s),
            error_per_s=_known(step.error_per_s),
            proportional=_known(step.proportional),
            integral=_known(step.integral),
            derivative=_known(step.derivative),
            wanted=_known(step.wanted),
            level=step.level,
            output=float(self.consumer.prefetch),
            saturated=step.saturated.value,
            acked_per_s=sensed.acked_per_s,
            held=sample.held,
            prefetch=sample.prefetch,
            starved=sample.starved,
            notes=list(step.notes),
        )

    def _row(self, step: ControlNumbers) -> Row:
        """Return the row for the table `control_steps`."""
        return (
            int(step.at * 1e6),
            step.interval_s,
            self._node,
            self.queue,
            self._replica,
            self.consumer.outlet.client_name,
            self.consumer.consumer,
            step.mode,
            step.target_per_s,
            step.rate_per_s,
            step.used_per_s,
            step.error_per_s,
            step.proportional,
            step.integral,
            step.derivative,
            step.wanted,
            step.level,
            step.output,
            step.saturated,
            step.acked_per_s,
            step.held,
            step.prefetch,
            step.starved,
            step.notes,
        )

    def release(self) -> None:
        """Stop controlling the consumer; its prefetch stays as it is."""
        self.credit.close()
        self.consumer.control = None
        self.consumer.limit = None


def _short(sensed: Sensed) -> str:
    return (
        f"samples are short: a message is away for {sensed.sojourn_s:.2g} s, and a sample "
        "ten times as long says more"
    )


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
