"""Runs the demo's scenario: sets the load, injects faults, and waits for the effects.

Theory of operation
-------------------

The scenario has six steps, each with its own load: calm, ramp, burst, a killed machine, a slow
worker, and calm again. Two queues take part. `orders` scales under an agreement. `archive` has an
automatic prefetch whose target rate changes with each step.

The `DemoMonitor` polls snapshots and prints the changes. A step waits for a
condition on a snapshot, such as a replica at work. It lasts at least `seconds` and waits at most
`seconds_max`. A condition that does not occur in time is printed, and the scenario continues,
because a slow computer is no reason to stop. The summary counts it.

The leader's totals for the agreements are read at the beginning and the end, so that they can be
compared with the lake. At the end the producers stop, and the runner waits until all confirmed
messages are handled. Only then does the checker count.

If the monitor sees no node for too long, it cancels the scenario with an error.
"""

from __future__ import annotations

import asyncio
import time

from tidegate.cli.demo.account import account_of
from tidegate.cli.demo.evidence import Evidence
from tidegate.cli.demo.load import Load
from tidegate.cli.demo.moments import Moment
from tidegate.cli.demo.outcome import Outcome
from tidegate.cli.demo.spectator import Spectator
from tidegate.cli.demo.stage import Stage
from tidegate.cli.demo.story import ARCHIVE, ORDERS, REPLICAS_MAX, Story
from tidegate.cli.demo.view import Stagehand
from tidegate.core.errors import Unavailable
from tidegate.core.fleet import MachineState
from tidegate.core.replication import replica_name
from tidegate.fleet.console_process import HOW_TO_GET_IT

_CURTAIN_S = 60.0
_DRAIN_S = 45.0
# The share of a replica counts as shifted below this fraction of an equal share.
_SHIFTED = 0.5
# How much more prefetch the slow archive worker needs, and how close to its target rate.
_ADAPTED = 1.5
_NEAR = 0.25
# The number of waiting messages below which the next fault may be injected.
_CALM = 30


