"""Who is next, through a node: tenants get equal shares, and low priority does not starve."""

from __future__ import annotations

import asyncio
from collections import Counter

from backing import Connect, StartNode, TurnedClock
from waiting import LIMIT_S

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy
from tidegate.core.runtime import NodeLimits

KIB = 1024


async def put_all(mq: Client, payloads: list[bytes], tenant: str | None) -> None:
    await asyncio.gather(*(mq.put("orders", payload, tenant=tenant) for payload in payloads))


async def test_the_few_of_one_tenant_do_not_wait_for_the_flood_of_another(mq: Client) -> None:
    await mq.create_queue("orders")
    await put_all(mq, [b"%d" % n for n in range(200)], tenant="flood")

    async with mq.subscribe("orders", prefetch=10) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        (await anext(messages)).ack()
        await put_all(mq, [b"%d" % n for n in range(10)], tenant="few")
        received = []
        for _ in range(50):
            message = await anext(messages)
            received.append((message.tenant, int(message.payload)))
            message.ack()

    # What was handed out before they came is some prefetches; then it is one each.
    assert [n for tenant, n in received if tenant == "few"] == list(range(10))
    flood = [n for tenant, n in received if tenant == "flood"]
    assert flood == sorted(flood)


async def test_tenants_get_equal_shares_whatever_they_put(mq: Client) -> None:
    await mq.create_queue("orders")
    for tenant, count in (("large", 300), ("medium", 100), ("small", 50), (None, 100)):
        await put_all(mq, [bytes(8)] * count, tenant=tenant)

    taken = Counter([(await mq.get("orders")).tenant for _ in range(160)])

    assert taken == {"large": 40, "medium": 40, "small": 40, None: 40}


async def test_order_within_a_tenant_holds_though_memory_is_short(
    start_node: StartNode, connect: Connect
) -> None:
    node = await start_node(limits=NodeLimits(memory_bytes=512 * KIB))
    mq = await connect(node)
    await mq.create_queue("orders")
    for at in range(0, 300, 50):
        payloads = [b"%d " % n + b"." * 4 * KIB for n in range(at, at + 50)]
        await put_all(mq, payloads, tenant="red" if at % 100 else "blue")

    received: dict[str | None, list[int]] = {"red": [], "blue": []}
    async with mq.subscribe("orders", prefetch=20) as subscription, asyncio.timeout(LIMIT_S):
        messages = aiter(subscription)
        for _ in range(300):
            message = await anext(messages)
            received[message.tenant].append(int(message.payload.split()[0]))
            message.ack()

    assert [len(numbers) for numbers in received.values()] == [150, 150]
    assert all(numbers == sorted(numbers) for numbers in received.values())


class Shift:
    """Puts whose arrival is as far apart as the clock was turned."""

    def __init__(self, mq: Client, clock: TurnedClock) -> None:
        self.mq = mq
        self.clock = clock

    async def put(self, payload: bytes, priority: int, then_s: float = 0.0) -> None:
        await self.mq.put("orders", payload, priority=priority)
        self.clock.turn(then_s)

    async def received(self, count: int) -> list[bytes]:
        async with (
            self.mq.subscribe("orders", prefetch=1) as subscription,
            asyncio.timeout(LIMIT_S),
        ):
            messages = aiter(subscription)
            payloads = []
            for _ in range(count):
                message = await anext(messages)
                payloads.append(message.payload)
                message.ack()
            return payloads


# The clock is turned: no lease of nodes and messages may run out by that.
PATIENT = NodeLimits(lease_s=1e6, heartbeat_s=1e6, delivery_lease_s=1e6)


async def test_without_ageing_subscribers_get_the_highest_priority(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    shift = Shift(await connect(await start_node(clock=clock, limits=PATIENT)), clock)
    await shift.mq.create_queue("orders", policy=QueuePolicy(ageing_s=0.0))
    await shift.put(b"low", 1, then_s=1000.0)
    await shift.put(b"high", 2)

    assert await shift.received(2) == [b"high", b"low"]


async def test_get_by_priority_ignores_waiting_times(
    start_node: StartNode, connect: Connect
) -> None:
    clock = TurnedClock()
    shift = Shift(await connect(await start_node(clock=clock, limits=PATIENT)), clock)
    await shift.mq.create_queue("orders")
    await shift.put(b"low", 1, then_s=1000.0)
    await shift.put(b"high", 2)

    assert (await shift.mq.get("orders", order="priority")).payload == b"high"


async def test_ageing_goes_on_after_a_restart(start_node: StartNode, connect: Connect) -> None:
    """A new owner has all messages in the store only, and knows how old the first are."""
    clock = TurnedClock()
    node: Node = await start_node(clock=clock, limits=PATIENT)
    shift = Shift(await connect(node), clock)
    await shift.mq.create_queue("orders", policy=QueuePolicy(ageing_s=10.0))
    await shift.put(b"low", 1, then_s=15.0)
    await shift.put(b"higher by two", 3, then_s=15.0)
    await shift.put(b"later", 3)
    await node.stop()

    again = Shift(await connect(await start_node(clock=clock, limits=PATIENT)), clock)

    assert await again.received(3) == [b"higher by two", b"low", b"later"]
