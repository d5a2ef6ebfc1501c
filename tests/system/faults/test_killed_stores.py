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
from tidegate.core.replication import ReplicaState
from tidegate.lab.faults.clients import Clients, clients_in
from tidegate.lab.faults.deployment import Deployment, deployed
from tidegate.lab.faults.scale_storm import SETTINGS
from tidegate.lab.faults.storm_worker import FOLDER_VARIABLE, QUEUE
from tidegate.lab.history import read_history
from tidegate.lab.peers.server import temporary_folder

# Longer than a lease and what it takes to notice; far shorter than the store is away.
GAP_S_MAX = 5.0
AWAY_S = 8.0


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

    eventually(is_so, f"{count} replicas serve")
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


def confirms_while(seconds: float, clients: Clients) -> int:
    clients.follow()
    before = clients.confirmed
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
        clients.follow()
    return clients.confirmed - before


@pytest.mark.timeout(300)
def test_a_killed_store_takes_only_its_replicas_with_it_and_brings_them_back(folder: Path) -> None:
    settings, histories = folder / "tidegate.toml", folder / "histories"
    settings.write_text(SETTINGS)
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
        words += ["--worker", "tidegate.lab.faults.storm_worker:app"]
        for word in ("polling_interval=200ms", "inhibition=200ms", "step_max=3"):
            words += ["--set", word]
        command(deployment, "scale", QUEUE, *words)
        assert scaled(deployment, mq, 3) == [0, 1, 2]
        for number in range(2):
            clients.add_producer(
                f"producer-{number}", deployment.url, QUEUE, "--rate", "100", "--tasks", "40"
            )
        clients.wait_for_confirms(200)

        # When one is killed that has no catalogue
        other = deployment.servers[1]
        killed_at = time.monotonic()
        os.kill(other.pid, signal.SIGKILL)
        confirmed = confirms_while(AWAY_S, clients)
        shares = {one.store_number: one.share for one in mq.topology(QUEUE).replicas}
        assert QUEUE in command(deployment, "fleet")
        assert "in store 1 cannot be reached" in command(deployment, "explain", QUEUE)
        back_at = time.monotonic()
        other.ensure_running()

        # Then the others go on, and it serves again when it is back
        gap_s = longest_gap_s(histories, killed_at, back_at)
        print(f"{confirmed} confirmed in {AWAY_S} s without store 1, longest gap {gap_s:.2f} s")
        assert shares[1] == 0.0
        assert gap_s < GAP_S_MAX
        assert confirmed > 0.4 * AWAY_S * 200
        began = time.monotonic()
        eventually(
            lambda: all(one.share > 0.05 for one in mq.topology(QUEUE).replicas),
            "the replica in the store that was killed gets its share again",
        )
        print(f"store 1 serves again after {time.monotonic() - began:.1f} s")

        # And replicas go and come across stores
        scaled(deployment, mq, 1)
        assert scaled(deployment, mq, 3) == [0, 1, 2]

        # When the catalogue is killed
        catalogue = deployment.servers[0]
        killed_at = time.monotonic()
        os.kill(catalogue.pid, signal.SIGKILL)
        confirmed = confirms_while(3.0, clients)
        catalogue.ensure_running()
        clients.wait_for_confirms(400, LIMIT_S)
        gap_s = longest_gap_s(histories, killed_at, time.monotonic())
        print(f"{confirmed} confirmed in 3 s without the catalogue, longest gap {gap_s:.2f} s")
        scaled(deployment, mq, 2)

        # Then nothing is lost by any of it
        clients.finish_producers()
        assert clients.drain(90.0)
        eventually(lambda: not deployment.stored(), "the last acknowledgements")
        verdict = clients.verdict(stored=[], replicated=[QUEUE])
        print(verdict)
        assert clients.failures == []
        assert verdict.examples == []
        assert verdict.outcome == "pass", str(verdict)