class Director:
    """Runs the steps of the scenario in order."""

    def __init__(
        self,
        stage: Stage,
        told: Story,
        view: Stagehand,
        evidence: Evidence,
        *,
        with_console: bool,
    ) -> None:
        self._with_console = with_console
        self._stage = stage
        self._told = told
        self._view = view
        self._evidence = evidence
        self._spectator = Spectator(stage, view, evidence)

    async def play(self) -> Outcome:
        """Run the whole scenario, and return its result."""
        outcome = Outcome(self._spectator.course)
        async with self._spectator.looking() as mq:
            load = Load(self._stage, mq)
            await self._curtain(load)
            await self._calm(load, outcome)
            await self._ramp(load)
            await self._burst(load)
            await self._kill(load, outcome)
            await self._slow(load, outcome)
            await self._evening(load, outcome)
            await self._drain(load, outcome)
        return outcome

    async def go_on(self) -> None:
        """Run a calm load until the user interrupts, for use with other commands."""
        async with self._spectator.looking() as mq:
            load = Load(self._stage, mq)
            await load.begin()
            self._view.begin(self._told.calm)
            await load.turn(self._told.calm)
            await asyncio.Event().wait()

    async def _curtain(self, load: Load) -> None:
        await load.begin()
        ready = await self._spectator.until(lambda now: bool(now.at_work), 0.0, _CURTAIN_S)
        if not ready:
            raise Unavailable(
                f"no replica of {ORDERS} was at work after {_CURTAIN_S:.0f} s: this computer is "
                "too busy for the demo, try again when it is not"
            )
        # Not earlier, because everything else starts at that time, too.
        if self._with_console and not self._stage.open_console():
            self._view.tell(f"without the console, which is not installed: {HOW_TO_GET_IT}")

    async def _calm(self, load: Load, outcome: Outcome) -> None:
        opening = account_of(self._stage.store_urls)
        _, outcome.opened = await asyncio.gather(self._morning(load), opening)

    async def _morning(self, load: Load) -> None:
        chapter = self._told.calm
        await load.stock_up()
        self._view.begin(chapter)
        await load.turn(chapter)
        await self._spectator.until(
            lambda now: bool(now.machines(MachineState.WARM)), chapter.seconds, chapter.seconds_max
        )

    async def _ramp(self, load: Load) -> None:
        chapter = self._told.ramp
        self._view.begin(chapter)
        await load.turn(chapter, since_per_s=self._told.calm.orders_per_s)
        await self._spectator.until(
            lambda now: len(now.at_work) >= 3 and _is_calm(now), 0.0, chapter.seconds_max
        )

    async def _burst(self, load: Load) -> None:
        chapter = self._told.burst
        self._view.begin(chapter)
        await load.turn(chapter)
        held = await self._spectator.until(
            lambda now: len(now.at_work) >= REPLICAS_MAX, chapter.seconds, chapter.seconds_max
        )
        now = self._spectator.now
        grown = f"{len(now.at_work)} replicas work" if held else "replicas were slow to come"
        self._view.tell(f"{grown}; the agreement of {ORDERS} is {now.service(ORDERS).light}")

    async def _kill(self, load: Load, outcome: Outcome) -> None:
        chapter = self._told.kill
        self._view.begin(chapter)
        await load.turn(chapter)
        # Let the backlog of the burst drain first, so that the steps do not overlap.
        await self._spectator.until(_is_calm, 0.0, chapter.seconds_max)
        at_work = self._spectator.now.at_work
        holders = [one.machine_id for one in at_work if one.machine_id is not None]
        if not holders:
            self._view.tell("no machine holds anything: nobody is killed")
            return
        victim = max(set(holders), key=lambda one: (holders.count(one), -one))
        processes = await asyncio.to_thread(self._stage.kill_machine, victim)
        outcome.killed = (
            f"machine {victim}: {processes} processes, with {holders.count(victim)} of "
            f"{len(holders)} replicas"
        )
        self._view.tell(f"kill -9 for {outcome.killed}")
        began = time.monotonic()

        def is_healed(now: Moment) -> bool:
            elsewhere = all(one.machine_id != victim for one in now.serving)
            return elsewhere and len(now.at_work) == len(now.serving) >= 2

        if await self._spectator.until(is_healed, chapter.seconds / 2, chapter.seconds_max):
            self._view.tell(
                f"its replicas work on another machine, {time.monotonic() - began:.0f} s later; "
                f"what it had in hand came again, flagged: {self._evidence.again} so far"
            )
        else:
            self._view.tell("the replicas of the dead machine are not all at work yet")
        await asyncio.sleep(max(chapter.seconds - (time.monotonic() - began), 0.0))

    async def _slow(self, load: Load, outcome: Outcome) -> None:
        chapter = self._told.slow
        self._view.begin(chapter)
        await load.turn(chapter)
        await self._spectator.until(_is_calm, 0.0, chapter.seconds_max)
        await load.add_archivist("slow_archive")
        load.put(chapter, chapter.orders_per_s)
        # Choose among the two oldest replicas, because a scale-in removes the youngest first.
        oldest = sorted(self._spectator.now.at_work, key=lambda one: one.number)[:2]
        largest = max(oldest, key=lambda one: one.share, default=None)
        chosen = None if largest is None else largest.number
        before = self._spectator.now.share(chosen)
        if chosen is not None:
            self._stage.slow_down(replica_name(ORDERS, chosen))
        await self._spectator.until(
            lambda now: _has_shifted(now, chosen) and _has_adapted(now),
            chapter.seconds,
            chapter.seconds_max,
        )
        now = self._spectator.now
        if chosen is not None:
            outcome.shifted = (
                f"the share of replica {chosen} went from {before:.0%} to {now.share(chosen):.0%}"
            )
            self._view.tell(outcome.shifted)
        outcome.adapted = ", ".join(
            f"{one.name} does {one.rate_per_s:.0f}/s with a prefetch of {one.prefetch}"
            for one in now.steered
        )
        if outcome.adapted:
            self._view.tell(outcome.adapted)
        self._stage.slow_down(None)

    async def _evening(self, load: Load, outcome: Outcome) -> None:
        chapter = self._told.evening
        self._view.begin(chapter)
        await load.turn(chapter)
        await self._spectator.until(
            lambda now: len(now.replicas) == 1 == len(now.at_work),
            chapter.seconds,
            chapter.seconds_max,
        )
        outcome.replicas_left = len(self._spectator.now.replicas)
        outcome.closed = await account_of(self._stage.store_urls)

    async def _drain(self, load: Load, outcome: Outcome) -> None:
        """Stop the producers, and wait until every confirmed message is handled."""
        self._view.tell("customers go home; workers empty the queues")
        await load.end()

        def is_empty(now: Moment) -> bool:
            waiting = sum(now.service(queue).waiting for queue in (ORDERS, ARCHIVE))
            in_hand = sum(now.unacknowledged.values())
            return not waiting + in_hand and not self._evidence.follow()

        outcome.drained = await self._spectator.until(is_empty, 0.0, _DRAIN_S)


def _is_calm(now: Moment) -> bool:
    return now.service(ORDERS).waiting <= _CALM


def _has_shifted(now: Moment, number: int | None) -> bool:
    others = len(now.serving)
    return others < 2 or now.share(number) < _SHIFTED / others


def _has_adapted(now: Moment) -> bool:
    """Return whether both archive workers reach their target, the slow one with more prefetch."""
    by_name = {one.name: one for one in now.steered}
    quick, slow = by_name.get("archive-worker"), by_name.get("archive-slow")
    if quick is None or slow is None or slow.target_per_s is None:
        return False
    near = abs(slow.rate_per_s - slow.target_per_s) <= _NEAR * slow.target_per_s
    return near and slow.prefetch >= _ADAPTED * quick.prefetch
