"""Scale a queue up and down under load while its machines, workers and leader are killed.

    python -m tidegate_lab.faults.scale_storm --events 100 [--stores 2] [--seed …] [--json]

Theory of operation

`tidegate up` runs two nodes and a fleet of machines that are processes. Two producers put messages;
some messages belong to groups, and some have dedup ids and are put twice. The consumers are the
workers of the replicas (`storm_worker`) and one ordinary consumer, which moves between replicas.
Producers and the ordinary consumer are processes that are never killed.

An event is a request for another number of replicas. Most events are followed, within two seconds,
by a SIGKILL of a machine, a machine's node, a worker, the leader, or, if requested, PostgreSQL.
The leader is the node that the store names. If there are kills at all, at least one is planned for
the leader. Some events begin before the one before is completed.

After the last event, the run stops the producers, requests two replicas and waits for them, and
drains the queue. Then the checker judges all histories.

A run passes if all of these hold:

- The checker finds no violation. Order counts within a group only, because the queue is replicated.
- No client process failed, and the store holds no message at the end.
- Every request that the run waited for was completed in time, the first and the last included.
- At least one leader was killed, if there were kills.

Events and victims follow from a seed, which the report contains.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

import tidegate
from tidegate.core.errors import TidegateError
from tidegate.core.topology import ControlMode, Range, ReplicaState, Scaling, ScalingPolicy
from tidegate.demo.history import CheckResult, Outcome
from tidegate_lab.faults.clients import Clients, clients_in
from tidegate_lab.faults.deployment import (
    Deployment,
    FaultInjector,
    deployed,
    kill_postgres,
    kill_process,
)
from tidegate_lab.faults.storm_worker import FOLDER_VARIABLE, QUEUE
from tidegate_lab.peers.servers import temporary_folder

REPLICAS_MAX = 4


def settings_with(lease_s: float) -> str:
    """Return the settings file for all processes.

    Nodes and machines count as dead after `lease_s` without a renewal.
    """
    return f"""
[node]
lease = "{lease_s:g}s"

[fleet]
provider = "process"
boot_s = 0.1
lost = "{lease_s:g}s"
slots = 2

[log]
level = "info"
"""


SCALING = Scaling(
    replicas=Range(1, REPLICAS_MAX),
    policy=ScalingPolicy.LOAD,
    steering=ControlMode.MANUAL,
    replicas_wanted=1,
    polling_interval_s=0.2,
    inhibition_s=0.2,
    cooldown_period_s=0.2,
    step_max=REPLICAS_MAX,
    worker="tidegate_lab.faults.storm_worker:app",
    slots_per_machine=2,
)
# The victims with their weights, which sum to 10.
LEADER, STORE = "leader", "store"
VICTIMS = {"machine": 3, "machine's node": 2, "worker": 3, LEADER: 2}
_LOOK_S = 0.1
# Seconds to wait for the last acknowledgements.
_NOTHING_S = 60.0


class StormOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a scale storm."""

    events: int = 100
    # The fraction of the events with a kill.
    kills: float = 0.6
    # The fraction of the events whose completion the run does not wait for.
    hasty: float = 0.4
    wait_s: float = 40.0
    # Seconds to wait for a leader to kill: longer than a lease and the start of a node.
    leader_s: float = 30.0
    lease_s: float = 1.0
    rate_per_s: float = 150.0
    drain_s: float = 120.0
    # The producers continue until this many puts are confirmed.
    confirms_min: int = 0
    # The number of PostgreSQL servers over which the replicas are distributed.
    stores: int = 1
    seed: int | None = None
    # Adds PostgreSQL to the victims.
    kill_store: bool = False
    keep_log: Path | None = None
    # A folder for a copy of the histories, to trace a message after the run; None: no copy.
    keep_histories: Path | None = None


class StormReport(msgspec.Struct, kw_only=True):
    """The result of a scale storm."""

    seed: int
    events: int
    ups: int
    downs: int
    # Planned kills, also the ones without a victim, and completed kills by kind of victim.
    kills_wanted: int
    kills: dict[str, int]
    # Requests that the run waited for, completed ones among them, and seconds of the slowest.
    waited_for: int
    carried_out: int
    slowest_s: float
    duration_s: float
    verdict: CheckResult
    outcome: Outcome
    left_in_store: int
    client_failures: list[str]

    @property
    def passed(self) -> bool:
        return (
            self.outcome == "pass"
            and not self.client_failures
            and not self.left_in_store
            and 0 < self.waited_for == self.carried_out
            and (not self.kills_wanted or self.kills.get(LEADER, 0) > 0)
        )


