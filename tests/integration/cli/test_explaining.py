"""`tidegate explain NAME` of a node: a queue is meant, or else what is hosted there."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.broker.node import Node
from tidegate.cli.explain import decisions_from_node
from tidegate.client.client import Client
from tidegate.core.decisions import AddInstance, Decision
from tidegate.core.errors import QueueNotExisting
from tidegate.core.services import ServiceSpec, decision_subject

AGREEMENT = """
name = "shop"
http = "shop"
replicas = { min = 1, max = 3 }
[metrics.response_p95]
breach = "1s"
"""


async def test_a_service_is_found_where_no_queue_is_called_so(mq: Client, node: Node) -> None:
    store = node.store
    await store.deploy(ServiceSpec(name="shop", target="shop:app", agreement=AGREEMENT))
    assert await decisions_from_node(mq, "shop", 5) == ("service shop", [])
    decision = Decision(
        at=1.0,
        loop="http",
        service=decision_subject("shop"),
        law="agreement",
        rule="too slow",
        actions=[AddInstance(1)],
    )
    _, epoch = await store.leader()
    await store.note_decision(decision_subject("shop"), msgspec.json.encode(decision), epoch)

    assert await decisions_from_node(mq, "shop", 5) == ("service shop", [decision])

    # A queue goes before it, as ever.
    await mq.create_queue("shop")
    assert await decisions_from_node(mq, "shop", 5) == ("queue shop", [])


async def test_a_name_of_nothing_is_said_to_be_so(mq: Client) -> None:
    with pytest.raises(QueueNotExisting, match=r"no queue named 'shop'.*nor is a service"):
        await decisions_from_node(mq, "shop", 5)
    assert (await decisions_from_node(mq, None, 5))[0] == "the machines"
