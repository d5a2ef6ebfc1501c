"""Queues that somebody promises something of are judged live, whether or not they scale.

A real node runs in virtual time: windows of a second take none.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from node_that_steers import steered
from virtual_nodes import in_virtual_time, virtual_node
from waiting import eventually_async

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.agreements.evaluation import AgreementSample, Verdict
from tidegate.agreements.ledger import StoredAgreementStatus
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.control.agreement_monitor import QueueResponses, sum_responses
from tidegate.control.learned import AcceptedModels
from tidegate.core.runtime import cancel_and_wait
from tidegate.core.topology import DEFAULT_SCALING, with_scaling_keys
from tidegate.telemetry.models import ModelRegistry, StoredModel

PROMISED = """
name = "{name}"
queue = "orders*"
window = "1s"
[metrics.response_p90]
breach = "{breach}"
"""


def promise(breach: str, name: str = "orders") -> Agreement:
    return parse_agreement(PROMISED.format(breach=breach, name=name), f"{name}.toml")


async def standing(node: Node, key: str, *verdicts: Verdict) -> StoredAgreementStatus:
    """Where it stands, once a window was judged so."""

    async def look() -> StoredAgreementStatus | None:
        document = (await node.store.standings()).get(key)
        kept = None if document is None else StoredAgreementStatus.from_json(document)
        return kept if kept is not None and kept.verdict in verdicts else None

    return await eventually_async(look, f"{key} is {verdicts}")


@in_virtual_time
async def test_a_plain_queue_is_judged_by_its_responses_and_breaches_are_told() -> None:
    handler_s = 0.0

    async def work(mq: Client, queue: str) -> None:
        async with mq.subscribe(queue, prefetch=1) as messages:
            async for message in messages:
                await asyncio.sleep(handler_s if queue == "orders.eu" else 0.0)  # the work
                message.ack()

    async def put(mq: Client) -> None:
        while True:
            for queue in ("orders.eu", "orders.us"):
                await mq.put(queue, b"one")
            await asyncio.sleep(0.1)  # ten a second

    async with virtual_node() as house:
        node, mq = house.node, await house.connect()
        for queue in ("orders.eu", "orders.us", "bills"):
            await mq.create_queue(queue)
        async with steered(node, agreements=[promise("300ms")]):
            running = [
                asyncio.create_task(one)
                for one in (work(mq, "orders.eu"), work(mq, "orders.us"), put(mq))
            ]
            try:
                met = await standing(node, "orders/orders.eu", Verdict.MET)
                # It waits for nothing, and each takes longer than is promised.
                handler_s = 0.4
                breached = await standing(node, "orders/orders.eu", Verdict.BREACHED)
                other = await standing(node, "orders/orders.us", Verdict.MET)
            finally:
                await cancel_and_wait(running)
        keys = sorted(await node.store.standings())
        decisions = await node.store.decisions("orders.eu", 10)
    assert (met.queue, met.doing) == ("orders.eu", "monitored only: it does not scale")
    (response,) = breached.promises
    assert response.value is not None
    assert response.value >= 0.3
    assert other.queue == "orders.us"
    assert keys == ["orders/orders.eu", "orders/orders.us"]
    assert any(b"response_p90 is breached" in one for one in decisions)


@in_virtual_time
async def test_elastic_queue_is_judged_once_by_each_agreement() -> None:
    text = PROMISED.format(breach="5s", name="orders")
    async with virtual_node() as house:
        node, mq = house.node, await house.connect()
        await mq.create_queue("orders")
        await mq.set_scaling("orders", with_scaling_keys(DEFAULT_SCALING, {"agreement": text}))
        async with steered(node, agreements=[promise("1s"), promise("10s", "lenient")]):
            async with mq.subscribe("orders") as messages:
                await mq.put("orders", b"one")
                (await anext(aiter(messages))).ack()
            own = await standing(node, "orders/orders", *Verdict)
            lenient = await standing(node, "lenient/orders", *Verdict)
    assert "breaches at 5s" in own.promises[0].evidence or own.verdict is Verdict.NO_DATA
    assert lenient.agreement == "lenient"


@in_virtual_time
async def test_a_warning_that_is_to_be_learned_moves_for_a_queue_that_does_not_scale_too(
    tmp_path: Path,
) -> None:
    # Given an agreement of which the lake has seen enough
    knowledge = ModelRegistry(tmp_path, pytest.fail)
    figures = {"slope_response_p90": 0.8, "reconfiguration_s": 2.0}
    seen = StoredModel("orders", True, "", figures, {}, 1, 0.0, 1.0)
    knowledge.add_models("warnings", "run", datetime.now(UTC), [seen])
    text = PROMISED.format(breach="5s", name="orders") + 'warning = "learned"\n'

    async def work(mq: Client) -> None:
        async with mq.subscribe("orders") as messages:
            while True:
                await mq.put("orders", b"one")
                (await anext(aiter(messages))).ack()
                await asyncio.sleep(0.1)  # ten a second

    # When it is judged
    async with virtual_node() as house:
        node, mq = house.node, await house.connect()
        await mq.create_queue("orders")
        agreement = parse_agreement(text, "orders.toml")
        async with steered(node, agreements=[agreement], learned=AcceptedModels(knowledge)):
            running = asyncio.create_task(work(mq))
            try:
                kept = await standing(node, "orders/orders", Verdict.MET)
            finally:
                await cancel_and_wait([running])
    # Then it warns 1.25 · 0.8 · 2 s before the breach, and not the fifth of it that nobody knew
    # better.
    assert "warns at 3s" in kept.promises[0].evidence


def test_responses_are_waits_and_services_put_together() -> None:
    half = [(1.0, 5.0), (4.0, 5.0)]
    found = sum_responses(half, [(1.0, 2.0), (2.0, 2.0)])
    assert sum(count for _, count in found) == pytest.approx(4.0)
    mean_s = sum(duration_s * count for duration_s, count in found) / 4.0
    # 2.5 s and 1.5 s, each in a bucket.
    assert mean_s == pytest.approx(4.0, rel=0.1)
    assert sum_responses([], half) == ()
    assert sum_responses(half, []) == []


def test_late_acknowledgement_uses_the_earlier_waits() -> None:
    responses = QueueResponses()
    responses.complete(AgreementSample(1.0, times={"wait": [(2.0, 1.0)], "service": []}))
    found = responses.complete(AgreementSample(2.0, times={"wait": [], "service": [(1.0, 1.0)]}))
    ((duration_s, count),) = found.times["response"]
    assert (duration_s, count) == (pytest.approx(3.0, rel=0.1), 1.0)
