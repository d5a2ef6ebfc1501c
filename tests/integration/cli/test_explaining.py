"""`tidegate explain NAME` of a node: a queue is meant, or else what is hosted there."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.cli.explaining import asked_of_node
from tidegate.client.client import Client
from tidegate.core.errors import QueueNotExisting
from tidegate.core.hosting import ServiceSpec, decided_about
from tidegate.core.steering import AddInstance, Decision
from tidegate.node.server import Node

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
    assert await asked_of_node(mq, "shop", 5) == ("service shop", [])
    decision = Decision(
        at=1.0,
        loop="http",
        service=decided_about("shop"),
        law="agreement",
        rule="too slow",
        actions=[AddInstance(1)],
    )
    _, epoch = await store.leader()
    await store.note_decision(decided_about("shop"), msgspec.json.encode(decision), epoch)

    assert await asked_of_node(mq, "shop", 5) == ("service shop", [decision])

    # A queue goes before it, as ever.
    await mq.create_queue("shop")
    assert await asked_of_node(mq, "shop", 5) == ("queue shop", [])


async def test_a_name_of_nothing_is_said_to_be_so(mq: Client) -> None:
    with pytest.raises(QueueNotExisting, match=r"no queue named 'shop'.*nor is a service"):
        await asked_of_node(mq, "shop", 5)
    assert (await asked_of_node(mq, None, 5))[0] == "the machines"