def run_storm(
    options: StormOptions, progress: Callable[[str], None] = lambda line: None
) -> StormReport:
    """Run a scale storm and return the checked result; see the module's docstring."""
    with temporary_folder("storm") as folder:
        settings = folder / "tidegate.toml"
        settings.write_text(settings_with(options.lease_s))
        histories = folder / "histories"
        histories.mkdir()
        environment = {"TIDEGATE_CONFIG": str(settings), FOLDER_VARIABLE: str(histories)}
        with deployed(
            nodes=2, stores=options.stores, environment=environment, keep_log=options.keep_log
        ) as deployment:
            try:
                return asyncio.run(_Storm(options, progress, histories, settings, deployment).run())
            finally:
                if options.keep_histories is not None:
                    shutil.copytree(histories, options.keep_histories, dirs_exist_ok=True)


def planned_victims(options: StormOptions, chance: random.Random) -> list[str | None]:
    """Return the victim after each event, with None for no kill.

    If `options.kills` is above 0, at least one victim is the leader.
    """
    victims = VICTIMS | ({STORE: 2} if options.kill_store else {})
    planned = [
        chance.choices(list(victims), list(victims.values()))[0]
        if chance.random() < options.kills
        else None
        for _ in range(options.events)
    ]
    if options.kills > 0 and planned and LEADER not in planned:
        planned[chance.randrange(len(planned))] = LEADER
    return planned


