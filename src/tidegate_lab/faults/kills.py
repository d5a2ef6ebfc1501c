"""Kill nodes and PostgreSQL at random moments under load, and count lost messages.

    python -m tidegate_lab.faults.kills --kills 200 [--what node|postgres|both] [--nodes 2] [--json]

Theory of operation

`tidegate up` runs the nodes and PostgreSQL, and restarts them after each kill. Three producers and
three consumers run as processes of their own, which are never killed. One queue has one consumer,
so that its order is strict. Two consumers share the other queue.

Each kill comes after a random pause. As `--what` says, it hits a node, PostgreSQL, or all
connections to PostgreSQL.
After most kills, the run waits until a put to a probe queue is confirmed. The time from the kill to
that confirmation is the recovery time. The other kills come while the system still recovers from
the one before.

After the last kill, the run stops the producers and waits until the queues are drained. It then
stops the consumers, reads the store with SQL, and lets the checker judge all histories.

A run passes if the checker finds no violation and no client process failed. The run must also have
made all requested kills, and the store must hold no message at the end. Pauses and victims follow
from a seed, which the report contains.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psycopg

import tidegate
from tidegate.demo.history import CheckResult, MessageKey, Outcome
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import Deployment, FaultInjector, Kind, deployed, joined_url
from tidegate_lab.peers.servers import temporary_folder

MIXTURES: dict[str, tuple[list[Kind], list[int]]] = {
    "node": (["node"], [1]),
    "postgres": (["postgres"], [1]),
    "both": (["node", "postgres", "backends"], [5, 4, 2]),
}
# SOLE has one consumer, so that its order is strict. Two consumers share SHARED.
SOLE, SHARED, PROBE = "orders", "jobs", "probe"
# Unconfirmed acknowledgements reach the store within these seconds, also on a busy machine.
SETTLE_S = 30.0


class KillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run with kills."""

    kills: int = 200
    what: str = "both"
    nodes: int = 1
    # Puts per second of each of the three producers.
    rate_per_s: float = 400.0
    tasks: int = 50
    # The longest pause between a recovery and the next kill.
    pause_s_max: float = 1.5
    # The fraction of the kills after which the run does not wait for the recovery.
    hasty: float = 0.2
    drain_s: float = 60.0
    # The producers continue until this many puts are confirmed.
    confirms_min: int = 0
    seed: int | None = None
    keep_log: Path | None = None


class KillReport(msgspec.Struct, kw_only=True):
    """The result of a run with kills."""

    seed: int
    # Requested kills, and completed kills by kind.
    kills_wanted: int
    kills: dict[str, int]
    duration_s: float
    # Seconds from a kill to the next confirmed put.
    recovery_s_median: float
    recovery_s_max: float
    verdict: CheckResult
    outcome: Outcome
    # Messages that the store still holds at the end; None if it could not be read.
    left_in_store: int | None
    client_failures: list[str]

    def as_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def passed(self) -> bool:
        return (
            self.outcome == "pass"
            and not self.client_failures
            and self.left_in_store == 0
            and sum(self.kills.values()) == self.kills_wanted
        )


def run_kills(
    options: KillOptions, progress: Callable[[str], None] = lambda line: None
) -> KillReport:
    """Run the kills under load and return the checked result; see the module's docstring."""
    with (
        temporary_folder("histories") as folder,
        deployed(nodes=options.nodes, keep_log=options.keep_log) as deployment,
    ):
        return asyncio.run(_run(options, progress, folder, deployment))


