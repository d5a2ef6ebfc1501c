"""Leaders that crash in succession, each at its own step of a scale-out or a scale-in.

    python -m tidegate_lab.faults.succession before-drain after-drain … [--json]

Theory of operation

The run starts a store and a line of nodes that no process restarts. Each node but the last has a
crash point: a named step of the control loops at which it kills itself. All nodes join before the
first machine does, so they become leader in the order of the line, because the live node with the
smallest id leads.

The run then requests, under load, one replica and three replicas in turn. The replicas' workers run
on machines that are processes. When a leader crashes at its point, the next leader must complete
the action that was in progress. The run continues until every node in the line has crashed, or
until `orders_max` requests.

A scale-out is complete only when each replica has a producer. Otherwise the next scale-in would
have no clients to move, and no leader would reach the crash points of that migration.

Machines have crash points too. The last node gets such a point, and its machines inherit it. They
crash when the last node is leader and starts them.

At the end, the checker judges all histories. The store must hold no message, the provider must list
no machine, and no process of a machine may run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

import tidegate
from tidegate.core.errors import TidegateError
from tidegate.core.machines import MachineState
from tidegate.core.runtime import CRASH_VARIABLE, MACHINE_POINTS, STEERING_POINTS
from tidegate.core.topology import ControlMode, Range, ReplicaState, Scaling, ScalingPolicy
from tidegate.demo.evidence import stored_messages
from tidegate.demo.history import CheckResult, Outcome
from tidegate.fleet.process import KEEPER_VARIABLE, process_identity
from tidegate.fleet.providers import MARK_VARIABLE, ProcessProvider
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.postgres.store import PostgresStore
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import JoinedNode, joined_node
from tidegate_lab.faults.storm_worker import FOLDER_VARIABLE, QUEUE, WORK_VARIABLE
from tidegate_lab.peers.servers import temporary_folder

MANY = 3
SETTINGS = """
[node]
lease = "1s"

[fleet]
provider = "process"
lost = "1s"
slots = 1
list_interval = "300ms"
drain = "5s"

[telemetry]
enabled = false

[metrics]
enabled = false
"""
SCALING = Scaling(
    replicas=Range(0, MANY),
    # With this policy producers are assigned to replicas too, so that they must leave a replica
    # that is drained.
    policy=ScalingPolicy.CLIENTS,
    steering=ControlMode.MANUAL,
    replicas_wanted=1,
    polling_interval_s=0.2,
    inhibition_s=0.2,
    cooldown_period_s=0.2,
    step_max=MANY,
    worker="tidegate_lab.faults.storm_worker:app",
    slots_per_machine=1,
)
# Seconds per message. A worker handles 4 messages at a time, which is slower than the producers:
# one replica builds a backlog that must be distributed after the scale-out.
WORK_S = 0.03
_LOOK_S = 0.05
_ORDER_S = 120.0
# Seconds to wait for the last acknowledgements, and for the last machine to end.
_NOTHING_S = 60.0


class SuccessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a succession: the crash points in the order of the nodes."""

    points: Sequence[str]
    rate_per_s: float = 70.0
    drain_s: float = 90.0

    @property
    def orders_max(self) -> int:
        """The number of requests within which every crash point must be reached."""
        # Some requests do not reach a point. A machine may be halted before it gets there. A leader
        # that was too busy to renew its lease leads again only after all others have crashed.
        return max(1 + 4 * len(self.points), 24)


class SuccessionReport(msgspec.Struct, kw_only=True):
    """The result of a succession."""

    orders: int
    # The points at which leaders crashed, in that order.
    died_at: list[str]
    # Seconds from the first crash during a request until that request was completed.
    took_over_s: list[float]
    machines_died: int
    duration_s: float
    verdict: CheckResult
    outcome: Outcome
    client_failures: list[str]
    left_in_store: int
    # Machines that the provider still lists, and their processes.
    left_behind: list[str]

    @property
    def passed(self) -> bool:
        return self.outcome == "pass" and not (
            self.client_failures or self.left_in_store or self.left_behind
        )


