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
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from tidegate.cli.output import undisturbed
from tidegate.cli.settings import ENVIRONMENT_PREFIX, Settings, load_settings
from tidegate.cli.status import OverviewPoller, overview_poller_on
from tidegate.cli.wiring import LocalCluster, open_store
from tidegate.client.client import Client
from tidegate.client.connect import URL_VARIABLE, connect
from tidegate.console.schemas import Kind
from tidegate.core.errors import Unavailable
from tidegate.core.machines import MachineState
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.topology import replica_name
from tidegate.demo import scenario
from tidegate.demo.customers import ProducerProcess, ProducerTask
from tidegate.demo.evidence import (
    DemoHistories,
    DemoResult,
    DemoSnapshot,
    MetricHistory,
    agreement_totals,
    changes,
    demo_snapshot,
)
from tidegate.demo.scenario import (
    ARCHIVE,
    ARCHIVE_AHEAD,
    ARCHIVE_STOCK,
    ARCHIVED_AT_ONCE,
    ORDERS,
    REPLICAS_MAX,
    SETTLE_S,
    DemoScenario,
    ScenarioStep,
)
from tidegate.demo.view import DemoView
from tidegate.demo.workshop import FOLDER_VARIABLE, HISTORIES, SLOW
from tidegate.fleet.process import ProcessTree, child_environment
from tidegate.fleet.processes import INSTALL_COMMAND, is_installed
from tidegate.fleet.providers import MARK_VARIABLE

_CURTAIN_S = 60.0
_DRAIN_S = 45.0
# The share of a replica counts as shifted below this fraction of an equal share.
_SHIFTED = 0.5
# How much more prefetch the slow archive worker needs, and how close to its target rate.
_ADAPTED = 1.5
_NEAR = 0.25
# The number of waiting messages below which the next fault may be injected.
_CALM = 30


class DemoRunner:
    """Runs the steps of the scenario in order."""

    def __init__(
        self,
        stage: DemoCluster,
        told: DemoScenario,
        view: DemoView,
        evidence: DemoHistories,
        *,
        with_console: bool,
    ) -> None:
        self._with_console = with_console
        self._stage = stage
        self._told = told
        self._view = view
        self._evidence = evidence
        self._spectator = DemoMonitor(stage, view, evidence)

    async def play(self) -> DemoResult:
        """Run the whole scenario, and return its result."""
        outcome = DemoResult(self._spectator.course)
        async with self._spectator.looking() as mq:
            load = DemoLoad(self._stage, mq)
            await self._curtain(load)
            await self._calm(load, outcome)
            await self._ramp(load)
            await self._burst(load)
            await self._kill(load, outcome)
            await self._slow(load, outcome)
            await self._evening(load, outcome)
            await self._drain(load, outcome)
        return outcome

    async def run_idle(self) -> None:
        """Run a calm load until the user interrupts, for use with other commands."""
        async with self._spectator.looking() as mq:
            load = DemoLoad(self._stage, mq)
            await load.begin()
            self._view.begin(self._told.calm)
            await load.turn(self._told.calm)
            await asyncio.Event().wait()

    async def _curtain(self, load: DemoLoad) -> None:
        await load.begin()
        ready = await self._spectator.until(lambda now: bool(now.at_work), 0.0, _CURTAIN_S)
        if not ready:
            raise Unavailable(
                f"no replica of {ORDERS} was at work after {_CURTAIN_S:.0f} s: this computer is "
                "too busy for the demo, try again when it is not"
            )
        # Not earlier, because everything else starts at that time, too.
        if self._with_console and not self._stage.open_console():
            self._view.tell(f"without the console, which is not installed: {INSTALL_COMMAND}")

    async def _calm(self, load: DemoLoad, outcome: DemoResult) -> None:
        opening = agreement_totals(self._stage.store_urls)
        _, outcome.opened = await asyncio.gather(self._morning(load), opening)

    async def _morning(self, load: DemoLoad) -> None:
        chapter = self._told.calm
        await load.stock_up()
        self._view.begin(chapter)
        await load.turn(chapter)
        await self._spectator.until(
            lambda now: bool(now.machines(MachineState.WARM)), chapter.seconds, chapter.seconds_max
        )

    async def _ramp(self, load: DemoLoad) -> None:
        chapter = self._told.ramp
        self._view.begin(chapter)
        await load.turn(chapter, since_per_s=self._told.calm.orders_per_s)
        await self._spectator.until(
            lambda now: len(now.at_work) >= 3 and _is_calm(now), 0.0, chapter.seconds_max
        )

    async def _burst(self, load: DemoLoad) -> None:
        chapter = self._told.burst
        self._view.begin(chapter)
        await load.turn(chapter)
        held = await self._spectator.until(
            lambda now: len(now.at_work) >= REPLICAS_MAX, chapter.seconds, chapter.seconds_max
        )
        now = self._spectator.now
        grown = f"{len(now.at_work)} replicas work" if held else "replicas were slow to come"
        self._view.tell(f"{grown}; the agreement of {ORDERS} is {now.service(ORDERS).light}")

    async def _kill(self, load: DemoLoad, outcome: DemoResult) -> None:
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

        def is_healed(now: DemoSnapshot) -> bool:
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

    async def _slow(self, load: DemoLoad, outcome: DemoResult) -> None:
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

    async def _evening(self, load: DemoLoad, outcome: DemoResult) -> None:
        chapter = self._told.evening
        self._view.begin(chapter)
        await load.turn(chapter)
        await self._spectator.until(
            lambda now: len(now.replicas) == 1 == len(now.at_work),
            chapter.seconds,
            chapter.seconds_max,
        )
        outcome.replicas_left = len(self._spectator.now.replicas)
        outcome.closed = await agreement_totals(self._stage.store_urls)

    async def _drain(self, load: DemoLoad, outcome: DemoResult) -> None:
        """Stop the producers, and wait until every confirmed message is handled."""
        self._view.tell("customers go home; workers empty the queues")
        await load.end()

        def is_empty(now: DemoSnapshot) -> bool:
            waiting = sum(now.service(queue).waiting for queue in (ORDERS, ARCHIVE))
            in_hand = sum(now.unacknowledged.values())
            return not waiting + in_hand and not self._evidence.follow()

        outcome.drained = await self._spectator.until(is_empty, 0.0, _DRAIN_S)


