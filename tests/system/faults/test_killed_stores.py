"""A logical queue over three PostgreSQL servers, of which one after the other is killed with -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from waiting import LIMIT_S, eventually

import tidegate
from tidegate.core.topology import ReplicaState
from tidegate.demo.history import read_history
from tidegate_lab.faults.clients import clients_in
from tidegate_lab.faults.deployment import Deployment, deployed
from tidegate_lab.faults.scale_storm import settings_with
from tidegate_lab.faults.storm_worker import FOLDER_VARIABLE, QUEUE
from tidegate_lab.peers.servers import temporary_folder

# Confirmed while a store is away: of each producer's 20 tasks none is left waiting for it.
CONFIRMS_WITHOUT = 300
# No node and no machine is killed here. With a short lease, healthy ones would count as dead while
# the computer is busy, and their replicas would come and go without an order.
LEASE_S = 10.0
NOT_RENEWED = "could not renew the lease"


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_folder("killed-stores") as path:
        yield path


def command(deployment: Deployment, *words: str) -> str:
    """What a person types, and reads."""
    done = subprocess.run(
        [sys.executable, "-m", "tidegate", *words, "--url", deployment.url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def scaled(deployment: Deployment, mq: tidegate.BlockingClient, count: int) -> list[int]:
    """Order so many replicas; the stores that they are in when they serve."""
    command(deployment, "scale", QUEUE, "--to", str(count))

    def is_so() -> bool:
        replicas = mq.topology(QUEUE).replicas
        serving = [one for one in replicas if one.state is ReplicaState.SERVING]
        return len(replicas) == len(serving) == count

    try:
        eventually(is_so, f"{count} replicas serve", 2 * LIMIT_S)
    except AssertionError:
        print(*mq.topology(QUEUE).replicas, sep="\n")
        print(command(deployment, "fleet"), command(deployment, "explain", QUEUE, "-n", "100"))
        print(deployment.log_text[-20_000:])
        raise
    return sorted(one.store_number for one in mq.topology(QUEUE).replicas)


def longest_gap_s(histories: Path, since: float, until: float) -> float:
    """The longest time in which no put of anybody was confirmed."""
    confirmed = sorted(
        event.t
        for path in histories.glob("producer-*.history")
        for event in read_history(path)
        if event.op == "put" and event.phase == "ok" and since <= event.t <= until
    )
    times = [since, *confirmed, until]
    return max(later - earlier for earlier, later in pairwise(times))


@pytest.mark.timeout(500)
def test_a_killed_store_takes_only_its_replicas_with_it_and_brings_them_back(folder: Path) -> None:
    settings, histories = folder / "tidegate.toml", folder / "histories"
    settings.write_text(settings_with(LEASE_S))
    histories.mkdir()
    environment = {"TIDEGATE_CONFIG": str(settings), FOLDER_VARIABLE: str(histories)}
    with (
        deployed(nodes=2, stores=3, environment=environment) as deployment,
        tidegate.connect(deployment.url) as mq,
        clients_in(histories) as clients,
    ):
        # Given a queue that is spread over three stores, under load
        mq.create_queue(QUEUE)
        words = ["--min", "1", "--max", "3", "--policy", "load", "--slots", "2"]
        words += ["--worker", "tidegate_lab.faults.storm_worker:app"]
        for word in ("polling_interval=200ms", "inhibition=200ms", "step_max=3"):
            words += ["--set", word]
        command(deployment, "scale", QUEUE, *words)
        assert scaled(deployment, mq, 3) == [0, 1, 2]
        for number in range(2):
            clients.add_producer(
                f"producer-{number}", deployment.url, QUEUE, "--rate", "50", "--tasks", "20"
            )
        clients.wait_for_confirms(200)

        # When one is killed that has no catalogue
        other = deployment.servers[1]
        killed_at = time.monotonic()
        os.kill(other.pid, signal.SIGKILL)

        # Then it gets no share, people are told, and the others go on
        def shares() -> dict[int, float]:
            return {one.store_number: one.share for one in mq.topology(QUEUE).replicas}

        eventually(lambda: shares()[1] == 0.0, "store 1 gets no share")
        clients.wait_for_confirms(CONFIRMS_WITHOUT)
        assert QUEUE in command(deployment, "fleet")
        told = "in store 1 cannot be reached"
        eventually(lambda: told in command(deployment, "explain", QUEUE), told)
        assert shares()[1] == 0.0
        gap_s = longest_gap_s(histories, killed_at, time.monotonic())
        print(f"longest gap without store 1: {gap_s:.2f} s")

        # And it serves again when it is back
        eventually(other.ensure_running, "store 1 is started again")
        eventually(
            lambda: all(share > 0.05 for share in shares().values()),
            "the replica in the store that was killed gets its share again",
        )

        # And replicas go and come across stores
        scaled(deployment, mq, 1)
        assert scaled(deployment, mq, 3) == [0, 1, 2]

        # When the catalogue is killed
        catalogue = deployment.servers[0]
        killed_at, said = time.monotonic(), deployment.log_text.count(NOT_RENEWED)
        os.kill(catalogue.pid, signal.SIGKILL)
        # They renew three times in a lease.
        said += 4 * len(deployment.addresses)
        eventually(
            lambda: deployment.log_text.count(NOT_RENEWED) >= said, "the nodes' leases have lapsed"
        )
        eventually(catalogue.ensure_running, "the catalogue is started again")
        clients.wait_for_confirms(200)
        gap_s = longest_gap_s(histories, killed_at, time.monotonic())
        print(f"longest gap without the catalogue: {gap_s:.2f} s")
        scaled(deployment, mq, 2)

        # Then nothing is lost by any of it
        clients.finish_producers()
        assert clients.drain(2 * LIMIT_S)
        eventually(lambda: not deployment.stored(), "the last acknowledgements")
        verdict = clients.verdict(stored=[], replicated=[QUEUE])
        print(verdict)
        assert clients.failures == []
        assert verdict.examples == []
        assert verdict.outcome == "pass", str(verdict)
