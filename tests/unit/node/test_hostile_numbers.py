"""Numbers and names that fit their field and nothing else: refused, at nobody else's cost."""

from __future__ import annotations

import asyncio

import pytest
from backing import Connect, StartNode
from waiting import LIMIT_S

from tidegate.core.errors import InvalidValue, TooLarge
from tidegate.protocol.catalogue import CreateQueue, CreateTopic, FindClient
from tidegate.protocol.messages import (
    Acknowledged,
    Extend,
    GetMessages,
    GetMessagesResponse,
    PutToQueues,
    ReadMessage,
    Return,
    Settle,
    SettleResponse,
    Transact,
)
from tidegate.protocol.packet import Request

EVERY_TAG = (-(2**63), 2**63 - 1)


@pytest.mark.parametrize("kind", [Settle, Return, Extend])
@pytest.mark.parametrize("hostile", [EVERY_TAG, (0, 1), (2, 1), (1, 2**63)])
async def test_ranges_of_tags_that_cannot_be_cost_nobody_else_their_confirmation(
    kind: type[Request], hostile: tuple[int, int], start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mallory, honest = await connect(node), await connect(node)
    queue = await honest.create_queue("orders")
    for number in range(2):
        await honest.put("orders", b"%d" % number)
    link = await mallory.connected()
    await link.request(ReadMessage(queue.queue_id, lease_ms=60_000))
    message = await honest.get("orders", lease=60)

    # The number of tags that were not held would not fit an answer, and the answers of all who
    # waited for the same commit went with it.
    confirm = {"confirm": True} if kind is Settle else {}
    packet = kind(queue.queue_id, 0, [(1, 1), *[hostile] * 3], **confirm)
    async with asyncio.timeout(LIMIT_S):
        refusal, _ = await asyncio.gather(
            link.request(packet), message.ack_confirmed(), return_exceptions=True
        )

    assert isinstance(refusal, InvalidValue), refusal
    assert link.alive
    # Nothing of it was done: what mallory holds, mallory may still acknowledge.
    answer = await link.request(Settle(queue.queue_id, 0, [(1, 1)], confirm=True))
    assert answer.packet == SettleResponse(0)


async def test_a_transaction_has_the_same_tags(start_node: StartNode, connect: Connect) -> None:
    node = await start_node()
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    link = await mq.connected()
    with pytest.raises(InvalidValue, match="no tags run from"):
        await link.request(Transact(1, 1, [], [Acknowledged(queue.queue_id, 0, [EVERY_TAG])]))


@pytest.mark.parametrize(
    ("first_id", "last_id"), [(50, 20), (99, 2), (2**63 - 1, 0), (0, -(2**63)), (-1, -2)]
)
async def test_no_messages_lie_between_ids_that_are_the_wrong_way_round(
    first_id: int, last_id: int, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    await mq.put_many("orders", [b"x"] * 100)
    answer = await (await mq.connected()).request(
        GetMessages(queue.queue_id, 10, first_id=first_id, last_id=last_id)
    )
    assert answer.packet == GetMessagesResponse([], None)
    assert len(answer.body) == 0


async def test_ids_in_many_ranges_are_acknowledged_at_nobody_elses_cost(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    await mq.create_queue("orders")
    ids = await mq.put_many("orders", [b"x"] * 20_000)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    # Twice the same, and not in order: each counts once. Range by range this took minutes.
    ranges = [(each, each) for each in ids[::2]]
    async with asyncio.timeout(LIMIT_S):
        assert await mq.ack_ids("orders", [*ranges, *reversed(ranges)]) == 10_000
    counting.cancel()

    # Others had their turn all the time.
    assert turns >= 50
    left = await mq.waiting_ids("orders", limit=20_000)
    assert left.ranges == [(each, each) for each in ids[1::2]]


async def test_a_lease_is_not_lengthened_beyond_what_one_may_ask_for(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    await mq.put("orders", b"x")
    link = await mq.connected()
    await link.request(ReadMessage(queue.queue_id, lease_ms=60_000))
    for lease_ms in (-1, 2**31, 2**63):
        with pytest.raises(InvalidValue):
            await link.request(Extend(queue.queue_id, 0, None, lease_ms))


@pytest.mark.parametrize("partial", [False, True])
async def test_a_put_names_so_many_queues_and_no_more(
    partial: bool, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    queue = await mq.create_queue("orders")
    link = await mq.connected()
    ids = list(range(queue.queue_id, queue.queue_id + 1001))
    with pytest.raises(TooLarge, match="at most 1000 queues"):
        await link.request(PutToQueues(ids, 1, 1, 5, partial), [b"x"])


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\x7f", "\u009b31m", "a\u0085b", "a\u2028b", "a\nb"])
async def test_a_name_cannot_steer_a_terminal(
    name: str, start_node: StartNode, connect: Connect
) -> None:
    node = await start_node()
    mq = await connect(node)
    for packet in (CreateQueue(name), CreateTopic(name), FindClient(name)):
        with pytest.raises(InvalidValue, match="control characters"):
            await (await mq.connected()).request(packet)