async def _run(
    options: KillOptions,
    progress: Callable[[str], None],
    folder: Path,
    deployment: Deployment,
) -> KillReport:
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    chance = random.Random(seed)
    injector = FaultInjector(deployment)
    done: dict[str, int] = {}
    recoveries_s: list[float] = []
    began = time.monotonic()
    async with tidegate.connect(deployment.url, name="probe") as mq:
        for queue in (SOLE, SHARED, PROBE):
            await mq.create_queue(queue)
        with clients_in(folder) as clients:
            # Each client connects to another node first, so that some requests are relayed.
            urls = _rotations(deployment.addresses)
            rate = ("--rate", str(options.rate_per_s), "--tasks", str(options.tasks))
            for number, queue in enumerate((SOLE, SHARED, SHARED)):
                url = urls[number % len(urls)]
                clients.add_producer(f"producer-{number}", url, queue, *rate)
                clients.add_consumer(f"consumer-{number}", url, queue)
            await asyncio.to_thread(clients.wait_for_confirms, 100)

            kinds, weights = MIXTURES[options.what]
            for number in range(1, options.kills + 1):
                await asyncio.sleep(chance.uniform(0.0, options.pause_s_max))
                kind = chance.choices(kinds, weights)[0]
                victim = await asyncio.to_thread(injector.strike, kind)
                struck = time.monotonic()
                done[kind] = done.get(kind, 0) + 1
                waited = ""
                if number == options.kills or chance.random() >= options.hasty:
                    await _confirm_something(mq)
                    recoveries_s.append(time.monotonic() - struck)
                    waited = f", confirming again after {recoveries_s[-1]:.2f} s"
                waiting = clients.follow()
                progress(
                    f"{number}/{options.kills} killed {victim}{waited}; "
                    f"{clients.confirmed} confirmed, {waiting} on their way"
                )
                if clients.ended_early():
                    break

            if not clients.ended_early():
                await asyncio.to_thread(clients.wait_for_confirms_in_all, options.confirms_min)
            progress("healed; draining")
            await asyncio.to_thread(clients.finish_producers)
            if not await asyncio.to_thread(clients.drain, options.drain_s):
                await _explain(mq, progress)
            await _nothing_waits(mq)
            await asyncio.to_thread(clients.finish_consumers)
            stored = await asyncio.to_thread(_stored, deployment)
            verdict = clients.verdict(stored=stored, sole_consumer=[SOLE])
            failures = clients.failures
    recoveries_s.sort()
    return KillReport(
        seed=seed,
        kills_wanted=options.kills,
        kills=done,
        duration_s=time.monotonic() - began,
        # No recovery was measured if clients ended before the first kill.
        recovery_s_median=recoveries_s[len(recoveries_s) // 2] if recoveries_s else math.nan,
        recovery_s_max=max(recoveries_s, default=math.nan),
        verdict=verdict,
        outcome=verdict.outcome,
        left_in_store=None if stored is None else len(stored),
        client_failures=failures,
    )


def _rotations(addresses: list[str]) -> list[str]:
    return [joined_url(addresses[at:] + addresses[:at]) for at in range(len(addresses))]


async def _nothing_waits(mq: tidegate.Client) -> None:
    """Wait until no queue has messages, redelivered ones included, while consumers still run."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        queues = [
            queue
            for node in (await mq.stats()).nodes
            for queue in node.queues
            if queue.name != PROBE
        ]
        if not any(queue.waiting or queue.unacknowledged for queue in queues):
            return
        await asyncio.sleep(0.05)


async def _confirm_something(mq: tidegate.Client) -> None:
    async with asyncio.timeout(60.0):
        await mq.put(PROBE, b"?")


async def _explain(mq: tidegate.Client, progress: Callable[[str], None]) -> None:
    """Report the nodes' stats of queues that are not drained."""
    for node in (await mq.stats()).nodes:
        for queue in node.queues:
            consumers = [
                f"{c.client_name}: {c.unacknowledged} of {c.prefetch}" for c in queue.consumers
            ]
            progress(
                f"not drained: {queue.name} at {node.address} in epoch {queue.epoch}, "
                f"{queue.waiting} wait, {queue.unacknowledged} are held; {consumers}"
            )


def _stored(deployment: Deployment) -> list[MessageKey] | None:
    """Return the messages in the store after the last acknowledgements have reached it.

    None means that the store could not be read within `SETTLE_S`.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        try:
            stored = [key for key in deployment.stored() if key[0] != PROBE]
        except psycopg.Error:
            stored = None
        if stored == [] or time.monotonic() > deadline:
            return stored
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--what", choices=sorted(MIXTURES), default="both")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rate", type=float, default=400.0, help="puts a second of a producer")
    parser.add_argument("--tasks", type=int, default=50, help="puts in flight of a producer")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--log", type=Path, default=None, help="keep the log of `tidegate up`")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    # `sys.exit` raises, so that the started processes are stopped on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = KillOptions(
        kills=arguments.kills,
        what=arguments.what,
        nodes=arguments.nodes,
        rate_per_s=arguments.rate,
        tasks=arguments.tasks,
        seed=arguments.seed,
        keep_log=arguments.log,
    )
    report = run_kills(options, lambda line: print(line, file=sys.stderr, flush=True))
    if arguments.json:
        print(report.as_json())
    else:
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(report.kills.items()))
        print(f"{kills} in {report.duration_s:.0f} s (seed {report.seed})")
        print(
            f"confirming again after {report.recovery_s_median:.2f} s (median), "
            f"{report.recovery_s_max:.2f} s at most; {report.left_in_store} left in the store"
        )
        print(report.verdict)
        for failure in report.client_failures:
            print(failure)
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
