"""What a console asks: who it is, how queues are spread, and all numbers for little work."""

from __future__ import annotations

from backing import Connect
from people import add_user, login

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.model import Grant, Right
from tidegate.core.topology import Range, Scaling


async def test_a_client_knows_its_user_and_rights(node: Node, mq: Client, connect: Connect) -> None:
    assert await mq.rights() == ("", [Grant(Right.ADMIN, "*")])
    await add_user(node, "ann", read="orders")
    ann = await connect(node, credentials=login("ann"))
    assert await ann.rights() == ("ann", [Grant(Right.READ, "orders")])


async def test_topologies_come_when_they_have_changed_and_of_what_one_may_see(
    node: Node, mq: Client, connect: Connect
) -> None:
    for name in ("orders", "secret"):
        await mq.create_queue(name)
        await mq.set_scaling(name, Scaling(replicas=Range(1, 3)))
    version, found = await mq.topologies()
    assert found is not None
    assert sorted(one.queue for one in found) == ["orders", "secret"]
    assert await mq.topologies(version) == (version, None)

    await mq.set_scaling("orders", Scaling(replicas=Range(1, 5)))
    newer, found = await mq.topologies(version)
    assert newer != version
    assert found is not None
    assert {one.queue: one.scaling.replicas.max for one in found} == {"orders": 5, "secret": 3}
    await add_user(node, "ann", read="orders")
    ann = await connect(node, credentials=login("ann"))
    _, found = await ann.topologies()
    assert found is not None
    assert [one.queue for one in found] == ["orders"]


async def test_brief_numbers_count_consumers_and_leave_out_durations(mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"one")
    async with mq.subscribe("orders", prefetch=7) as messages:
        async for message in messages:
            message.ack()
            break
        brief = (await mq.stats(brief=True)).queue("orders")
        whole = (await mq.stats()).queue("orders")
    assert brief is not None
    assert whole is not None
    assert (brief.consumer_count, brief.prefetch, brief.consumers) == (1, 7, [])
    assert (brief.put, brief.delivered) == (whole.put, whole.delivered) == (1, 1)
    assert (brief.wait.count, whole.wait.count) == (0, 1)


async def test_policy_changes_are_listed_as_decisions_with_their_user(
    node: Node, mq: Client, connect: Connect
) -> None:
    await mq.create_queue("orders")
    await add_user(node, "ann", configure="*")
    ann = await connect(node, credentials=login("ann"))

    await ann.pause("orders")
    await ann.set_policy("orders", lease_s=30.0)

    (decision,) = await ann.explain("orders")
    assert (decision.law, decision.by) == ("person", "ann")
    assert "paused" in decision.reason
