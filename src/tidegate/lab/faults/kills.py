"""Kill nodes and PostgreSQL at random moments under load, and count what was lost.

    python -m tidegate.lab.faults.kills --kills 200 [--what node|postgres|both] [--nodes 2] [--json]

Strategy: `tidegate up` and client processes of their own. After most kills a probe waits until
something is confirmed again, which also measures how long that took; some kills fall into the
recovery from the last one. In the end everything is healed and drained, and the checker judges.
The moments come from a seed, which the report names.
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
from tidegate.lab.checker import Outcome, Verdict
from tidegate.lab.faults.clients import clients_in
from tidegate.lab.faults.deployment import Deployment, deployed, joined_url
from tidegate.lab.faults.injector import Injector, Kind
from tidegate.lab.history import MessageKey
from tidegate.lab.peers.server import temporary_folder

MIXTURES: dict[str, tuple[list[Kind], list[int]]] = {
    "node": (["node"], [1]),
    "postgres": (["postgres"], [1]),
    "both": (["node", "postgres", "backends"], [5, 4, 2]),
}
# One queue with one consumer, where order is strict, and one that two consumers share.
SOLE, SHARED, PROBE = "orders", "jobs", "probe"
# Acknowledgements that nobody waits for reach the store within this, also on a busy machine.
SETTLE_S = 30.0


class KillOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to do to whom."""

    kills: int = 200
    what: str = "both"
    nodes: int = 1
    # Of each of the three producers.
    rate_per_s: float = 400.0
    tasks: int = 50
    # Between a recovery and the next kill.
    pause_s_max: float = 1.5
    # Of the kills, those that do not wait for the recovery from the one before.
    hasty: float = 0.2
    drain_s: float = 60.0
    # The run ends when at least so many puts were confirmed.
    confirms_min: int = 0
    seed: int | None = None
    keep_log: Path | None = None


class KillReport(msgspec.Struct, kw_only=True):
    """What came of it."""

    seed: int
    # How many were asked for, and what was killed how often.
    kills_wanted: int
    kills: dict[str, int]
    duration_s: float
    # From a kill to the next confirmed put.
    recovery_s_median: float
    recovery_s_max: float
    verdict: Verdict
    outcome: Outcome
    # Messages that everybody is done with and the store still holds; None: it could not be asked.
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
    """Run, and judge."""
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
    injector = Injector(deployment)
    done: dict[str, int] = {}
    recoveries_s: list[float] = []
    began = time.monotonic()
    async with tidegate.connect(deployment.url, name="probe") as mq:
        for queue in (SOLE, SHARED, PROBE):
            await mq.create_queue(queue)
        with clients_in(folder) as clients:
            # Each starts at another node, so that some are relayed.
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
        # None at all when clients ended before the first.
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
    """What comes a second time is taken too, while there is somebody to take it."""
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
    """What the nodes say about queues that do not drain."""
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
    """What the store holds once the last acknowledgements have reached it."""
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
    # An exception, so that what was started is stopped on the way out.
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
