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
state of one consumer, and `laws.prefetch_steering` decides.

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
import time
from collections.abc import Mapping

from tidegate.control.learned_prefetch import LearnedPrefetch
from tidegate.control.prefetch_journal import PrefetchJournal
from tidegate.control.steered_consumer import SteeredConsumer
from tidegate.core.ports import Clock
from tidegate.core.prefetch import PrefetchGoal
from tidegate.node.consumer import Consumer
from tidegate.node.replica import Replica
from tidegate.telemetry.recorder import Recorder, Row

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


class SteeredQueue:
    """The controlled consumers of one replica."""

    def __init__(self, replica: Replica, goal: PrefetchGoal) -> None:
        self.replica = replica
        self.goal = goal
        self.consumers: dict[Consumer, SteeredConsumer] = {}
        # The same consumers, in the order of their turns.
        self.order: list[SteeredConsumer] = []


class PrefetchLoop:
    """Controls the prefetch of all consumers of one node whose queue has a goal."""

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        node: str,
        journal: PrefetchJournal,
        *,
        learned: LearnedPrefetch | None = None,
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the loop for the node's replicas.

        `replicas` may leave out replicas without a goal, of which a node may have thousands.
        """
        self._replicas = replicas
        self._node = node
        self._journal = journal
        self._learned = learned or LearnedPrefetch(None)
        self._recorder = recorder
        self._clock = clock or Clock()
        self._queues: dict[Replica, SteeredQueue] = {}
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
        due: list[SteeredConsumer] = []
        for queue in self._queues.values():
            self._tick(queue, now, due)
        if due:
            self._step_all(due, now)

    # Census

    def _census(self, now: float) -> None:
        """Add and drop queues and consumers, and apply changed goals."""
        wanted = {
            replica: replica.holding.policy.prefetch
            for replica in self._replicas.values()
            if replica.holding.policy.prefetch is not None and not replica.fenced
        }
        if any(goal.model is None for goal in wanted.values()):
            # Reads files, so only if a goal without a model needs them.
            self._learned.refresh(now)
        for replica in [one for one in self._queues if one not in wanted]:
            self._let_go(self._queues.pop(replica))
        for replica, goal in wanted.items():
            queue = self._queues.get(replica)
            if queue is None:
                queue = self._queues[replica] = SteeredQueue(replica, goal)
            if queue.goal != goal:
                queue.goal = goal
                for steered in queue.consumers.values():
                    steered.change(goal, now)
            self._count(queue, now)

    def _count(self, queue: SteeredQueue, now: float) -> None:
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

    def _new(self, queue: SteeredQueue, consumer: Consumer, now: float) -> SteeredConsumer:
        holding = queue.replica.holding
        self._came += 1
        return SteeredConsumer(
            consumer,
            queue.goal,
            (self._node, holding.logical_name, holding.info.number),
            self._learned,
            now,
            delay_s=(self._came % _PHASES) / _PHASES * queue.goal.sample_s,
        )

    def _let_go(self, queue: SteeredQueue) -> None:
        """Stop controlling a queue; its remaining consumers get the prefetch they asked for."""
        back = []
        for steered in queue.consumers.values():
            steered.release()
            back.append((steered.consumer, steered.consumer.asked))
            if not queue.replica.fenced:
                steered.credit.tell(float(steered.consumer.asked))
        if not queue.replica.fenced:
            queue.replica.dispatch.steer(back)

    def _release_all(self) -> None:
        """Stop controlling everything and leave every prefetch as it is."""
        for queue in self._queues.values():
            for steered in queue.consumers.values():
                steered.release()
        self._queues.clear()

    # Ticks

    def _tick(self, queue: SteeredQueue, now: float, due: list[SteeredConsumer]) -> None:
        changes: list[tuple[Consumer, int]] = []
        for steered in queue.order[self._ticks % self._turns :: self._turns]:
            consumer = steered.consumer
            if not consumer.asked:
                continue  # It drains.
            if now >= steered.look_at:
                steered.look(now)
            if now >= steered.due_at:
                due.append(steered)
            if steered.is_moving:
                prefetch = steered.next_prefetch(now)
                if prefetch != consumer.prefetch:
                    changes.append((consumer, prefetch))
        if changes:
            queue.replica.dispatch.steer(changes)

    def _step_all(self, due: list[SteeredConsumer], now: float) -> None:
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

    def _step(self, steered: SteeredConsumer, now: float, rows: list[Row]) -> None:
        """Step one consumer; if its step fails, it keeps its prefetch and the others continue."""
        try:
            row, decision, news = steered.step(now, self._clock.wall())
        except Exception:
            # Log only the first failure of a consumer: it fails again with every sample.
            if not steered.has_failed:
                names = {"queue": steered.queue, "client": steered.consumer.outlet.client_name}
                log.exception("a bug in steering a consumer: it keeps what it has", extra=names)
            steered.has_failed = True
            return
        rows.append(row)
        if decision is not None:
            self._journal.note(decision, news)
