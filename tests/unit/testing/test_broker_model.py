"""A broker against a model of what a queue promises, over random schedules of calls and time.

Puts (delayed, short-lived, deduplicated, grouped), leases, acks, failures with and without a delay,
rejections, redrives, pauses and jumps of the clock, in any order. The model is a dictionary of
messages and their deadlines. It does not say when within a tick of the node a deadline takes
effect, so the clock is never left near one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from thoroughness import examples

import tidegate
from tidegate import QueuePolicy
from tidegate.client.client import Client
from tidegate.client.message import Message
from tidegate.testing.broker import Broker
from tidegate.testing.virtual_time import VirtualTimeLoop

Result = TypeVar("Result")

# What the model knows; a feature that is being built is left out until it is there.
FEATURES = frozenset(
    {"leases", "retries", "delay", "ttl", "dedup", "pause", "redrive", "groups", "transactions"}
)

NEVER = float("inf")
# Longer than a tick of the node, which is when leases and lives end.
NEAR_S = 0.5
RETRY_FIRST_S, RETRY_FACTOR, RETRY_MAX_S = 5.0, 2.0, 30.0
DEDUP_WINDOW_S = 100.0
LEASES_S = [10.0, 60.0, 500.0]
ADVANCES_S = [1.0, 31.0, 700.0]


class Put:
    """What the model knows of a message."""

    def __init__(
        self, message_id: int, payload: bytes, group: str | None, due_at: float, expires_at: float
    ) -> None:
        self.message_id = message_id
        self.payload = payload
        self.group = group
        self.due_at = due_at
        self.expires_at = expires_at
        self.state = "waiting"
        self.deliveries = 0
        # Of those, what counts towards giving up; it outlives a restart, the others do not.
        self.failures = 0
        self.lease_until = NEVER
        self.held: Message | None = None
        # Begun: until it is done, no other of its group is.
        self.begun = False
        self.reason = ""

    def deadlines(self) -> list[float]:
        if self.state == "held":
            return [self.lease_until, self.expires_at]
        return [self.due_at, self.expires_at] if self.state == "waiting" else []


class BrokerMachine(RuleBasedStateMachine):
    """One queue, one client that holds messages, one clock."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.broker = Broker()
        self.puts: dict[bytes, Put] = {}
        self.seen: dict[str, float] = {}
        self.paused = False
        # After a restart everything is suspect, so everything is flagged that was there before.
        self.suspect: set[bytes] = set()
        self.mq: Client

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.runner.run(work)

    @initialize(deliveries_max=st.sampled_from([0, 2, 3]), keep_expired=st.booleans())
    def begin(self, deliveries_max: int, keep_expired: bool) -> None:
        self.policy = QueuePolicy(
            deliveries_max=deliveries_max if "retries" in FEATURES else 0,
            retry_first_s=RETRY_FIRST_S,
            retry_factor=RETRY_FACTOR,
            retry_max_s=RETRY_MAX_S,
            retry_jitter=0.0,
            keep_expired=keep_expired,
            dedup_window_s=DEDUP_WINDOW_S,
        )

        async def begin() -> None:
            self.mq = await self.broker.connect()
            await self.mq.create_queue("orders", policy=self.policy)

        self.run(begin())

    # Time

    @property
    def now(self) -> float:
        return self.broker.time()

    def pass_time(self, seconds: float) -> None:
        self.run(self.broker.advance(seconds))
        while any(abs(deadline - self.now) < NEAR_S for deadline in self.deadlines()):
            self.run(self.broker.advance(1.0))
        for put in self.puts.values():
            self.age(put)

    def deadlines(self) -> list[float]:
        ends = [at + DEDUP_WINDOW_S for at in self.seen.values()]
        return ends + [at for put in self.puts.values() for at in put.deadlines()]

    def age(self, put: Put) -> None:
        """What time alone does to a message."""
        if put.state == "held" and put.lease_until <= self.now:
            self.failed(put, wait_s=0.0, at=put.lease_until)
        if put.state == "waiting" and put.expires_at <= self.now:
            put.state = "dead" if self.policy.keep_expired else "gone"
            put.reason = "expired"

    def failed(self, put: Put, wait_s: float | None, at: float) -> None:
        """A delivery came to nothing."""
        put.deliveries += 1
        put.failures += 1
        put.held = None
        if self.policy.deliveries_max and put.failures >= self.policy.deliveries_max:
            put.state, put.reason = "dead", "deliveries"
            return
        if wait_s is None:
            wait_s = min(RETRY_FIRST_S * RETRY_FACTOR ** (put.failures - 1), RETRY_MAX_S)
        put.state, put.due_at = "waiting", at + wait_s

    @rule(seconds=st.sampled_from(ADVANCES_S))
    def advance(self, seconds: float) -> None:
        self.pass_time(seconds)

    def waits_for_something(self) -> bool:
        return any(self.now < deadline < NEVER for deadline in self.deadlines())

    @precondition(waits_for_something)
    @rule(just=st.sampled_from([-1.0, 1.0, 1.0]))
    def advance_to_the_next_deadline(self, just: float) -> None:
        """Just before it nothing may have happened, just after it everything must."""
        first = min(deadline for deadline in self.deadlines() if deadline > self.now)
        self.pass_time(max(first - self.now + just, 0.0))

    # In

    @rule(
        delay=st.sampled_from([None, None, 0.0, 7.0, 40.0]),
        ttl=st.sampled_from([None, None, 25.0, 90.0]),
        dedup_id=st.sampled_from([None, None, "a"]),
        group=st.sampled_from([None, None, "g", "h"]),
    )
    def put(
        self, delay: float | None, ttl: float | None, dedup_id: str | None, group: str | None
    ) -> None:
        delay = delay if "delay" in FEATURES else None
        ttl = ttl if "ttl" in FEATURES else None
        dedup_id = dedup_id if "dedup" in FEATURES else None
        group = group if "groups" in FEATURES else None
        payload = b"%d" % len(self.puts)
        now = self.now

        async def put() -> int:
            return await self.mq.put(
                "orders", payload, delay=delay, ttl=ttl, dedup_id=dedup_id, group=group
            )

        message_id = self.run(put())
        if dedup_id is not None:
            if self.seen.get(dedup_id, -NEVER) + DEDUP_WINDOW_S > now:
                assert message_id == 0, f"{dedup_id} was stored twice within its window"
                return
            self.seen[dedup_id] = now
        assert message_id > 0
        self.puts[payload] = Put(
            message_id, payload, group, now + (delay or 0.0), NEVER if ttl is None else now + ttl
        )
        self.pass_time(0.0)

    # Out

    def takeable(self) -> list[Put]:
        """What may be delivered now, the oldest first."""
        in_order = sorted(self.puts.values(), key=lambda put: put.message_id)
        alive = [put for put in in_order if put.state in ("waiting", "held")]
        begun: dict[str | None, Put] = {put.group: put for put in alive if put.begun}
        found = []
        for put in alive:
            is_ready = put.state == "waiting" and put.due_at <= self.now
            if is_ready and (put.group is None or begun.setdefault(put.group, put) is put):
                found.append(put)
        return [] if self.paused else found

    @rule(lease_s=st.sampled_from(LEASES_S))
    def take(self, lease_s: float) -> None:
        expected = self.takeable()
        try:
            message = self.run(self.mq.get("orders", lease=lease_s))
        except (tidegate.NoMessagesInQueue, tidegate.NoMessagesRetrieved):
            assert not expected, f"{expected[0].payload!r} was not delivered"
            return
        assert expected, f"{message.payload!r} was delivered, and may not be"
        put = expected[0]
        assert message.payload == put.payload
        assert message.delivery_count == put.deliveries + 1
        assert message.redelivered == (put.deliveries > 0 or put.payload in self.suspect)
        put.state, put.held, put.lease_until = "held", message, self.now + lease_s
        put.begun = True
        self.pass_time(0.0)

    @rule(delay=st.sampled_from([None, 0.0, 15.0]), lease_s=st.sampled_from(LEASES_S))
    def take_and_fail(self, delay: float | None, lease_s: float) -> None:
        """The way of a message that nobody can handle."""
        self.take(lease_s)
        if self.holds_something():
            self.nack(-1, delay)

    def chosen(self, number: int) -> tuple[Put, Message]:
        held = [put for put in self.puts.values() if put.state == "held"]
        put = held[number % len(held)]
        assert put.held is not None
        return put, put.held

    def holds_something(self) -> bool:
        return any(put.state == "held" for put in self.puts.values())

    @precondition(holds_something)
    @rule(number=st.integers(0, 20))
    def ack(self, number: int) -> None:
        put, message = self.chosen(number)
        self.run(message.ack_confirmed())
        put.state = "gone"

    @precondition(holds_something)
    @rule(number=st.integers(0, 20), delay=st.sampled_from([0.0, None, 15.0, 400.0]))
    def nack(self, number: int, delay: float | None) -> None:
        put, message = self.chosen(number)
        delay = delay if "retries" in FEATURES else 0.0
        now = self.now
        self.run(message.nack(delay=delay, error="out of stock"))
        self.failed(put, wait_s=delay, at=now)
        self.pass_time(NEAR_S)  # its time may be over; the next tick sees to that

    @precondition(lambda self: "retries" in FEATURES and self.holds_something())
    @rule(number=st.integers(0, 20))
    def reject(self, number: int) -> None:
        put, message = self.chosen(number)
        self.run(message.reject(error="no such customer"))
        put.deliveries += 1
        put.state, put.reason = "dead", "rejected"
        self.pass_time(0.0)

    @precondition(lambda self: "retries" in FEATURES and self.holds_something())
    @rule(number=st.integers(0, 20))
    def release(self, number: int) -> None:
        put, message = self.chosen(number)
        self.run(message.release())
        put.deliveries += 1
        put.state = "waiting"
        self.pass_time(NEAR_S)

    @precondition(holds_something)
    @rule(number=st.integers(0, 20), lease_s=st.sampled_from(LEASES_S))
    def extend(self, number: int, lease_s: float) -> None:
        put, message = self.chosen(number)
        self.run(message.extend(lease_s))
        put.lease_until = self.now + lease_s
        self.pass_time(0.0)

    @precondition(lambda self: "transactions" in FEATURES and self.holds_something())
    @rule(number=st.integers(0, 20), delay=st.sampled_from([None, 7.0]), commits=st.booleans())
    def transact(self, number: int, delay: float | None, commits: bool) -> None:
        """One message is taken for another: both, or nothing has happened."""
        put, message = self.chosen(number)
        payload = b"%d" % len(self.puts)
        now = self.now

        async def transact() -> int:
            async with self.mq.transaction() as transaction:
                transaction.ack(message)
                transaction.put("orders", payload, delay=delay)
                if not commits:
                    raise KeyError("on second thoughts")
            return transaction.message_ids[0]

        if commits:
            message_id = self.run(transact())
            self.puts[payload] = Put(message_id, payload, None, now + (delay or 0.0), NEVER)
            put.state = "gone"
        else:
            with pytest.raises(KeyError):
                self.run(transact())
        self.pass_time(0.0)

    # Steering

    @precondition(lambda self: "pause" in FEATURES)
    @rule()
    def pause_or_resume(self) -> None:
        self.paused = not self.paused
        self.run(self.mq.pause("orders") if self.paused else self.mq.resume("orders"))

    @precondition(lambda self: "redrive" in FEATURES)
    @rule(reason=st.sampled_from([None, "rejected", "deliveries"]))
    def redrive(self, reason: str | None) -> None:
        dead = [
            put
            for put in self.puts.values()
            if put.state == "dead" and reason in (None, put.reason)
        ]
        if not any(put.state == "dead" for put in self.puts.values()):
            return
        assert self.run(self.mq.redrive("orders.dead", reason=reason)) == len(dead)
        found = {m.payload: m for m in self.run(self.broker.messages("orders"))}
        for put in dead:
            put.message_id = found[put.payload].message_id
            put.state, put.due_at, put.expires_at = "waiting", 0.0, NEVER
            put.deliveries = put.failures = 0
            put.begun = False
            self.suspect.add(put.payload)  # a new life, but somebody may have had it

    @rule()
    def restart(self) -> None:
        self.run(self.broker.restart())
        for put in self.puts.values():
            self.suspect.add(put.payload)
            if put.state in ("waiting", "held"):
                put.deliveries = put.failures
            if put.state == "held":
                put.state, put.held = "waiting", None
        # Who first asks for the queue loads it; what was due before is let in at the next tick.
        self.run(self.broker.queue("orders"))
        self.pass_time(NEAR_S)

    # What must hold

    @invariant()
    def the_numbers_agree(self) -> None:
        waiting = [put for put in self.puts.values() if put.state == "waiting"]
        held = [put for put in self.puts.values() if put.state == "held"]
        ready = {put.payload for put in waiting if put.due_at <= self.now}
        numbers = self.run(self.broker.queue("orders"))
        assert numbers.waiting == len(waiting)
        assert numbers.unacknowledged == len(held)
        found = {message.payload for message in self.run(self.broker.messages("orders"))}
        assert ready <= found <= {put.payload for put in waiting}

    @invariant()
    def the_dead_are_known(self) -> None:
        expected = {
            put.payload: (put.reason, put.deliveries)
            for put in self.puts.values()
            if put.state == "dead"
        }
        found = {
            message.payload: (message.deaths[-1].reason.value, message.deaths[-1].deliveries)
            for message in self.run(self.broker.dead("orders"))
        }
        assert found == expected

    def teardown(self) -> None:
        self.run(self.broker.stop())
        self.runner.close()


@pytest.mark.timeout(300)
def test_a_broker_agrees_with_its_model() -> None:
    run_state_machine_as_test(
        BrokerMachine, settings=settings(max_examples=examples(20), stateful_step_count=50)
    )
