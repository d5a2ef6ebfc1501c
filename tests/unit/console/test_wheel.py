"""Taking the wheel by the API: it is done, refused to whoever may not, and written down."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dead_letters import dead_letter
from people import PASSWORD, add_user
from serving_console import Console, console_of

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.core.model import QueueInfo, QueuePolicy
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.topology import Range, Scaling, Topology


async def test_a_queue_is_made_paused_resumed_purged_and_deleted(
    console: Console, mq: Client
) -> None:
    http = console.http
    assert (await http.post("/api/queues", json={"name": "orders"})).status_code == 204
    assert (await http.post("/api/queues", json={"name": "orders"})).status_code == 409
    put = await http.post(
        "/api/queues/orders/messages",
        json={"text": "hello", "headers": {"a": "b"}, "priority": 7, "group": "g"},
    )
    assert put.status_code == 201, put.text
    assert put.json()["message_id"] > 0

    assert (await http.post("/api/queues/orders/pause")).status_code == 204
    assert (await mq.queue("orders")).policy.paused
    assert (await http.post("/api/queues/orders/resume")).status_code == 204
    assert not (await mq.queue("orders")).policy.paused
    assert (await http.post("/api/queues/orders/purge")).json() == {"purged": 1}
    assert (await http.delete("/api/queues/orders")).status_code == 204
    assert (await http.delete("/api/queues/orders")).status_code == 404

    deeds = await console.json("/deeds")
    assert [one["what"] for one in deeds][:3] == ["delete the queue", "delete the queue", "purge"]
    assert deeds[0]["outcome"].startswith("refused")


async def test_dead_letters_are_redriven(console: Console, mq: Client) -> None:
    await dead_letter(mq, "orders", "not now")

    answer = await console.http.post(
        "/api/queues/orders.dead/redrive", json={"count": None, "to": None}
    )

    assert answer.json() == {"moved": 1}
    assert (await mq.stats("orders")).queue("orders").waiting == 1  # type: ignore[union-attr]


async def test_prefetch_is_taken_by_hand_and_given_back(console: Console, mq: Client) -> None:
    await mq.create_queue("orders")
    path = "/api/queues/orders"
    assert (await console.http.delete(f"{path}/prefetch")).status_code == 409
    goal = await console.http.put(f"{path}/prefetch-goal", json={"goal": "keep-up"})
    assert goal.status_code == 204, goal.text

    taken = await console.http.put(f"{path}/prefetch", json={"messages": 5})
    assert taken.status_code == 204, taken.text
    policy = (await mq.queue("orders")).policy
    assert policy.prefetch is not None
    assert policy.prefetch.manual == 5

    assert (await console.http.delete(f"{path}/prefetch")).status_code == 204
    policy = (await mq.queue("orders")).policy
    assert policy.prefetch is not None
    assert policy.prefetch.manual is None

    decisions = await console.json("/decisions", service="queue/orders")
    assert {one["law"] for one in decisions} == {"person"}
    assert "by hand" in decisions[0]["reason"]


async def test_a_prefetch_that_nobody_steered_is_given_back_to_its_consumers(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    path = "/api/queues/orders"
    for messages in (5, 6):
        taken = await console.http.put(f"{path}/prefetch", json={"messages": messages})
        assert taken.status_code == 204, taken.text
    assert (await console.http.delete(f"{path}/prefetch")).status_code == 204
    assert (await mq.queue("orders")).policy.prefetch is None

    # A goal that was named meanwhile is one, and stays.
    await console.http.put(f"{path}/prefetch", json={"messages": 5})
    await console.http.put(f"{path}/prefetch-goal", json={"goal": "400/s"})
    await console.http.put(f"{path}/prefetch", json={"messages": 7})
    assert (await console.http.delete(f"{path}/prefetch")).status_code == 204
    goal = (await mq.queue("orders")).policy.prefetch
    assert goal is not None
    assert (goal.rate_per_s, goal.manual) == (400.0, None)


async def test_a_queue_that_is_called_like_a_step_in_a_path_is_reached(
    console: Console, mq: Client
) -> None:
    for name in (".", ".."):
        await mq.create_queue(name)
        assert (await console.http.post(f"/api/queues/%1E{name}/pause")).status_code == 204
        assert (await mq.queue(name)).policy.paused
        assert (await console.json(f"/services/queue/%1E{name}"))["row"]["name"] == name


async def test_of_two_who_scale_at_once_the_second_is_told(
    console: Console, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 3)))
    ask = Client.topology

    async def then_somebody_else_was_first(client: Client, queue: str | int) -> Topology:
        found = await ask(client, queue)
        await mq.set_scaling("orders", Scaling(replicas=Range(1, 7)))
        return found

    monkeypatch.setattr(Client, "topology", then_somebody_else_was_first)
    wish = {"mode": "manual", "replicas": 2}
    answer = await console.http.put("/api/queues/orders/steering", json=wish)
    monkeypatch.undo()

    assert (answer.status_code, answer.json()["error"]) == (409, "CHANGED_MEANWHILE")
    assert "somebody else" in answer.json()["detail"]
    assert (await mq.topology("orders")).scaling == Scaling(replicas=Range(1, 7))
    (deed, *_) = await console.json("/deeds")
    assert deed["outcome"].startswith("refused: somebody else")


async def test_of_two_who_steer_the_prefetch_at_once_the_second_is_told(
    console: Console, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.create_queue("orders")
    await mq.set_policy("orders", prefetch=PrefetchGoal(high=50))
    path = "/api/queues/orders"
    look = Client.queue

    async def then_somebody_else_was_first(client: Client, queue: str | int) -> QueueInfo:
        found = await look(client, queue)
        if client is not mq:
            await mq.set_policy("orders", deliveries_max=found.policy.deliveries_max + 1)
        return found

    monkeypatch.setattr(Client, "queue", then_somebody_else_was_first)
    refused = [
        await console.http.put(f"{path}/prefetch", json={"messages": 5}),
        await console.http.put(f"{path}/prefetch-goal", json={"goal": "400/s"}),
        await console.http.delete(f"{path}/prefetch"),
    ]
    monkeypatch.undo()

    told = [(answer.status_code, answer.json()["error"]) for answer in refused]
    assert told == [(409, "CHANGED_MEANWHILE")] * 3
    policy = (await mq.queue("orders")).policy
    assert policy.prefetch == PrefetchGoal(high=50)
    (deed, *_) = await console.json("/deeds")
    assert deed["outcome"].startswith("refused: somebody else")


async def test_prefetch_change_is_refused_when_the_goal_changed_meanwhile(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    path = "/api/queues/orders"
    seen = (await console.json("/services/queue/orders"))["prefetch_mark"]
    await mq.set_policy("orders", prefetch=PrefetchGoal())

    by_hand, goal = {"messages": 5, "seen": seen}, {"goal": "400/s", "seen": seen}
    for place, wish in (("prefetch", by_hand), ("prefetch-goal", goal)):
        answer = await console.http.put(f"{path}/{place}", json=wish)
        assert (answer.status_code, answer.json()["error"]) == (409, "CHANGED_MEANWHILE")
    # What else the queue promises is no matter of it.
    by_hand["seen"] = (await console.json("/services/queue/orders"))["prefetch_mark"]
    await mq.set_policy("orders", deliveries_max=3)
    answer = await console.http.put(f"{path}/prefetch", json=by_hand)
    assert answer.status_code == 204, answer.text


async def test_pause_keeps_concurrent_policy_changes(console: Console, mq: Client) -> None:
    await mq.create_queue("orders")
    path = "/api/queues/orders"

    answers = await asyncio.gather(
        console.http.post(f"{path}/pause"),
        *(mq.set_policy("orders", **{key: 7}) for key in ("deliveries_max", "length_max")),
    )

    assert answers[0].status_code == 204
    policy = (await mq.queue("orders")).policy
    assert policy == QueuePolicy(paused=True, deliveries_max=7, length_max=7)


async def test_the_prefetch_of_one_consumer_is_set(console: Console, mq: Client) -> None:
    await mq.create_queue("orders")
    async with mq.subscribe("orders", prefetch=3):
        (one,) = (await console.json("/services/queue/orders"))["consumers"]
        answer = await console.http.put(
            "/api/queues/orders/prefetch",
            json={"messages": 9, "consumer": one["consumer"], "client_id": one["client_id"]},
        )
        assert answer.status_code == 204, answer.text
        (one,) = (await console.json("/services/queue/orders"))["consumers"]
    assert one["prefetch"] == 9


async def test_replicas_are_taken_by_hand_and_given_back(console: Console, mq: Client) -> None:
    await mq.create_queue("plain")
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 3)))
    wish = {"mode": "manual", "replicas": 2}

    refused = await console.http.put("/api/queues/plain/steering", json=wish)
    assert refused.status_code == 409
    assert "tidegate scale" in refused.json()["detail"]
    too_many = {"mode": "manual", "replicas": 9}
    assert (await console.http.put("/api/queues/orders/steering", json=too_many)).is_client_error
    assert (await console.http.put("/api/queues/orders/steering", json=wish)).status_code == 204
    scaling = (await mq.topology("orders")).scaling
    assert (scaling.steering, scaling.replicas_wanted) == ("manual", 2)

    back = {"mode": "auto", "replicas": None}
    assert (await console.http.put("/api/queues/orders/steering", json=back)).status_code == 204
    assert (await mq.topology("orders")).scaling.steering == "auto"


async def test_scaling_change_is_refused_when_scaling_changed_meanwhile(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 3)))
    seen = (await console.json("/services/queue/orders"))["scaling_mark"]
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 4)))

    wish = {"mode": "manual", "replicas": 2, "seen": seen}
    answer = await console.http.put("/api/queues/orders/steering", json=wish)
    assert (answer.status_code, answer.json()["error"]) == (409, "CHANGED_MEANWHILE")
    shares = {"shares": {"1": 1}, "seen": seen}
    assert (await console.http.put("/api/queues/orders/shares", json=shares)).status_code == 409
    wish["seen"] = (await console.json("/services/queue/orders"))["scaling_mark"]
    assert (await console.http.put("/api/queues/orders/steering", json=wish)).status_code == 204


async def test_shares_are_taken_by_hand_and_given_back(console: Console, mq: Client) -> None:
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 3)))

    answer = await console.http.put("/api/queues/orders/shares", json={"shares": {"1": 3, "2": 1}})
    assert answer.status_code == 204, answer.text
    assert (await mq.topology("orders")).scaling.shares == {1: 3.0, 2: 1.0}
    assert (await console.json("/services/queue/orders"))["shares_by_hand"]
    wrong = await console.http.put("/api/queues/orders/shares", json={"shares": {"one": 1}})
    assert wrong.status_code == 400
    assert (await console.http.delete("/api/queues/orders/shares")).status_code == 204
    assert (await mq.topology("orders")).scaling.shares is None
    assert not (await console.json("/services/queue/orders"))["shares_by_hand"]


async def test_reader_changes_nothing_and_is_told_the_missing_grant(
    node: Node, tmp_path: Path, connect: object
) -> None:
    client: Client = await connect(node)  # type: ignore[operator]
    await client.create_queue("orders")
    await add_user(node, "ann", read="orders")
    async with console_of(node, tmp_path) as console:
        console.http.auth = ("ann", PASSWORD)
        who = await console.json("/session")
        assert (who["user"], who["read_only"], who["is_admin"]) == ("ann", True, False)
        assert (await console.json("/services/queue/orders"))["allowed"] == ["browse"]

        refused = await console.http.post("/api/queues/orders/pause")

        assert refused.status_code == 403
        assert "tidegate user grant ann --configure" in refused.json()["detail"]
        assert (await console.http.post("/api/queues", json={"name": "x"})).status_code == 403
        (newest, *_) = await console.json("/deeds")
        assert newest["user"] == "ann"


async def test_deeds_outlive_the_console(node: Node, tmp_path: Path) -> None:
    async with console_of(node, tmp_path) as console:
        await console.http.post("/api/queues", json={"name": "orders"})
    with (tmp_path / "deeds.jsonl").open("ab") as file:
        file.write(b'{"at": 1.0, "us')  # killed in mid-line

    async with console_of(node, tmp_path) as console:
        await console.http.post("/api/queues/orders/pause")
    async with console_of(node, tmp_path) as console:
        deeds = await console.json("/deeds")

    assert [one["what"] for one in deeds] == ["pause", "make a queue"]