def _is_calm(now: DemoSnapshot) -> bool:
    return now.service(ORDERS).waiting <= _CALM


def _has_shifted(now: DemoSnapshot, number: int | None) -> bool:
    others = len(now.serving)
    return others < 2 or now.share(number) < _SHIFTED / others


def _has_adapted(now: DemoSnapshot) -> bool:
    """Return whether both archive workers reach their target, the slow one with more prefetch."""
    by_name = {one.name: one for one in now.steered}
    quick, slow = by_name.get("archive-worker"), by_name.get("archive-slow")
    if quick is None or slow is None or slow.target_per_s is None:
        return False
    near = abs(slow.rate_per_s - slow.target_per_s) <= _NEAR * slow.target_per_s
    return near and slow.prefetch >= _ADAPTED * quick.prefetch


# The monitor of the demo: it polls snapshots, prints changes, and waits for conditions.
#
# A wait lasts at least one given time and at most another. If no node answers for too long, the
# monitor ends the demo.


# After its owner was killed, a queue answers when another node owns it.
_MONITOR_TIMEOUT_S = 30.0
# Without a snapshot for this long, the demo ends.
_BLIND_S = 40.0

Condition = Callable[[DemoSnapshot], bool]


class DemoMonitor:
    """Polls the snapshots of a run."""

    def __init__(self, stage: DemoCluster, view: DemoView, evidence: DemoHistories) -> None:
        self._stage = stage
        self._view = view
        self._evidence = evidence
        self._moment: DemoSnapshot | None = None
        self._seen = asyncio.Condition()
        self.course = MetricHistory()

    @property
    def now(self) -> DemoSnapshot:
        assert self._moment is not None, "chapters begin after the first look"
        return self._moment

    async def until(self, condition: Condition, at_least_s: float, at_most_s: float) -> bool:
        """Wait for a condition; return False if it does not occur within `at_most_s`.

        The wait takes at least `at_least_s`, even if the condition holds earlier.
        """
        began = time.monotonic()
        seen = False
        async with self._seen:
            while time.monotonic() - began < at_most_s:
                seen = self._moment is not None and condition(self._moment)
                left_s = (at_least_s if seen else at_most_s) - (time.monotonic() - began)
                if seen and left_s <= 0.0:
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(left_s, 0.01)):
                        await self._seen.wait()
        return seen

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[Client]:
        """Poll and print in this context; a failure of the monitor cancels the scenario."""
        # A condition belongs to one event loop, and a later run uses another loop.
        self._seen = asyncio.Condition()
        async with (
            connect(
                self._stage.url, mode="admin", name="demo", reconnect_s=_MONITOR_TIMEOUT_S
            ) as mq,
            open_store(self._stage.store_urls) as store,
            overview_poller_on(mq, store) as lookout,
        ):
            watching = asyncio.create_task(self._watch(lookout))
            playing = asyncio.current_task()
            assert playing is not None
            watching.add_done_callback(lambda done: None if done.cancelled() else playing.cancel())
            try:
                yield mq
            except asyncio.CancelledError:
                if watching.done() and not watching.cancelled():
                    watching.result()
                raise
            finally:
                await cancel_and_wait([watching])

    async def _watch(self, lookout: OverviewPoller) -> None:
        watch = lookout.person.watch
        seen_at = time.monotonic()
        while True:
            if (address := self._stage.watch()) is not None:
                self._view.serve(address)
            for queue in (ORDERS, ARCHIVE):
                watch.focus((Kind.QUEUE, queue))
            glance = await lookout.poll()
            if not glance.lost:
                seen_at = time.monotonic()
                agreement = watch.agreements.get((Kind.QUEUE, ORDERS))
                await self._take(demo_snapshot(glance, watch.snapshot, agreement))
            elif time.monotonic() - seen_at > _BLIND_S:
                raise Unavailable(f"nobody answers any more: {glance.lost}")

    async def _take(self, now: DemoSnapshot) -> None:
        before, self._moment = self._moment, now
        self.course.add(now)
        self._evidence.follow()
        for words in [] if before is None else changes(before, now):
            self._view.tell(words)
        self._view.show(now, self.course, self._evidence)
        async with self._seen:
            self._seen.notify_all()


