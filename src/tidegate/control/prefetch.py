"""The prefetch loop of a node: controls the consumers of the queues that the node owns.

Theory of operation
-------------------

A queue whose policy has a prefetch goal is controlled by the node that owns its replica. Prefetch
is credit that this node grants, so no other process takes part and clients need no support for it.

The loop runs on the node's event loop and never blocks it for long. It has three rhythms:

    census   5 times a second   new goals, new and gone consumers
    tick     20 times a second  set the prefetch of consumers whose level is not a whole number
    step     once per sample    sense, one step of the control law, record a row

A level of 7.3 means 7 or 8 alternately, so that the average is 7.3. `ControlledConsumer` holds the
state of one consumer, and `laws.prefetch.controller` decides.

Many consumers share a tick without delaying messages:

- With more than _PER_TICK consumers each has its turn once in several ticks.
- A consumer whose whole level is already set needs nothing in a tick.
- All changes of a queue are given to its dispatcher in one call.
- The first steps of new consumers are spread over one sample. Steps that do not fit into _STEPS_S
  wait for the next tick, the longest overdue first.

Failures: if a measurement, a step or the whole loop fails, consumers keep the prefetch they have. A
queue that loses its goal returns its consumers to the prefetch they asked for. A queue that this
node no longer owns is dropped; its new owner starts from the prefetch that each consumer has there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Mapping

from tidegate.broker.dispatch import Consumer
from tidegate.broker.replica import Replica
from tidegate.control.journal import PrefetchJournal
from tidegate.control.learned import PrefetchModels
from tidegate.core.decisions import Decision
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.reasons import Reason
from tidegate.core.store import Clock
from tidegate.engines.native.prefetch import ConsumerCredit, SensedConsumer
from tidegate.laws.prefetch.controller import ControllerMode, ControlStep, Saturation
from tidegate.laws.prefetch.loop import PrefetchRegulator, explain_step
from tidegate.telemetry.recorder import Recorder, Row
from tidegate.telemetry.stats import ControlStats

log = logging.getLogger(__name__)

TICK_S = 0.05
# Seconds between checks for goals and consumers: without any controlled queue, and with one.
_IDLE_S = 0.25
_CENSUS_S = 0.2
# Seconds that the steps of one tick may take; messages wait meanwhile.
_STEPS_S = 0.005
# Consumers handled in one tick; with more than these, consumers take turns.
_PER_TICK = 250
# New consumers of a queue that one tick adds; more would block the event loop too long.
_NEWCOMERS = 50
# Consumers that start together are spread over this many phases of the sample.
_PHASES = 16


class ControlledQueue:
    """The controlled consumers of one replica."""

    def __init__(self, replica: Replica, goal: PrefetchGoal) -> None:
        self.replica = replica
        self.goal = goal
        self.consumers: dict[Consumer, ControlledConsumer] = {}
        # The same consumers, in the order of their turns.
        self.order: list[ControlledConsumer] = []


class PrefetchLoop:
    """Controls the prefetch of all consumers of one node whose queue has a goal."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        node: str,
        journal: PrefetchJournal,
        *,
        learned: PrefetchModels | None = None,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the loop for the node's replicas.

        `replicas` may leave out replicas without a goal, of which a node may have thousands.
        """
        self._replicas = replicas
        self._node = node
        self._journal = journal
        self._learned = learned or PrefetchModels(None)
        self._recorder = recorder
        self._clock = clock or Clock()
        self._queues: dict[Replica, ControlledQueue] = {}
        self._census_at = float("-inf")
        self._came = 0
        self._ticks = 0
        # Each consumer has its turn once in this many ticks.
        self._turns = 1
        self._is_failing = False

    @property
    def steered(self) -> int:
        """The number of controlled consumers."""
        return sum(len(queue.consumers) for queue in self._queues.values())

    async def run(self) -> None:
        """Run until cancelled; log a failure, change nothing, and try again.

        At the end all consumers keep the prefetch they have.
        """
        try:
            while True:
                try:
                    self.run_once(self._clock.monotonic())
                    await self._journal.write()
                    self._is_failing = False
                except Exception:
                    # Log only the first of a series: it would repeat twenty times a second.
                    if not self._is_failing:
                        log.exception("a bug in the prefetch loop: consumers keep what they have")
                    self._is_failing = True
                await asyncio.sleep(TICK_S if self._queues else _IDLE_S)
        finally:
            self._release_all()

    def run_once(self, now: float) -> None:
        """Run one tick at `now` (monotonic seconds), with a census if one is due."""
        if now >= self._census_at:
            self._census_at = now + _CENSUS_S
            self._census(now)
        self._ticks += 1
        self._turns = 1 + self.steered // _PER_TICK
        due: list[ControlledConsumer] = []
        for queue in self._queues.values():
            self._tick(queue, now, due)
        if due:
            self._step_all(due, now)

    # Census

    def _census(self, now: float) -> None:
        """Add and drop queues and consumers, and apply changed goals."""
        wanted = {
            replica: replica.context.policy.prefetch
            for replica in self._replicas.values()
            if replica.context.policy.prefetch is not None and not replica.fenced
        }
        if any(goal.model is None for goal in wanted.values()):
            # Reads files, so only if a goal without a model needs them.
            self._learned.refresh(now)
        for replica in [one for one in self._queues if one not in wanted]:
            self._release(self._queues.pop(replica))
        for replica, goal in wanted.items():
            queue = self._queues.get(replica)
            if queue is None:
                queue = self._queues[replica] = ControlledQueue(replica, goal)
            if queue.goal != goal:
                queue.goal = goal
                for steered in queue.consumers.values():
                    steered.change(goal, now)
            self._count(queue, now)

    def _count(self, queue: ControlledQueue, now: float) -> None:
        # A consumer with automatic acknowledgement has no prefetch to control.
        present = [one for one in queue.replica.dispatch.holders.consumers if not one.automatic]
        known = queue.consumers
        if len(present) == len(known) and all(one in known for one in present):
            return
        for gone in known.keys() - set(present):
            known.pop(gone).release()
        newcomers = [consumer for consumer in present if consumer not in known]
        for consumer in newcomers[:_NEWCOMERS]:
            known[consumer] = self._new(queue, consumer, now)
        queue.order = list(known.values())
        if len(newcomers) > _NEWCOMERS:
            self._census_at = now  # The rest follows in the next tick.

    def _new(self, queue: ControlledQueue, consumer: Consumer, now: float) -> ControlledConsumer:
        holding = queue.replica.context
        self._came += 1
        return ControlledConsumer(
            consumer,
            queue.goal,
            (self._node, holding.logical_name, holding.info.number),
            self._learned,
            now,
            delay_s=(self._came % _PHASES) / _PHASES * queue.goal.sample_s,
        )

    def _release(self, queue: ControlledQueue) -> None:
        """Stop controlling a queue; its remaining consumers get the prefetch they asked for."""
        back = []
        for steered in queue.consumers.values():
            steered.release()
            back.append((steered.consumer, steered.consumer.asked))
            if not queue.replica.fenced:
                steered.credit.notify_consumer(float(steered.consumer.asked))
        if not queue.replica.fenced:
            queue.replica.dispatch.set_prefetches(back)

    def _release_all(self) -> None:
        """Stop controlling everything and leave every prefetch as it is."""
        for queue in self._queues.values():
            for steered in queue.consumers.values():
                steered.release()
        self._queues.clear()

    # Ticks

    def _tick(self, queue: ControlledQueue, now: float, due: list[ControlledConsumer]) -> None:
        changes: list[tuple[Consumer, int]] = []
        for steered in queue.order[self._ticks % self._turns :: self._turns]:
            consumer = steered.consumer
            if not consumer.asked:
                continue  # It drains.
            if now >= steered.look_at:
                steered.poll(now)
            if now >= steered.due_at:
                due.append(steered)
            if steered.is_moving:
                prefetch = steered.next_prefetch(now)
                if prefetch != consumer.prefetch:
                    changes.append((consumer, prefetch))
        if changes:
            queue.replica.dispatch.set_prefetches(changes)

    def _step_all(self, due: list[ControlledConsumer], now: float) -> None:
        """Step the due consumers, the longest overdue first, while this tick has time."""
        due.sort(key=lambda steered: steered.due_at)
        rows: list[Row] = []
        began = time.perf_counter()
        for steered in due:
            self._step(steered, now, rows)
            if time.perf_counter() - began > _STEPS_S:
                break
        if self._recorder is not None:
            self._recorder.add("control_steps", rows)

    def _step(self, steered: ControlledConsumer, now: float, rows: list[Row]) -> None:
        """Step one consumer; if its step fails, it keeps its prefetch and the others continue."""
        try:
            row, decision, news = steered.step(now, self._clock.wall())
        except Exception:
            # Log only the first failure of a consumer: it fails again with every sample.
            if not steered.has_failed:
                names = {"queue": steered.queue, "client": steered.consumer.target.client_name}
                log.exception("a bug in steering a consumer: it keeps what it has", extra=names)
            steered.has_failed = True
            return
        rows.append(row)
        if decision is not None:
            self._journal.note(decision, news)


# One consumer under prefetch control: sense, step, set, record.
#
#     credit.sense → regulator.step → level → (each tick) prefetch
#
# `PrefetchRegulator` decides; this class connects it to the node's consumer. It is synchronous. A
# new
# consumer, and one whose queue has a new owner, starts from the prefetch it has, so nothing jumps.


# Steps kept for `tidegate explain QUEUE --prefetch`.
STEPS_KEPT = 60
# Observations per sample at least, and seconds between two observations at most.
_POLLS_PER_SAMPLE = 5
_POLL_S_MAX = 0.5
# If a sample is shorter than this many sojourn times, its rate is mostly chance.
_ROUNDS = 4.0
# Notes that are worth a decision in the journal, and how its outcome calls them.
_LOGGED_EVENTS = {
    Reason.REDESIGNED: "redesigned",
    Reason.REDESIGNED_AGAIN: "redesigned",
    Reason.GAINS_HALVED: "swings",
    Reason.WORKLOAD_CHANGED: "scheduled",
    Reason.NOT_REDESIGNED: "drifted",
    Reason.CEILING: "the ceiling",
    Reason.CEILING_OF_HANDLER: "the ceiling",
    Reason.CEILING_OF_PREFETCH: "the ceiling",
    Reason.GOAL_NOT_KEPT: "no controller",
    Reason.BACK_FROM_KNEE: "back from",
    Reason.OFFSET_OF_P: "P keeps",
}


class ControlledConsumer:
    """A consumer, its credit, and the regulator of its prefetch."""

    def __init__(
        self,
        consumer: Consumer,
        goal: PrefetchGoal,
        names: tuple[str, str, int],
        learned: PrefetchModels,
        now: float,
        delay_s: float,
    ) -> None:
        self.consumer = consumer
        self.goal = goal
        self._node, self.queue, self._replica = names
        self._learned = learned
        client = consumer.target.client_name
        self.steering = PrefetchRegulator(
            goal,
            learned.of(goal, self.queue, client),
            max(consumer.prefetch, 1),
            schedule=learned.schedule(goal, self.queue, client),
        )
        self.credit = ConsumerCredit(consumer, now, keep_up=goal.rate_per_s is None)
        self.steps: deque[ControlStats] = deque(maxlen=STEPS_KEPT)
        consumer.control = self.steps
        self.due_at = now + goal.sample_s + delay_s
        self.look_at = now
        self._mode: ControllerMode | None = None
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

    def poll(self, now: float) -> None:
        """Observe the consumer; call it several times per sample."""
        self.credit.poll(now)
        if self.credit.probing is None:
            self.look_at = now + min(self.goal.sample_s / _POLLS_PER_SAMPLE, _POLL_S_MAX)
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
        self.credit.notify_consumer(step.level)
        if self._learned.has_any and self.steering.is_guessed:
            self._load_model()
        numbers = self._numbers(step, sensed, wall_s)
        self.steps.append(numbers)
        news = self._news(step)
        decision = None
        if news:
            decision = explain_step(
                step,
                self.goal,
                self.steering.model,
                service=self.queue,
            )
        return self._row(numbers), decision, news

    def _taken(self, sensed: SensedConsumer) -> ControlStep:
        if not sensed.is_probe:
            step = self.steering.step(sensed.sample)
            if self._is_long_enough(sensed):
                return step
            return step.noted(Reason.SAMPLES_ARE_SHORT(sojourn_s=sensed.sojourn_s))
        level, rate = self.steering.level, sensed.sample.arrived_per_s
        unknown = (math.nan,) * 6
        return ControlStep(sensed.sample.at, math.nan, rate, *unknown, level, level)._replace(
            mode=ControllerMode.HELD, notes=(Reason.CREDIT_CUT(),)
        )

    def _load_model(self) -> None:
        """Replace a guessed model by a model learned meanwhile."""
        client = self.consumer.target.client_name
        model = self._learned.of(self.goal, self.queue, client)
        if model is not None:
            self.steering.use(model)
            return
        schedule = self._learned.schedule(self.goal, self.queue, client)
        if schedule is not None:
            self.steering.schedule(schedule)

    def _is_long_enough(self, sensed: SensedConsumer) -> bool:
        """Return whether the sample is several sojourn times long.

        Credit circulates: a sample of two or three rounds counts either two or three of them.
        """
        return sensed.sojourn_s * _ROUNDS <= self.goal.sample_s

    def _news(self, step: ControlStep) -> str:
        """Return what has changed since the last step and is worth a decision; empty if nothing."""
        # Compare kinds of notes, not their numbers, and ignore what was noted before.
        kinds = {_LOGGED_EVENTS.get(note.reason, "") for note in step.notes} - {""}
        found = sorted(kinds - self._noted)
        self._noted = kinds
        if step.mode is not self._mode and step.mode is not ControllerMode.HELD:
            self._mode = step.mode
            found.append(step.mode.value)
        if step.saturated is not self._saturated:
            self._saturated = step.saturated
            found += [f"saturated {step.saturated.value}"] if step.saturated else []
        return ", ".join(found)

    def _numbers(self, step: ControlStep, sensed: SensedConsumer, wall_s: float) -> ControlStats:
        sample = sensed.sample
        return ControlStats(
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
            notes=list(map(str, step.notes)),
        )

    def _row(self, step: ControlStats) -> Row:
        """Return the row for the table `control_steps`."""
        return (
            int(step.at * 1e6),
            step.interval_s,
            self._node,
            self.queue,
            self._replica,
            self.consumer.target.client_name,
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


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
