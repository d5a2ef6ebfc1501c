"""`tidegate tune prefetch` from its options to its files, with a node in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from virtual_nodes import cable

from tidegate.cli import tune as tuning
from tidegate.cli.app import app
from tidegate.client.client import Client
from tidegate.core.prefetch import PrefetchModel
from tidegate.engines import probe
from tidegate.testing.broker import Broker
from tidegate.testing.virtual_time import VirtualTimeLoop
from tidegate_lab.faults.proxy import TcpProxy

# 40 ms there and back, 5 ms of work: 22 msg/s a unit of prefetch, and 200 is the most.
ASKED = (
    *("--settle", "8s", "--sample", "200ms", "--to", "24", "--duration", "14s"),
    *("--handler-time", "5ms"),
)


class Bench:
    """A node with a queue at the end of a long cable, and the command line."""

    def __init__(self, runner: asyncio.Runner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder
        self._broker = Broker()

    def begin(self) -> None:
        async def begin() -> tuple[Client, TcpProxy]:
            await self._broker.start()
            mq = await self._broker.connect()
            await mq.create_queue("orders")
            return mq, await cable(self._broker.url, 0.02).__aenter__()

        self.mq, self._cable = self._runner.run(begin())
        self.url, self.near_url = self._cable.url, self._broker.url

    def end(self) -> None:
        async def end() -> None:
            await self._cable.__aexit__()
            await self._broker.stop()

        self._runner.run(end())

    def tune(self, *arguments: str) -> Any:
        return CliRunner().invoke(app, ["tune", "prefetch", *arguments])

    def policy(self) -> Any:
        async def look() -> Any:
            return (await self.mq.queue("orders")).policy

        return self._runner.run(look())

    def files(self) -> list[str]:
        return sorted(file.name for file in self._folder.iterdir())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.chdir(tmp_path)
    paced = partial(probe.PacedHandler, monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(probe, "PacedHandler", paced)
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        monkeypatch.setattr(tuning, "run_on_worker_loop", runner.run)
        bench = Bench(runner, tmp_path)
        bench.begin()
        yield bench
        bench.end()


def test_a_consumer_far_away_gets_a_model_gains_and_a_picture(bench: Bench, tmp_path: Path) -> None:
    done = bench.tune(
        *(bench.url, "--queue", "orders", "--target", "100/s", *ASKED, "--plot", "fit.png")
    )

    assert done.exit_code == 0, done.output
    assert "not your handler" in done.output
    for word in ("R² ", "RMSE ", "poles ", "Kp = ", "Ki = ", "overshoot", "@app.worker"):
        assert word in done.output
    model = PrefetchModel.load(tmp_path / "orders.model.json")
    assert model.r2_test >= 0.95
    # 25 by the cable alone, 22 with the handler.
    assert 20.0 < model.b / (1.0 - model.a) < 26.0
    assert (tmp_path / "fit.png").read_bytes().startswith(b"\x89PNG")


def test_a_target_above_the_ceiling_is_refused_with_the_ceiling(bench: Bench) -> None:
    done = bench.tune(
        *(bench.url, "--queue", "orders", "--target", "900/s", *ASKED, "--plot", "why.png")
    )

    assert (done.exit_code, done.stdout) == (1, "")
    assert "900 msg/s is above the ceiling: 200 msg/s" in str(done.exception)
    # What was measured is shown, and nothing is designed.
    assert bench.files() == ["why.png"]


def test_json_is_the_model_and_what_is_applied_is_the_queues_goal(bench: Bench) -> None:
    asked = ("--queue", "orders", "--target", "100/s")
    done = bench.tune(bench.url, *asked, *ASKED, "--apply", "--json")
    policy = bench.policy()
    again = bench.tune(bench.near_url, *asked)

    assert done.exit_code == 0, done.output
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed["model"]["engine"] == "tidegate"
    assert printed["model"]["controller"]["kind"] == "PI"
    assert printed["open_loop"][0]["prefetch"] == 1
    assert policy.prefetch.rate_per_s == 100.0
    assert policy.prefetch.model.b == printed["model"]["b"]
    # Two hands on one wheel would measure each other.
    assert again.exit_code == 1
    assert "--prefetch-off" in str(again.exception)


def test_tune_prints_the_applied_goal(bench: Bench) -> None:
    done = bench.tune(
        *(bench.url, "--queue", "orders", "--target", "100/s", *ASKED, "--apply"),
    )

    assert done.exit_code == 0, done.output
    assert "applied     the nodes steer the consumers of orders from now on" in done.stdout


def test_a_prefetch_that_does_not_matter_says_which_to_set(bench: Bench) -> None:
    done = bench.tune(
        *(bench.near_url, "-q", "orders", "--target", "9/s"),
        # Without a cable one message is there before the one before it is done.
        *("--handler-time", "20ms", "--sample", "200ms", "--to", "12"),
    )

    assert done.exit_code == 1
    assert "A fixed prefetch of " in str(done.exception)