# The processes of the demo, in one temporary folder that is deleted at the end.
#
#     <folder>/tidegate.toml                its own settings; those of the user have no effect
#     <folder>/orders.toml, archive.toml    the agreements
#     <folder>/data                         store, lake, models, and the fleet's records
#     <folder>/histories                    the histories that clients record
#
# Nodes, machines and workers are those of `tidegate up`. All end with this process, even if it is
# killed. All ports are free ports of this computer.


_END_S = 10.0


class DemoCluster:
    """The running processes of the demo."""

    def __init__(self, folder: Path, log_file: IO[bytes]) -> None:
        self.folder = folder
        self.log_file = log_file
        self.settings = written_settings(folder)
        self._house = LocalCluster(self.settings, self.data, log_file=log_file)
        self.customers: ProducerProcess | None = None
        self._workers: list[asyncio.subprocess.Process] = []

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def histories(self) -> Path:
        return self.folder / HISTORIES

    @property
    def url(self) -> str:
        return self._house.addresses[0]

    @property
    def store_urls(self) -> list[str]:
        return self._house.store_urls

    def open(self) -> None:
        """Start the store and a node, and return when they serve; must run in the main thread.

        The kernel ends a child process when the thread that started it ends.
        """
        self._house.start(1, 0, self.folder / "tidegate.toml", 0)

    def open_console(self) -> bool:
        """Start the console; return False if its packages are not installed."""
        if is_installed():
            self._house.start_console(0, self.folder / "tidegate.toml")
        return is_installed()

    def watch(self) -> str | None:
        """Restart processes that died by accident; return the console's address when it serves."""
        return self._house.watch()

    async def let_customers_in(self) -> None:
        errand = ProducerTask(self.url, str(self.histories))
        self.customers = await ProducerProcess.start(errand, self.log_file)

    async def add_worker(self, app: str) -> None:
        """Start a worker process in addition to those of the fleet."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tidegate", "worker", f"tidegate.demo.workshop:{app}"),
            *("--config", str(self.folder / "tidegate.toml"), "--drain", "5s"),
            env={**os.environ, **child_environment(), URL_VARIABLE: self.url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=self.log_file,
            stderr=self.log_file,
            start_new_session=True,
        )
        self._workers.append(process)

    def slow_down(self, replica: str | None) -> None:
        """Make the worker of a replica slow; None makes all workers fast again."""
        if replica is None:
            (self.folder / SLOW).unlink(missing_ok=True)
        else:
            (self.folder / SLOW).write_text(replica)

    def kill_machine(self, machine_id: int) -> int:
        """Kill all processes of a machine with SIGKILL at once, and return their number."""
        tree = ProcessTree(MARK_VARIABLE, f"{self.data.resolve() / 'fleet'}/{machine_id}")
        members = tree.members()
        tree.send(signal.SIGKILL)
        return len(members)

    async def dismiss(self) -> None:
        """Stop the producers, and the workers that are not in the fleet.

        Workers finish or return the messages they have begun.
        """
        if self.customers is not None:
            await self.customers.kill()
            self.customers = None
        for process in self._workers:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in self._workers:
            try:
                async with asyncio.timeout(_END_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        self._workers.clear()

    def close(self) -> None:
        """Stop the store, nodes and machines, without interruption."""
        with undisturbed():
            self._house.stop()


def written_settings(folder: Path) -> Settings:
    """Write the settings and agreements of the demo, and return the settings."""
    (folder / HISTORIES).mkdir()
    (folder / f"{scenario.ORDERS}.toml").write_text(scenario.AGREEMENT)
    of_archive = folder / f"{scenario.ARCHIVE}.toml"
    of_archive.write_text(scenario.ARCHIVE_AGREEMENT)
    file = folder / "tidegate.toml"
    # The agreement of `archive` is evaluated although the queue does not scale.
    judged = f"[pipeline]\nagreements = [{msgspec.json.encode(str(of_archive)).decode()}]\n"
    file.write_text(f"{scenario.SETTINGS}\n{judged}")
    return load_settings(file, {})


@contextmanager
def temporary_demo_cluster() -> Iterator[DemoCluster]:
    """Provide the demo in a temporary folder and environment, which end with the context."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    before = dict(os.environ)
    try:
        for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
            del os.environ[name]
        os.environ[FOLDER_VARIABLE] = str(folder)
        logging.basicConfig(filename=folder / "demo.log", level=logging.INFO, force=True)
        with (folder / "demo.log").open("ab") as log_file:
            yield DemoCluster(folder, log_file)
    finally:
        with undisturbed():
            logging.basicConfig(handlers=[logging.NullHandler()], force=True)
            os.environ.clear()
            os.environ.update(before)
            shutil.rmtree(folder, ignore_errors=True)


