"""Topics: published once, every subscription that matches gets it, in one transaction."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from backing import SQL_STORES, Backing, Connect, MemoryBacking, PostgresBacking, StartNode, crash
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.model import (
    Attributes,
    Filter,
    Overflow,
    QueuePolicy,
    check_filter,
    matches_filter,
)
from tidegate.core.runtime import NodeLimits
from tidegate.protocol.catalogue import Publish, PublishResponse
from tidegate.protocol.messages import PutMessages


async def payloads(mq: Client, queue: str) -> list[bytes]:
    return [message.payload for message in await mq.browse(queue, limit=1000)]


@pytest.fixture
async def orders(mq: Client) -> Client:
    """A topic `orders` with subscriptions for all, for the eu, and for two kinds."""
    await mq.create_topic("orders")
    await mq.subscribe_to("orders", "all")
    await mq.subscribe_to("orders", "eu", filter={"region": "eu"})
    await mq.subscribe_to("orders", "kinds", filter={"kind": ["order", "refund"], "region": "eu"})
    return mq


async def test_every_subscription_that_matches_gets_it(orders: Client) -> None:
    assert await orders.publish("orders", b"1") == 1
    assert await orders.publish("orders", b"2", headers={"region": "eu"}) == 2
    assert await orders.publish("orders", b"3", headers={"region": "us"}) == 1
    headers = {"region": "eu", "kind": "refund", "more": "x"}
    assert await orders.publish("orders", b"4", headers=headers, priority=7, context=3) == 3
    assert await orders.publish("orders", b"5", headers={"region": "eu", "kind": "other"}) == 2

    assert await payloads(orders, "all") == [b"1", b"2", b"3", b"4", b"5"]
    assert await payloads(orders, "eu") == [b"2", b"4", b"5"]
    (kind,) = await orders.browse("kinds")
    assert (kind.payload, kind.priority, kind.context, kind.headers) == (b"4", 7, 3, headers)
    taken = await orders.get("eu")
    assert (taken.payload, taken.sender) == (b"2", orders.client_id)
    assert len(await payloads(orders, "all")) == 5


async def test_without_a_subscription_publishing_is_no_error(mq: Client) -> None:
    await mq.create_topic("orders")
    assert await mq.publish("orders", b"1") == 0
    await mq.subscribe_to("orders", "eu", filter={"region": "eu"})
    assert await mq.publish("orders", b"2", headers={"region": "us"}) == 0
    assert await payloads(mq, "eu") == []


async def test_a_batch_is_shared_and_each_gets_its_own(orders: Client) -> None:
    """Put in one turn, they travel and are stored together."""
    counts = await asyncio.gather(
        *(
            orders.publish(
                "orders",
                b"%d" % n,
                headers={"region": "eu" if n % 3 else "us", "kind": "order"},
                priority=5 if n % 5 else 9,
            )
            for n in range(40)
        )
    )
    assert counts == [3 if n % 3 else 1 for n in range(40)]
    eu = [b"%d" % n for n in range(40) if n % 3]
    assert sorted(await payloads(orders, "eu")) == sorted(eu)
    async with orders.subscribe("eu", prefetch=7) as subscription, asyncio.timeout(LIMIT_S):
        received = []
        async for message in subscription:
            received.append(message.payload)
            await message.ack_confirmed()
            if len(received) == len(eu):
                break
    assert sorted(received) == sorted(eu)
    numbers = (await orders.stats("eu")).queue("eu")
    assert numbers is not None
    assert (numbers.put, numbers.waiting, numbers.unacknowledged) == (len(eu), 0, 0)
    with pytest.raises(e.NoMessagesInQueue):
        await orders.get("eu")
    assert len(await payloads(orders, "all")) == 40


async def test_publish_many_and_order(orders: Client) -> None:
    many = [b"%d" % n for n in range(1500)]
    assert await orders.publish_many("orders", many, headers={"region": "eu"}) == [2] * 1500
    for name in ("all", "eu"):
        received = []
        async with orders.subscribe(name, ack="automatic", prefetch=2000) as subscription:
            async for message in subscription:
                received.append(message.payload)
                if len(received) == 1500:
                    break
        assert received == many


async def test_options_of_puts_are_those_of_publications(orders: Client) -> None:
    await orders.publish("orders", b"later", delay=30)
    await orders.publish("orders", b"once", dedup_id="a", group="g", tenant="t")
    await orders.publish("orders", b"twice", dedup_id="a")
    await orders.put("all", b"third", dedup_id="a")
    (message,) = await orders.browse("all")
    assert (message.payload, message.group, message.tenant) == (b"once", "g", "t")
    numbers = (await orders.stats("all")).queue("all")
    assert numbers is not None
    assert numbers.waiting == 2
    await orders.publish("orders", b"mine", receiver=orders.client_id, headers={"region": "eu"})
    assert (await orders.get("eu")).receiver == orders.client_id


async def test_a_dedup_id_counts_for_each_subscription(mq: Client) -> None:
    await mq.create_topic("orders")
    await mq.subscribe_to("orders", "one")
    await mq.publish("orders", b"1", dedup_id="a")
    await mq.subscribe_to("orders", "two")
    await mq.publish("orders", b"2", dedup_id="a")
    assert (await payloads(mq, "one"), await payloads(mq, "two")) == ([b"1"], [b"2"])


async def test_a_full_subscription_refuses_for_all(mq: Client) -> None:
    await mq.create_topic("orders")
    await mq.create_queue("small", policy=QueuePolicy(length_max=1, overflow=Overflow.REFUSE))
    for name in ("small", "large"):
        await mq.subscribe_to("orders", name)
    await mq.publish("orders", b"1")
    with pytest.raises(e.LimitReached, match="small"):
        await mq.publish("orders", b"2")
    assert await payloads(mq, "large") == [b"1"]


async def test_a_slow_subscription_slows_the_publisher_down(mq: Client) -> None:
    await mq.create_topic("orders")
    await mq.create_queue("small", policy=QueuePolicy(length_max=1))
    for name in ("small", "large"):
        await mq.subscribe_to("orders", name)
    await mq.publish("orders", b"1")
    waiting = mq.publish("orders", b"2")
    await mq.ping()
    assert not waiting.done()
    assert await payloads(mq, "large") == [b"1"]
    await mq.get("small")
    assert await waiting == 2
    assert await payloads(mq, "small") == [b"2"]


async def test_topics_are_made_listed_and_deleted(mq: Client) -> None:
    made = await mq.create_topic("orders")
    assert (made.name, made.subscriptions) == ("orders", [])
    with pytest.raises(e.TopicNameNotUnique):
        await mq.create_topic("orders")
    assert await mq.create_topic("orders", exist_ok=True) == made
    queue = await mq.subscribe_to("orders", "eu", filter={"region": "eu"})
    (topic,) = await mq.topics()
    (subscription,) = topic.subscriptions
    assert (subscription.queue_id, subscription.queue) == (queue.queue_id, "eu")
    assert (subscription.filter, subscription.durable) == ({"region": "eu"}, True)

    await mq.publish("orders", b"1", headers={"region": "eu"})
    await mq.delete_topic("orders")
    assert await mq.topics() == []
    assert await payloads(mq, "eu") == [b"1"], "the queue stays, with what is in it"
    for asking in (
        mq.delete_topic("orders"),
        mq.publish("orders", b"2"),
        mq.subscribe_to("orders", "eu"),
        mq.unsubscribe_from("orders", "eu"),
    ):
        with pytest.raises(e.TopicNotExisting):
            await asking


async def test_a_subscription_changes_its_filter_and_ends(mq: Client) -> None:
    await mq.create_topic("orders")
    await mq.create_topic("news")
    await mq.create_queue("mine")
    await mq.put("mine", b"0")
    for topic in ("orders", "news"):
        await mq.subscribe_to(topic, "mine", filter={"region": "eu"})
    await mq.publish("orders", b"1")
    await mq.subscribe_to("orders", "mine")
    await mq.publish("orders", b"2")
    await mq.publish("news", b"3", headers={"region": "eu"})
    await mq.unsubscribe_from("orders", "mine")
    assert await mq.publish("orders", b"4") == 0
    with pytest.raises(e.InvalidValue, match="not subscribed"):
        await mq.unsubscribe_from("orders", "mine")
    assert await payloads(mq, "mine") == [b"0", b"2", b"3"]
    await mq.delete_queue("mine")
    assert [topic.subscriptions for topic in await mq.topics()] == [[], []]
    assert await mq.publish("news", b"5", headers={"region": "eu"}) == 0


async def test_invalid_subscription_is_refused(mq: Client) -> None:
    await mq.create_topic("orders")
    await mq.create_queue("passing", durable=False)
    await mq.create_queue("kept")
    with pytest.raises(e.InvalidValue, match="transient"):
        await mq.subscribe_to("orders", "passing")
    with pytest.raises(e.QueueNameNotUnique):
        await mq.subscribe_to("orders", "kept", durable=False)
    bad: list[object] = [{"a": 1}, {"a": []}, {"a": [1]}, {1: "a"}, ["a"], {"a": "\x00"}]
    for wrong in bad:
        with pytest.raises(e.InvalidValue):
            await mq.subscribe_to("orders", "eu", filter=wrong)  # type: ignore[arg-type]
    with pytest.raises(e.TooLarge):
        await mq.subscribe_to("orders", "eu", filter={"a": ["x"] * 300})
    with pytest.raises(e.InvalidValue):
        mq.publish("", b"1")
    assert [queue.name for queue in await mq.queues()] == ["kept", "passing"]


async def test_a_subscription_goes_with_its_connection(node: Node, connect: Connect) -> None:
    mq, guest = await connect(node), await connect(node)
    await mq.create_topic("orders")
    await guest.subscribe_to("orders", "guest", durable=False)
    await mq.subscribe_to("orders", "kept")
    assert await mq.publish("orders", b"1") == 2
    assert (await guest.get("guest")).payload == b"1"
    ((_, one), (_, two)) = [(s.queue, s.durable) for s in (await mq.topics())[0].subscriptions]
    assert (one, two) == (False, True)

    await guest.close()
    await eventually_async(lambda: len(node.replicas) == 1)
    assert [queue.name for queue in await mq.queues()] == ["kept"]
    assert await mq.publish("orders", b"2") == 1


async def test_a_client_that_comes_back_is_subscribed_again(node: Node, connect: Connect) -> None:
    mq, guest = await connect(node), await connect(node)
    await mq.create_topic("orders")
    before = await guest.subscribe_to("orders", "guest", durable=False, filter={"a": "b"})
    async with guest.subscribe("guest") as subscription, asyncio.timeout(LIMIT_S):
        stream = aiter(subscription)
        await mq.publish("orders", b"1", headers={"a": "b"})
        message = await anext(stream)
        assert message.payload == b"1"
        assert guest.transport is not None
        guest.transport.abort()
        while True:
            queues = {queue.name: queue.queue_id for queue in await mq.queues()}
            if queues.get("guest", before.queue_id) != before.queue_id:
                break
        assert await mq.publish("orders", b"2") == 0
        assert await mq.publish("orders", b"3", headers={"a": "b"}) == 1
        assert (await anext(stream)).payload == b"3"


async def test_a_subscription_of_a_dead_nodes_connection_is_swept(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    a, b = await start_node(), await start_node()
    at_a, at_b = await connect(a), await connect(b)
    await at_b.create_topic("orders")
    await at_a.subscribe_to("orders", "guest", durable=False)
    await at_b.subscribe_to("orders", "kept")
    await at_b.publish("orders", b"1")
    await crash(a)
    # Whoever claims its queues declares it dead.
    await backing.declare_dead(a.member_id)
    for queue in await at_b.queues():
        await b.ownership.route(queue.queue_id)
    await b.topics.sweep()
    assert [queue.name for queue in await at_b.queues()] == ["kept"]


async def test_a_resent_publication_is_stored_once(orders: Client) -> None:
    link = await orders.connected()
    packet = Publish("orders", PutMessages(0, 77, 1, [1, 1], [5]))
    for _ in range(3):
        answer = (await link.request(packet, [b"ab"])).packet
        assert isinstance(answer, PublishResponse)
        assert answer.counts == [1, 1]
    await asyncio.gather(
        *(
            link.request(Publish("orders", PutMessages(0, 77, 2, [1], [5])), [b"c"])
            for _ in range(3)
        )
    )
    assert await payloads(orders, "all") == [b"a", b"b", b"c"]


@pytest.mark.parametrize("first_is_done", [True, False])
async def test_a_publication_without_an_answer_is_looked_up(
    first_is_done: bool, node: Node, orders: Client
) -> None:
    transact = node.store.transact
    asked = 0

    async def forgetful(*change: object) -> bool:
        nonlocal asked
        asked += 1
        if asked > 1:
            return await transact(*change)  # type: ignore[arg-type]
        if first_is_done:
            await transact(*change)  # type: ignore[arg-type]
        raise e.Unavailable("the answer was lost")

    node.store.transact = forgetful  # type: ignore[method-assign, assignment]
    assert await orders.publish("orders", b"1", headers={"region": "eu"}) == 2
    assert await payloads(orders, "all") == await payloads(orders, "eu") == [b"1"]


async def test_publications_survive_their_node(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await mq.create_topic("orders")
    await mq.subscribe_to("orders", "all")
    await mq.subscribe_to("orders", "odd", filter={"odd": "1"})
    await asyncio.gather(
        *(mq.publish("orders", b"%d" % n, headers={"odd": str(n % 2)}) for n in range(10))
    )
    packet = Publish("orders", PutMessages(0, 77, 1, [1], [5]))
    await (await mq.connected()).request(packet, [b"x"])
    for name in ("odd", "all"):
        await (await mq.get(name, lease=60)).ack_confirmed()
    await node.stop()

    mq = await connect(await start_node())
    await (await mq.connected()).request(packet, [b"x"])
    assert await payloads(mq, "odd") == [b"3", b"5", b"7", b"9"]
    assert await payloads(mq, "all") == [b"%d" % n for n in range(1, 10)] + [b"x"]
    assert (await mq.get("odd", wait=LIMIT_S)).payload == b"3"


# Stored once


async def rows(backing: PostgresBacking, query: str) -> list[tuple[object, ...]]:
    async with await psycopg.AsyncConnection.connect(backing.url, autocommit=True) as connection:
        return await (await connection.execute(query.encode())).fetchall()


SHARED = "select octet_length(payload) from shared_payload"


@pytest.mark.parametrize("backing", SQL_STORES, indirect=True)
async def test_a_payload_is_stored_once_and_freed_with_its_last_use(
    backing: Backing, orders: Client
) -> None:
    assert isinstance(backing, PostgresBacking)
    headers = {"region": "eu", "kind": "order"}
    await orders.publish("orders", b"x" * 50_000, headers=headers)
    assert await rows(backing, SHARED) == [(50_000,)]
    assert await rows(backing, "select sum(octet_length(payload)), count(*) from segment") == [
        (0, 3)
    ]
    assert await rows(
        backing, "select distinct octet_length(message), count(*) from message group by message"
    ) == [(50_000, 3)]
    # A lone taker needs no sharing.
    await orders.publish("orders", b"y" * 10)
    assert len(await rows(backing, SHARED)) == 1

    await (await orders.get("all", lease=60)).ack_confirmed()
    assert len(await rows(backing, SHARED)) == 1
    assert await orders.purge("eu") == 1
    assert len(await rows(backing, SHARED)) == 1
    assert (await orders.browse("kinds"))[0].payload == b"x" * 50_000
    await orders.delete_queue("kinds")
    assert await rows(backing, SHARED) == []


@pytest.mark.parametrize("backing", SQL_STORES, indirect=True)
async def test_owners_that_free_a_payload_at_once_leave_it_to_the_sweep(
    backing: Backing, node: Node, orders: Client
) -> None:
    assert isinstance(backing, PostgresBacking)
    await orders.publish("orders", b"x", headers={"region": "eu"})
    url = backing.url
    delete = "select drop_segments(queue_id, array[first_id]) from segment where queue_id = %s"
    ids = [(await orders.queue(name)).queue_id for name in ("all", "eu")]
    async with (
        await psycopg.AsyncConnection.connect(url) as one,
        await psycopg.AsyncConnection.connect(url) as two,
    ):
        await one.execute(delete, (ids[0],))
        await two.execute(delete, (ids[1],))
        await one.commit()
        await two.commit()
    assert len(await rows(backing, SHARED)) == 1
    await node.topics.sweep()
    assert await rows(backing, SHARED) == []


async def test_memory_holds_a_payload_once(node: Node, orders: Client) -> None:
    await orders.publish("orders", b"x" * 1000, headers={"region": "eu"})
    held = []
    for replica in node.replicas.values():
        held += [id(span.segment.payload) for span in (await replica.by_id.browse(10))[0]]
    assert len(held) == 2
    assert len(set(held)) == 1


async def test_subscriptions_beyond_memory_get_what_is_theirs(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node(limits=NodeLimits(memory_bytes=256 * 1024))
    mq = await connect(node)
    await mq.create_topic("orders")
    for name, wanted in (("all", None), ("even", {"n": "0"}), ("odd", {"n": "1"})):
        await mq.subscribe_to("orders", name, filter=wanted)  # type: ignore[arg-type]
    await asyncio.gather(
        *(
            mq.publish("orders", b"%05d" % n + b"x" * 2000, headers={"n": str(n % 2)})
            for n in range(600)
        )
    )
    wanted_of = {"all": range(600), "even": range(0, 600, 2), "odd": range(1, 600, 2)}
    for name, expected in wanted_of.items():
        received = []
        async with mq.subscribe(name, prefetch=50) as subscription, asyncio.timeout(LIMIT_S):
            async for message in subscription:
                received.append(int(message.payload[:5]))
                message.ack()
                if len(received) == len(expected):
                    break
        assert received == list(expected)


# Two nodes


class Pair:
    """Two nodes, a client of each."""

    def __init__(self, a: Node, b: Node, at_a: Client, at_b: Client) -> None:
        self.a, self.b, self.at_a, self.at_b = a, b, at_a, at_b


@pytest.fixture
async def pair(start_node: StartNode, connect: Connect) -> Pair:
    a, b = await start_node(), await start_node()
    at_a, at_b = await connect(a), await connect(b)
    await at_a.create_topic("orders")
    for name in ("1", "2"):
        await at_a.subscribe_to("orders", name)
    for name in ("3", "4", "5"):
        await at_b.subscribe_to("orders", name)
    return Pair(a, b, at_a, at_b)


async def test_the_node_that_owns_most_brings_the_others_once(pair: Pair) -> None:
    assert await pair.at_a.publish("orders", b"a") == 5
    assert len(pair.b.replicas) == 5
    epochs = {queue_id: replica.epoch for queue_id, replica in pair.b.replicas.items()}
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(
            pair.at_a.publish_many("orders", [b"a"] * 20),
            pair.at_b.publish_many("orders", [b"b"] * 20),
            *(pair.at_a.publish("orders", b"c") for _ in range(5)),
        )
    assert {q: replica.epoch for q, replica in pair.b.replicas.items()} == epochs, "nobody moved"
    for name in "12345":
        assert len(await payloads(pair.at_a, name)) == 46


async def test_publishers_at_both_nodes_do_not_pull(pair: Pair) -> None:
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(
            *(pair.at_a.publish("orders", b"a") for _ in range(5)),
            *(pair.at_b.publish("orders", b"b") for _ in range(5)),
        )
    for name in "12345":
        assert sorted(await payloads(pair.at_b, name)) == [b"a"] * 5 + [b"b"] * 5


async def test_a_guest_of_one_node_is_served_by_the_other(pair: Pair, connect: Connect) -> None:
    guest = await connect(pair.a)
    await guest.subscribe_to("orders", "guest", durable=False)
    await pair.at_b.subscribe_to("orders", "6")
    assert await pair.at_b.publish("orders", b"x") == 7
    assert len(pair.b.replicas) == 7
    assert (await guest.get("guest", wait=LIMIT_S)).payload == b"x"
    await guest.close()
    await eventually_async(lambda: len(pair.b.replicas) == 6)


# The law: each subscription gets exactly what matches, in the order in which it was published,
# whatever else happens between.

NAMES = st.sampled_from(["a", "b"])
VALUES = st.sampled_from(["x", "y", "z"])
FILTERS = st.dictionaries(NAMES, VALUES | st.lists(VALUES, min_size=1, max_size=2), max_size=2)
HEADERS = st.dictionaries(NAMES, VALUES, max_size=2)
STEPS = st.lists(
    st.tuples(st.just("publish"), st.lists(HEADERS, min_size=1, max_size=6))
    | st.tuples(st.just("take"), st.integers(0, 2))
    | st.tuples(st.just("restart"), st.none())
    | st.tuples(st.just("refuse"), st.lists(HEADERS, min_size=1, max_size=2)),
    max_size=8,
)


@given(filters=st.lists(FILTERS, min_size=3, max_size=3), steps=STEPS)
def test_the_topic_law(filters: list[Filter], steps: list[tuple[str, object]]) -> None:
    asyncio.run(_law(filters, steps))


async def _law(filters: list[Filter], steps: list[tuple[str, object]]) -> None:
    backing = MemoryBacking()
    node = Node(backing.store(), name="law")
    await node.start()
    mq = await Client(node.address).open()
    await mq.create_topic("law")
    for n, header_filter in enumerate(filters):
        await mq.subscribe_to("law", str(n), filter=header_filter)
    expected: list[list[bytes]] = [[] for _ in filters]
    number = 0
    for verb, what in steps:
        if verb == "publish":
            assert isinstance(what, list)
            futures = []
            counts = []
            for headers in what:
                number += 1
                futures.append(mq.publish("law", b"%d" % number, headers=headers))
                wanted = [n for n, f in enumerate(filters) if _means(f, headers)]
                counts.append(len(wanted))
                for n in wanted:
                    expected[n].append(b"%d" % number)
            assert await asyncio.gather(*futures) == counts
        elif verb == "refuse":
            await _refused(node, mq, what)
        elif verb == "take":
            assert isinstance(what, int)
            if expected[what]:
                assert (await mq.get(str(what))).payload == expected[what].pop(0)
        else:
            await mq.close()
            await node.stop()
            node = Node(backing.store(), name="law")
            await node.start()
            mq = await Client(node.address).open()
        for n, left in enumerate(expected):
            assert await payloads(mq, str(n)) == left
    await mq.close()
    await node.stop()


def _means(header_filter: Filter, headers: dict[str, str]) -> bool:
    """What a filter says, said another way."""
    return all(
        headers.get(name) in ([wanted] if isinstance(wanted, str) else wanted)
        for name, wanted in header_filter.items()
    )


async def _refused(node: Node, mq: Client, what: object) -> None:
    assert isinstance(what, list)
    transact = node.store.transact

    async def full(*change: object) -> bool:
        raise e.LimitReached("on purpose")

    node.store.transact = full  # type: ignore[method-assign, assignment]
    outcomes = await asyncio.gather(
        *(mq.publish("law", b"never", headers=headers) for headers in what),
        return_exceptions=True,
    )
    assert all(outcome == 0 or isinstance(outcome, e.LimitReached) for outcome in outcomes)
    node.store.transact = transact  # type: ignore[method-assign]


@given(header_filter=FILTERS, headers=HEADERS)
def test_filters_mean_what_they_say(header_filter: Filter, headers: dict[str, str]) -> None:
    check_filter(header_filter)
    assert matches_filter(header_filter, Attributes(headers=headers)) == _means(
        header_filter, headers
    )
    assert matches_filter(header_filter, None) == (not header_filter)
