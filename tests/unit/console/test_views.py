"""What the API shows, against a real node."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from dead_letters import dead_letter
from logical_queue import LogicalQueue
from people import PASSWORD, add_user
from serving_console import Console, console_of, events

from tidegate.broker.handlers import messages as queue_verbs
from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.console import snapshot
from tidegate.console.schemas import FleetView, MessagePage, Overview, ServiceView
from tidegate.core.topology import Range, Scaling


async def test_the_overview_shows_a_queue_and_what_waits_in_it(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"one")

    found = msgspec.convert(await console.json("/overview"), Overview)

    (row,) = found.services
    assert (row.kind, row.name, row.waiting, row.light) == ("queue", "orders", 1, "none")
    assert found.nodes == 1
    assert not found.complaints


async def test_a_queue_that_comes_later_comes_with_a_later_event(
    console: Console, mq: Client
) -> None:
    stream = events(console.http, "/api/live")
    name, first = await anext(stream)
    assert (name, first["services"]) == ("overview", [])

    await mq.create_queue("late")

    async for name, found in stream:
        assert name == "overview"
        if [row["name"] for row in found["services"]] == ["late"]:
            break
    await stream.aclose()


async def test_events_of_a_service_bring_points_with_the_waits_of_that_second(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    stream = events(console.http, "/api/live?service=queue%2Forders")
    async with mq.subscribe("orders", prefetch=10) as messages:
        working = asyncio.create_task(_work(mq, messages))
        async for name, point in stream:
            if name == "point" and point["wait_p95_s"] is not None and point["out_per_s"] > 0:
                break
        working.cancel()
    await stream.aclose()
    assert 0.0 <= point["wait_p50_s"] <= point["wait_p95_s"] <= point["wait_p99_s"]
    assert point["prefetch"] == 10.0


async def _work(mq: Client, messages: object) -> None:
    async def put() -> None:
        while True:
            await mq.put("orders", b"x")
            await asyncio.sleep(0.02)  # the pace of a load, which gives the console its turns

    putting = asyncio.create_task(put())
    try:
        async for message in messages:  # type: ignore[attr-defined]
            message.ack()
    finally:
        putting.cancel()


async def test_a_service_by_itself_has_its_consumers_and_what_may_be_done(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    async with mq.subscribe("orders", prefetch=7):
        found = msgspec.convert(await console.json("/services/queue/orders"), ServiceView)

    (consumer,) = found.consumers
    assert (consumer.prefetch, consumer.client) == (7, mq.client_name)
    assert {"pause", "prefetch", "put", "browse", "purge", "delete"} <= set(found.allowed)
    assert found.points
    assert found.replicas_max is None
    without = await console.json("/services/queue/orders", points="false")
    assert without["points"] == []


async def test_a_logical_queue_is_one_service_with_its_bounds(console: Console, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 3)))

    found = msgspec.convert(await console.json("/services/queue/orders"), ServiceView)

    assert (found.replicas_min, found.replicas_max, found.policy) == (1, 3, "load")
    assert found.row.steering == "auto"
    assert {"scaling", "shares"} <= set(found.allowed)


async def test_a_name_may_hold_slashes_and_markup_and_stays_text(
    console: Console, mq: Client
) -> None:
    name = "<script>alert('a/b')</script>&%2F"
    await mq.create_queue(name)
    quoted = "%3Cscript%3Ealert('a%2Fb')%3C%2Fscript%3E%26%252F"

    answer = await console.http.get(f"/api/services/queue/{quoted}")

    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["row"]["name"] == name


async def test_messages_are_looked_at_and_not_taken(console: Console, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.put("orders", b"plain", headers={"kind": "a"})
    await mq.put("orders", b"\x00\xff", priority=9)
    await mq.put("orders", "schön".encode())

    found = msgspec.convert(await console.json("/queues/orders/messages"), MessagePage)
    assert sorted((one.text or one.payload_hex or "") for one in found.messages) == [
        "00ff",
        "plain",
        "schön",
    ]
    first = msgspec.convert(await console.json("/queues/orders/messages", count=2), MessagePage)
    rest = await console.json("/queues/orders/messages", count=2, after=first.next_after)
    assert len(first.messages) == 2
    assert len(rest["messages"]) == 1
    assert rest["next_after"] is None
    (one,) = (await console.json("/queues/orders/messages", filter="KIND: a"))["messages"]
    assert one["text"] == "plain"
    assert (await mq.stats("orders")).queue("orders").waiting == 3  # type: ignore[union-attr]


async def _page(console: Console, **asked: object) -> MessagePage:
    found = await console.json("/queues/orders/messages", **asked)
    return msgspec.convert(found, MessagePage)


async def test_of_a_logical_queue_it_is_said_whether_there_may_be_more(
    console: Console, node: Node, mq: Client
) -> None:
    await LogicalQueue.make(mq, [node], replicas=2)
    for number in range(10):
        await mq.put("orders", f"few {number}".encode())
    await mq.put("orders", b"whose time has not come", delay=3600.0)

    few = await _page(console, count=50)
    assert (len(few.messages), few.is_cut, few.next_after) == (10, False, None)
    assert not (await _page(console, count=10)).is_cut
    none = await _page(console, count=50, filter="nothing")
    assert (none.messages, none.is_cut, none.looked_at) == ([], False, 10)

    await mq.put_many("orders", [b"many"] * 50)

    many = await _page(console, count=50)
    assert (len(many.messages), many.is_cut, many.next_after) == (50, True, None)
    # A filter looks at more than are shown.
    assert len((await _page(console, count=50, filter="few")).messages) == 10
    matching = await _page(console, count=20, filter="many")
    assert (len(matching.messages), matching.is_cut) == (20, True)


async def test_of_a_logical_queue_of_large_messages_it_is_said_that_there_are_more(
    console: Console, node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await LogicalQueue.make(mq, [node], replicas=2)
    for _ in range(8):
        await mq.put("orders", b"x" * 1000)
    # A node shows so much at a time.
    monkeypatch.setattr(queue_verbs, "FRAME_BYTES_MAX", 2 * 3500)

    found = await _page(console, filter="nothing")

    assert 0 < found.looked_at < 8
    assert found.is_cut


async def test_redrive_is_offered_to_readers_and_decided_by_the_broker(
    node: Node, mq: Client
) -> None:
    await dead_letter(mq, "orders", "no such customer")
    # Only where they died counts.
    await add_user(node, "ann", read="orders.dead", write="orders")
    await add_user(node, "ben", read="orders.dead", write="invoices")
    await add_user(node, "eve", read="*")
    async with console_of(node) as console:
        moved = {}
        for user in ("eve", "ben", "ann"):
            console.http.auth = (user, PASSWORD)
            service = await console.json("/services/queue/orders.dead")
            assert ("redrive" in service["allowed"]) == (user != "eve")
            assert (await console.json("/overview"))["nodes"] == 1
            wish = {"count": None, "to": None}
            moved[user] = await console.http.post("/api/queues/orders.dead/redrive", json=wish)
    assert [moved[user].status_code for user in ("eve", "ben", "ann")] == [403, 403, 200]
    assert "orders" in moved["ben"].json()["detail"]
    assert moved["ann"].json() == {"moved": 1}


async def test_a_dead_letter_says_why_and_where_it_died(console: Console, mq: Client) -> None:
    await dead_letter(mq, "orders", "no such customer")

    (one,) = (await console.json("/queues/orders.dead/messages"))["messages"]

    assert one["origin"] == "orders"
    assert "no such customer" in one["reason"]
    row = next(r for r in (await console.json("/overview"))["services"] if r["name"] == "orders")
    assert (row["dead"], row["dead_queue"]) == (1, "orders.dead")


async def test_the_fleet_shows_the_node(console: Console, node: Node) -> None:
    found = msgspec.convert(await console.json("/fleet"), FleetView)

    (one,) = found.nodes
    assert one.name == node.name
    assert found.machines == []


async def test_a_service_that_is_not_there_is_said_to_be_so(console: Console) -> None:
    answer = await console.http.get("/api/services/queue/nothing")

    assert answer.status_code == 404
    assert answer.json()["error"] == "NOT_FOUND"


async def test_a_node_that_is_gone_is_complained_of_and_found_again(
    start_node: object, mq: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console_of(node) as console:
        stream = events(console.http, "/api/live")
        await anext(stream)
        monkeypatch.setattr(snapshot, "ANSWER_S_MAX", 0.5)
        port = int(node.address.rpartition(":")[2])
        await node.stop()
        async for _, found in stream:
            if found["complaints"]:
                assert found["attention"]["light"] == "breached"
                break
        await start_node(port=port)  # type: ignore[operator]
        async for _, found in stream:
            if not found["complaints"] and found["nodes"] == 1:
                break
        await stream.aclose()