def run_succession(
    options: SuccessionOptions, progress: Callable[[str], None] = lambda line: None
) -> SuccessionReport:
    """Run a succession and return the checked result; see the module's docstring.

    `ValueError` means that `options.points` has more than one crash point of machines.
    """
    of_machines = [point for point in options.points if point in MACHINE_POINTS]
    of_leaders = [point for point in options.points if point not in MACHINE_POINTS]
    if len(of_machines) > 1:
        raise ValueError("the machines of one run die at one point")
    with temporary_folder("succession") as folder, EmbeddedPostgres(folder / "data") as postgres:
        (folder / "tidegate.toml").write_text(SETTINGS)
        histories = folder / "histories"
        histories.mkdir()
        environment = {
            "TIDEGATE_CONFIG": str(folder / "tidegate.toml"),
            "TIDEGATE_STORE__DATA": str(folder / "nodes"),
            FOLDER_VARIABLE: str(histories),
            WORK_VARIABLE: str(WORK_S),
            # Makes the machines end by themselves if this process is killed.
            KEEPER_VARIABLE: str(process_identity(os.getpid())),
        }
        # The tables are created before any node starts, so that the nodes do not compete for it.
        asyncio.run(_prepare(postgres.url))
        with (
            _no_machine_left(folder / "nodes" / "fleet"),
            _line(postgres.url, folder, environment, [*of_leaders, *of_machines]) as nodes,
        ):
            last = nodes.pop(of_machines[0] if of_machines else "")
            run = _Succession(options, progress, folder, postgres.url, nodes, last)
            return asyncio.run(run.run())


