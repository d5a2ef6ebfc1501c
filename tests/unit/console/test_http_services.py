"""HTTP applications in the console: what doors and the leader have written down in the store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from people import PASSWORD, add_user
from serving_console import Console, console_of, events

from tidegate.agreements.document import parse_agreement
from tidegate.agreements.evaluation import AgreementSample
from tidegate.agreements.ledger import AgreementLedger, StoredAgreementStatus
from tidegate.broker.node import Node
from tidegate.console.schemas import Light, ServiceView
from tidegate.core.decisions import AddInstance, Decision
from tidegate.core.services import (
    NO_OVERRIDE,
    DoorSample,
    InstanceSample,
    InstanceState,
    ServiceOverride,
    ServiceSpec,
    decision_subject,
)

AGREEMENT = """
name = "bookshop"
http = "shop"
window = "5s"
replicas = { min = 1, max = 3 }
[metrics.response_p95]
breach = "1s"
"""


async def _deployed(node: Node) -> int:
    """Who leads, and one instance that serves."""
    store = node.store
    await store.deploy(ServiceSpec(name="shop", target="shop:app", agreement=AGREEMENT))
    epoch = await store.lead(node.member_id)
    assert epoch is not None
    instance = await store.add_instance("shop", 1.0, epoch)
    await store.set_instance(instance.instance_id, epoch, state=InstanceState.READY)
    return epoch


def _door(answered: int, instance_id: int) -> DoorSample:
    buckets = [(0.1, answered)]
    return DoorSample(
        service="shop",
        door="d1",
        at=time.time(),
        address="http://127.0.0.1:1",
        accepted=answered,
        answered=answered,
        in_flight=3,
        response=buckets,
        instances=[
            InstanceSample(instance_id=instance_id, sent=answered, answered=answered, outstanding=3)
        ],
    )


async def test_a_breached_agreement_is_the_one_thing_that_needs_attention(
    console: Console, node: Node
) -> None:
    epoch = await _deployed(node)
    agreement = parse_agreement(AGREEMENT, "shop.toml")
    ledger = AgreementLedger(agreement)
    now = time.time() // 5.0 * 5.0
    ledger.add_sample(
        AgreementSample(now - 1.0, accepted=10, served=10, times={"response": [(2.0, 10)]})
    )
    (*_, entry) = ledger.advance(now)
    kept = StoredAgreementStatus.of(agreement, entry, ledger.history, "1 instance more")
    await node.store.keep_standing("bookshop", kept.to_json(), epoch)
    decision = Decision(
        at=time.time(),
        loop="http",
        service=decision_subject("shop"),
        law="agreement",
        rule="too slow",
        inputs={"response_p95": 2.0},
        actions=[AddInstance(1)],
    )
    await node.store.note_decision(decision_subject("shop"), msgspec.json.encode(decision), epoch)

    found = msgspec.convert(await console.json("/services/http/shop"), ServiceView)

    assert found.agreement is not None
    assert (found.agreement.light, found.row.light) == (Light.BREACHED, Light.BREACHED)
    (promise,) = found.agreement.promises
    assert (promise.breach, promise.warning, promise.unit) == (1.0, 0.8, "s")
    assert found.allowed == ["by-hand"]
    (told,) = found.decisions
    assert (told.headline, told.measured) == ("1 instance more", [("response_p95", 2.0)])
    attention = (await console.json("/overview"))["attention"]
    assert (attention["service"], attention["light"]) == ("shop", "breached")
    assert "1 instance more" in attention["advice"]


async def test_rates_and_response_times_come_from_the_doors(console: Console, node: Node) -> None:
    await _deployed(node)
    (instance,) = await node.store.instances("shop")
    answered = 0
    stream = events(console.http, "/api/live?service=http/shop")
    async for name, point in stream:
        answered += 50
        await node.store.report_door(_door(answered, instance.instance_id))
        if name == "point" and point["out_per_s"] > 0.0:
            break
    await stream.aclose()

    assert point["wait_p95_s"] == 0.1
    assert point["waiting"] == 3
    (one,) = point["replicas"]
    assert (one["state"], one["waiting"], one["share"]) == ("ready", 3, 1.0)
    row = (await console.json("/overview"))["services"][0]
    assert (row["kind"], row["light"], row["replicas"]) == ("http", "unknown", 1)


async def test_an_application_is_held_by_hand_and_given_back(console: Console, node: Node) -> None:
    await _deployed(node)
    path = "/api/services/http/shop/by-hand"

    held = {"instances": 2, "concurrency": 7, "in_flight_max": 50}
    answer = await console.http.put(path, json=held)
    assert answer.status_code == 204, answer.text
    (service,) = await node.store.services()
    assert service.by_hand == ServiceOverride(**held)
    shown = await console.json("/services/http/shop")
    assert shown["hosted"]["by_hand"] == held
    assert (shown["replicas_min"], shown["replicas_max"]) == (1, 3)
    row = await _row(console, "manual")
    assert (row["replicas"], row["replicas_wanted"]) == (1, 2)

    # Who has not seen that is told, and undoes nothing.
    late = await console.http.put(path, json={"most": 2, "seen": {}})
    assert (late.status_code, late.json()["error"]) == (409, "CHANGED_MEANWHILE")
    too_many = await console.http.put(path, json={"instances": 4})
    assert too_many.status_code == 409
    assert "1 to 3" in too_many.json()["detail"]
    wider = await console.http.put(path, json={"instances": 4, "most": 5, "seen": held})
    assert wider.status_code == 204, wider.text
    assert (await console.http.put(path, json={})).status_code == 204
    (service,) = await node.store.services()
    assert service.by_hand == NO_OVERRIDE

    deeds = await console.json("/deeds")
    assert "instances 4 → automatic" in deeds[0]["what"]
    assert [one["outcome"] for one in deeds[:2]] == ["done", "done"]
    assert deeds[2]["outcome"].startswith("refused")
    decisions = await console.json("/decisions", service="http/shop")
    assert {one["law"] for one in decisions} == {"person"}
    assert "at most 5 → as agreed" in decisions[0]["reason"]
    for wrong in ("/api/services/http/nonesuch/by-hand", "/api/services/queue/shop/by-hand"):
        assert (await console.http.put(wrong, json={})).status_code == 404


async def _row(console: Console, steering: str) -> dict[str, Any]:
    """Of the overview, as soon as it says so."""
    stream = events(console.http, "/api/live")
    async for name, overview in stream:
        if name == "overview" and overview["services"][0]["steering"] == steering:
            break
    await stream.aclose()
    found: dict[str, Any] = overview["services"][0]
    return found


async def test_reader_may_not_override_an_application(node: Node, tmp_path: Path) -> None:
    await _deployed(node)
    await add_user(node, "ann", read="shop")
    async with console_of(node, tmp_path) as console:
        console.http.auth = ("ann", PASSWORD)
        assert (await console.json("/services/http/shop"))["allowed"] == []
        answer = await console.http.put("/api/services/http/shop/by-hand", json={"instances": 2})
        assert answer.status_code == 403, answer.text
        (deed,) = await console.json("/deeds")
        assert (deed["user"], deed["service"]) == ("ann", "shop")
    (service,) = await node.store.services()
    assert service.by_hand == NO_OVERRIDE
