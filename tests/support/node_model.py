"""A real node, with real clients on real sockets, against a model of a queue.

Puts, publications, transactions, reads of every kind, subscriptions, ack, nack, extend, leases that
run out by a turned clock, purges, crashes and orderly restarts, in any order. The model is a
dictionary; what the node may legitimately not know (whether an unconfirmed ack reached the disk
before a crash) it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
import uvloop
from backing import Backing, MemoryBacking, StoppedClock, crash
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.core import errors as e
from tidegate.core.model import DEFAULT_POLICY
from tidegate.core.runtime import NodeLimits

Result = TypeVar("Result")

NAMES = ["ann", "bob"]
CONTEXTS = [None, 1, 2]
FOREVER_S = 1e9
AMPLE_BYTES = 1 << 30
SCARCE_BYTES = 20_000
# No sum of turns comes near a lease: what has run out is never a matter of rounding.
LEASES_S = [100.0, 1000.0]
TURNS_S = [31.0, 207.0, 1013.0]


class Put:
    """What the model knows of a message."""

    def __init__(
        self,
        payload: bytes,
        sender: int,
        receiver: int | None,
        context: int | None,
        priority: int,
        arrived_at: float,
    ) -> None:
        self.payload = payload
        self.arrived_at = arrived_at
        self.sender = sender
        self.receiver = receiver
        self.context = context
        self.priority = priority
        self.state = "ready"
        self.deliveries = 0
        # It may have been delivered without our having seen it.
        self.may_be_redelivered = False
        # After a crash everything is suspect.
        self.must_be_flagged = False


class Held:
    """A message under a lease."""

    def __init__(self, message: Message, name: str, deadline: float, generation: int) -> None:
        self.message = message
        # Whose it is.
        self.name = name
        self.deadline = deadline
        self.generation = generation
        self.settled = False


class NodeMachine(RuleBasedStateMachine):
    """One queue on one node that may crash."""

    held = Bundle("held")

    def __init__(self, backing: Backing | None = None) -> None:
        super().__init__()
        self.backing = backing or MemoryBacking()
        self.clock = StoppedClock()
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.clients: dict[str, Client] = {}
        self.ids: dict[str, int] = {}
        self.messages: dict[int, Put] = {}
        self.leases: dict[int, Held] = {}
        self.unconfirmed: set[int] = set()
        # What the other subscription of the topic has.
        self.copies: list[bytes] = []
        self.generation = 0
        self.counter = 0

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    # Life

    @initialize(memory_bytes=st.sampled_from([AMPLE_BYTES, SCARCE_BYTES]))
    def begin(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.run(self.start())
        self.run(self.clients["ann"].create_queue("orders"))
        self.run(self.make_topic())
        for name, receiver in (("ann", None), ("bob", "ann"), ("bob", None)):
            self.put(name, [(5, receiver, None, 700), (1, None, 1, 3), (10, "bob", None, 700)])

    async def make_topic(self) -> None:
        ann = self.clients["ann"]
        await ann.create_topic("news")
        await ann.subscribe_to("news", "orders", filter={"kind": ["order", "refund"]})
        await ann.subscribe_to("news", "copies")

    async def start(self) -> None:
        self.node = Node(
            self.backing.store(),
            clock=self.clock,
            limits=NodeLimits(
                memory_bytes=self.memory_bytes,
                lease_s=FOREVER_S,
                heartbeat_s=FOREVER_S,
                handshake_s=FOREVER_S,
                settle_linger_s=0.001,
            ),
        )
        await self.node.start()
        self.generation += 1
        for name in NAMES:
            self.clients[name] = await Client(self.node.address, name=name, reconnect_s=0).open()
            self.ids[name] = self.clients[name].client_id

    async def hang_up(self) -> None:
        for client in self.clients.values():
            await client.close()

    @rule(orderly=st.booleans())
    def restart(self, orderly: bool) -> None:
        if orderly:
            self.stop_and_start()
        else:
            self.crash_and_reload()
        self.check_what_waits()

    def crash_and_reload(self) -> None:
        async def restart() -> None:
            await crash(self.node)
            await self.hang_up()
            await self.backing.declare_dead(self.node.member_id)
            await self.start()

        self.run(restart())
        self.everything_held_goes_back()
        for put in self.messages.values():
            put.must_be_flagged = True
        seen = {m.message_id for m in self.run(self.browse_all())}
        expected = {i for i, put in self.messages.items() if put.state == "ready"}
        assert expected <= seen <= expected | self.unconfirmed
        for message_id in seen - expected:
            self.messages[message_id].state = "ready"
        self.unconfirmed.clear()

    def stop_and_start(self) -> None:
        async def restart() -> None:
            await self.node.stop()
            await self.hang_up()
            await self.start()

        self.run(restart())
        self.everything_held_goes_back()
        self.unconfirmed.clear()
        for put in self.messages.values():
            put.must_be_flagged = True

    def everything_held_goes_back(self) -> None:
        for message_id in list(self.leases):
            self.goes_back(message_id)
        self.leases.clear()

    def goes_back(self, message_id: int) -> None:
        self.messages[message_id].state = "ready"
        del self.leases[message_id]

    async def browse_all(self) -> list[Message]:
        return await self.clients["ann"].browse("orders", limit=10_000)

    # In

    @rule(
        name=st.sampled_from(NAMES),
        rows=st.lists(
            st.tuples(
                st.sampled_from([1, 5, 10]),
                st.sampled_from([None, None, *NAMES]),
                st.sampled_from(CONTEXTS),
                st.sampled_from([3, 700, 3000]),
            ),
            min_size=1,
            max_size=6,
        ),
    )
    def put(self, name: str, rows: list[tuple[int, str | None, int | None, int]]) -> None:
        puts = []
        for priority, receiver, context, size in rows:
            self.counter += 1
            payload = b"%d " % self.counter + b"." * size
            receiver_id = None if receiver is None else self.ids[receiver]
            puts.append(
                Put(payload, self.ids[name], receiver_id, context, priority, self.clock.now)
            )

        async def put_all() -> list[int]:
            return await asyncio.gather(
                *(
                    self.clients[name].put(
                        "orders",
                        put.payload,
                        priority=put.priority,
                        receiver=put.receiver,
                        context=put.context,
                    )
                    for put in puts
                )
            )

        ids = self.run(put_all())
        newest = max(self.messages, default=0)
        for message_id, put in zip(ids, puts, strict=True):
            assert message_id > newest
            self.messages[message_id] = put
        assert len(set(ids)) == len(puts)

    @rule(
        name=st.sampled_from(NAMES),
        rows=st.lists(
            st.tuples(
                st.sampled_from(["order", "refund", "other"]),
                st.sampled_from([1, 5, 10]),
                st.sampled_from([3, 700]),
            ),
            min_size=1,
            max_size=6,
        ),
    )
    def publish(self, name: str, rows: list[tuple[str, int, int]]) -> None:
        """The queue is one of two subscriptions, and gets what matches."""
        expected: dict[bytes, Put] = {}
        published: list[tuple[bytes, str, int]] = []
        for kind, priority, size in rows:
            self.counter += 1
            payload = b"%d " % self.counter + b"." * size
            published.append((payload, kind, priority))
            self.copies.append(payload)
            if kind != "other":
                expected[payload] = Put(
                    payload, self.ids[name], None, None, priority, self.clock.now
                )

        async def publish_all() -> list[int]:
            return await asyncio.gather(
                *(
                    self.clients[name].publish(
                        "news", payload, headers={"kind": kind}, priority=priority
                    )
                    for payload, kind, priority in published
                )
            )

        counts = self.run(publish_all())
        assert counts == [1 if kind == "other" else 2 for _, kind, _ in published]
        newest = max(self.messages, default=0)

        async def find_all() -> None:
            """What comes back from the store just when we look is seen at the next look."""
            while expected:
                for message in await self.browse_all():
                    put = expected.pop(message.payload, None)
                    if put is not None:
                        assert message.message_id > newest
                        self.messages[message.message_id] = put

        self.run(find_all())

    # Out

    def candidates(
        self, name: str, order: str, sender: str | None = None, context: int | None = None
    ) -> list[int]:
        me = self.ids[name]
        found = [
            message_id
            for message_id, put in self.messages.items()
            if put.state == "ready"
            and put.receiver in (None, me)
            and (sender is None or put.sender == self.ids[sender])
            and (context is None or put.context == context)
            # Who waits for a reply skips what it asked itself.
            and not (context is not None and put.receiver is None and put.sender == me)
        ]
        return sorted(found, key=lambda i: (self.rank(self.messages[i], order), i))

    @staticmethod
    def rank(put: Put, order: str) -> float:
        if order == "aged":
            return put.arrived_at - DEFAULT_POLICY.ageing_s * put.priority
        return -put.priority if order == "priority" else 0

    def check(self, message: Message) -> Put:
        put = self.messages[message.message_id]
        assert message.payload == put.payload
        assert (message.sender, message.receiver) == (put.sender, put.receiver)
        assert (message.context, message.priority) == (put.context, put.priority)
        if put.must_be_flagged or put.deliveries:
            assert message.redelivered, "a repeat must say so"
        elif self.memory_bytes == AMPLE_BYTES and not put.may_be_redelivered:
            assert not message.redelivered
            assert message.delivery_count == 1
        if not put.must_be_flagged:
            assert message.delivery_count > put.deliveries
        put.deliveries += 1
        return put

    @rule(
        target=held,
        name=st.sampled_from(NAMES),
        order=st.sampled_from(["oldest", "priority"]),
        # Mostly what finds something: a miss is one step lost.
        sender=st.sampled_from([None, None, None, *NAMES]),
        context=st.sampled_from([None, None, None, *CONTEXTS]),
        lease=st.sampled_from([None, *LEASES_S]),
    )
    def get(
        self,
        name: str,
        order: str,
        sender: str | None,
        context: int | None,
        lease: float | None,
    ) -> Held | None:
        """What is held, or None: what the bundle gets must not depend on what was found."""
        if context is not None:
            order, sender = "oldest", None
        expected = self.candidates(name, order, sender, context)
        try:
            message = self.run(
                self.clients[name].get(
                    "orders",
                    order=order,  # type: ignore[arg-type]
                    sender=sender,
                    context=context,
                    lease=lease,
                )
            )
        except e.NoMessagesInQueue:
            assert not any(put.state == "ready" for put in self.messages.values())
            return None
        except e.NoMessagesRetrieved:
            assert not expected
            return None
        if context is None or self.memory_bytes == AMPLE_BYTES:
            assert message.message_id == expected[0]
        assert message.message_id in expected
        put = self.check(message)
        if lease is None:
            put.state = "done"
            self.unconfirmed.add(message.message_id)
            return None
        put.state = "held"
        holding = Held(message, name, self.clock.now + lease, self.generation)
        self.leases[message.message_id] = holding
        return holding

    @rule(
        name=st.sampled_from(NAMES),
        order=st.sampled_from(["oldest", "priority"]),
        prefetch=st.integers(1, 8),
        acknowledged=st.sets(st.integers(0, 7)),
        automatic=st.booleans(),
    )
    def subscribe(
        self, name: str, order: str, prefetch: int, acknowledged: set[int], automatic: bool
    ) -> None:
        """Take what a subscription brings; what is not acknowledged goes back at its end."""
        # Subscribers get by priority with ageing, readers the highest.
        expected = self.candidates(name, "aged" if order == "priority" else order)
        count = len(expected) if automatic else min(prefetch, len(expected))

        async def consume() -> list[Message]:
            received: list[Message] = []
            async with self.clients[name].subscribe(
                "orders",
                prefetch=prefetch,
                ack="automatic" if automatic else "explicit",
                order=order,  # type: ignore[arg-type]
            ) as subscription:
                stream = aiter(subscription)
                while len(received) < count:
                    received.append(await anext(stream))
                if not automatic:
                    for index in sorted(acknowledged & set(range(count))):
                        await received[index].ack_confirmed()
            return received

        received = self.run(consume())
        assert [message.message_id for message in received] == expected[:count]
        for index, message in enumerate(received):
            put = self.check(message)
            if automatic:
                put.state = "done"
                self.unconfirmed.add(message.message_id)
            elif index in acknowledged:
                put.state = "done"
        for message_id in expected[count:]:
            # Acknowledging made room for more, which came when nobody looked.
            self.messages[message_id].may_be_redelivered = True

    # Back

    def is_ours(self, holding: Held) -> bool:
        return self.leases.get(holding.message.message_id) is holding

    @rule(holding=consumes(held))
    def acknowledge(self, holding: Held | None) -> None:
        if holding is None:
            return
        if not self.is_ours(holding):
            with pytest.raises(e.LeaseLost):
                self.run(holding.message.ack_confirmed())
            return
        self.run(holding.message.ack_confirmed())
        message_id = holding.message.message_id
        self.messages[message_id].state = "done"
        del self.leases[message_id]

    @rule(one=consumes(held), two=consumes(held), priority=st.sampled_from([1, 5, 10]))
    def transact(self, one: Held | None, two: Held | None, priority: int) -> None:
        """Acknowledge what one client holds, and put as many; all or nothing."""
        holdings = [each for each in (one, two) if each is not None]
        name = holdings[0].name if holdings else "ann"
        holdings = [each for each in holdings if each.name == name]
        self.counter += 1
        payload = b"%d " % self.counter

        async def commit() -> list[int]:
            async with self.clients[name].transaction() as tx:
                for each in holdings:
                    tx.ack(each.message)
                tx.put("orders", payload, priority=priority)
            return tx.message_ids

        if not all(self.is_ours(each) for each in holdings):
            with pytest.raises((e.LeaseLost, e.InvalidValue)):
                self.run(commit())
            return
        (message_id,) = self.run(commit())
        self.messages[message_id] = Put(
            payload, self.ids[name], None, None, priority, self.clock.now
        )
        for each in holdings:
            acked_id = each.message.message_id
            self.messages[acked_id].state = "done"
            del self.leases[acked_id]

    @rule(holding=consumes(held))
    def give_back(self, holding: Held | None) -> None:
        if holding is None:
            return
        if not self.is_ours(holding):
            with pytest.raises(e.LeaseLost):
                self.run(holding.message.nack(delay=0))
            return
        self.run(holding.message.nack(delay=0))
        self.goes_back(holding.message.message_id)

    @rule(holding=held, lease_s=st.sampled_from(LEASES_S))
    def extend(self, holding: Held | None, lease_s: float) -> None:
        if holding is None:
            return
        if not self.is_ours(holding):
            with pytest.raises(e.LeaseLost):
                self.run(holding.message.extend(lease_s))
            return
        self.run(holding.message.extend(lease_s))
        holding.deadline = self.clock.now + lease_s

    @rule(seconds=st.sampled_from(TURNS_S))
    def turn_the_clock(self, seconds: float) -> None:
        self.clock.turn(seconds)

        async def tick() -> None:
            for replica in self.node.replicas.values():
                replica.tick()

        self.run(tick())
        for message_id, holding in list(self.leases.items()):
            if holding.deadline <= self.clock.now:
                self.goes_back(message_id)

    @rule()
    def purge(self) -> None:
        ready = [i for i, put in self.messages.items() if put.state == "ready"]
        assert self.run(self.clients["ann"].purge("orders")) == len(ready)
        for message_id in ready:
            self.messages[message_id].state = "done"
        self.check_what_waits()

    # What always holds

    def check_what_waits(self) -> None:
        copies = self.run(self.clients["ann"].browse("copies", limit=10_000))
        assert {copy.payload for copy in copies} == set(self.copies)
        seen = [message.message_id for message in self.run(self.browse_all())]
        ready = sorted(i for i, put in self.messages.items() if put.state == "ready")
        assert sorted(seen) == ready
        if self.memory_bytes == AMPLE_BYTES:
            assert len(set(seen)) == len(seen)

    @invariant()
    def the_numbers_add_up(self) -> None:
        if not self.clients:
            return
        numbers = self.run(self.clients["ann"].stats("orders")).queue("orders")
        assert numbers is not None
        states = [put.state for put in self.messages.values()]
        assert numbers.waiting == states.count("ready")
        assert numbers.unacknowledged == states.count("held")

    def teardown(self) -> None:
        if not self.clients:
            return

        async def end() -> None:
            await self.hang_up()
            await self.node.stop()

        self.run(end())
        self.runner.close()
