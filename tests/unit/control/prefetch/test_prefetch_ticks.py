"""Single ticks of a node's prefetch loop: whom they look at, and what a failure costs others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from steered import QUEUE, fill

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.control.journal import PrefetchJournal
from tidegate.control.learned import PrefetchModels
from tidegate.control.prefetch import ControlledConsumer, PrefetchLoop
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.models import ModelRegistry, StoredModel
from tidegate.telemetry.recorder import Recorder, RecorderOptions

GOAL = PrefetchGoal(rate_per_s=150.0, sample_s=0.15, settle_s=2.4)


def failing_for(prefetch: int) -> Callable[..., Any]:
    """A step that has a bug for consumers that asked for so much."""
    step = ControlledConsumer.step

    def fail(steered: ControlledConsumer, *told: float) -> Any:
        row = step(steered, *told)
        if steered.consumer.asked == prefetch:
            raise ZeroDivisionError("a bug")
        return row

    return fail


async def test_a_consumer_whose_step_fails_costs_the_others_neither_steps_nor_rows(
    node: Node,
    mq: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await mq.create_queue(QUEUE, durable=False)
    await mq.set_policy(QUEUE, prefetch=GOAL)
    await fill(mq, 50)
    monkeypatch.setattr(ControlledConsumer, "step", failing_for(prefetch=3))
    options = RecorderOptions(lake=str(tmp_path / "lake"))
    recorder = Recorder(options)
    recorder.start("ticks")
    journal = PrefetchJournal(node.store, recorder, node.clock.wall)
    steerable = node.ownership.with_prefetch_goal
    loop = PrefetchLoop(steerable, node.name, journal, recorder=recorder, clock=node.clock)
    async with (
        mq.subscribe(QUEUE, prefetch=3),
        mq.subscribe(QUEUE, prefetch=4),
        mq.subscribe(QUEUE, prefetch=5),
    ):
        now = node.clock.monotonic()
        with caplog.at_level(logging.ERROR):
            for tick in range(40):
                loop.run_once(now + 0.05 * tick)
        assert loop.steered == 3
    recorder.stop()
    lake = Lake(options.lake)
    rows = [row for file in lake.files("control_steps") for row in lake.read(file).to_pylist()]
    # Twelve samples in two seconds, less the first one and where each began.
    steps = [sum(row["consumer"] == one for row in rows) for one in {r["consumer"] for r in rows}]
    assert len(steps) == 2
    assert min(steps) >= 9
    [said] = [record for record in caplog.records if "keeps what it has" in record.message]
    assert said.exc_info is not None


async def test_a_loop_looks_at_no_queue_without_a_goal_wherever_the_goal_comes_from(
    node: Node, mq: Client
) -> None:
    await mq.create_queue("plain", durable=False)
    await mq.create_queue("born", durable=False, policy=QueuePolicy(prefetch=GOAL))
    await mq.create_queue(QUEUE, durable=False)
    steerable = node.ownership.with_prefetch_goal

    def names() -> set[str]:
        return {replica.info.name for replica in steerable.values()}

    for queue in ("plain", "born", QUEUE):
        await mq.put(queue, b"x")
    assert names() == {"born"}
    await mq.set_policy(QUEUE, prefetch=GOAL)
    assert names() == {"born", QUEUE}
    await mq.set_policy("born", prefetch=None)
    assert names() == {QUEUE}
    await mq.delete_queue(QUEUE)
    assert names() == set()


async def test_learned_models_are_read_only_for_a_goal(
    node: Node, mq: Client, tmp_path: Path
) -> None:
    knowledge = ModelRegistry(tmp_path / "knowledge", pytest.fail)
    at = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
    parameters = {"a": 0.2, "b": 60.0}
    known = StoredModel(
        f"{QUEUE}/far", True, "says why", parameters, {"r2_test": 0.9}, 99, 1.0, 2.0
    )
    knowledge.add_models("prefetch", knowledge.begin_run(at), at, [known])
    learned = PrefetchModels(knowledge)
    loop = PrefetchLoop(
        node.ownership.with_prefetch_goal,
        node.name,
        PrefetchJournal(node.store, None, node.clock.wall),
        learned=learned,
        clock=node.clock,
    )
    await mq.create_queue(QUEUE, durable=False)
    await mq.put(QUEUE, b"x")
    now = node.clock.monotonic()
    loop.run_once(now)
    assert not learned.has_any
    own = PrefetchModel(a=0.1, b=72.0)
    await mq.set_policy(QUEUE, prefetch=msgspec.structs.replace(GOAL, model=own))
    loop.run_once(now + 1.0)
    assert not learned.has_any
    await mq.set_policy(QUEUE, prefetch=GOAL)
    loop.run_once(now + 2.0)
    assert learned.has_any
