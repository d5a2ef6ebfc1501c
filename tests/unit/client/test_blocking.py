"""The same API without async: plain calls from plain threads."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator

import pytest
from waiting import LIMIT_S, eventually

import tidegate
from tidegate.broker.node import Node
from tidegate.client.blocking import BlockingClient, LoopThread
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.storage.memory import MemoryStore


@pytest.fixture
def address() -> Iterator[str]:
    """A node in a thread of its own."""
    thread = LoopThread()

    async def start() -> Node:
        node = Node(MemoryStore())
        await node.start()
        return node

    node = thread.wait(start())
    yield node.address
    thread.wait(node.stop())
    thread.stop()


def test_everything_the_async_client_does_is_there() -> None:
    internal = {"open", "close", "spawn", "connected", "queue_id", "transport", "info"}
    internal |= {"reconnect_s", "note_queue", "outage", "generation", "adopt_policy"}
    public = {
        name
        for name, member in inspect.getmembers(Client)
        if not name.startswith("_") and (callable(member) or isinstance(member, property))
    }
    told_by_the_client_to_itself = {name for name in public if name.startswith(("forget_", "on_"))}
    missing = public - internal - told_by_the_client_to_itself - set(dir(BlockingClient))
    assert not missing


def parameters_of(method: object) -> list[tuple[str, str, object]]:
    """Return the name, the kind and the default of each parameter."""
    assert callable(method)
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind.name, each.default) for each in parameters]


def test_methods_take_the_arguments_of_the_async_client() -> None:
    different = {
        name: (parameters_of(method), parameters_of(getattr(Client, name)))
        for name, method in inspect.getmembers(BlockingClient, inspect.isfunction)
        if not name.startswith("_")
        and parameters_of(method) != parameters_of(getattr(Client, name))
    }
    assert not different


def test_temporary_queues_and_stats_of_one_node(address: str) -> None:
    with tidegate.connect(address) as mq:
        mq.create_queue("for-now", ephemeral=True)
        assert mq.stats("for-now", steps=2).queue("for-now") is not None
        assert mq.node_stats(steps=None, durations=False).queue("for-now") is not None
    with tidegate.connect(address) as mq:
        eventually(lambda: not mq.queues())


def test_puts_reads_and_queues(address: str) -> None:
    with tidegate.connect(address, name="me", mode="admin") as mq:
        assert (mq.client_name, mq.mode) == ("me", "admin")
        assert mq.ping() > 0
        queue = mq.create_queue("orders")
        assert mq.queues() == [queue]
        assert mq.queue("orders") == mq.queue(queue.queue_id) == queue
        first = mq.put("orders", b"1", priority=3, headers={"a": "b"})
        ids = mq.put_many("orders", [b"2", b"3"])
        assert first < ids[0] < ids[1]
        assert [m.payload for m in mq.browse("orders")] == [b"1", b"2", b"3"]
        assert mq.active_queues() == [queue]
        message = mq.get("orders")
        assert (message.payload, message.headers) == (b"1", {"a": "b"})
        held = mq.get("orders", lease=60)
        held.extend(60)
        held.nack(delay=0)
        again = mq.get("orders", lease=60)
        assert again.delivery_count == 2
        again.ack_confirmed()
        assert mq.purge("orders") == 1
        with pytest.raises(e.NoMessagesInQueue):
            mq.get("orders", wait=0.01)
        with pytest.raises(e.InvalidValue):
            mq.put("orders", b"", priority=11)
        assert mq.put_to(["orders"], b"x", context=4) == ["orders"]
        assert mq.stats("orders").queue("orders").waiting == 1  # type: ignore[union-attr]
        assert len(mq.members()) == 1
        mq.delete_queue("orders")
        assert mq.queues() == []
        mq.delete_client()


def test_transactions(address: str) -> None:
    with tidegate.connect(address) as mq:
        mq.create_queue("orders")
        mq.create_queue("shipped")
        mq.put("orders", b"1")
        held = mq.get("orders", lease=60)
        with mq.transaction() as tx:
            tx.ack(held)
            tx.put("shipped", b"2", priority=9)
        (shipped,) = mq.browse("shipped")
        assert (tx.message_ids, shipped.priority) == ([shipped.message_id], 9)
        with pytest.raises(e.LeaseLost), mq.transaction() as tx:
            tx.ack(held)
        with pytest.raises(ZeroDivisionError), mq.transaction() as tx:
            tx.put("shipped", b"%d" % (1 // 0))
        assert len(mq.browse("shipped")) == 1
        with pytest.raises(e.NoMessagesInQueue):
            mq.get("orders")


def test_topics(address: str) -> None:
    with tidegate.connect(address) as mq:
        topic = mq.create_topic("news")
        mq.subscribe_to("news", "eu", filter={"region": "eu"})
        mq.subscribe_to("news", "guest", durable=False)
        assert mq.publish("news", b"1", headers={"region": "eu"}) == 2
        assert mq.publish_many("news", [b"2", b"3"]) == [1, 1]
        assert [m.payload for m in mq.browse("eu")] == [b"1"]
        assert [s.queue for s in mq.topics()[0].subscriptions] == ["eu", "guest"]
        mq.unsubscribe_from("news", "eu")
        mq.delete_topic("news")
        assert (mq.topics(), mq.create_topic("news").topic_id > topic.topic_id) == ([], True)


def test_put_soon_and_flush(address: str) -> None:
    with tidegate.connect(address) as mq:
        mq.create_queue("orders")
        futures = [mq.put_soon("orders", b"%d" % n) for n in range(100)]
        mq.flush()
        assert all(future.result(timeout=LIMIT_S) for future in futures)
        assert len(mq.browse("orders")) == 100


def test_subscriptions_and_batches(address: str) -> None:
    with tidegate.connect(address) as mq:
        mq.create_queue("orders")
        mq.put_many("orders", [b"%d" % n for n in range(20)])
        received: list[bytes] = []
        with mq.subscribe("orders", prefetch=5) as subscription:
            for message in subscription:
                received.append(message.payload)
                message.ack()
                if len(received) == 10:
                    break
            subscription.set_prefetch(20)
        with mq.subscribe("orders", prefetch=20) as subscription:
            for batch in subscription.batches():
                received += batch.payloads
                batch.ack()
                if len(set(received)) == 20:
                    break
        assert set(received) == {b"%d" % n for n in range(20)}


def test_a_request_is_answered_by_another_thread(address: str) -> None:
    def serve() -> None:
        with tidegate.connect(address) as worker:
            request = worker.get("sums", wait=LIMIT_S)
            worker.reply(request, b"%d" % sum(map(int, request.payload.split())))

    with tidegate.connect(address) as mq:
        mq.create_queue("sums")
        thread = threading.Thread(target=serve)
        thread.start()
        assert mq.request("sums", b"1 2 3", timeout=LIMIT_S).payload == b"6"
        thread.join(timeout=LIMIT_S)


def test_a_closed_client_says_so_and_leaves_no_thread(address: str) -> None:
    before = threading.active_count()
    with tidegate.connect(address) as mq:
        mq.ping()
    with pytest.raises(e.Unavailable):
        mq.ping()
    assert threading.active_count() == before


def test_blocking_connect_fails_at_once_without_a_node() -> None:
    before = threading.active_count()
    with pytest.raises(e.Unavailable), tidegate.connect("tidegate://127.0.0.1:1"):
        pass
    assert threading.active_count() == before


def test_several_threads_share_a_client(address: str) -> None:
    with tidegate.connect(address) as mq:
        mq.create_queue("orders")

        def put(start: int) -> None:
            for n in range(start, start + 50):
                mq.put("orders", b"%d" % n)

        threads = [threading.Thread(target=put, args=(100 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=LIMIT_S)
        assert len(mq.browse("orders", limit=1000)) == 200