class _Storm:
    def __init__(
        self,
        options: StormOptions,
        progress: Callable[[str], None],
        histories: Path,
        settings: Path,
        deployment: Deployment,
    ) -> None:
        self._options = options
        self._progress = progress
        self._histories = histories
        self._settings = settings
        self._deployment = deployment
        self._seed = random.SystemRandom().randrange(1 << 31)
        if options.seed is not None:
            self._seed = options.seed
        self._chance = random.Random(self._seed)
        self._injector = FaultInjector(deployment)
        self._victims = planned_victims(options, self._chance)
        self._kills: dict[str, int] = {}
        self._waited_for = 0
        self._took_s: list[float] = []
        self._ups = self._downs = 0

    async def run(self) -> StormReport:
        began = time.monotonic()
        options = self._options
        async with tidegate.connect(self._deployment.url, name="storm") as mq:
            await mq.create_queue(QUEUE)
            await mq.set_scaling(QUEUE, SCALING)
            self._progress(f"the first replica{await self._carried_out(mq, 1, began)}")
            with clients_in(self._histories) as clients:
                for number in range(2):
                    clients.add_producer(
                        f"producer-{number}",
                        self._deployment.url,
                        QUEUE,
                        *("--rate", str(options.rate_per_s), "--tasks", "20"),
                        *("--groups", "8", "--dedup-every", "5"),
                    )
                clients.add_consumer("consumer", self._deployment.url, QUEUE, "--prefetch", "20")
                await asyncio.to_thread(clients.wait_for_confirms, 50)
                await self._blow(mq, clients)
                await asyncio.to_thread(clients.wait_for_confirms_in_all, options.confirms_min)
                self._progress("healed; draining")
                await asyncio.to_thread(clients.finish_producers)
                ordered_at = time.monotonic()
                await self._order(mq, 2)
                self._progress(f"2 replicas{await self._carried_out(mq, 2, ordered_at)}")
                await asyncio.to_thread(clients.drain, options.drain_s)
                left = await self._nothing_left(mq)
                await asyncio.to_thread(clients.finish_consumers)
                stored = await asyncio.to_thread(self._deployment.stored)
                verdict = clients.verdict(stored=stored, replicated=[QUEUE])
                failures = clients.failures
            await mq.set_scaling(QUEUE, msgspec.structs.replace(SCALING, replicas_wanted=1))
        return StormReport(
            seed=self._seed,
            events=self._ups + self._downs,
            ups=self._ups,
            downs=self._downs,
            kills_wanted=sum(victim is not None for victim in self._victims),
            kills=self._kills,
            waited_for=self._waited_for,
            carried_out=len(self._took_s),
            slowest_s=max(self._took_s, default=0.0),
            duration_s=time.monotonic() - began,
            verdict=verdict,
            outcome=verdict.outcome,
            left_in_store=left,
            client_failures=failures,
        )

    async def _blow(self, mq: tidegate.Client, clients: Clients) -> None:
        chance, options = self._chance, self._options
        wanted = 1
        for number, victim in enumerate(self._victims, start=1):
            before, wanted = (
                wanted,
                chance.choice([n for n in range(1, REPLICAS_MAX + 1) if n != wanted]),
            )
            if wanted > before:
                self._ups += 1
            else:
                self._downs += 1
            await self._order(mq, wanted)
            ordered_at = time.monotonic()
            struck = ""
            if victim is not None:
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                struck = f", killed {await asyncio.to_thread(self._strike, victim)}"
            if chance.random() >= options.hasty:
                struck += await self._carried_out(mq, wanted, ordered_at)
            waiting = clients.follow()
            self._progress(
                f"{number}/{options.events} {before} → {wanted}{struck}; "
                f"{clients.confirmed} confirmed, {waiting} on their way"
            )
            if ended := clients.ended_early():
                raise RuntimeError(f"clients ended early: {ended}")

    async def _order(self, mq: tidegate.Client, wanted: int) -> None:
        """Request a number of replicas; retry, because the alias's owner may just be killed."""
        async with asyncio.timeout(60.0):
            while True:
                try:
                    scaling = msgspec.structs.replace(SCALING, replicas_wanted=wanted)
                    await mq.set_scaling(QUEUE, scaling)
                    return
                except TidegateError:
                    await asyncio.sleep(_LOOK_S)

    async def _carried_out(self, mq: tidegate.Client, wanted: int, ordered_at: float) -> str:
        """Wait for a request, count whether it was completed, and return a text about it."""
        self._waited_for += 1
        if not await self._wait_for(mq, wanted):
            return f", not there after {self._options.wait_s:.0f} s"
        self._took_s.append(time.monotonic() - ordered_at)
        return f", there after {self._took_s[-1]:.1f} s"

    async def _wait_for(self, mq: tidegate.Client, wanted: int) -> bool:
        """Wait until `wanted` replicas serve and there are no others; False: timed out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.wait_s):
                while True:
                    with contextlib.suppress(TidegateError):
                        replicas = (await mq.topology(QUEUE)).replicas
                        serving = [r for r in replicas if r.state is ReplicaState.SERVING]
                        if len(replicas) == len(serving) == wanted:
                            return True
                    await asyncio.sleep(_LOOK_S)
        return False

    def _strike(self, kind: str) -> str:
        """Kill a process of this kind and return a description of it, or of why there was none."""
        if kind == LEADER:
            # The injector waits until the store names a leader.
            try:
                victim = self._injector.strike("leader", timeout_s=self._options.leader_s)
            except TimeoutError as nobody:
                return f"no {kind}: {nobody}"
        else:
            found = self._candidates(kind)
            if not found:
                return f"no {kind}, there was none"
            pid = self._chance.choice(found)
            if kind == STORE:
                kill_postgres(pid)
            else:
                kill_process(pid)
            victim = f"{kind} ({pid})"
        self._kills[kind] = self._kills.get(kind, 0) + 1
        return victim

    def _candidates(self, kind: str) -> list[int]:
        """Return the processes of this kind that belong to the run.

        The settings file in their environment identifies them.
        """
        if kind == STORE:
            postmaster = self._deployment.postmaster_pid()
            return [] if postmaster is None else [postmaster]
        words = {
            "machine": ("tidegate", "machine"),
            "machine's node": ("tidegate", "node", "--machine"),
            "worker": ("tidegate", "worker"),
        }[kind]
        found_pids = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if not all(word in line for word in words):
                    continue
                if process.environ().get("TIDEGATE_CONFIG") == str(self._settings):
                    found_pids.append(process.pid)
        return found_pids

    async def _nothing_left(self, mq: tidegate.Client) -> int:
        """Return the number of messages in the store after the last acknowledgements."""
        deadline = time.monotonic() + _NOTHING_S
        while True:
            left = len(await asyncio.to_thread(self._deployment.stored))
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(_LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--rate", type=float, default=150.0, help="puts a second of a producer")
    parser.add_argument("--stores", type=int, default=1, help="PostgreSQL servers")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--kill-store", action="store_true", help="kill PostgreSQL, too")
    parser.add_argument("--log", type=Path, default=None, help="keep the log of `tidegate up`")
    parser.add_argument("--histories", type=Path, default=None, help="keep what clients noted")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # `sys.exit` raises, so that the started processes are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = StormOptions(
        events=arguments.events,
        rate_per_s=arguments.rate,
        stores=arguments.stores,
        seed=arguments.seed,
        kill_store=arguments.kill_store,
        keep_log=arguments.log,
        keep_histories=arguments.histories,
    )
    report = run_storm(options, lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        print(f"seed {report.seed}: {report.ups} up, {report.downs} down, kills {report.kills}")
        print(f"{report.carried_out} of {report.waited_for} orders carried out in time")
        print(report.verdict)
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
