"""Workers of a logical queue: where they work, and how they end."""

from __future__ import annotations

import asyncio

import pytest
from backing import Connect
from logical_queue import LogicalQueue
from waiting import eventually_async

import tidegate
from tidegate.broker.node import Node
from tidegate.broker.replica import Replica
from tidegate.client.client import Client
from tidegate.core import errors as e


@pytest.fixture
async def mq(node: Node, connect: Connect) -> Client:
    return await connect(node, mode="admin")


async def test_told_to_stop_a_worker_finishes_what_runs_and_returns_the_rest(
    node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    await mq.put_many("orders", [b"%d" % n for n in range(12)])
    monkeypatch.setenv("TIDEGATE_REPLICA", "orders#2")
    two = node.replicas[(await orders.place(2)).queue_id]
    app = tidegate.App(node.address)
    begun, may_end = asyncio.Event(), asyncio.Event()
    done: list[bytes] = []

    @app.worker("orders", concurrency=1, prefetch=4)
    async def ship(payload: bytes) -> None:
        begun.set()
        await may_end.wait()
        done.append(payload)

    serving = asyncio.create_task(app.serve())
    await begun.wait()
    await eventually_async(lambda: two.numbers().unacknowledged == 4)
    app.stop()
    await eventually_async(lambda: (two.numbers().unacknowledged, two.numbers().waiting) == (1, 5))
    may_end.set()
    await serving

    assert len(done) == 1
    await eventually_async(lambda: two.numbers().acked == 1)
    assert await orders.waiting() == {0: 0, 1: 6, 2: 5}
    # As if they had never been delivered: no failure counts against them.
    assert two.numbers().returned == 0 or two.numbers().dead_lettered == 0


def _prefetches(replica: Replica) -> list[tuple[int, int]]:
    """Return the prefetch of each consumer, and how many messages it has not acknowledged."""
    return [(each.prefetch, each.unacknowledged) for each in replica.numbers().consumers]


async def test_a_worker_goes_over_while_it_works(node: Node, mq: Client) -> None:
    orders = await LogicalQueue.make(mq, [node], 2)
    one, two = await orders.place(1), await orders.place(2)
    await mq.put_many("orders", [b"%d" % n for n in range(20)])
    app = tidegate.App(node.address)
    done: list[bytes] = []
    may_go_on = asyncio.Event()

    @app.worker("orders", concurrency=2)
    async def ship(payload: bytes) -> None:
        done.append(payload)
        if len(done) <= 2:
            await may_go_on.wait()

    async with app.running():
        await eventually_async(lambda: len(done) == 2)
        here = next(p for p in (one, two) if node.replicas[p.queue_id].numbers().consumers)
        there = two if here is one else one
        await mq.migrate("orders", "consumer", here.queue_id, there.queue_id)  # type: ignore[arg-type]
        await eventually_async(lambda: bool(node.replicas[there.queue_id].numbers().consumers))
        # Until then the first replica may still deliver: the client subscribes there first.
        await eventually_async(lambda: _prefetches(node.replicas[here.queue_id]) == [(0, 2)])
        may_go_on.set()
        await eventually_async(lambda: len(done) >= 12)
        await eventually_async(lambda: not node.replicas[here.queue_id].numbers().consumers)

    assert len(set(done)) == 12
    assert await orders.waiting() == {0: 0, here.number: 8, there.number: 0}


async def test_the_environment_says_which_replica(
    node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await LogicalQueue.make(mq, [node], 2)
    monkeypatch.setenv("TIDEGATE_REPLICA", "parcels#7")
    async with mq.subscribe("orders") as free:
        assert free.replica is not None
    monkeypatch.setenv("TIDEGATE_REPLICA", "orders#7")
    with pytest.raises(e.QueueNotExisting, match="no replica 7"):
        async with mq.subscribe("orders"):
            pass
    monkeypatch.setenv("TIDEGATE_REPLICA", "orders")
    with pytest.raises(e.InvalidValue, match="names no replica"):
        mq.subscribe("orders")


def test_the_blocking_api_knows_logical_queues() -> None:
    from tidegate.core.topology import Range, Scaling
    from tidegate.testing.broker import BlockingBroker

    with BlockingBroker() as broker:
        mq = broker.connect(mode="admin")
        mq.create_queue("orders")
        broker.scale("orders", 2)
        assert [place.number for place in mq.topology("orders").replicas] == [1, 2]
        mq.put_many("orders", [b"1", b"2"])
        with mq.producer("orders") as producer:
            assert producer.replica is None
            producer.put(b"3")
        with mq.subscribe("orders", replica=2) as subscription:
            assert subscription.replica == 2
        assert {mq.get("orders").payload for _ in range(3)} == {b"1", b"2", b"3"}
        with pytest.raises(e.InvalidValue, match="still has replicas"):
            mq.set_scaling("orders", None)
        mq.set_scaling("orders", Scaling(replicas=Range(1, 2)))
        mq.close()
