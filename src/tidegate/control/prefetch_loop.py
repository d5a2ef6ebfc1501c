"""The loop that steers the prefetch of consumers, on every node for the queues that it owns.

    who is there → (20 times a second) credit → (once a sample) sense, step, record

Credit is ours, so nobody has to be asked and no client needs to know: a queue whose policy has a
goal is steered where it is served. When a measurement or the loop itself fails, consumers keep what
they have. Many share a tick: hundreds take turns, of those whose level is a whole number nothing
is done, changes go to a queue all at once, and steps are spread over the sample; what does not fit
into some milliseconds waits for the next tick.
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
# Between looks for new goals and consumers, while there are none and while there are.
_IDLE_S = 0.25
_CENSUS_S = 0.2
# How long the steps of one tick may take: messages wait meanwhile.
_STEPS_S = 0.005
# Consumers that are looked after in one tick; more than these take turns.
_PER_TICK = 250
# Consumers of a queue that are taken in within one tick: a few milliseconds.
_NEWCOMERS = 50
# A crowd that is steered at once takes its samples at so many moments.
_PHASES = 16


class SteeredQueue:
    """The steered consumers of one replica."""

    def __init__(self, replica: Replica, goal: PrefetchGoal) -> None:
        self.replica = replica
        self.goal = goal
        self.consumers: dict[Consumer, SteeredConsumer] = {}
        # The same, in the order of their turns.
        self.order: list[SteeredConsumer] = []


class PrefetchLoop:
    """Steers all consumers of one node whose queue has a goal."""

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
        """`replicas` need have no others than those with a goal: thousands may have none."""
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
        # Each consumer has its turn once in so many ticks.
        self._turns = 1
        self._is_failing = False

    @property
    def steered(self) -> int:
        """How many consumers."""
        return sum(len(queue.consumers) for queue in self._queues.values())

    async def run(self) -> None:
        """Forever; whatever fails is left as it is and tried again."""
        try:
            while True:
                try:
                    self.run_once(self._clock.monotonic())
                    await self._journal.write()
                    self._is_failing = False
                except Exception:
                    # Said once: twenty times a second nobody reads it.
                    if not self._is_failing:
                        log.exception("a bug in the prefetch loop: consumers keep what they have")
                    self._is_failing = True
                await asyncio.sleep(TICK_S if self._queues else _IDLE_S)
        finally:
            self._release_all()

    def run_once(self, now: float) -> None:
        """One tick."""
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

    # Who is there

    def _census(self, now: float) -> None:
        """Goals and consumers come, change and go."""
        wanted = {
            replica: replica.holding.policy.prefetch
            for replica in self._replicas.values()
            if replica.holding.policy.prefetch is not None and not replica.fenced
        }
        if any(goal.model is None for goal in wanted.values()):
            # Files are read: only for those who want what is in them.
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
        # Whoever acknowledges by itself has no prefetch to speak of.
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
            self._census_at = now  # the others in the next tick

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
        """Steered no more: consumers that are still here have what they asked for."""
        back = []
        for steered in queue.consumers.values():
            steered.release()
            back.append((steered.consumer, steered.consumer.asked))
            if not queue.replica.fenced:
                steered.credit.tell(float(steered.consumer.asked))
        if not queue.replica.fenced:
            queue.replica.dispatch.steer(back)

    def _release_all(self) -> None:
        """The loop ends, and with it its node, or it is started anew: all stays as it is."""
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
                continue  # it drains
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
        """Who has waited longest comes first, as far as there is time."""
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
        """One that fails keeps what it has, and no other hears of it."""
        try:
            row, decision, news = steered.step(now, self._clock.wall())
        except Exception:
            # Said once of each: it fails again with every sample.
            if not steered.has_failed:
                names = {"queue": steered.queue, "client": steered.consumer.outlet.client_name}
                log.exception("a bug in steering a consumer: it keeps what it has", extra=names)
            steered.has_failed = True
            return
        rows.append(row)
        if decision is not None:
            self._journal.note(decision, news)
