"""Nodes steer consumers behind a cable with a delay, in virtual time; no client knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from backing import Connect, StartNode
from logical_queue import LogicalQueue
from steered import QUEUE, WINDOW, Watch, Worker, fill, level_of, rate_of, steering
from virtual_nodes import cable

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.errors import InvalidValue
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.prometheus import NodeMetrics
from tidegate.telemetry.recorder import Recorder, RecorderOptions
from tidegate.telemetry.stats import ConsumerStats

# 20 ms each way: some 25 messages a second for each unit of prefetch. A sample holds two rounds and
# a half, sometimes two of them and sometimes three: as short as one may be.
DELAY_S = 0.02
SETTLE_S = 1.6
GOAL = PrefetchGoal(rate_per_s=150.0, sample_s=0.1, settle_s=SETTLE_S)
KEEP_UP = PrefetchGoal(sample_s=0.1, settle_s=SETTLE_S)
# Without a model the loop has to learn one first.
LEARNED_S = 4 * SETTLE_S
WINDOW_S = WINDOW * GOAL.sample_s


@pytest.fixture
async def far(node: Node, mq: Client) -> AsyncIterator[Client]:
    """A client behind the delay; `orders` is there, full, and nobody has said how to steer it."""
    await mq.create_queue(QUEUE, durable=False)
    await fill(mq)
    async with steering(node), cable(node.address, DELAY_S) as proxy:
        client = await Client(proxy.url, name="far").open()
        yield client
        await client.close()


@pytest.fixture
def watch(mq: Client) -> Watch:
    return Watch(mq)


async def steer(mq: Client, goal: PrefetchGoal | None) -> None:
    await mq.set_policy(QUEUE, prefetch=goal)


def assert_rate(one: ConsumerStats, wanted_per_s: float, windows: int = 1) -> None:
    """The consumer has had this rate over its last steps."""
    steps = one.control[-windows * WINDOW :]
    assert len(steps) == windows * WINDOW
    assert rate_of(steps) == pytest.approx(wanted_per_s, rel=0.03)


async def test_a_rate_is_held_by_a_consumer_that_knows_nothing_of_it(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=1, slots=1, handler_s=0.0) as worker:
        one = await watch.only(after_s=LEARNED_S + 2 * WINDOW_S)
        assert_rate(one, 150.0, windows=2)
        steps = one.control[-2 * WINDOW :]
        assert all(step.mode == "automatic" for step in steps)
        assert any("samples are short" in str(step.notes) for step in steps)
        # It was told, so that it gathers its acknowledgements accordingly.
        assert worker.subscription.prefetch == pytest.approx(level_of(steps), abs=1.0)


async def test_each_of_two_consumers_gets_the_rate(mq: Client, far: Client, watch: Watch) -> None:
    await steer(mq, GOAL)
    async with (
        Worker(far, prefetch=1, slots=1, handler_s=0.0),
        # One that asked for far too much comes down to the same.
        Worker(far, prefetch=40, slots=2, handler_s=0.0),
    ):
        found = await watch.after(LEARNED_S + WINDOW_S)
        assert len(found) == 2
        for one in found:
            assert_rate(one, 150.0)
            assert level_of(one.control[-WINDOW:]) == pytest.approx(6.0, abs=1.0)


async def test_a_goal_changes_while_it_is_pursued(mq: Client, far: Client, watch: Watch) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=4, slots=1, handler_s=0.0):
        assert_rate(await watch.only(after_s=LEARNED_S + WINDOW_S), 150.0)
        await steer(mq, PrefetchGoal(rate_per_s=80.0, sample_s=0.1, settle_s=SETTLE_S))
        assert_rate(await watch.only(after_s=SETTLE_S + WINDOW_S), 80.0)


async def test_a_person_takes_over_and_leaves_without_a_bump(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=6, slots=1, handler_s=0.0):
        assert_rate(await watch.only(after_s=LEARNED_S + WINDOW_S), 150.0)
        by_hand = PrefetchGoal(rate_per_s=150.0, sample_s=0.1, settle_s=SETTLE_S, manual=9)
        await steer(mq, by_hand)
        one = await watch.only(after_s=0.8)
        assert {(step.mode, step.output) for step in one.control[-3:]} == {("manual", 9)}
        await steer(mq, GOAL)
        one = await watch.only(after_s=0.8)
        first = next(
            step
            for before, step in zip(one.control, one.control[1:], strict=False)
            if before.mode == "manual" and step.mode == "automatic"
        )
        # A step of the controller, from where the person left it; not back to where it had been.
        assert first.level == pytest.approx(9.0, abs=2.0)
        assert_rate(await watch.only(after_s=SETTLE_S + WINDOW_S), 150.0)


async def test_consumers_leave_and_come_and_start_from_what_they_have(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=3, slots=1, handler_s=0.0):
        assert_rate(await watch.only(after_s=LEARNED_S + WINDOW_S), 150.0)
    assert not await watch.after(2 * DELAY_S + 0.2)
    async with Worker(far, prefetch=5, slots=1, handler_s=0.0):
        one = await watch.only(after_s=0.6)
        assert one.control[0].level == pytest.approx(5.0, abs=1.5)
        assert_rate(await watch.only(after_s=LEARNED_S + WINDOW_S), 150.0)


async def test_a_consumer_that_asks_for_less_gets_no_more_and_one_that_drains_nothing(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=5, slots=1, handler_s=0.0) as worker:
        assert await watch.after(0.6)
        await worker.subscription.set_prefetch(2)
        one = await watch.only(after_s=WINDOW_S + 0.2)
        steps = one.control[-WINDOW:]
        assert all(step.output <= 2 for step in steps)
        # Nothing winds up behind its limit.
        assert steps[-1].level < 5.0
        await worker.subscription.drain()
        [one] = (await mq.stats(QUEUE)).nodes[0].queues[0].consumers
        assert one.prefetch == 0


async def test_consumer_gets_its_own_prefetch_back_without_a_goal(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=30, slots=1, handler_s=0.0):
        assert (await watch.only(after_s=LEARNED_S)).prefetch < 20
        await steer(mq, None)
        # The loop looks for goals that have come or gone five times a second.
        assert not await watch.after(0.3)
        [one] = (await mq.stats(QUEUE)).nodes[0].queues[0].consumers
        assert one.prefetch == 30


async def test_set_prefetch_is_refused_for_a_controlled_consumer(
    node: Node, mq: Client, far: Client, watch: Watch, connect: Connect
) -> None:
    await steer(mq, GOAL)
    admin = await connect(node, mode="admin")
    async with Worker(far, prefetch=5, slots=1, handler_s=0.0):
        one = await watch.only(after_s=0.6)
        with pytest.raises(InvalidValue, match="--prefetch-manual"):
            await admin.set_consumer_prefetch(QUEUE, one.client_id, one.consumer, 50)


async def test_a_queue_that_delivers_nothing_winds_nothing_up(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=6, slots=1, handler_s=0.0):
        assert_rate(await watch.only(after_s=LEARNED_S + WINDOW_S), 150.0)
        await mq.pause(QUEUE)
        before = (await watch.only(after_s=0.6)).control[-1]
        assert before.starved
        one = await watch.only(after_s=WINDOW_S)
        assert {step.level for step in one.control[-WINDOW:]} == {before.level}
        await mq.resume(QUEUE)
        assert_rate(await watch.only(after_s=SETTLE_S + WINDOW_S), 150.0)


async def test_a_consumer_that_is_stuck_is_not_given_more_and_more(
    mq: Client, far: Client, watch: Watch
) -> None:
    await steer(mq, GOAL)
    async with Worker(far, prefetch=6, slots=1, handler_s=0.0) as worker:
        assert_rate(await watch.only(after_s=LEARNED_S + WINDOW_S), 150.0)
        worker.handler_s = 1000.0
        # One that acknowledges nothing for two seconds is taken to be stuck.
        before = (await watch.only(after_s=2.5)).control[-1]
        assert before.starved
        after = (await watch.only(after_s=WINDOW_S)).control[-1]
        assert after.level == before.level < 20


@pytest.mark.parametrize(("slots", "handler_s"), [(1, 0.01), (4, 0.04)])
async def test_keeping_up_feeds_every_slot_of_a_handler_and_leaves_the_rest_in_the_queue(
    mq: Client, far: Client, watch: Watch, slots: int, handler_s: float
) -> None:
    capacity_per_s = slots / handler_s
    # On its way and in work: the rate times the round trip and the handler. Beyond it hardly any.
    needed = capacity_per_s * (2 * DELAY_S + handler_s)

    await steer(mq, KEEP_UP)
    # Greedy at first: all that can wait in the consumer does.
    async with Worker(far, prefetch=100, slots=slots, handler_s=handler_s):
        one = await watch.only(after_s=20.0)
        steps = one.control[-2 * WINDOW :]
        assert rate_of(steps) > 0.9 * capacity_per_s
        assert level_of(steps) < needed + 8


async def test_every_step_is_in_telemetry_metrics_and_the_journal(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    options = RecorderOptions(lake=str(tmp_path / "lake"), interval_s=60.0, flush_s=600.0)
    node = await start_node(recorder=Recorder(options))
    mq = await connect(node)
    await mq.create_queue(QUEUE, durable=False, policy=QueuePolicy(prefetch=GOAL))
    await fill(mq, 1500)
    async with steering(node), Worker(mq, prefetch=3, slots=4, handler_s=0.02):
        one = await Watch(mq).only(after_s=WINDOW_S + 1.0)
        assert len(one.control) >= WINDOW
        decisions = await mq.explain(QUEUE)
        queues = [replica.numbers() for replica in node.replicas.values()]
        text = b"".join(NodeMetrics().pieces(node.stats.of_node(queues)))
    assert node.recording is not None
    assert await asyncio.to_thread(node.recording.recorder.flush)
    lake = Lake(options.lake)
    rows = [row for file in lake.files("control_steps") for row in lake.read(file).to_pylist()]
    recorded = {round(row["at"].timestamp(), 3): row for row in rows}
    assert len(recorded) == len(rows)
    for step in one.control:
        row = recorded[round(step.at, 3)]
        assert (row["queue"], row["client"], row["mode"]) == (QUEUE, mq.client_name, step.mode)
        same = ("target_per_s", "rate_per_s", "error_per_s", "wanted", "level", "output")
        assert [row[name] for name in same] == [getattr(step, name) for name in same]
    terms = [row for row in rows if row["mode"] == "automatic" and not row["saturated"]]
    assert terms
    assert any("automatic" in decision.rule for decision in decisions)
    assert (
        f'tidegate_queue_steered_consumers{{node="{node.name}",queue="orders"}} 1'.encode() in text
    )
    assert b"tidegate_queue_prefetch_target_per_second" in text


async def test_a_target_out_of_reach_is_news_once_and_not_with_every_step(
    node: Node, mq: Client
) -> None:
    goal = msgspec.structs.replace(GOAL, rate_per_s=100_000.0, high=6)
    await mq.create_queue(QUEUE, durable=False, policy=QueuePolicy(prefetch=goal))
    await fill(mq, 3000)
    async with steering(node), Worker(mq, prefetch=3, slots=4, handler_s=0.02):
        one = await Watch(mq).only(after_s=LEARNED_S + 2 * WINDOW_S)
        decisions = await mq.explain(QUEUE)
    steps = one.control[-2 * WINDOW :]
    assert sum("the ceiling" in str(step.notes) for step in steps) > WINDOW
    assert 1 <= sum("the ceiling" in one.reason for one in decisions) <= 2


async def test_each_replica_of_an_elastic_queue_steers_its_own_consumers(
    start_node: StartNode, connect: Connect
) -> None:
    nodes = [await start_node(), await start_node()]
    mq, other = await connect(nodes[0]), await connect(nodes[1])
    await LogicalQueue.make(mq, nodes, replicas=2)
    await steer(mq, KEEP_UP)
    await fill(mq, 1000)
    async with (
        steering(nodes[0]),
        steering(nodes[1]),
        Worker(mq, prefetch=4, slots=1, handler_s=0.01),
        Worker(other, prefetch=4, slots=1, handler_s=0.01),
    ):
        assert len(await Watch(mq).after(2.0)) == 2
        found = await mq.stats(QUEUE)
        steered = {
            queue.replica: len(queue.consumers)
            for node in found.nodes
            for queue in node.queues
            if any(one.control for one in queue.consumers)
        }
        assert steered == {1: 1, 2: 1}


@pytest.mark.parametrize(
    ("goal", "complaint"),
    [
        (PrefetchGoal(rate_per_s=0.0), "above 0"),
        (PrefetchGoal(rate_per_s=-3.0), "above 0"),
        (PrefetchGoal(rate_per_s=float("inf")), "above 0"),
        (PrefetchGoal(overshoot=0.9), "overshoot"),
        (PrefetchGoal(settle_s=2.0), "at least 4 samples"),
        (PrefetchGoal(sample_s=0.001, settle_s=1.0), "sample"),
        (PrefetchGoal(low=0), "1 to"),
        (PrefetchGoal(low=9, high=8), "lower one first"),
        (PrefetchGoal(manual=500), "between low 1 and high 360"),
        (PrefetchGoal(model=PrefetchModel(a=1.0, b=3.0)), "|a| < 1"),
        (PrefetchGoal(model=PrefetchModel(a=0.3, b=0.0)), "b > 0"),
        (PrefetchGoal(model=PrefetchModel(a=0.3, b=9.0, ceiling_per_s=float("inf"))), "finite"),
    ],
)
async def test_a_goal_that_makes_no_sense_is_refused(
    mq: Client, goal: PrefetchGoal, complaint: str
) -> None:
    await mq.create_queue(QUEUE, durable=False)
    with pytest.raises(InvalidValue) as refused:
        await steer(mq, goal)
    assert complaint in str(refused.value)
    assert (await mq.queue(QUEUE)).policy.prefetch is None
