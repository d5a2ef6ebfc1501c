"""A console among nodes that hang, rights that change, and people who do things at once."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from logical_queue import LogicalQueue
from people import PASSWORD, add_user
from serving_console import Console, console_of, events

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.console import actions, application, overview, snapshot
from tidegate.console import actions as kept
from tidegate.console import sessions as bounds
from tidegate.console.actions import AuditLog
from tidegate.console.schemas import AuditEntry
from tidegate.core.model import Grant, Right
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.topology import Range, Scaling
from tidegate.fleet import processes
from tidegate.fleet.processes import SupervisedProcess, console_spec


def _hang(monkeypatch: pytest.MonkeyPatch, node: Node, asked: list[str]) -> asyncio.Event:
    """The node has no figures until the event: as one that was stopped."""
    goes_on = asyncio.Event()
    real = node.stats.of_cluster

    async def hanging(*given: Any, **named: Any) -> Any:
        asked.append("figures")
        await goes_on.wait()
        return await real(*given, **named)

    monkeypatch.setattr(node.stats, "of_cluster", hanging)
    return goes_on


async def test_a_node_that_hangs_is_told_of_before_a_page_believes_the_console_lost(
    console: Console, node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.create_queue("orders")
    stream = events(console.http, "/api/live?service=queue%2Forders")
    await anext(stream)
    monkeypatch.setattr(snapshot, "ANSWER_S_MAX", 0.5)
    asked: list[str] = []
    goes_on = _hang(monkeypatch, node, asked)
    complaint = "the nodes: no answer within 0.5 s"
    async for name, found in stream:
        if name == "overview" and complaint in found["complaints"]:
            break
    asked.clear()
    for _ in range(2):
        async for name, _ in stream:
            if name == "overview":
                break
    # One question for a look that is not answered, and not one after the other; the next look may
    # have begun.
    assert len(asked) <= 2 + 1
    assert [row["name"] for row in found["services"]] == ["orders"]
    refused = await console.http.get("/api/services/queue/orders")
    assert (refused.status_code, refused.json()["error"]) == (503, "UNAVAILABLE")

    goes_on.set()

    async for name, found in stream:
        if name == "overview" and not found["complaints"]:
            break
    await stream.aclose()


async def test_while_no_node_answers_a_page_is_told_so_without_waiting_for_other_answers(
    console: Console, node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.create_queue("orders")
    monkeypatch.setattr(snapshot, "ANSWER_S_MAX", 0.5)
    monkeypatch.setattr(overview, "_DECISIONS_EVERY_S", 0.0)
    asked: list[Any] = []

    async def explained(person: Any, key: Any) -> list[Any]:
        asked.append(key)
        return []

    monkeypatch.setattr(overview, "explanations", explained)
    stream = events(console.http, "/api/live?service=queue%2Forders")
    for _ in range(4):
        await anext(stream)
    assert asked
    goes_on = _hang(monkeypatch, node, [])
    async for name, found in stream:
        if name == "overview" and not found["nodes"]:
            break
    asked.clear()
    for _ in range(4):
        await anext(stream)
    assert asked == []

    goes_on.set()

    async for _ in stream:
        if asked:
            break
    await stream.aclose()


async def test_change_without_an_answer_is_audited_as_unknown(
    console: Console, node: Node, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.create_queue("orders")
    await console.json("/overview")
    monkeypatch.setattr(actions, "DONE_S_MAX", 0.3)
    goes_on = asyncio.Event()
    real = node.store.set_policy

    async def hanging(*given: Any, **named: Any) -> Any:
        await goes_on.wait()
        return await real(*given, **named)

    monkeypatch.setattr(node.store, "set_policy", hanging)
    answer = await console.http.post("/api/queues/orders/pause")
    goes_on.set()

    assert answer.status_code == 503
    assert "may still be done" in answer.json()["detail"]
    (newest, *_) = await console.json("/deeds")
    assert "nobody knows" in newest["outcome"]


async def test_a_program_that_only_listens_is_not_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_TIDY_S", 0.1)
    monkeypatch.setattr(bounds, "PROGRAM_IDLE_S", 0.1)
    await add_user(node, "ann", admin="*")
    async with console_of(node) as console:
        console.http.auth = ("ann", PASSWORD)
        stream = events(console.http, "/api/live")
        for _ in range(4):
            _, found = await anext(stream)
            assert (found["nodes"], found["complaints"]) == (1, [])
        await stream.aclose()


async def test_a_console_with_open_pages_ends_at_once_and_without_a_trace(
    node: Node, mq: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those who do not end would be broken off after an hour.
    monkeypatch.setattr(application, "_STOP_S", 3600.0)
    await mq.create_queue("orders")
    async with console_of(node) as console:
        stream = events(console.browser(), "/api/live?service=queue%2Forders")
        await anext(stream)
        reading = asyncio.create_task(_read(stream))
    await reading
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def _read(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_live_stream_begins_again_when_the_user_gets_a_grant(
    node: Node, connect: object
) -> None:
    client: Client = await connect(node)  # type: ignore[operator]
    await client.create_queue("orders")
    await client.create_queue("secret")
    await client.set_scaling("secret", Scaling(replicas=Range(1, 3)))
    await add_user(node, "ann", read="orders")
    async with console_of(node) as console:
        console.http.auth = ("ann", PASSWORD)
        stream = events(console.http, "/api/live")
        _, found = await anext(stream)
        assert [row["name"] for row in found["services"]] == ["orders"]

        await node.store.set_user_grants("ann", [Grant(Right.READ, "*")])
        await node.accounts.refresh()

        async for _, found in stream:
            steering = {row["name"]: row["steering"] for row in found["services"]}
            if steering.get("secret") == "auto":
                break
        await stream.aclose()


async def test_two_people_at_once_do_not_undo_each_others_word(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    await mq.set_scaling("orders", Scaling(replicas=Range(1, 8)))
    for replicas in range(1, 6):
        shares = {"1": float(replicas), "2": 1.0}
        done = await asyncio.gather(
            console.http.put(
                "/api/queues/orders/steering", json={"mode": "manual", "replicas": replicas}
            ),
            console.http.put("/api/queues/orders/shares", json={"shares": shares}),
        )
        assert [one.status_code for one in done] == [204, 204]
        scaling = (await mq.topology("orders")).scaling
        assert (scaling.replicas_wanted, scaling.shares) == (replicas, {1: float(replicas), 2: 1.0})


async def test_shares_of_replicas_that_are_not_there_are_refused(
    console: Console, node: Node, mq: Client
) -> None:
    await LogicalQueue.make(mq, [node], replicas=2)
    path = "/api/queues/orders/shares"

    refused = await console.http.put(path, json={"shares": {"7": 1.0}})
    assert (refused.status_code, refused.json()["error"]) == (409, "NOT_AS_IT_IS")
    assert "1, 2" in refused.json()["detail"]
    assert (await console.http.put(path, json={"shares": {"1": 0.0}})).status_code == 409
    assert (await console.http.put(path, json={"shares": {"1": 3, "2": 1}})).status_code == 204
    (newest, *_) = await console.json("/deeds")
    assert newest["outcome"] == "1: 75%, 2: 25%"


async def test_a_new_goal_keeps_the_bounds_and_times_that_somebody_has_set(
    console: Console, mq: Client
) -> None:
    await mq.create_queue("orders")
    await mq.set_policy("orders", prefetch=PrefetchGoal(settle_s=60.0, high=50))

    wish = {"goal": "400/s"}
    answer = await console.http.put("/api/queues/orders/prefetch-goal", json=wish)

    assert answer.status_code == 204, answer.text
    goal = (await mq.queue("orders")).policy.prefetch
    assert goal is not None
    assert (goal.rate_per_s, goal.settle_s, goal.high) == (400.0, 60.0, 50)


@pytest.mark.parametrize("name", ["👨‍👩‍👧", "a\u00a0b", "文/件", "100%", "a?b#c", "a+b", "x" * 255])
async def test_whatever_a_queue_is_called_it_can_be_steered(
    console: Console, mq: Client, name: str
) -> None:
    from urllib.parse import quote

    await mq.create_queue(name)

    answer = await console.http.post(f"/api/queues/{quote(name, safe='')}/pause")

    assert answer.status_code == 204, answer.text
    assert (await mq.queue(name)).policy.paused


def _deed(what: str) -> AuditEntry:
    return AuditEntry(at=1.0, user="ann", what=what, service="orders", outcome="done")


def test_two_consoles_of_the_same_data_keep_what_both_have_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "AUDIT_ENTRIES_MAX", 6)
    one, other = AuditLog(tmp_path), AuditLog(tmp_path)
    for number in range(20):
        (one if number % 2 else other).add(_deed(str(number)))
        # Each shows all, the other's too, also when the file has just been cut.
        wanted = [str(each) for each in range(number, max(number - 4, -1), -1)]
        for deeds in (one, other):
            assert [deed.what for deed in deeds.newest_first(len(wanted))] == wanted
    lines = (tmp_path / "deeds.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line)["what"] for line in lines][-6:] == [
        str(number) for number in range(14, 20)
    ]


class _DyingChild:
    """A process that says that it serves, and dies."""

    pid = 1
    returncode = 0
    stderr = None
    clock_s = 0.0
    begun_at: ClassVar[list[float]] = []

    def __init__(self, command: list[str], *, env: dict[str, str], **_: object) -> None:
        self.begun_at.append(self.clock_s)
        os.write(int(env["TIDEGATE_READY_FD"]), b"http://127.0.0.1:1\n")

    def poll(self) -> int:
        return self.returncode


def test_a_console_that_dies_whenever_it_serves_is_started_later_and_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = console_spec(["tidegate://127.0.0.1:1"], [], host="127.0.0.1", port=0)
    console = SupervisedProcess(spec)
    monkeypatch.setattr(_DyingChild, "begun_at", [])
    monkeypatch.setattr(_DyingChild, "clock_s", 0.0)
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=_DyingChild, DEVNULL=None))
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: _DyingChild.clock_s))
    while len(_DyingChild.begun_at) < 5:
        console.watch()
        _DyingChild.clock_s += 0.01

    pauses_s = [later - sooner for sooner, later in pairwise(_DyingChild.begun_at)]
    assert pauses_s == sorted(pauses_s)
    assert 4 * spec.restart.first_s < pauses_s[-1] < spec.restart.most_s
