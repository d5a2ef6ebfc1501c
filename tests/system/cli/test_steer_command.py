"""`tidegate steer` as a person runs it, on a real RabbitMQ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import pyarrow.parquet as pq
import pytest
from command_line import CommandLine, clean_environment
from places import SUPPORT
from rabbitmq import VirtualHost

import tidegate

LINE_S_MAX = 60.0


class Steering:
    """A `tidegate steer` that runs; what it says is read line by line."""

    def __init__(self, host: VirtualHost, *options: str, folder: Path | None = None) -> None:
        paths = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(SUPPORT)])
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tidegate", "steer", host.url, "--queue", "orders"),
                *("--management", host.management_url, "--set", "polling_interval=100ms"),
                *options,
            ],
            env=clean_environment() | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            text=True,
        )
        self.said: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)

    def wait_for(self, words: str) -> str:
        """The next line that says this."""
        while True:
            try:
                line = self._lines.get(timeout=LINE_S_MAX)
            except Empty:
                raise AssertionError(f"{words!r} was not said: {self.said}") from None
            self.said.append(line)
            if words in line:
                return line

    def rest(self) -> list[str]:
        """Of one that has ended: what else it has said."""
        self._reader.join(LINE_S_MAX)
        return list(self._lines.queue)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(LINE_S_MAX)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LINE_S_MAX)


@pytest.fixture
def started() -> Iterator[list[Steering]]:
    running: list[Steering] = []
    yield running
    for one in running:
        one.end()


def status(command_line: CommandLine, host: VirtualHost) -> dict[str, object]:
    found = command_line(
        *("steer", host.url, "-q", "orders", "--status", "--json"),
        *("--management", host.management_url),
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)  # type: ignore[no-any-return]


def test_once_status_and_off(
    rabbitmq: VirtualHost, command_line: CommandLine, tmp_path: Path
) -> None:
    with tidegate.connect(rabbitmq.url) as mq:
        mq.create_queue("orders")
    options = ("steer", rabbitmq.url, "-q", "orders", "--management", rabbitmq.management_url)
    options += ("--set", "polling_interval=100ms")
    assert status(command_line, rabbitmq)["elastic"] is False

    lake = tmp_path / "lake"
    once = command_line(
        *options, "--replicas", "2..4", "--once", "--json", "--telemetry", str(lake)
    )
    assert once.returncode == 0, once.stderr
    decision = json.loads(once.stdout)
    assert (decision["rule"], decision["actions"]) == (
        "below min",
        [{"type": "AddReplica", "count": 1}],
    )
    recorded = [pq.read_table(file) for file in lake.rglob("*.parquet")]  # type: ignore[no-untyped-call]
    assert [row["action"] for table in recorded for row in table.to_pylist()] == ["AddReplica 1"]
    shown = status(command_line, rabbitmq)
    assert [one["number"] for one in shown["replicas"]] == [1]  # type: ignore[attr-defined]

    off = command_line(*options, "--off")
    assert (off.returncode, off.stdout.decode().splitlines()[-1][:37]) == (
        0,
        "queue orders is a plain queue again; ",
    )
    assert status(command_line, rabbitmq)["elastic"] is False
    assert list(rabbitmq.queues()) == ["orders"]


def test_a_second_one_waits_and_ctrl_c_leaves_everything_as_it_is(
    rabbitmq: VirtualHost, command_line: CommandLine, started: list[Steering]
) -> None:
    with tidegate.connect(rabbitmq.url) as mq:
        mq.create_queue("orders")
    first = Steering(rabbitmq, "--replicas", "2..2", "--policy", "fixed")
    started.append(first)
    first.wait_for("orders: replicas 1: coming; 0 waiting")
    first.wait_for("1: 50%, 2: 50%")
    second = Steering(rabbitmq, "--replicas", "3..3", "--policy", "fixed")
    started.append(second)
    second.wait_for("somebody else steers orders: waiting until it ends")

    assert first.interrupt() == 0
    second.wait_for("steering orders: 2 replicas now")
    second.wait_for("3: 33%")
    assert second.interrupt() == 0

    shares = {one["number"]: one["share"] for one in status(command_line, rabbitmq)["replicas"]}  # type: ignore[attr-defined]
    assert shares == {1: 0.34, 2: 0.33, 3: 0.33}


def everything(host: VirtualHost) -> dict[str, object]:
    """Whatever a broker keeps, but for messages, statistics and a lock that may yet be going."""
    bindings = [
        (one["source"], one["destination"], one["routing_key"])
        for one in host.call("GET", f"bindings/{host.name}")
    ]
    return {
        "queues": sorted(name for name in host.queues() if not name.endswith("#steerer")),
        "exchanges": sorted(one["name"] for one in host.call("GET", f"exchanges/{host.name}")),
        "bindings": sorted(one for one in bindings if not one[1].endswith("#steerer")),
    }


def places(command_line: CommandLine, host: VirtualHost) -> list[tuple[object, ...]]:
    found: list[dict[str, object]] = status(command_line, host)["replicas"]  # type: ignore[assignment]
    return [(one["number"], one["state"], one["share"]) for one in found]


def test_recommending_changes_nothing_and_needs_no_turn(
    rabbitmq: VirtualHost, command_line: CommandLine, started: list[Steering]
) -> None:
    options = ("steer", rabbitmq.url, "-q", "orders", "--management", rabbitmq.management_url)
    advice = (*options, "--replicas", "3..4", "--recommend-only", "--once", "--json")
    with tidegate.connect(rabbitmq.url) as mq:
        mq.create_queue("orders")
    before = everything(rabbitmq)
    plain = command_line(*advice)
    assert plain.returncode == 0, plain.stderr
    assert json.loads(plain.stdout)["actions"] == [{"type": "AddReplica", "count": 1}]
    assert everything(rabbitmq) == before

    steering = Steering(rabbitmq, "--replicas", "2..2", "--policy", "fixed")
    started.append(steering)
    steering.wait_for("1: 50%, 2: 50%")
    before = everything(rabbitmq)
    found = command_line(*advice)
    advising = Steering(rabbitmq, "--replicas", "3..4", "--recommend-only", "--json")
    started.append(advising)
    advising.wait_for("1: 50%, 2: 50%")

    assert found.returncode == 0, found.stderr
    decision = json.loads(found.stdout)
    assert decision["rule"] == "below min"
    assert decision["outcome"].startswith("recommend-only")
    assert everything(rabbitmq) == before
    assert steering.interrupt() == 0
    assert advising.interrupt() == 0
    # It has looked ten times a second, and always found the same: one line more is for who is slow.
    assert len(advising.rest()) <= 1

    once = (*options, "--replicas", "1..2", "--once", "--json")
    drained = command_line(*once, "--to", "1")
    assert drained.returncode == 0, drained.stderr
    shares = places(command_line, rabbitmq)
    assert "draining" in {state for _, state, _ in shares}
    before = everything(rabbitmq)
    assert command_line(*once, "--recommend-only").returncode == 0
    assert (places(command_line, rabbitmq), everything(rabbitmq)) == (shares, before)


def test_workers_come_with_each_replica_and_serve_it(
    rabbitmq: VirtualHost, started: list[Steering]
) -> None:
    with tidegate.connect(rabbitmq.url) as mq:
        mq.create_queue("orders")
        steering = Steering(
            *(rabbitmq, "--replicas", "2..2", "--policy", "fixed"),
            *("--worker", "steered_jobs:app"),
        )
        started.append(steering)
        steering.wait_for("1: 50%, 2: 50%")

        served_by = {mq.request("orders", b"x", timeout=LINE_S_MAX).payload for _ in range(4)}

        assert served_by <= {b"orders#1", b"orders#2"}
        assert steering.interrupt() == 0


def test_steer_refuses_invalid_options(rabbitmq: VirtualHost, command_line: CommandLine) -> None:
    def refusal(url: str, *options: str) -> str:
        found = command_line("steer", url, "-q", "orders", *options)
        said = found.stderr.decode()
        assert found.returncode == (1 if "there is no queue" in said else 2), found.stdout
        return said

    assert "steer is for RabbitMQ" in refusal("tidegate://127.0.0.1:1", "--status")
    assert "must be 0 ≤ min ≤ max" in refusal(rabbitmq.url, "--replicas", "4..1")
    assert "max = '4x': must be" in refusal(rabbitmq.url, "--replicas", "1..4x")
    assert "one of them" in refusal(rabbitmq.url, "--once", "--off")
    assert "one of them" in refusal(rabbitmq.url, "--off", "--recommend-only")
    assert "there is no queue orders" in refusal(rabbitmq.url, "--status")
    assert "there is no queue orders" in refusal(rabbitmq.url, "--replicas", "1..2", "--once")
    assert "such as --replicas 1..4" in refusal(rabbitmq.url, "--once")
    assert "no module 'nomod'" in refusal(
        rabbitmq.url, "--replicas", "1..2", "--once", "--worker", "nomod:app"
    )
    assert "steer that one" in refusal(rabbitmq.url, "--replicas", "1..2", "-q", "orders#1")
    assert rabbitmq.queues() == {}
    assert "must be such as http://" in refusal(
        rabbitmq.url, "--replicas", "1..2", "--management", "localhost"
    )
    blind = ("--policy", "feed-forward", "--management", "none")
    assert "cannot act with --management none" in refusal(
        rabbitmq.url, "--replicas", "1..2", *blind
    )
    beyond = refusal(rabbitmq.url, "--replicas", "1..4", "--to", "9")
    assert "--to 9 is not within --replicas 1..4" in beyond
    assert "--auto" not in beyond
    assert "one of them" in refusal(rabbitmq.url, "--off", "--to", "3")
    assert "there is no queue orders" in refusal(rabbitmq.url, "--to", "3")
    assert "password on the command line" in refusal("amqp://ada:secret@127.0.0.1/", "--status")
    stranger = {"TIDEGATE_URL": rabbitmq.url_of("nobody", "secret")}
    found = command_line("steer", "-q", "orders", "--status", environment=stranger)
    assert "refuses the user or the password: user 'nobody'" in found.stderr.decode()
    assert "TIDEGATE_URL" in found.stderr.decode()
    assert "secret" not in found.stderr.decode()
