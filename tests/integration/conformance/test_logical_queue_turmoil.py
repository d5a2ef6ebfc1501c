"""Whatever happens to a logical queue: what was confirmed is delivered, once or flagged.

Producers put and consumers take while shares change, clients are sent elsewhere, replicas come,
drain, change their owner and are retired, and connections break, in an order that a seed draws.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import pytest
from backing import Connect, StartNode
from logical_queue import LogicalQueue
from waiting import eventually_async

from tidegate.broker.node import Node
from tidegate.broker.replication import LogicalQueueState
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core.errors import TidegateError
from tidegate.core.topology import MemberRole, ReplicaState
from tidegate.demo.history import Checker, HistoryEvent, Operation, Outstanding, Phase, payload_hash
from tidegate.protocol.cluster import MigrateClients

STEPS = 25


class Turmoil:
    """Two nodes, two producers, three consumers, and a dice."""

    def __init__(self, orders: LogicalQueue, clients: list[Client], dice: random.Random) -> None:
        self.orders = orders
        self.clients = clients
        self.dice = dice
        self.checker = Checker()
        self.outstanding = Outstanding()
        self.over = False

    def note(
        self, process: str, op: Operation, phase: Phase, key: tuple[str, int], **more: bool
    ) -> None:
        producer, seq = key
        body = payload_hash(b"%s:%d" % (producer.encode(), seq))
        event = HistoryEvent(
            t=time.monotonic(),
            process=process,
            op=op,
            phase=phase,
            queue="orders",
            producer=producer,
            seq=seq,
            payload_hash=body,
            **more,
        )
        self.checker.feed(event)
        self.outstanding.feed(event)

    async def produce(self, client: Client, name: str) -> None:
        seq = 0
        while not self.over:
            keys = [(name, seq + n) for n in range(self.dice.randint(1, 12))]
            seq += len(keys)
            for key in keys:
                self.note(name, "put", "invoke", key)
            payloads = [b"%s:%d" % (producer.encode(), n) for producer, n in keys]
            if self.dice.random() < 0.5:
                await client.put_many("orders", payloads)
            else:
                await asyncio.gather(*(client.put("orders", payload) for payload in payloads))
            for key in keys:
                self.note(name, "put", "ok", key)
            await asyncio.sleep(0.001)  # other tasks get a turn, and the backlog stays small

    async def consume(self, client: Client, name: str) -> None:
        async with client.subscribe("orders", prefetch=8) as subscription:
            async for message in subscription:
                producer, _, number = message.payload.decode().partition(":")
                key = (producer, int(number))
                # Nobody promises an order across replicas, so each delivery has a process.
                self.note(f"{name}{key}", "deliver", "ok", key, redelivered=message.redelivered)
                await self.settle(message, key, name)

    async def settle(self, message: Message, key: tuple[str, int], name: str) -> None:
        if self.dice.random() < 0.3:
            await asyncio.sleep(self.dice.random() / 100)  # the work, which events interrupt
        try:
            if self.dice.random() < 0.05:
                self.note(name, "ack", "fail", key)
                await message.nack(delay=0)
                return
            self.note(name, "ack", "invoke", key)
            await message.ack_confirmed()
        except TidegateError:
            return  # lost with its connection or owner: it may come again
        self.note(name, "ack", "ok", key)

    # What happens

    async def step(self) -> None:
        happens = self.dice.choice(
            [self.shares, self.migrate, self.cut, self.cut, self.move, self.add, self.drain]
        )
        await happens()
        await asyncio.sleep(self.dice.random() / 50)  # a drawn pause: another interleaving

    async def serving(self) -> list[int]:
        replicas = (await self.orders.topology()).replicas
        return [p.number for p in replicas if p.state is ReplicaState.SERVING]

    async def shares(self) -> None:
        await self.orders.share({n: self.dice.random() for n in await self.serving()})

    async def migrate(self) -> None:
        ids = [p.queue_id for p in (await self.orders.topology()).replicas]
        source, target = self.dice.choice(ids), self.dice.choice(ids)
        alias = self.alias()
        if alias is not None and source != target:
            alias.migrate(
                MigrateClients(self.orders.alias_id, MemberRole.CONSUMER, source, target, count=2)
            )

    def alias(self) -> LogicalQueueState | None:
        for node in self.orders.nodes:
            replica = node.replicas.get(self.orders.alias_id)
            if replica is not None:
                return node.aliases.logical_queue(replica)
        return None

    async def cut(self) -> None:
        link = self.dice.choice(self.clients).transport
        if link is not None:
            link.abort()

    async def move(self) -> None:
        """A replica, or the alias itself, changes its owner."""
        ids = [p.queue_id for p in (await self.orders.topology()).replicas]
        queue_id = self.dice.choice([*ids, self.orders.alias_id])
        await self.orders.bring(self.dice.choice(self.orders.nodes), queue_id)

    async def add(self) -> None:
        if len(await self.serving()) < 4:
            await self.orders.add(self.dice.choice(self.orders.nodes))

    async def is_anything_stored(self) -> bool:
        replicas = [r for node in self.orders.nodes for r in node.replicas.values()]
        return not all(replica.is_empty for replica in replicas)

    async def exchange(self) -> None:
        """What waits at replicas without a consumer goes to one that has some, as loops see to."""
        here = self.orders.nodes[0]
        ids = [p.queue_id for p in (await self.orders.topology()).replicas]
        owned = [await self.orders.bring(here, queue_id) for queue_id in ids]
        taker = next((r for r in owned if r.numbers().consumers), None)
        for replica in owned:
            if taker is not None and not replica.numbers().consumers and replica.numbers().waiting:
                # Who changes hands meanwhile is asked again the next time.
                with contextlib.suppress(TidegateError):
                    await here.exchange.pull(taker, replica.info.queue_id, 1000)

    async def drain(self) -> None:
        """One goes: clients leave it, what waits is exchanged, then it is retired."""
        numbers = await self.serving()
        if len(numbers) < 2:
            return
        number = self.dice.choice(numbers)
        heir = next(n for n in numbers if n != number)
        await self.orders.drain(number)
        await self.orders.set_homes([heir] * 64)
        leaving, target = await self.orders.place(number), await self.orders.place(heir)

        async def is_retired() -> bool:
            if await self.orders.retire(number):
                return True
            await self.orders.look()
            for client in self.clients:
                for membership in client._queues.memberships:
                    membership.join_again()  # as they do by themselves, in a few seconds
            taker = await self.orders.bring(self.orders.nodes[0], target.queue_id)
            with contextlib.suppress(TidegateError):
                await self.orders.nodes[0].exchange.pull(taker, leaving.queue_id, 1000)
            return False

        await eventually_async(is_retired, f"replica {number} is empty and retired")
        await self.orders.look()


@pytest.mark.parametrize("seed", range(4))
async def test_confirmed_messages_are_delivered_under_turmoil(
    start_node: StartNode, connect: Connect, seed: int
) -> None:
    nodes: list[Node] = [await start_node(), await start_node()]
    clients = [await connect(nodes[n % 2], mode="admin") for n in range(4)]
    orders = await LogicalQueue.make(clients[0], nodes, 2)
    turmoil = Turmoil(orders, clients, random.Random(seed))
    producing = [asyncio.create_task(turmoil.produce(clients[n], f"producer{n}")) for n in range(2)]
    consuming = [
        asyncio.create_task(turmoil.consume(clients[2 + n % 2], f"consumer{n}")) for n in range(3)
    ]

    for _ in range(STEPS):
        await turmoil.step()
    turmoil.over = True
    await asyncio.gather(*producing)

    async def is_all_delivered() -> bool:
        for task in consuming:
            assert not task.done(), task.exception()
        if not turmoil.outstanding and not await turmoil.is_anything_stored():
            return True
        await turmoil.exchange()
        return False

    await eventually_async(is_all_delivered, "all that was confirmed is delivered")
    for task in consuming:
        task.cancel()
    await asyncio.gather(*consuming, return_exceptions=True)

    verdict = turmoil.checker.verdict(stored=set())
    assert verdict.outcome == "pass", str(verdict)
    assert verdict.confirmed > 100
