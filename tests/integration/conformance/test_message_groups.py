"""Groups through a node: one message of a group at a time, in order, wherever its messages lie."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from backing import Backing, Connect, StartNode, crash
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core import errors as e
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import NodeLimits

KIB = 1024


async def all_dead(mq: Client, count: int) -> list[Message]:
    """They move in the background; once all are there, they are left as they lie."""

    async def are_there() -> bool:
        numbers = (await mq.stats()).queue("orders.dead")
        return numbers is not None and numbers.waiting == count

    await eventually_async(are_there, f"{count} dead letters")
    return await mq.browse("orders.dead")


async def test_one_message_of_each_group_is_in_flight(mq: Client) -> None:
    await mq.create_queue("orders")
    for payload, group in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b"), (b"x", None), (b"b2", "b")):
        await mq.put("orders", payload, group=group)

    async with mq.subscribe("orders", prefetch=100) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        first = [await anext(messages) for _ in range(3)]
        assert [m.payload for m in first] == [b"a1", b"b1", b"x"]
        numbers = (await mq.stats("orders")).queue("orders")
        assert numbers is not None
        assert (numbers.waiting, numbers.unacknowledged) == (2, 3)
        assert [m.payload for m in await mq.browse("orders")] == [b"a2", b"b2"]

        first[1].ack()
        assert (await anext(messages)).payload == b"b2"
        first[0].ack()
        following = await anext(messages)
        assert (following.payload, following.group) == (b"a2", "a")


async def test_a_group_waits_while_its_first_is_tried_again(mq: Client) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(retry_first_s=0.05, retry_jitter=0.0))
    for payload, group in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b")):
        await mq.put("orders", payload, group=group)
    seen: list[tuple[bytes, int]] = []

    async with mq.subscribe("orders", prefetch=100) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        while len(seen) < 5:
            message = await anext(messages)
            seen.append((message.payload, message.delivery_count))
            if message.payload == b"a1" and message.delivery_count < 3:
                await message.nack()
            else:
                message.ack()

    assert [one for one in seen if one[0] != b"b1"] == [
        (b"a1", 1),
        (b"a1", 2),
        (b"a1", 3),
        (b"a2", 1),
    ]


@pytest.mark.parametrize("dead_letter", [None, ""])
async def test_a_group_goes_on_when_its_first_is_given_up(
    mq: Client, dead_letter: str | None
) -> None:
    await mq.create_queue("orders", policy=QueuePolicy(dead_letter=dead_letter))
    for payload in (b"1", b"2"):
        await mq.put("orders", payload, group="a")

    async with mq.subscribe("orders") as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        await (await anext(messages)).reject(error="hopeless")

        assert (await anext(messages)).payload == b"2"


async def test_dead_letters_of_one_group_are_sent_back_by_choice_and_in_order(mq: Client) -> None:
    await mq.create_queue("orders")
    for n in range(6):
        await mq.put("orders", b"%d" % n, group="a")
    async with mq.subscribe("orders") as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        for _ in range(6):
            await (await anext(messages)).reject(error="hopeless")
    dead = await all_dead(mq, 6)

    assert await mq.redrive("orders.dead", message_ids=[dead[4].message_id]) == 1
    assert [m.payload for m in await mq.browse("orders")] == [b"4"]
    assert await mq.redrive("orders.dead") == 5

    assert [m.payload for m in await mq.browse("orders")] == [b"4", b"0", b"1", b"2", b"3", b"5"]


async def test_readers_are_served_by_what_an_acknowledgement_lets_out(
    node: Node, mq: Client, connect: Connect
) -> None:
    other = await connect(node)
    await mq.create_queue("orders")
    await mq.put("orders", b"1", group="a")
    await mq.put("orders", b"2", group="a")
    await other.put("orders", b"3", group="a")
    held = await mq.get("orders", lease=60)
    with pytest.raises(e.NoMessagesRetrieved):
        await mq.get("orders", sender=mq.client_id)

    # The one who selects asked first; what it wants is let out by the read of the other.
    selective = asyncio.create_task(mq.get("orders", sender=other.client_id, wait=LIMIT_S))
    await eventually_async(lambda: _readers(node) == 1)
    plain = asyncio.create_task(mq.get("orders", wait=LIMIT_S))
    await eventually_async(lambda: _readers(node) == 2)
    held.ack()

    assert (await plain).payload == b"2"
    assert (await selective).payload == b"3"


def _readers(node: Node) -> int:
    return sum(replica.dispatch.readers.count for replica in node.replicas.values())


async def test_reading_which_removes_lets_out_the_next_for_a_consumer(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue("orders")
    async with mq.subscribe("orders") as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        await mq.put("orders", b"1", group="a")
        (await anext(messages)).ack()
    for n in range(4):
        await mq.put("orders", b"%d" % n, group="a")

    assert [(await mq.get("orders", wait=LIMIT_S)).payload for _ in range(2)] == [b"0", b"1"]
    async with mq.subscribe("orders", ack="automatic") as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        assert [(await anext(messages)).payload for _ in range(2)] == [b"2", b"3"]


async def test_a_takeover_in_mid_group_keeps_the_order(
    backing: Backing, start_node: StartNode, connect: Connect
) -> None:
    first = await start_node()
    mq = await connect(first)
    await mq.create_queue("orders")
    for n in range(30):
        await mq.put("orders", b"%d" % n, group="abc"[n % 3], priority=1 + n % 5)
    async with mq.subscribe("orders", prefetch=100) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        begun = [await anext(messages) for _ in range(3)]
        # One group is further than the others, and all have a message in flight.
        await begun[0].ack_confirmed()
        await anext(messages)

        await crash(first)
        await backing.declare_dead(first.member_id)
    second = await start_node()
    heir = await connect(second)

    done = int(begun[0].payload)
    left = {group: [n for n in range(30) if "abc"[n % 3] == group and n != done] for group in "abc"}
    async with heir.subscribe("orders", prefetch=100) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        while any(left.values()):
            in_flight = [await anext(messages) for numbers in left.values() if numbers]
            # One of each group, and of each the first that is left.
            assert {m.group: int(m.payload) for m in in_flight} == {
                group: numbers.pop(0) for group, numbers in left.items() if numbers
            }
            for message in in_flight:
                message.ack()


async def test_a_group_that_memory_cannot_hold_comes_in_order_beside_others(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node(limits=NodeLimits(memory_bytes=512 * KIB))
    mq = await connect(node)
    await mq.create_queue("orders")
    padding = b"." * 4 * KIB
    for at in range(0, 600, 100):
        await asyncio.gather(
            *(
                mq.put("orders", b"%d " % n + padding, group="large" if n % 3 else f"small-{n % 4}")
                for n in range(at, at + 100)
            )
        )
    peak = 0
    seen: dict[str, list[int]] = defaultdict(list)
    async with mq.subscribe("orders", prefetch=20) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        for _ in range(600):
            message = await anext(messages)
            assert message.group is not None
            seen[message.group].append(int(message.payload.split()[0]))
            message.ack()
            peak = max(peak, node.budget.used_bytes)

    assert sum(map(len, seen.values())) == 600
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    # One chunk beyond the bound, and not the whole backlog of 2.4 MB.
    assert peak < 1600 * KIB


async def test_a_group_of_several_priorities_that_memory_cannot_hold_comes_in_order(
    start_node: StartNode, connect: Connect
) -> None:
    """Its next message is ever so often behind others of it, and in the store."""
    node = await start_node(limits=NodeLimits(memory_bytes=256 * KIB))
    mq = await connect(node)
    await mq.create_queue("orders", policy=QueuePolicy(ageing_s=0.0))
    padding = b"." * 4 * KIB
    for n in range(300):
        await mq.put("orders", b"%d " % n + padding, group="a", priority=1 if n % 40 == 0 else 9)
    await mq.put("orders", b"another", group="b", priority=5)
    received: list[bytes] = []

    async with mq.subscribe("orders", prefetch=20) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        for _ in range(301):
            message = await anext(messages)
            received.append(message.payload.split()[0])
            message.ack()

    received.remove(b"another")
    assert received == [b"%d" % n for n in range(300)]