async def _prepare(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.close()


@contextlib.contextmanager
def _line(
    url: str, folder: Path, environment: dict[str, str], points: list[str]
) -> Iterator[dict[str, JoinedNode]]:
    """Start a node for each point, and a last node that does not crash."""
    if not points or points[-1] not in MACHINE_POINTS:
        points = [*points, ""]

    with contextlib.ExitStack() as stack:

        def start(point: str) -> JoinedNode:
            own = folder / f"node-{point or 'last'}"
            own.mkdir()
            crash = {CRASH_VARIABLE: point} if point else {}
            return stack.enter_context(joined_node(url, own, environment={**environment, **crash}))

        # The order of the points saves requests: each node crashes a step after the one before.
        yield {point: start(point) for point in points}


@contextlib.contextmanager
def _no_machine_left(fleet: Path) -> Iterator[None]:
    """Halt all machines when the block ends, however it ends."""
    try:
        yield
    finally:
        asyncio.run(_halt_all(fleet))


async def _halt_all(fleet: Path) -> None:
    provider = ProcessProvider(fleet, halt_s=5.0, store_urls=[])
    for machine in await provider.list():
        await provider.halt(machine.machine_id)


class _Succession:
    def __init__(
        self,
        options: SuccessionOptions,
        progress: Callable[[str], None],
        folder: Path,
        url: str,
        line: dict[str, JoinedNode],
        last: JoinedNode,
    ) -> None:
        self._options = options
        self._progress = progress
        self._folder = folder
        self._url = url
        self._line = line
        self._last = last
        self._store = PostgresStore(url)
        self._died_at: dict[str, float] = {}
        self._took_over_s: list[float] = []
        self._machines_died: set[int] = set()
        self._orders = 0
        self._machines_are_to_die = len(line) < len(options.points)
        # True after the last node, as leader, had to start machines, which inherit its point.
        self._last_has_started = False

    async def run(self) -> SuccessionReport:
        began = time.monotonic()
        options = self._options
        await self._store.open()
        async with tidegate.connect(self._last.address, name="succession", reconnect_s=60.0) as mq:
            await mq.create_queue(QUEUE)
            await self._order(mq, 1)
            with clients_in(self._folder / "histories") as clients:
                for number in range(MANY):
                    clients.add_producer(
                        f"producer-{number}",
                        self._last.address,
                        QUEUE,
                        *("--rate", str(options.rate_per_s), "--tasks", "10"),
                    )
                await asyncio.to_thread(clients.wait_for_confirms, 20)
                wanted = 1
                while not self._all_have_died:
                    if self._orders >= options.orders_max:
                        break
                    wanted = MANY if wanted == 1 else 1
                    await self._order(mq, wanted)
                await asyncio.to_thread(clients.finish_producers)
                self._progress("nobody is left to die; draining")
                await asyncio.to_thread(clients.drain, options.drain_s)
                left = await self._nothing_left()
                stored = await asyncio.to_thread(stored_messages, self._url)
                verdict = clients.verdict(stored=stored, replicated=[QUEUE])
                failures = clients.failures
            await self._order(mq, 0)
        left_behind = await self._left_behind()
        await self._store.close()
        return SuccessionReport(
            orders=self._orders,
            died_at=list(self._died_at),
            took_over_s=self._took_over_s,
            machines_died=len(self._machines_died),
            duration_s=time.monotonic() - began,
            verdict=verdict,
            outcome=verdict.outcome,
            client_failures=failures,
            left_in_store=left,
            left_behind=left_behind,
        )

    @property
    def _all_have_died(self) -> bool:
        machines_have = not self._machines_are_to_die or bool(self._machines_died)
        return self._leaders_have_died and machines_have

    @property
    def _leaders_have_died(self) -> bool:
        return len(self._died_at) == len(self._line)

    def _warm(self, wanted: int) -> int:
        """Return how many machines to keep without replicas.

        A machine that is halted at once never reaches a crash point after the end of its workers.
        """
        is_time = self._machines_are_to_die and self._last_has_started
        return MANY - 1 if is_time and wanted == 1 else 0

    async def _order(self, mq: tidegate.Client, wanted: int) -> None:
        """Request `wanted` replicas and wait for them and their machines, through all crashes."""
        self._orders += 1
        if wanted == MANY and self._leaders_have_died:
            self._last_has_started = True
        began, dead = time.monotonic(), set(self._died_at)
        async with asyncio.timeout(_ORDER_S + 5.0 * len(self._line)):
            is_ordered = is_carried_out = False
            while not is_carried_out:
                is_ordered = is_ordered or await self._ordered(mq, wanted)
                is_carried_out = is_ordered and await self._is_carried_out(mq, wanted)
                self._look_for_dead()
                await asyncio.sleep(_LOOK_S)
        now = time.monotonic()
        new = [point for point in self._died_at if point not in dead]
        if new:
            self._took_over_s.append(now - self._died_at[new[0]])
        self._progress(
            f"order {self._orders}: {wanted} after {now - began:.1f} s"
            + (f", died at {', '.join(new)}" if new else "")
        )

    async def _ordered(self, mq: tidegate.Client, wanted: int) -> bool:
        scaling = msgspec.structs.replace(SCALING, replicas_wanted=wanted, warm=self._warm(wanted))
        with contextlib.suppress(TidegateError):
            await mq.set_scaling(QUEUE, scaling)
            return True
        return False

    async def _is_carried_out(self, mq: tidegate.Client, wanted: int) -> bool:
        with contextlib.suppress(TidegateError):
            replicas = (await mq.topology(QUEUE)).replicas
            serving = [one for one in replicas if one.state is ReplicaState.SERVING]
            rows = await self._store.machines()
            failed = {row.machine_id for row in rows if row.state is MachineState.FAILED}
            self._machines_died |= failed
            up = [row for row in rows if row.state is MachineState.UP]
            idle = len(rows) - len(failed) - len(up)
            is_right_size = idle <= self._warm(wanted)
            if not (len(replicas) == len(serving) == len(up) == wanted and is_right_size):
                return False
            return wanted < MANY or await self._has_spread(mq)
        return False

    async def _has_spread(self, mq: tidegate.Client) -> bool:
        """Return whether each replica has a producer, so that a scale-in has clients to move."""
        alias_id = await mq.queue_id(QUEUE)
        numbers = await mq.stats(QUEUE)
        at_replicas = [
            [producers for producers, _ in queue.members.values()]
            for node in numbers.nodes
            for queue in node.queues
            if queue.queue_id == alias_id
        ]
        return [1] * MANY in at_replicas

    def _look_for_dead(self) -> None:
        for point, node in self._line.items():
            if point not in self._died_at and node.process.poll() is not None:
                if node.process.returncode != -signal.SIGKILL:
                    raise RuntimeError(f"the node of {point} ended by itself")
                self._died_at[point] = time.monotonic()

    async def _nothing_left(self) -> int:
        """Return the number of messages in the store after the last acknowledgements."""
        deadline = time.monotonic() + _NOTHING_S
        while True:
            left = len(await asyncio.to_thread(stored_messages, self._url))
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(_LOOK_S)

    async def _left_behind(self) -> list[str]:
        """Return the machines and processes that remain although no machine is wanted."""
        fleet = (self._folder / "nodes" / "fleet").resolve()
        provider = ProcessProvider(fleet, store_urls=[])
        deadline = time.monotonic() + _NOTHING_S
        while True:
            # Poll: the leader removes crashed machines later than the request is completed.
            found = [f"machine {one.machine_id} ({one.state})" for one in await provider.list()]
            found += await asyncio.to_thread(_processes_of, fleet)
            if not found or time.monotonic() > deadline:
                return found
            await asyncio.sleep(_LOOK_S)


def _processes_of(fleet: Path) -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK_VARIABLE, "").startswith(f"{fleet}{os.sep}"):
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", default=list(STEERING_POINTS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # `sys.exit` raises, so that the started processes are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = run_succession(
        SuccessionOptions(points=arguments.points),
        lambda line: print(line, file=sys.stderr, flush=True),
    )
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        print(f"{len(report.died_at)} leaders and {report.machines_died} machines died")
        print(report.verdict)
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
