"""What a node records: every row is what happened, and adds up to it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from backing import Connect, StartNode, TurnedClock
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.broker.recording import WATCHED_MAX
from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import NodeLimits
from tidegate.telemetry.lake import Lake
from tidegate.telemetry.recorder import Recorder, RecorderOptions
from tidegate.telemetry.schemas import KINDS

Record = dict[str, Any]

# Tests sample when they want to; nothing happens by itself.
OPTIONS = {"interval_s": 60.0, "flush_s": 600.0}


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
async def node(start_node: StartNode, clock: TurnedClock, tmp_path: Path) -> Node:
    # Whoever turns the clock has not been silent.
    limits = NodeLimits(heartbeat_s=3600.0, lease_s=3600.0)
    return await recording_node(start_node, tmp_path, clock=clock, limits=limits)


async def recording_node(start_node: StartNode, folder: Path, **settings: Any) -> Node:
    recorder = Recorder(RecorderOptions(lake=str(folder / "lake"), **OPTIONS))
    return await start_node(recorder=recorder, **settings)


async def records(node: Node, kind: str) -> list[Record]:
    """Everything of one kind, up to now."""
    assert node.recording is not None
    await node.recording.sample()
    assert await asyncio.to_thread(node.recording.recorder.flush)
    return in_lake(node.recording.recorder.lake, kind)


def in_lake(location: str, kind: str) -> list[Record]:
    lake = Lake(location)
    rows = [row for file in lake.files(kind) for row in lake.read(file).to_pylist()]
    return sorted(rows, key=lambda row: row["at"])


def total(rows: list[Record], column: str, **where: object) -> Any:
    return sum(
        row[column] for row in rows if all(row[name] == value for name, value in where.items())
    )


def counted(rows: list[Record], column: str) -> int:
    """How many durations the histograms of a column hold."""
    return sum(bucket["count"] for row in rows for bucket in row[column])


@pytest.fixture
async def taken(mq: Client) -> Client:
    """A queue into which five were put, and of which three were taken."""
    await mq.create_queue("orders")
    for number in range(5):
        await mq.put("orders", b"%d" % number)
    for _ in range(3):
        await mq.get("orders")
    await mq.ping()  # a client says that it has read, and waits for no answer
    return mq


async def test_a_queues_samples_add_up_to_what_happened(node: Node, taken: Client) -> None:
    [first] = await records(node, "queue_samples")
    assert (first["put"], first["delivered"], first["acked"]) == (5, 3, 3)
    assert (first["waiting"], first["unacknowledged"], first["producers"]) == (2, 0, 1)
    assert (first["node"], first["queue"], first["epoch"]) == (node.name, "orders", 1)
    assert first["oldest_age_s"] > 0
    assert counted([first], "wait") == counted([first], "service") == 3
    assert first["wait_s_sum"] > 0

    # An interval in which nothing happened is a row of zeros, and of how things stand.
    *_, idle = await records(node, "queue_samples")
    assert (idle["put"], idle["delivered"], idle["wait"], idle["service"]) == (0, 0, [], [])
    assert (idle["waiting"], idle["producers"], idle["wait_s_sum"]) == (2, 0, 0.0)

    await taken.get("orders")
    await taken.ping()
    rows = await records(node, "queue_samples")
    assert [row["acked"] for row in rows] == [3, 0, 1]
    assert counted(rows, "wait") == 4
    assert total(rows, "interval_s") == pytest.approx(
        (rows[-1]["at"] - rows[0]["at"]).total_seconds() + rows[0]["interval_s"], abs=0.05
    )


async def test_every_kind_that_nodes_record_has_rows(node: Node, taken: Client) -> None:
    async with taken.subscribe("orders", prefetch=1) as subscription:
        await anext(aiter(subscription))
        # The others are what loops and doors record.
        others = {"decisions", "control_steps", "http_samples", "http_probes", "http_requests"}
        for kind in KINDS.keys() - others:
            assert await records(node, kind), kind


async def test_a_consumers_samples_are_what_identification_needs(
    node: Node, mq: Client, clock: TurnedClock, connect: Connect
) -> None:
    worker = await connect(node, name="worker@host-1#7", mode="admin")
    await mq.create_queue("orders")
    async with worker.subscribe("orders", prefetch=3) as subscription:
        messages = aiter(subscription)

        async def work(count: int) -> None:
            for _ in range(count):
                await mq.put("orders", b"x")
                (await anext(messages)).ack()
            await worker.ping()
            clock.turn(60.0)

        await work(4)
        [first] = await records(node, "consumer_samples")
        await work(2)
        await worker.set_consumer_prefetch("orders", worker.client_id, 1, 5)
        *_, second = await records(node, "consumer_samples")
        await work(3)
        *_, third = await records(node, "consumer_samples")
        # A gap: the interval is too long to follow the one before
        clock.turn(120.0)
        await work(1)
        *_, fourth = await records(node, "consumer_samples")
        await work(1)
        *_, fifth = await records(node, "consumer_samples")

    assert (first["group"], first["client"]) == ("orders/worker", "worker@host-1#7")
    assert (first["delivered"], first["acked"], first["prefetch"]) == (4, 4, 3)
    assert counted([first], "service") == 4
    assert first["arrival_per_s"] == pytest.approx(4 / 60, rel=0.05)
    assert (first["arrival_before_per_s"], first["prefetch_before"]) == (None, None)
    assert second["arrival_before_per_s"] == first["arrival_per_s"]
    assert (second["prefetch_before"], second["prefetch"]) == (3, 5)
    assert third["arrival_before_per_s"] == second["arrival_per_s"]
    assert third["prefetch_before"] == 5
    assert (fourth["arrival_before_per_s"], fourth["prefetch_before"]) == (None, None)
    assert (fifth["arrival_before_per_s"], fifth["prefetch_before"]) == (None, None)


async def test_samples_include_a_consumer_that_ended(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put_many("orders", [b"a", b"b"])
    async with mq.subscribe("orders", prefetch=1) as subscription:
        messages = aiter(subscription)
        for _ in range(2):
            (await anext(messages)).ack()
        await mq.ping()

    rows = await records(node, "consumer_samples")
    assert (total(rows, "delivered"), total(rows, "acked")) == (2, 2)
    assert await records(node, "consumer_samples") == rows


async def test_samples_include_a_deleted_queue(node: Node, taken: Client) -> None:
    await taken.delete_queue("orders")

    rows = await records(node, "queue_samples")
    assert (total(rows, "put"), total(rows, "acked")) == (5, 3)
    assert rows[-1]["waiting"] == 0
    assert await records(node, "queue_samples") == rows
    events = await records(node, "events")
    assert [(event["event"], event["subject"]) for event in events] == [
        ("join", str(node.member_id)),
        ("own", "orders"),
        ("disown", "orders"),
    ]


async def test_a_node_says_what_it_did_and_who_was_there(
    node: Node, taken: Client, connect: Connect
) -> None:
    reader = await connect(node)
    await taken.create_queue("empty")
    waiting = asyncio.create_task(reader.get("empty", wait=LIMIT_S))
    async with taken.subscribe("orders", prefetch=1) as subscription:
        await anext(aiter(subscription))
        await eventually_async(
            lambda: any(each.dispatch.readers.count for each in node.replicas.values())
        )
        rows = await records(node, "node_samples")
    await taken.put("empty", b"")
    await waiting

    row = rows[0]
    assert (row["role"], row["member_id"], row["queues"]) == ("node", node.member_id, 2)
    assert (row["connections"], row["producers"]) == (2, 1)
    assert (row["consumers"], row["readers"]) == (1, 1)
    assert (row["put"], row["delivered"], row["acked"]) == (5, 4, 3)
    assert (row["committed_messages"], row["rows_dropped"]) == (5, 0)
    assert 1 <= row["commits"] <= 5
    assert row["packets_in"] > 8
    assert row["process_memory_bytes"] > 1e6
    assert 0 < row["cpu_s"] < 60


async def test_requests_of_who_asks_one_thing_at_a_time_have_their_phases(
    node: Node, taken: Client
) -> None:
    rows = await records(node, "requests")

    assert total(rows, "weight", verb="PutMessages") == 5
    assert total(rows, "weight", verb="ReadMessage") == 3
    for row in rows:
        parts = ("wait_client_us", "parse_us", "store_us", "wait_message_us", "respond_us")
        assert sum(row[part] for part in parts) == pytest.approx(row["total_us"], abs=1.0)
        assert min(row[part] for part in parts) >= 0
    put = next(row for row in rows if row["verb"] == "PutMessages")
    assert put["store_us"] > 0
    assert put["wait_message_us"] == 0


async def test_the_lifecycle_of_a_message_that_was_acknowledged(
    node: Node, mq: Client, clock: TurnedClock
) -> None:
    await mq.create_queue("orders")
    message_id = await mq.put("orders", b"four")
    clock.turn(2.0)
    message = await mq.get("orders", lease=60)
    clock.turn(3.0)
    message.ack()
    await mq.ping()

    [row] = await records(node, "lifecycles")
    assert (row["message_id"], row["queue"], row["outcome"]) == (message_id, "orders", "acked")
    assert (row["weight"], row["payload_bytes"], row["deliveries"]) == (1.0, 4, 1)
    assert row["wait_us"] == pytest.approx(2e6, rel=0.05)
    assert row["service_us"] == pytest.approx(3e6, rel=0.05)
    assert row["response_us"] == pytest.approx(5e6, rel=0.05)
    assert (row["at"] - row["put_at"]).total_seconds() == pytest.approx(5.0, rel=0.05)
    parts = [row[name] for name in ("parse_us", "store_us", "wait_us", "service_us")]
    assert sum(parts) == pytest.approx(row["response_us"], rel=0.02)
    assert row["respond_us"] > 0


async def test_lifecycles_end_in_many_ways(node: Node, mq: Client, clock: TurnedClock) -> None:
    await mq.create_queue("given-up", policy=QueuePolicy(deliveries_max=2, retry_first_s=0))
    await mq.put("given-up", b"")
    for _ in range(2):
        await (await mq.get("given-up", lease=60)).nack()
    await mq.create_queue("nowhere", policy=QueuePolicy(dead_letter=""))
    await mq.put("nowhere", b"")
    await (await mq.get("nowhere", lease=60)).reject()
    await mq.create_queue("short", policy=QueuePolicy(ttl_s=1))
    await mq.put("short", b"")
    await mq.create_queue("purged")
    await mq.put_many("purged", [b"", b""])
    await mq.purge("purged")
    await mq.create_queue("by-id")
    by_id = await mq.put_many("by-id", [b"", b""])
    await mq.ack_ids("by-id", [(by_id[0], by_id[1])])
    await mq.create_queue("automatic")
    async with mq.subscribe("automatic", prefetch=10, ack="automatic") as subscription:
        await mq.put("automatic", b"")
        await anext(aiter(subscription))
    clock.turn(2.0)
    for replica in list(node.replicas.values()):
        replica.tick()
    await mq.get("given-up.dead", wait=LIMIT_S)
    await mq.ping()

    rows = await records(node, "lifecycles")
    found = {(row["queue"], row["outcome"], row["deliveries"]) for row in rows}
    assert found == {
        ("given-up", "dead", 2),
        ("given-up.dead", "acked", 1),
        ("nowhere", "dropped", 1),
        ("short", "expired", 0),
        ("purged", "purged", 0),
        # Nobody can say when who read it did.
        ("by-id", "acked", 0),
        ("automatic", "acked", 1),
    }
    assert total(rows, "weight", queue="purged") == 2
    for row in rows:
        assert (row["wait_us"] is None) == (row["deliveries"] == 0)
        # What came from another queue was nobody's put.
        assert (row["parse_us"] is None) == (row["queue"] == "given-up.dead")


async def test_weights_of_lifecycles_add_up_however_many_come(node: Node, mq: Client) -> None:
    await mq.create_queue("orders")
    count = 60_000
    async with mq.subscribe("orders", prefetch=5000) as subscription:
        putting = asyncio.create_task(mq.put_many("orders", [b"x"] * count))
        seen = 0
        async for message in subscription:
            message.ack()
            seen += 1
            if seen == count:
                break
        await putting
        await mq.ping()

    rows = await records(node, "lifecycles")
    assert total(rows, "weight") == pytest.approx(count, rel=0.1)
    # The options say 50 a second, and the interval is a minute: 3 000, and again for doublings.
    assert len(rows) < 20_000
    assert {row["outcome"] for row in rows} == {"acked"}


async def test_sampled_lifecycles_are_bounded_and_weights_add_up(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    options = RecorderOptions(lake=str(tmp_path / "lake"), **OPTIONS, lifecycles_per_s=1000)
    node = await start_node(recorder=Recorder(options))
    mq = await connect(node)
    await mq.create_queue("orders")
    count = 2 * WATCHED_MAX + 5000
    await mq.put_many("orders", [b"x"] * count)
    assert node.recording is not None
    [replica] = node.replicas.values()
    watch = replica.context.watch
    assert watch is not None
    assert sum(map(len, watch.segments.values())) <= WATCHED_MAX

    await mq.purge("orders")
    rows = await records(node, "lifecycles")
    assert total(rows, "weight", outcome="purged") == pytest.approx(count, rel=0.02)
    assert watch.segments == {}


async def test_a_queue_that_moves_is_recorded_by_both_and_nothing_counts_twice(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    first = await recording_node(start_node, tmp_path)
    second = await recording_node(start_node, tmp_path)
    mq = await connect(first, mode="admin")
    await mq.create_queue("orders")
    queue_id = await mq.queue_id("orders")
    for number in range(4):
        await mq.put("orders", b"%d" % number)
    await mq.set_owner("orders", second.member_id)
    for _ in range(4):
        await mq.get("orders", wait=LIMIT_S)
    await mq.ping()
    await eventually_async(lambda: second.replicas[queue_id].is_empty)

    await records(first, "queue_samples")
    rows = await records(second, "queue_samples")
    assert (total(rows, "put"), total(rows, "acked")) == (4, 4)
    assert total(rows, "put", node=first.name) == 4
    assert total(rows, "acked", node=second.name) == 4
    assert min(row["epoch"] for row in rows if row["node"] == second.name) > 1
    events = [(row["node"], row["event"]) for row in await records(first, "events")]
    assert (first.name, "disown") in events
    assert (second.name, "takeover") in events or (second.name, "own") in events


async def test_a_wall_clock_that_jumps_neither_loses_rows_nor_bends_intervals(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    clock = TurnedClock()
    jumped = [0.0]
    clock.wall = lambda: time.time() + jumped[0]
    node = await recording_node(start_node, tmp_path, clock=clock)
    mq = await connect(node)
    await mq.create_queue("orders")
    for jumped[0] in (0.0, 5 * 3600.0, -26 * 3600.0):
        await mq.put("orders", b"x")
        rows = await records(node, "queue_samples")

    lake = Lake(str(tmp_path / "lake"))
    hours = sorted(file.hour for file in lake.files("queue_samples"))
    now = int(time.time()) // 3600
    assert [hour - now for hour in hours] == pytest.approx([-26, 0, 5], abs=1)
    assert total(rows, "put") == 3
    assert all(0 <= row["interval_s"] < 10 for row in rows)


async def test_the_last_second_before_a_stop_is_recorded_too(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    node = await recording_node(start_node, tmp_path)
    mq = await connect(node)
    await mq.create_queue("orders")
    await mq.put("orders", b"x")
    await node.stop()

    assert total(in_lake(str(tmp_path / "lake"), "queue_samples"), "put") == 1
    events = [row["event"] for row in in_lake(str(tmp_path / "lake"), "events")]
    assert (events[0], events[-1]) == ("join", "leave")


async def test_many_queues_are_sampled_without_a_stall(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    node = await recording_node(start_node, tmp_path)
    mq = await connect(node)
    await asyncio.gather(*(mq.create_queue(f"queue-{n}", durable=False) for n in range(500)))
    await asyncio.gather(*(mq.put(f"queue-{n}", b"x") for n in range(500)))
    assert node.recording is not None
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    await node.recording.sample()
    counting.cancel()

    # Others had their turn all the time, and nobody is missing.
    assert turns >= 9
    rows = await records(node, "queue_samples")
    assert len(rows) == 1000
    assert total(rows, "put") == 500


async def test_messages_flow_and_rows_are_counted_while_the_lake_cannot_be_written(
    start_node: StartNode, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "lake").write_text("in the way")
    options = RecorderOptions(lake=str(tmp_path / "lake"), **OPTIONS, rows_max=4)
    node = await start_node(recorder=Recorder(options))
    mq = await connect(node)
    await mq.create_queue("orders")
    for _ in range(3):
        await mq.put("orders", b"x")
        await mq.get("orders")
        assert node.recording is not None
        await node.recording.sample()
        await asyncio.to_thread(node.recording.recorder.flush)
    numbers = (await mq.stats()).nodes[0]
    assert numbers.rows_recorded == 0
    assert numbers.rows_dropped > 5

    # The loss itself is on record as soon as there is one again.
    (tmp_path / "lake").unlink()
    await asyncio.to_thread(node.recording.recorder.flush)
    rows = await records(node, "node_samples")
    assert total(rows, "rows_dropped") >= numbers.rows_dropped
