"""By id: what waits is listed, browsed and acknowledged without being held, wherever it lies."""

from __future__ import annotations

import pytest
from backing import Backing, Connect, StartNode, crash
from waiting import LIMIT_S, eventually_async

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core import errors as e
from tidegate.core.runtime import NodeLimits

MIB = 1024 * 1024
PADDING = b"." * 8000


async def numbers_of(mq: Client, **ids: int) -> list[int]:
    return [int(m.payload.split()[0]) for m in await mq.browse("orders", limit=100_000, **ids)]


async def test_messages_are_browsed_between_ids(mq: Client) -> None:
    await mq.create_queue("orders")
    ids = [await mq.put("orders", b"%d" % n, priority=1 + n % 10) for n in range(100)]

    assert ids == sorted(ids)
    assert await numbers_of(mq, first_id=ids[30], last_id=ids[39]) == list(range(30, 40))
    assert await numbers_of(mq, first_id=ids[95]) == list(range(95, 100))
    assert await numbers_of(mq, first_id=ids[-1] + 1) == []
    assert await numbers_of(mq, last_id=ids[0] - 1) == []
    seen = await mq.browse("orders", limit=3, first_id=ids[10])
    assert [m.message_id for m in seen] == ids[10:13]


async def test_waiting_ids_are_listed_lowest_first_and_never_those_of_somebody(mq: Client) -> None:
    await mq.create_queue("orders")
    ids = await mq.put_many("orders", [b"%d" % n for n in range(10)])
    for_me = await mq.put("orders", b"mine", receiver=mq.client_id)
    later = await mq.put("orders", b"later", delay=3600.0)
    last = await mq.put("orders", b"11")
    held = await mq.get("orders", lease=60)

    waiting = await mq.waiting_ids("orders", limit=1000)

    assert held.message_id == ids[0]
    assert waiting.ranges == [(ids[1], ids[-1]), (last, last)]
    assert waiting.below_id > max(last, for_me, later)
    assert (await mq.waiting_ids("orders", limit=4)).ranges == [(ids[1], ids[4])]
    assert (await mq.waiting_ids("orders", limit=99, last_id=ids[2])).ranges == [(ids[1], ids[2])]
    await mq.pause("orders")
    assert (await mq.waiting_ids("orders", limit=1000)).ranges == []


async def test_acknowledged_ids_are_gone_for_good(
    node: Node, mq: Client, start_node: StartNode, backing: Backing, connect: Connect
) -> None:
    await mq.create_queue("orders")
    ids = await mq.put_many("orders", [b"%d" % n for n in range(100)])

    assert await mq.ack_ids("orders", [(ids[0], ids[9]), (ids[50], ids[59])]) == 20
    assert await mq.ack_ids("orders", [(ids[0], ids[9]), (ids[50], ids[60])]) == 1
    left = [*range(10, 50), *range(61, 100)]
    assert await numbers_of(mq) == left

    await crash(node)
    await backing.declare_dead(node.member_id)
    again = await connect(await start_node())
    assert await numbers_of(again) == left
    assert await again.ack_ids("orders", [(1, ids[-1])]) == len(left)
    assert await numbers_of(again) == []
    numbers = (await again.stats("orders")).queue("orders")
    assert numbers is not None
    assert (numbers.waiting, numbers.acked) == (0, len(left))


async def test_ack_ids_skips_messages_that_a_consumer_holds(mq: Client) -> None:
    await mq.create_queue("orders")
    first, second = await mq.put_many("orders", [b"1", b"2"])
    held = await mq.get("orders", lease=60)

    assert await mq.ack_ids("orders", [(first, second)]) == 1
    await held.nack(delay=0.0)

    assert await numbers_of(mq) == [1]


async def test_a_message_for_somebody_is_not_acknowledged_for_them(mq: Client) -> None:
    await mq.create_queue("orders")
    mine = await mq.put("orders", b"1", receiver=mq.client_id)

    assert await mq.ack_ids("orders", [(1, mine)]) == 0
    assert (await mq.get("orders")).message_id == mine


async def test_groups_go_on_behind_acknowledged_messages(mq: Client) -> None:
    await mq.create_queue("orders")
    ids = [await mq.put("orders", b"%d" % n, group="ann") for n in range(6)]

    assert (await mq.waiting_ids("orders", limit=99)).ranges == [(ids[0], ids[-1])]
    assert await mq.ack_ids("orders", [(ids[0], ids[3])]) == 4
    assert (await mq.get("orders", wait=LIMIT_S)).message_id == ids[4]
    assert (await mq.get("orders", wait=LIMIT_S)).message_id == ids[5]


async def test_tenants_are_acknowledged_like_all_others(mq: Client) -> None:
    await mq.create_queue("orders")
    ids = [await mq.put("orders", b"%d" % n, tenant=f"t{n % 3}") for n in range(9)]

    assert await mq.ack_ids("orders", [(ids[1], ids[4])]) == 4
    assert await numbers_of(mq) == [0, 5, 6, 7, 8]
    assert sorted([int((await mq.get("orders")).payload) for _ in range(5)]) == [0, 5, 6, 7, 8]


async def test_ack_ids_reaches_messages_in_the_store(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node(limits=NodeLimits(memory_bytes=1 * MIB))
    mq = await connect(node)
    await mq.create_queue("orders")
    ids: list[int] = []
    for at in range(0, 1000, 100):
        payloads = [b"%d " % n + PADDING for n in range(at, at + 100)]
        ids += await mq.put_many("orders", payloads, priority=5 if at % 200 else 6)
    numbers = (await mq.stats("orders")).queue("orders")
    assert numbers is not None
    assert numbers.waiting_in_store > 500

    assert await numbers_of(mq) == list(range(1000))
    assert await numbers_of(mq, first_id=ids[450], last_id=ids[849]) == list(range(450, 850))
    # From the middle, where only the store has them.
    assert await mq.ack_ids("orders", [(ids[450], ids[849])]) == 400
    left = [*range(450), *range(850, 1000)]
    assert await numbers_of(mq) == left

    taken: list[int] = []
    while ranges := (await mq.waiting_ids("orders", limit=200)).ranges:
        for first_id, last_id in ranges:
            taken += await numbers_of(mq, first_id=first_id, last_id=last_id)
        await mq.ack_ids("orders", ranges)
    assert taken == left
    await eventually_async(lambda: node.budget.used_bytes == 0)


async def test_a_second_node_relays_what_is_asked_by_id(
    start_node: StartNode, connect: Connect
) -> None:
    owner = await connect(await start_node())
    other = await connect(await start_node())
    await owner.create_queue("orders")
    ids = await owner.put_many("orders", [b"1", b"2", b"3"])

    assert (await other.waiting_ids("orders", limit=9)).ranges == [(ids[0], ids[-1])]
    assert await numbers_of(other, first_id=ids[1]) == [2, 3]
    assert await other.ack_ids("orders", [(ids[0], ids[1])]) == 2
    assert await numbers_of(owner) == [3]


async def test_ids_that_make_no_sense_are_refused(mq: Client) -> None:
    await mq.create_queue("orders")
    for ranges in ([(0, 1)], [(5, 4)], [(1, 2**63)]):
        with pytest.raises(e.InvalidValue, match="no ids run"):
            await mq.ack_ids("orders", ranges)