# The load of the demo: rates of the producers, and target rates of the archive's workers.
#
# The archive always gets slightly more messages than its target rates, so that its rate depends on
# the prefetch only.


_RAMP_STEP_S = 0.25
_STOCK_S = 1.0


class DemoLoad:
    """Sets the load for each step."""

    def __init__(self, stage: DemoCluster, mq: Client) -> None:
        self._stage = stage
        self._mq = mq
        self._archivists = 0

    async def begin(self) -> None:
        """Start the first worker of the archive, and the producers."""
        await self.add_archivist("archive")
        await self._stage.let_customers_in()

    async def add_archivist(self, app: str) -> None:
        """Add a worker of the archive; the next change of load includes work for it."""
        await self._stage.add_worker(app)
        self._archivists += 1

    async def stock_up(self) -> None:
        """Put a stock of messages, so that the archive never runs out of work."""
        self._put_at({ARCHIVE: ARCHIVE_STOCK / _STOCK_S})
        await asyncio.sleep(_STOCK_S)

    async def turn(self, chapter: ScenarioStep, since_per_s: float | None = None) -> None:
        """Set the load of a step; with `since_per_s`, ramp the orders evenly from that rate."""
        goal = PrefetchGoal(
            rate_per_s=chapter.archive_per_s, settle_s=SETTLE_S, high=ARCHIVED_AT_ONCE
        )
        await self._mq.set_policy(ARCHIVE, prefetch=goal)
        begun = time.monotonic()
        while since_per_s is not None:
            part = min((time.monotonic() - begun) / chapter.seconds, 1.0)
            self.put(chapter, since_per_s + part * (chapter.orders_per_s - since_per_s))
            if part >= 1.0:
                return
            await asyncio.sleep(_RAMP_STEP_S)
        self.put(chapter, chapter.orders_per_s)

    def put(self, chapter: ScenarioStep, orders_per_s: float) -> None:
        """Set the rate of orders, and a rate that suffices for all workers of the archive."""
        archive_per_s = chapter.archive_per_s * self._archivists * ARCHIVE_AHEAD
        self._put_at({ORDERS: orders_per_s, ARCHIVE: archive_per_s})

    async def end(self) -> None:
        """Stop the producers, wait for confirmations, and let the archive drain at full speed."""
        assert self._stage.customers is not None
        await self._stage.customers.finish()
        self._stage.customers = None
        await self._mq.set_policy(ARCHIVE, prefetch=PrefetchGoal(manual=ARCHIVED_AT_ONCE))

    def _put_at(self, rates: dict[str, float]) -> None:
        assert self._stage.customers is not None
        self._stage.customers.put_at(rates)
