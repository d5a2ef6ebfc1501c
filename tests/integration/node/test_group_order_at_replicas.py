"""A group stays in order, and with one consumer at a time, whatever happens to its logical queue.

Producers put to groups and consumers take while homes move, clients are sent elsewhere, replicas
come, drain and are retired, and queues change their owners, in an order that a seed draws.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial

import pytest
from backing import Backing, Connect, MemoryBacking, StartNode
from logical_queue import SCALING, LogicalQueue
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.broker.replication import LogicalQueueState
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.control.queues.loop import ReportedAssignments, TopologyReconciler
from tidegate.core.errors import LeaseLost
from tidegate.core.topology import ASSIGNMENT_SLOTS, MemberRole, ReplicaState, assignment_slot
from tidegate.protocol.cluster import MigrateClients

STEPS = 20
GROUPS = 12
BACKLOG = 20


@pytest.fixture
def backing() -> Backing:
    return MemoryBacking()


def seen(orders: LogicalQueue, number: int) -> ReportedAssignments | None:
    """What a replica, or the alias, says about homes at this moment."""
    for node in orders.nodes:
        for replica in node.replicas.values():
            info = replica.info
            # Dead letters have a queue that is number 0 of nothing.
            if info.number == number and orders.alias_id in (info.queue_id, info.alias_id):
                said = replica.numbers()
                return ReportedAssignments(said.homes_held, said.homes_ahead)
    return None


class Watch:
    """Who holds what of which group, and what was delivered."""

    def __init__(self) -> None:
        self.in_hand: dict[str, tuple[bytes, str]] = {}
        self.last: Counter[str] = Counter()
        self.put: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def is_over(self) -> bool:
        return self.last == self.put

    def taken(self, group: str, number: int, message: Message, by: str) -> None:
        payload = bytes(message.payload)
        held, _ = self.in_hand.get(group, (payload, by))
        # The same one again: whoever held it has lost it, with the owner of its queue.
        if held != payload or (group in self.in_hand and not message.redelivered):
            self.wrong.append(f"{payload!r} came while {held!r} was in hand")
        if number > self.last[group] + 1:
            self.wrong.append(f"{payload!r} came after {self.last[group]}")
        self.in_hand[group] = (payload, by)
        self.last[group] = max(number, self.last[group])

    def left(self, group: str, by: str) -> None:
        """From here on the next of its group may be on its way to somebody."""
        if group in self.in_hand and self.in_hand[group][1] == by:
            del self.in_hand[group]


class Storm:
    """Two nodes, a producer, three consumers, and a dice."""

    def __init__(self, mq: Client, nodes: list[Node], dice: random.Random) -> None:
        self.mq = mq
        self.nodes = nodes
        self.dice = dice
        self.watch = Watch()
        self.orders: LogicalQueue
        self.over = False
        self.leading = asyncio.Lock()

    async def put_some(self, count: int) -> None:
        """In the order in which they are put, and confirmed when this returns."""
        puts = []
        for _ in range(count):
            group = f"g{self.dice.randrange(GROUPS)}"
            self.watch.put[group] += 1
            payload = b"%s:%d" % (group.encode(), self.watch.put[group])
            puts.append(self.mq.put("orders", payload, group=group))
        await asyncio.gather(*puts)

    async def produce(self) -> None:
        while not self.over:
            await self.put_some(self.dice.randint(1, 6))
            await asyncio.sleep(0.002)  # other tasks get a turn, and the backlog stays small

    async def consume(self, client: Client) -> None:
        async with client.subscribe("orders", prefetch=4) as subscription:
            async for message in subscription:
                group, _, number = bytes(message.payload).decode().partition(":")
                self.watch.taken(group, int(number), message, client.client_name)
                await asyncio.sleep(self.dice.random() / 200)  # the work, which events interrupt
                self.watch.left(group, client.client_name)
                try:
                    if self.dice.random() < 0.1:
                        await message.nack(delay=0)
                    else:
                        await message.ack_confirmed()
                except LeaseLost:
                    pass  # its owner has changed: it comes again

    # What happens

    async def serving(self) -> list[int]:
        replicas = (await self.orders.topology()).replicas
        return [p.number for p in replicas if p.state is ReplicaState.SERVING]

    async def step(self) -> None:
        await self.dice.choice([self.move_homes, self.move_homes, self.swap, self.drain])()
        await asyncio.sleep(self.dice.random() / 30)  # a drawn pause: another interleaving

    async def move_homes(self) -> None:
        """Some of them, in the middle of everything."""
        serving = await self.serving()
        async with self.leading:
            homes = (await self.orders.topology()).homes
            await self.orders.set_homes(
                [
                    -self.dice.choice(serving) if home > 0 and self.dice.random() < 0.3 else home
                    for home in homes
                ]
            )

    async def lead(self) -> None:
        """What the leader of a fleet does about homes, in haste."""
        upkeep = TopologyReconciler()
        while True:
            async with self.leading:
                homes = upkeep.assignments(await self.orders.topology(), partial(seen, self.orders))
                if homes is not None:
                    await self.orders.set_homes(homes)
            await asyncio.sleep(0.01)  # the period of this leader

    async def swap(self) -> None:
        """Consumers change places: nobody steers here, and each replica needs one."""
        ids = [p.queue_id for p in (await self.orders.topology()).replicas]
        one, other = self.dice.sample(ids, 2)
        self.migrate(one, other)
        self.migrate(other, one)

    def migrate(self, source: int, target: int) -> None:
        order = MigrateClients(self.orders.alias_id, MemberRole.CONSUMER, source, target)
        self.alias.migrate(order)

    async def spread(self) -> None:
        """A consumer at each replica."""
        ids = {p.number: p.queue_id for p in (await self.orders.topology()).replicas}
        while 0 in (counts := {n: at for n, (_, at) in self.alias.counts().items()}).values():
            most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
            self.migrate(ids[most], ids[least])

    @property
    def alias(self) -> LogicalQueueState:
        for node in self.nodes:
            replica = node.replicas.get(self.orders.alias_id)
            alias = None if replica is None else node.aliases.logical_queue(replica)
            if alias is not None:
                return alias
        raise AssertionError("nobody owns the alias")

    async def drain(self) -> None:
        """One replica goes, with all that is at home there; another one comes."""
        number = self.dice.choice(await self.serving())
        await self.orders.add(self.dice.choice(self.nodes))
        await self.orders.drain(number)

        async def is_empty_of_homes() -> bool:
            return not (await self.orders.topology()).is_home(number)

        await eventually_async(is_empty_of_homes)
        await eventually_async(lambda: self.orders.retire(number), f"{number} is retired")
        await self.orders.look()


@pytest.mark.parametrize("seed", range(5))
async def test_a_group_stays_in_order_whatever_happens_to_its_queue(
    start_node: StartNode, connect: Connect, seed: int
) -> None:
    dice = random.Random(seed)
    nodes = [await start_node(), await start_node()]
    mq = await connect(nodes[0])
    clients = [await connect(dice.choice(nodes)) for _ in range(3)]
    storm = Storm(mq, nodes, dice)
    # It was a plain queue, with a backlog.
    await mq.create_queue("orders")
    await storm.put_some(BACKLOG * GROUPS)
    consumers = [asyncio.create_task(storm.consume(client)) for client in clients]
    producer = asyncio.create_task(storm.produce())
    storm.orders = await LogicalQueue.make(mq, nodes, 0, SCALING)
    for node in (*nodes, nodes[0]):
        await storm.orders.add(node, is_home=False)
    leader = asyncio.create_task(storm.lead())
    await eventually_async(
        lambda: sum(consumers for _, consumers in storm.alias.counts().values()) == 3
    )
    await storm.spread()
    for _ in range(STEPS):
        await storm.step()
        assert not storm.watch.wrong
    storm.over = True
    try:
        await producer
        await eventually_async(lambda: storm.watch.is_over, "all that was put is delivered")
    finally:
        for task in (*consumers, leader):
            task.cancel()
        await asyncio.gather(*consumers, leader, return_exceptions=True)
    assert not storm.watch.wrong


async def test_put_waits_while_its_group_moves(start_node: StartNode, connect: Connect) -> None:
    nodes = [await start_node(), await start_node()]
    mq = await connect(nodes[0])
    orders = await LogicalQueue.make(mq, nodes, 2)
    old, new = [(await orders.place(number)).queue_id for number in (1, 2)]
    await mq.put("orders", b"first", group="g")
    giver, taker = nodes[0].replicas[old], nodes[1].replicas[new]

    async with taker.exchanging:
        await orders.set_homes([-2] * ASSIGNMENT_SLOTS)
        # It has left the one and has not come to the other, so nothing keeps the new home closed.
        await eventually_async(lambda: not giver.assignments.held())
        await orders.set_homes([2] * ASSIGNMENT_SLOTS)
        await mq.put("orders", b"second", group="g")
        queue = taker.context.queue
        assert (queue.lanes.head_count, queue.lanes.held_count) == (0, 1)

    await eventually_async(lambda: (queue.lanes.head_count, queue.lanes.held_count) == (1, 1))
    assert [(await mq.get("orders")).payload for _ in range(2)] == [b"first", b"second"]


async def test_a_home_that_moves_on_is_opened_behind_what_still_comes_to_where_it_was(
    start_node: StartNode, connect: Connect
) -> None:
    nodes = [await start_node(), await start_node()]
    mq = await connect(nodes[0])
    orders = await LogicalQueue.make(mq, nodes, 3)
    one, two, three = [(await orders.place(number)).queue_id for number in (1, 2, 3)]
    await mq.put("orders", b"first", group="g")
    giver, between, last = nodes[0].replicas[one], nodes[1].replicas[two], nodes[0].replicas[three]
    look = partial(seen, orders)

    async with between.exchanging:
        await orders.set_homes([-2] * ASSIGNMENT_SLOTS)
        await eventually_async(lambda: not giver.assignments.held())
        await orders.set_homes([-3] * ASSIGNMENT_SLOTS)
        assert TopologyReconciler().assignments(await orders.topology(), look) is None, (
            "neither here nor there"
        )

    await eventually_async(lambda: last.context.queue.lanes.head_count == 1)
    await eventually_async(lambda: not between.assignments.ahead())
    assert TopologyReconciler().assignments(await orders.topology(), look) == [3] * ASSIGNMENT_SLOTS


async def test_message_behind_a_moving_group_does_not_overtake_it(
    start_node: StartNode, connect: Connect
) -> None:
    nodes = [await start_node(), await start_node()]
    mq = await connect(nodes[0])
    orders = await LogicalQueue.make(mq, nodes, 3)
    one, two, three = [(await orders.place(number)).queue_id for number in (1, 2, 3)]
    await mq.put("orders", b"first", group="g")
    giver, between, last = nodes[0].replicas[one], nodes[1].replicas[two], nodes[0].replicas[three]

    async with between.exchanging:
        await orders.set_homes([-2] * ASSIGNMENT_SLOTS)
        await eventually_async(lambda: not giver.assignments.held())
        await orders.set_homes([2] * ASSIGNMENT_SLOTS)
        await mq.put("orders", b"second", group="g")
        await orders.set_homes([-3] * ASSIGNMENT_SLOTS)
        assert await nodes[0].exchange.pull(last, two, 10, homed=True) == 0
        assert between.context.queue.lanes.held_count == 1

    await eventually_async(lambda: last.context.queue.lanes.held_count == 1)
    await orders.set_homes([3] * ASSIGNMENT_SLOTS)
    assert [(await mq.get("orders")).payload for _ in range(2)] == [b"first", b"second"]


async def test_exchange_of_free_messages_leaves_groups(
    start_node: StartNode, connect: Connect
) -> None:
    nodes = [await start_node(), await start_node()]
    mq = await connect(nodes[0])
    orders = await LogicalQueue.make(mq, nodes, 2)
    one, two = [(await orders.place(number)).queue_id for number in (1, 2)]
    for payload, group in ((b"held", "h"), (b"next", "h"), (b"free", "g")):
        await mq.put("orders", payload, group=group)
    held = await mq.get("orders", lease=60.0)
    giver, taker = nodes[0].replicas[one], nodes[1].replicas[two]

    async with taker.exchanging:
        await orders.set_homes([-2] * ASSIGNMENT_SLOTS)
        await eventually_async(lambda: giver.assignments.held() == {assignment_slot("h")})
        # Whoever hands over waits for the other group.
        await held.ack_confirmed()
        assert await nodes[1].exchange.pull(taker, one, 10) == 0
        assert giver.context.queue.lanes.held_count == 1
