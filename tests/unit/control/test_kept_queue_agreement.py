"""A real node, a real queue, an agreement: replicas before the breach, and every breach accounted.

The node runs in virtual time: windows of a second take none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from elastic import Consumer, Load, Watched, running
from node_that_steers import steered
from virtual_nodes import in_virtual_time, virtual_node
from waiting import eventually_async

from tidegate.agreements.evaluation import VerdictCounts
from tidegate.agreements.ledger import StoredAgreementStatus
from tidegate.broker.node import Node
from tidegate.control.alerts import Alert, Alerts
from tidegate.core.decisions import AddReplica, KeepUp
from tidegate.core.errors import InvalidValue
from tidegate.core.topology import DEFAULT_SCALING, Scaling, with_scaling_keys

PROMISE = """
name = "orders"
queue = "orders"
window = "1s"
replicas = {{ min = 1, max = {most} }}
[metrics.wait_p99]
breach = "{breach}"
"""


def promised(breach: str, most: int, **changes: Any) -> Scaling:
    """Replicas of 40 messages a second each, and a loop that is quick enough to be watched."""
    quick = {"polling_interval": "200ms", "inhibition": "1s", "cooldown_period": "1s"}
    text = PROMISE.format(breach=breach, most=most)
    said = {"policy": "agreement", "agreement": text, "rate_max_per_s": 40, **quick, **changes}
    return with_scaling_keys(DEFAULT_SCALING, said)


async def kept(node: Node) -> StoredAgreementStatus | None:
    document = (await node.store.standings()).get("orders/orders")
    return None if document is None else StoredAgreementStatus.from_json(document)


async def judged(node: Node, windows: int, **at_least: int) -> StoredAgreementStatus:
    """The standing, once so many windows were judged, and so many of them one way or another."""

    async def look() -> StoredAgreementStatus | None:
        found = await kept(node)
        if found is None:
            return None
        counts = counted(found)
        is_so = all(getattr(counts, name) >= number for name, number in at_least.items())
        return found if counts.judged >= windows and is_so else None

    return await eventually_async(look, f"{windows} windows are judged, {at_least}")


class HeardAlerts(Alerts):
    """Keeps what would be sent: the newest of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, Alert] = {}

    def send(self, alert: Alert) -> None:
        self.heard[alert.kind] = alert


def counted(standing: StoredAgreementStatus) -> VerdictCounts:
    return sum(standing.history.hours.values(), VerdictCounts())


@in_virtual_time
async def test_load_comes_and_replicas_are_there_before_the_agreement_is_breached() -> None:
    async with virtual_node() as house:
        node, many = house.node, [await house.connect() for _ in range(5)]
        await many[0].create_queue("orders")
        await many[0].set_scaling("orders", promised("8s", most=3))
        queue = Watched(many[0], "orders")
        seen: Counter[int] = Counter()
        load = Load(many[0], "orders", per_s=15.0)
        consumers = [Consumer(mq, "orders", 100.0, seen) for mq in many[1:]]
        async with steered(node):
            # Of the bounds nobody has said but the agreement.
            await queue.has_replicas(1)
            async with running(load, *consumers):
                await judged(node, windows=1, met=1)
                load.per_s = 95.0
                await queue.has_serving(at_least=3)
                added = await queue.decided(
                    lambda one: one.law == "agreement" and AddReplica in map(type, one.actions),
                    "it is explained what the agreement asked for",
                )
                assert "wait_p99 warns at 6.4 s" in added.reason
                before = counted(await judged(node, windows=1)).judged
                load.per_s = 60.0
                standing = await judged(node, windows=before + 2)
    assert counted(standing).breached == 0
    assert standing.standing.budget_left == 1.0
    assert standing.queue == "orders"


@in_virtual_time
async def test_a_breach_is_told_charged_and_alerted_and_the_next_leader_goes_on() -> None:
    async with virtual_node() as house:
        node, mq, other = house.node, await house.connect(), await house.connect()
        await mq.create_queue("orders")
        await mq.set_scaling("orders", promised("500ms", most=1))
        queue = Watched(mq, "orders")
        alerts = HeardAlerts()
        seen: Counter[int] = Counter()
        async with steered(node, alerts=alerts):
            await queue.has_replicas(1)
            for number in range(400):
                await mq.put("orders", str(number).encode())
            async with running(Consumer(other, "orders", 1000.0, seen)):
                standing = await judged(node, windows=1, breached=1)

                async def short() -> bool:
                    found = await kept(node)
                    return found is not None and "more replicas are needed than 1" in found.doing

                await eventually_async(short, "what is in the way is said in words")
                told = await queue.decided(
                    lambda one: one.rule == "wait_p99 is breached", "the breach is in the journal"
                )
                inside = await queue.decided(
                    lambda one: one.rule == "inside first", "what was done inside is said"
                )

                async def lacking() -> bool:
                    found = await kept(node)
                    return found is not None and "more replicas are needed than 1" in found.lacks

                await eventually_async(lacking, "it is known to the next leader what lacks")
        goal = (await mq.queue("orders")).policy.prefetch
        # Another leader, with no memory of its own: what was charged stays charged.
        async with steered(node):
            await mq.put("orders", b"1")
            async with running(Consumer(other, "orders", 1000.0, seen)):
                before = standing.at

                async def goes_on() -> StoredAgreementStatus | None:
                    found = await kept(node)
                    return found if found is not None and found.at > before + 1.0 else None

                after = await eventually_async(goes_on, "the next leader judges windows")
    assert "breaches at 500ms" in told.reason
    assert "of the error budget is left" in told.outcome
    assert "orders needs more than can be had" in alerts.heard["shortage"].summary
    alert = alerts.heard["violation"]
    assert alert.service == "orders"
    assert alert.budget_left is not None
    assert alert.budget_left < 1.0
    assert standing.standing.budget_left < 1.0
    assert (goal is not None) == any(isinstance(one, KeepUp) for one in inside.actions)
    assert counted(after).breached >= counted(standing).breached


@in_virtual_time
async def test_under_another_policy_it_is_judged_and_nothing_is_done_about_it() -> None:
    async with virtual_node() as house:
        node, mq, other = house.node, await house.connect(), await house.connect()
        await mq.create_queue("orders")
        await mq.set_scaling("orders", promised("5s", most=3, policy="fixed"))
        seen: Counter[int] = Counter()
        async with steered(node):
            load = Load(mq, "orders", per_s=20.0)
            async with running(load, Consumer(other, "orders", 100.0, seen)):
                standing = await judged(node, windows=2, met=1)
        topology = await mq.topology("orders")
    assert standing.doing == "monitored only: policy fixed"
    assert len(topology.replicas) == 1


@in_virtual_time
async def test_an_agreement_that_cannot_be_obeyed_is_refused_with_line_and_key() -> None:
    wrong = promised("5s", most=3, agreement=PROMISE.format(breach="soon", most=3))
    others = PROMISE.format(breach="5s", most=3).replace('queue = "orders"', 'queue = "bills"')
    async with virtual_node() as house:
        mq = await house.connect()
        await mq.create_queue("orders")
        with pytest.raises(InvalidValue, match=r":7: metrics.wait_p99.breach"):
            await mq.set_scaling("orders", wrong)
        with pytest.raises(InvalidValue, match="and not queue 'orders'"):
            await mq.set_scaling("orders", promised("5s", most=3, agreement=others))
    with pytest.raises(InvalidValue, match="must have an agreement to obey"):
        promised("5s", most=3, agreement="none")
