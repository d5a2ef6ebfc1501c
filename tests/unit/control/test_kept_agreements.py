"""An agreement about an HTTP service is kept: the whole loop around a plant in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hosted_plant import EPOCH_S, Plant, agreed

from tidegate.agreements.evaluation import Verdict
from tidegate.agreements.ledger import StoredAgreementStatus
from tidegate.control.learned import AcceptedModels
from tidegate.control.services.instances import InstanceReconciler, InstanceSet
from tidegate.control.services.loop import HostedServiceLoop
from tidegate.control.services.performance import START_S, ServicePerformance
from tidegate.control.services.sizing import ServiceAutoscaler
from tidegate.core.decisions import (
    AddInstance,
    Admit,
    AnyAction,
    DrainInstance,
    MakeSpare,
    Promote,
    SetConcurrency,
    Weigh,
)
from tidegate.core.errors import StaleEpoch, Unavailable
from tidegate.core.services import Instance, InstanceState, ServiceSpec
from tidegate.telemetry.models import StoredModel

pytestmark = pytest.mark.asyncio

# As in the lab: one alone answers 10 clients in 0.68 s, and 20 in 1.35 s.
SERVICE_S, SPREAD = 0.27, 0.05


async def running(plant: Plant, seconds: float = 5.0) -> Plant:
    """The plant, its first instances ready."""
    await plant.begin()
    await plant.run(seconds)
    return plant


async def busy(clients: int, seconds: float, text: str | None = None, **rest: Any) -> Plant:
    """The plant, after so many clients have been there for so long."""
    plant = await running(Plant(text or agreed(), **rest))
    plant.clients = lambda now: clients
    await plant.run(seconds)
    return plant


async def breached(**rest: Any) -> Plant:
    """The plant, after windows in which one instance took twice as long as is promised."""
    plant = await running(Plant(agreed(1), **{"slots": 1, "start_s": 1.0, **rest}))
    plant.service_s = 2.0
    plant.clients = lambda now: 4
    await plant.run(25.0)
    assert (await standing(plant)).standing.last_hour.breached >= 2
    return plant


async def actions_of(plant: Plant, kind: type) -> list[object]:
    return [
        action
        for decision in await plant.decisions()
        for action in decision.actions
        if isinstance(action, kind)
    ]


async def standing(plant: Plant) -> StoredAgreementStatus:
    kept = StoredAgreementStatus.from_json((await plant.store.standings())["#http/shop"])
    assert kept is not None
    return kept


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("least", "clients", "start_s"),
    # Ten clients are those whom one alone just answers in time.
    [(1, 10, 2.0), (1, 10, 3.5), (1, 30, 3.5), (2, 40, 2.0), (1, 50, 2.0)],
)
async def test_clients_who_come_one_by_one_are_all_answered_in_time_at_little_cost(
    least: int, clients: int, start_s: float, seed: int
) -> None:
    text = agreed(4, least=least).replace("20%", "10%")
    plant = Plant(text, service_s=SERVICE_S, spread=SPREAD, start_s=start_s, seed=seed)
    # Windows and loops begin at other moments with each.
    await running(plant, start_s + 3.0 + 0.2 * seed)
    began_at = plant.now

    def present(now: float) -> int:
        return min(int(max(now - began_at, 0.0) / 1.5) + 1, clients)

    plant.clients, plant.replica_seconds = present, 0.0
    seconds = clients * 1.5 + 60.0
    await plant.run(seconds)

    assert max(p95_s for _, p95_s in plant.windows()) < 1.0
    assert not plant.failures
    assert "violation" not in plant.alerts.kinds()
    oracle = sum(
        min(max(math.ceil(present(began_at + second) * SERVICE_S / 4 - 1e-9), least), 4)
        for second in range(int(seconds))
    )
    assert plant.replica_seconds <= 1.3 * oracle


async def test_twice_as_many_clients_at_once_are_held_by_a_spare() -> None:
    plant = await running(Plant(spares=1))
    began_at = plant.now
    plant.clients = lambda now: 10 if now < began_at + 20.0 else 20
    await plant.run(45.0)

    assert max(p95_s for _, p95_s in plant.windows()) < 1.0
    [promoted] = await actions_of(plant, Promote)
    # And the pool is full again.
    assert sum(one.is_spare for one in await plant.instances(InstanceState.READY)) == 1
    assert len([one for one in await plant.instances() if not one.is_spare]) == 2
    assert promoted


async def test_requests_that_come_by_themselves_are_kept_up_with_and_let_go_of() -> None:
    plant = await running(Plant())
    plant.rate = lambda now: min(8.0 + max(now - 20.0, 0.0), 45.0) if now < 90.0 else 6.0
    await plant.run(90.0)
    ready = len(await plant.instances(InstanceState.READY))
    assert max(p95_s for _, p95_s in plant.windows()) < 1.0
    # 45/s at 16/s each, no busier than 85 %: four; a burst may have called for one more.
    assert 4 <= ready <= 6

    await plant.run(100.0)
    assert len(await plant.instances(InstanceState.READY)) <= 2
    assert max(p95_s for _, p95_s in plant.windows()) < 1.0
    assert not plant.failures


async def test_when_clients_go_instances_drain_one_by_one_and_fail_nobody() -> None:
    plant = await running(Plant())
    plant.clients = lambda now: min(int(now), 40) if now < 60.0 else 6
    await plant.run(55.0)
    many = len(await plant.instances(InstanceState.READY))
    assert many >= 3

    await plant.run(100.0)
    assert len(await plant.instances()) == 1
    assert len(await actions_of(plant, DrainInstance)) == many - 1
    assert not plant.failures
    assert max(p95_s for _, p95_s in plant.windows()) < 1.0


async def test_a_slow_instance_gets_less_and_is_replaced_if_it_stays_slow() -> None:
    plant = await busy(24, 20.0, agreed(least=3), spares=1)
    plant.servers[2].slowness = 3.0
    slow_at = plant.now
    await plant.run(15.0)

    weighed = await actions_of(plant, Weigh)
    assert any(isinstance(one, Weigh) and one.weights.get(2, 1.0) < 0.5 for one in weighed)
    late = [p95_s for at, p95_s in plant.windows() if at >= slow_at + 5.0]
    assert max(late) < 0.8

    await plant.run(30.0)
    assert 2 not in {one.instance_id for one in await plant.instances()}
    assert not plant.failures


# Warns below 240 MB.
LITTLE_MEMORY = 220e6
MEMORY = '\n[metrics.free_memory]\nbreach = "200MB"\nwarning = "20%"\n'


async def test_only_an_instance_with_lasting_memory_shortage_is_replaced() -> None:
    plant = await running(Plant(agreed(least=3) + MEMORY))
    plant.clients = lambda now: 6
    until = plant.now + 10.0
    plant.free_bytes = lambda one: 1e8 if one == 2 and plant.now < until else 1e9
    await plant.run(30.0)
    assert [one.instance_id for one in await plant.instances()] == [1, 2, 3]

    plant.free_bytes = lambda one: 1e8 if one == 2 else 1e9
    await plant.run(30.0)
    assert [one.instance_id for one in await plant.instances()] == [1, 3, 4]
    assert not plant.failures


async def test_where_the_computer_is_short_of_memory_nobody_is_replaced_and_no_more_come() -> None:
    plant = await running(Plant(agreed(least=3) + MEMORY))
    # Each has more than half of what it can do at a time in its hands.
    plant.clients = lambda now: 8
    await plant.run(10.0)
    plant.free_bytes = lambda one: 1e8
    await plant.run(120.0)

    assert [one.instance_id for one in await plant.instances()] == [1, 2, 3]
    said = "every instance is short of memory: another would be as well"
    assert (await plant.service()).detail == said
    assert (await standing(plant)).verdict is Verdict.BREACHED
    plant.free_bytes = lambda one: 1e9
    await plant.run(3.0)
    assert (await plant.service()).detail == ""


@pytest.mark.parametrize(
    ("settings", "is_short", "first_action", "ready", "shortage"),
    [
        ({"spares": 1}, {1}, Promote(2), [(2, 1.0), (3, 0.0)], ""),
        ({}, {1}, AddInstance(1), [(2, 1.0)], ""),
        ({"slots": 1}, {1}, AddInstance(1), [(1, 1.0)], "no place: no slot is free"),
        ({"spares": 1}, {1, 2}, None, [(1, 1.0), (2, 0.0)], ""),
    ],
    ids=["a spare", "no spare", "no spare and no slot", "a spare that is short as well"],
)
async def test_a_lone_instance_short_of_memory_goes_when_another_one_serves(
    settings: dict[str, Any],
    is_short: set[int],
    first_action: AnyAction | None,
    ready: list[tuple[int, float]],
    shortage: str,
) -> None:
    plant = await busy(1, 10.0, agreed() + MEMORY, **settings)
    plant.free_bytes = lambda one: LITTLE_MEMORY if one in is_short else 1e9
    await plant.run(40.0)
    overloaded = [one for one in await plant.decisions() if one.rule == "overloaded"]
    assert [one.actions[0] for one in overloaded[:1]] == ([first_action] if first_action else [])
    assert not any(DrainInstance(1) in one.actions for one in overloaded[:1])
    found = await plant.instances(InstanceState.READY)
    assert sorted((one.instance_id, one.weight) for one in found) == ready
    assert all(count for at, count in plant.ready_history if at > 5.0), "one serves all the time"
    told = [one.summary for one in plant.alerts.alerts if one.kind == "shortage"]
    assert len(told) == bool(shortage)
    assert all(shortage in one for one in told)
    assert "violation" not in plant.alerts.kinds()
    assert not plant.failures


async def test_instance_regains_its_weight_after_a_slow_moment() -> None:
    plant = await busy(20, 20.0, agreed(least=3))
    plant.servers[2].slowness = 3.0
    await plant.run(5.0)
    [slow] = [one for one in await plant.instances() if one.instance_id == 2]
    assert slow.weight < 1.0
    plant.servers[2].slowness = 1.0
    await plant.run(40.0)
    [well] = [one for one in await plant.instances() if one.instance_id == 2]
    assert (well.weight, well.state) == (1.0, InstanceState.READY)
    assert well.concurrency == plant.spec.concurrency


def dies(plant: Plant) -> None:
    plant.kill(2)


def hangs(plant: Plant) -> None:
    plant.servers[2].hangs = True
    plant.servers[2].ejected = "3 requests came to nothing"


def is_ejected(plant: Plant) -> None:
    plant.servers[2].ejected = "a moment"


@pytest.mark.parametrize(
    ("happens", "comes_back"), [(dies, False), (hangs, False), (is_ejected, True)]
)
async def test_a_spare_stands_in_for_one_that_fails_and_the_pool_is_filled_again(
    happens: Callable[[Plant], None], comes_back: bool
) -> None:
    plant = await busy(24, 20.0, agreed(least=3), spares=1)
    happens(plant)
    await plant.run(1.0 if happens is dies else 2.0)
    assert len(await actions_of(plant, Promote)) == 1
    able = [
        one
        for one in await plant.instances(InstanceState.READY)
        if one.weight and not plant.servers[one.instance_id].ejected
    ]
    assert len(able) == 3

    if comes_back:
        plant.servers[2].ejected = None
    await plant.run(30.0)
    ready = await plant.instances(InstanceState.READY)
    assert sorted(one.weight for one in ready) == [0.0, 1.0, 1.0, 1.0]
    assert (2 in {one.instance_id for one in await plant.instances()}) == comes_back
    assert (2 in {one.instance_id for one in ready if one.weight}) == comes_back
    # What was in its hands is lost, and nothing else.
    assert len(plant.failures) <= (0 if comes_back else plant.spec.concurrency)
    if happens is dies:
        assert max(p95_s for _, p95_s in plant.windows()) < 1.0


async def test_without_a_slot_or_a_spare_the_load_is_shed_and_the_others_are_not_toppled() -> None:
    plant = await running(Plant(slots=2))
    plant.clients = lambda now: min(int(now), 60) if now < 80.0 else 8
    await plant.run(70.0)

    detail = (await plant.service()).detail
    assert "1 of 3 instance(s) have no place: no slot is free" in detail
    assert "requests at a time, others are refused" in detail
    bound = await plant.store.admission("shop")
    assert bound is not None
    # 32/s before the breaching point of 1 s.
    assert 22 <= bound <= 32
    assert plant.refused > 100
    # Whoever was let in was answered in time, to the end.
    late = [p95_s for at, p95_s in plant.windows() if at >= 35.0]
    assert max(late) < 1.0

    await plant.run(60.0)
    assert await plant.store.admission("shop") is None
    assert (await plant.service()).detail == ""
    refused = plant.refused
    await plant.run(10.0)
    assert plant.refused == refused


@pytest.mark.parametrize("seed", [1, 2])
async def test_admission_refuses_no_request_that_is_answered_in_time(seed: int) -> None:
    """A sum says that one or two are too many; to refuse them would break what is kept."""
    text = agreed(4, least=2).replace("20%", "10%")
    plant = await running(Plant(text, service_s=SERVICE_S, spread=SPREAD, seed=seed))
    began_at = plant.now
    # Answered in a mean of 0.91 s at the most of instances that there may be.
    plant.clients = lambda now: min(int((now - began_at) / 1.5) + 1, 54)
    await plant.run(130.0)
    assert "more than 4 instance(s) would be needed" in (await plant.service()).detail
    assert not plant.failures
    assert max(p95_s for _, p95_s in plant.windows()) < 1.0


async def test_when_nothing_is_left_to_take_that_is_told_once_and_when_it_is_over() -> None:
    plant = await running(Plant(slots=2))
    plant.clients = lambda now: min(int(now), 60) if now < 80.0 else 8
    await plant.run(40.0)
    [alert] = [one for one in plant.alerts.alerts if one.kind == "shortage"]
    assert "1 of 3 instance(s) have no place: no slot is free" in alert.summary
    assert (alert.agreement, alert.service) == ("shop", "shop")

    # Another leads, and it goes on: that is no news.
    await plant.change_leader()
    await plant.run(30.0)
    assert plant.alerts.kinds().count("shortage") == 1

    await plant.run(60.0)
    over = [one.summary for one in plant.alerts.alerts if one.kind == "over"]
    assert over.count("shop has all that it needs again") == 1
    # And nor is it to whoever leads after that.
    await plant.change_leader()
    await plant.run(20.0)
    assert plant.alerts.kinds().count("shortage") == 1


async def test_when_more_are_needed_than_are_agreed_that_is_an_alert() -> None:
    plant = await busy(30, 30.0, agreed(2))
    [alert] = [one for one in plant.alerts.alerts if one.kind == "shortage"]
    assert "more than 2 instance(s) would be needed, the most that is agreed" in alert.summary


async def test_a_rollout_that_waits_for_slots_of_those_that_drain_is_no_shortage() -> None:
    plant = Plant(agreed(least=2), slots=3)
    plant.spec = msgspec.structs.replace(plant.spec, sticky=True, session_grace_s=30.0)
    await running(plant)
    await plant.deploy(revision="2")
    await plant.run(25.0)
    assert InstanceState.DRAINING in {one.state for one in await plant.instances()}
    assert "shortage" not in plant.alerts.kinds()


async def test_refused_requests_do_not_lower_the_admission_limit() -> None:
    """Availability is breached by refusing; a bound that shrank by that would shrink to nothing."""
    promised = f"{agreed(1)}\n[metrics.availability]\nbreach = 0.99\n"
    plant = await running(Plant(promised, slots=1))
    # Half as much again as one instance answers.
    plant.rate = lambda now: 24.0
    await plant.run(60.0)
    answered = plant.answered
    await plant.run(40.0)
    assert (plant.answered - answered) / 40.0 > 0.9 * 16.0
    bound = await plant.store.admission("shop")
    assert bound is not None
    assert bound >= 8
    assert max(p95_s for at, p95_s in plant.windows() if at > 60.0) < 1.3


async def test_when_a_stall_of_all_instances_is_over_nearly_nobody_is_refused_any_more() -> None:
    """What answers nothing has shown no capacity: a bound of none would outlive its cause."""
    text = agreed(4, least=4)
    plant = await running(Plant(text, concurrency=100, service_s=0.2))
    plant.rate = lambda now: 300.0
    await plant.run(20.0)
    assert plant.refused == 0

    plant.stall()
    await plant.run(12.0)
    plant.go_on()
    refused, accepted = plant.refused, plant.accepted
    await plant.run(10.0)
    assert plant.refused - refused < 0.05 * (plant.accepted - accepted)
    assert not await actions_of(plant, SetConcurrency)
    assert plant.windows()[-1][1] < 0.8


async def test_inside_then_number_then_warning_breach_violation_budget_and_alert() -> None:
    """The walk of the TAPAS report, step by step."""
    plant = await running(Plant(agreed(2), concurrency=100, parallel=4, start_s=2.0))
    began_at = plant.now
    plant.clients = lambda now: min(1 + int((now - began_at) / 2.0), 24)
    await plant.run(70.0)

    [first] = [one for one in await plant.decisions() if AddInstance(1) in one.actions][1:]
    # Inside first: a hundred at a time only wait inside, where nobody can help them.
    assert [type(action) for action in first.actions] == [SetConcurrency, AddInstance]
    assert plant.alerts.kinds()[0] == "warning"
    assert "violation" not in plant.alerts.kinds()
    assert (await standing(plant)).standing.budget_left == 1.0

    # All of them take twice as long: a breach, and nothing is left but to refuse.
    plant.service_s *= 2.0
    await plant.run(40.0)
    [violation, *_] = [one for one in plant.alerts.alerts if one.kind == "violation"]
    assert "response_p95 was" in violation.evidence[0]
    assert violation.budget_left is not None
    assert violation.budget_left < 1.0
    assert await actions_of(plant, Admit)
    # And the adaptation goes on: who is let in is answered in time again.
    assert plant.windows()[-2][1] < 1.0
    kept = await standing(plant)
    assert kept.standing.budget_left < 1.0
    assert "others are refused" in kept.doing
    # Those who are refused are left without an answer: it is over when nobody is.
    plant.clients = lambda now: 4
    await plant.run(30.0)
    kinds = plant.alerts.kinds()
    ended = [one.of for one in plant.alerts.alerts[kinds.index("violation") :]]
    assert ended.count("violation") == kinds.count("violation")


async def test_a_warning_calls_for_one_more_only_when_what_was_done_inside_has_not_helped() -> None:
    plant = await busy(10, 30.0, agreed(4), concurrency=100, parallel=4, spread=0.9, start_s=1.0)
    decisions = await plant.decisions()
    inside = next(one for one in decisions if SetConcurrency(1, 8) in one.actions)
    more = next(one for one in decisions if one.rule == "warned")
    assert AddInstance(1) not in inside.actions
    assert more.at >= inside.at + 5.0


async def test_how_a_promise_turns_is_explained_with_evidence_and_budget() -> None:
    plant = await running(Plant(agreed(1), slots=1, spread=SPREAD))
    for service_s, clients in ((0.25, 4), (0.85, 4), (2.0, 4), (0.25, 1)):
        plant.service_s = service_s
        plant.clients = lambda now, count=clients: count  # type: ignore[misc]
        await plant.run(30.0)
    turns = [one for one in await plant.decisions() if one.loop == "agreement"]
    assert [one.rule for one in turns] == [
        "response_p95 is warned of",
        "response_p95 is breached",
        "response_p95 is kept again",
    ]
    warned, breached, _ = turns
    assert "warns at 800ms, breaches at 1s" in warned.reason
    assert warned.outcome.startswith("100 % of the error budget is left")
    assert breached.outputs["budget_left"] < 1.0


async def test_a_turn_that_the_store_did_not_take_is_written_later_and_alerted_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = await running(Plant(agreed(1), slots=1))

    async def refuses(*_: object) -> None:
        raise Unavailable("the store is away")

    with monkeypatch.context() as away:
        away.setattr(plant.store, "note_decision", refuses)
        plant.service_s = 2.0
        plant.clients = lambda now: 4
        await plant.run(20.0)
    assert plant.alerts.kinds().count("violation") == 1
    assert not [one for one in await plant.decisions() if one.loop == "agreement"]
    await plant.run(5.0)
    turns = [one.rule for one in await plant.decisions() if one.loop == "agreement"]
    assert turns == ["response_p95 is breached"]
    assert plant.alerts.kinds().count("violation") == 1


async def test_a_service_that_answers_nobody_breaks_its_promise_of_responses() -> None:
    plant = await running(Plant(agreed(1)))
    plant.rate = lambda now: 10.0
    await plant.run(10.0)
    assert "violation" not in plant.alerts.kinds()

    # All that come are refused from now on.
    plant.closed = True
    await plant.run(20.0)
    [violation] = [one for one in plant.alerts.alerts if one.kind == "violation"]
    assert "got no answer" in violation.evidence[0]
    assert (await standing(plant)).verdict is Verdict.BREACHED

    # Nobody comes: there is nothing to judge, and no more budget is charged.
    plant.rate = lambda now: 0.0
    await plant.run(10.0)
    left = (await standing(plant)).standing.budget_left
    await plant.run(20.0)
    kept = await standing(plant)
    assert (kept.verdict, kept.standing.budget_left) == (Verdict.NO_DATA, left)


async def test_a_service_that_hangs_breaks_its_promise_while_its_clients_still_wait() -> None:
    plant = await busy(4, 10.0, agreed(1))
    assert "violation" not in plant.alerts.kinds()

    # It takes what comes and answers nothing; no door has noticed, and nobody is refused.
    plant.servers[1].hangs = True
    await plant.run(15.0)
    assert (plant.refused, plant.servers[1].ejected) == (0, None)
    [violation] = [one for one in plant.alerts.alerts if one.kind == "violation"]
    assert "4 got no answer" in violation.evidence[0]
    assert (await standing(plant)).verdict is Verdict.BREACHED


async def test_throughput_that_is_promised_is_breached_by_servers_that_hang() -> None:
    text = agreed(2, least=2)
    text = text[: text.index("[metrics")] + "[metrics.throughput]\nbreach = 5\n"
    plant = await running(Plant(text, concurrency=100))
    plant.rate = lambda now: 10.0
    await plant.run(10.0)
    assert "violation" not in plant.alerts.kinds()

    # They take all that comes: nothing waits in the door, and nobody is refused.
    plant.stall()
    await plant.run(12.0)
    [violation] = [one for one in plant.alerts.alerts if one.kind == "violation"]
    assert "10/s were offered" in violation.evidence[0]
    assert (await standing(plant)).verdict is Verdict.BREACHED


async def test_a_budget_that_is_used_too_fast_rings_once() -> None:
    text = agreed(1).replace('objective = 0.9\nperiod = "10m"', 'objective = 0.999\nperiod = "2h"')
    plant = await running(Plant(text, slots=1))
    plant.door = "door-1"
    plant.clients = lambda now: 60 if now < 90.0 else 4
    # Nothing may be refused here: the breach goes on.
    for _ in range(40):
        await plant.store.set_admission("shop", None, await plant.epoch())
        await plant.run(2.0)
    assert plant.alerts.kinds().count("burn-rate") == 1
    [burning] = [one for one in plant.alerts.alerts if one.kind == "burn-rate"]
    assert "times as fast as it may be" in burning.summary


async def test_a_new_version_rolls_over_under_load_and_fails_no_request() -> None:
    plant = await busy(20, 10.0, agreed(least=3), spares=1)
    await plant.deploy(revision="2")
    most, least = 0, 99
    for _ in range(60):
        await plant.run(0.5)
        serving = [
            one
            for one in await plant.instances()
            if one.weight and one.state is not InstanceState.DRAINING
        ]
        most = max(most, len(serving))
        least = min(least, sum(one.state is InstanceState.READY for one in serving))
    assert {one.version for one in await plant.instances()} == {2}
    assert not plant.failures
    # One more than wanted at most, and never one fewer.
    assert (least, most) == (3, 4)
    assert max(p95_s for _, p95_s in plant.windows()) < 1.0
    assert sum(one.is_spare for one in await plant.instances(InstanceState.READY)) == 1


async def test_a_rollout_leaves_sessions_with_their_instances_until_a_grace_is_over() -> None:
    plant = Plant(agreed(least=2), start_s=0.5)
    plant.spec = msgspec.structs.replace(plant.spec, sticky=True, session_grace_s=30.0)
    await running(plant)
    plant.clients = lambda now: 6
    await plant.run(5.0)
    await plant.deploy(revision="2")
    began_at = plant.now
    await plant.run(10.0)
    # The new ones serve already, and the old ones have nothing in hand: yet they are there.
    instances = await plant.instances()
    assert [one.version for one in instances if one.state is InstanceState.READY] == [2, 2]
    draining = [one for one in instances if one.state is InstanceState.DRAINING]
    assert [one.version for one in draining] == [1, 1]
    assert not any(plant.servers[one.instance_id].in_service for one in draining)
    for one in draining:
        assert one.sessions_until is not None
        assert 30.0 <= one.sessions_until - EPOCH_S - began_at <= 40.0

    # The next leader knows it, too.
    await plant.change_leader()
    while plant.now < began_at + 30.0:
        await plant.run(1.0)
        assert len(await plant.instances(InstanceState.DRAINING)) == 2
    await plant.run(20.0)
    assert [one.version for one in await plant.instances()] == [2, 2]
    assert not plant.failures


async def test_a_version_that_does_not_start_harms_nobody_and_is_tried_ever_less_often() -> None:
    plant = await running(Plant(agreed(least=2), starts=lambda v: v != 2))
    plant.clients = lambda now: 10
    await plant.deploy(revision="2")
    await plant.run(60.0)
    ready = await plant.instances(InstanceState.READY)
    assert [one.version for one in ready] == [1, 1]
    assert "version 2 does not start: no module named shop" in (await plant.service()).detail
    assert not plant.failures
    assert len(await actions_of(plant, AddInstance)) <= 10

    await plant.deploy(revision="3")
    await plant.run(20.0)
    assert {one.version for one in await plant.instances()} == {3}
    assert (await plant.service()).detail == ""


async def test_failing_instance_is_retried_at_growing_intervals() -> None:
    is_able = True
    three, four = (agreed(least=least) for least in (3, 4))
    plant = await running(Plant(three, start_s=0.5, starts=lambda version: is_able), 20.0)
    is_able = False
    await plant.deploy(agreement=four)
    before = len(await actions_of(plant, AddInstance))
    await plant.run(60.0)

    # After 0, 1, 2, 4 ... seconds.
    assert len(await actions_of(plant, AddInstance)) - before <= 8
    said = "version 1 does not start: no module named shop; what runs keeps running"
    assert (await plant.service()).detail == said
    assert len(await plant.instances(InstanceState.READY)) == 3

    # One that starts makes good what the others did: the next failure is the first again.
    is_able = True
    await plant.run(90.0)
    assert len(await plant.instances(InstanceState.READY)) == 4
    assert (await plant.service()).detail == ""
    plant.kill(1)
    await plant.run(2.0)
    assert len(await plant.instances(InstanceState.READY)) == 4


async def test_a_version_that_has_failed_for_days_is_still_tried_each_minute() -> None:
    plant = await running(Plant())
    failed = [
        Instance(
            instance_id=number,
            service="shop",
            version=1,
            state=InstanceState.FAILED,
            ordered_at=0.0,
        )
        for number in range(2000)
    ]
    upkeep = InstanceReconciler()
    upkeep.clean(InstanceSet(await plant.service(), failed), None, 0.0)
    soon, late = InstanceSet(await plant.service(), []), InstanceSet(await plant.service(), [])
    upkeep.fill(soon, 1, 59.0, None)
    upkeep.fill(late, 1, 60.0, None)
    assert (soon.actions, late.actions) == ([], [AddInstance(1)])


async def test_a_version_that_does_not_start_erodes_nothing_of_the_old_one() -> None:
    plant = await running(Plant(agreed(least=2), starts=lambda v: v != 2))
    plant.clients = lambda now: 10
    await plant.deploy(revision="2")
    await plant.run(20.0)
    one, two = await plant.instances(InstanceState.READY)
    # One of the old dies, and its machine starts it again; the other's machine is lost.
    plant.kill(one.instance_id)
    await plant.run(1.0)
    plant.restart(one.instance_id)
    await plant.run(5.0)
    epoch = await plant.epoch()
    del plant.servers[two.instance_id]
    await plant.store.set_instance(two.instance_id, epoch, state=InstanceState.ORDERED)
    await plant.run(20.0)
    ready = await plant.instances(InstanceState.READY)
    assert [(i.instance_id, i.version) for i in ready] == [
        (one.instance_id, 1),
        (two.instance_id, 1),
    ]

    await plant.deploy(revision="3")
    await plant.run(20.0)
    assert {i.version for i in await plant.instances()} == {3}


async def test_a_version_that_keeps_failing_stops_no_scale_in() -> None:
    plant = await running(Plant(starts=lambda version: version != 2, start_s=1.0))
    plant.clients = lambda now: min(int(now * 2.0), 36) if now < 40.0 else 3
    await plant.run(30.0)
    many = len(await plant.instances(InstanceState.READY))
    assert many >= 3
    await plant.deploy(revision="2")
    await plant.run(10.0)
    # One of the old is lost, too, and nobody starts it again.
    plant.servers[1].in_service = 0
    plant.kill(1)
    await plant.run(30.0 * many)

    old = [one for one in await plant.instances() if one.version == 1]
    assert [one.state for one in old] == [InstanceState.READY]
    assert "version 2 does not start" in (await plant.service()).detail
    assert not plant.failures

    # A version that mends it takes its place.
    await plant.deploy(revision="3")
    await plant.run(20.0)
    assert [one.version for one in await plant.instances()] == [3]


async def test_a_version_that_mends_one_that_never_started_gets_its_slots() -> None:
    text = agreed(least=2)
    plant = await running(Plant(text, slots=2, starts=lambda version: version != 1), 10.0)
    assert not await plant.instances(InstanceState.READY)
    await plant.deploy(revision="2")
    await plant.run(20.0)
    ready = await plant.instances()
    assert [(i.version, i.state) for i in ready] == [(2, InstanceState.READY)] * 2


async def test_an_old_instance_that_crashes_under_a_broken_deploy_is_not_given_up() -> None:
    plant = await running(Plant(agreed(least=2), starts=lambda v: v != 2))
    plant.clients = lambda now: 6
    await plant.deploy(revision="2")
    await plant.run(10.0)
    plant.kill(1)
    await plant.run(5.0)
    # Its machine starts it again, as what it was.
    plant.servers[1].is_dead = False
    await plant.run(10.0)
    ready = await plant.instances(InstanceState.READY)
    assert [(one.instance_id, one.version) for one in ready] == [(1, 1), (2, 1)]


async def test_without_a_slot_for_one_more_a_new_version_takes_the_place_of_an_old_one() -> None:
    plant = await running(Plant(agreed(least=2), slots=2))
    plant.clients = lambda now: 6
    await plant.deploy(revision="2")
    await plant.run(40.0)
    ready = await plant.instances(InstanceState.READY)
    assert [one.version for one in ready] == [2, 2]
    assert not plant.failures


async def test_while_those_that_drain_have_the_slots_a_new_version_takes_nobodys_place() -> None:
    plant = Plant(agreed(least=2), slots=4, starts=lambda v: v != 3)
    plant.spec = msgspec.structs.replace(plant.spec, sticky=True, session_grace_s=40.0)
    await running(plant)
    plant.clients = lambda now: 6
    await plant.deploy(revision="2")
    await plant.run(15.0)
    serving = [one.instance_id for one in await plant.instances(InstanceState.READY)]
    assert len(serving) == 2
    assert len(await plant.instances(InstanceState.DRAINING)) == 2

    # All slots are taken, by sessions of the first version, too; and the third does not start.
    await plant.deploy(revision="3")
    for _ in range(60):
        await plant.run(1.0)
        ready = [one.instance_id for one in await plant.instances(InstanceState.READY)]
        assert ready == serving
    assert not plant.failures


async def test_the_next_leader_finishes_what_the_last_one_began() -> None:
    plant = await busy(20, 10.0, agreed(least=3), spares=1)
    await plant.deploy(revision="2")
    while not any(one.version == 2 for one in await plant.instances()):
        await plant.run(0.1)
    for _ in range(8):
        # One after the other dies in the middle of it.
        await plant.change_leader()
        await plant.run(2.0)
    await plant.run(15.0)
    instances = await plant.instances()
    assert {(one.version, one.state) for one in instances} == {(2, InstanceState.READY)}
    assert len([one for one in instances if one.weight]) == 3
    assert not plant.failures


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_leader_that_dies_at_any_order_leaves_nothing_half_done(
    is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second order is a leader's last: it dies before it, or right after it."""
    execute, orders = HostedServiceLoop._execute, []

    async def dies(
        self: HostedServiceLoop, spec: ServiceSpec, action: AnyAction, epoch: int
    ) -> None:
        orders.append(action)
        if is_done or len(orders) % 2:
            await execute(self, spec, action, epoch)
        if not len(orders) % 2:
            raise Unavailable("this leader is no more")

    plant = await busy(20, 10.0, agreed(least=3), spares=1)
    monkeypatch.setattr(HostedServiceLoop, "_execute", dies)
    await plant.deploy(revision="2")
    for _ in range(80):
        before = len(orders)
        await plant.run(0.5)
        if len(orders) // 2 > before // 2:
            await plant.change_leader()
    instances = await plant.instances()
    assert {(one.version, one.state) for one in instances} == {(2, InstanceState.READY)}
    assert sorted(one.weight for one in instances) == [0.0, 1.0, 1.0, 1.0]
    assert len(orders) >= 10
    assert not plant.failures


async def test_the_next_leader_keeps_the_budget_and_tells_of_a_breach_no_second_time() -> None:
    plant = await running(Plant(agreed(1), slots=1, start_s=1.0))
    plant.service_s = 2.0
    plant.clients = lambda now: 4
    await plant.run(25.0)
    assert plant.alerts.kinds().count("violation") == 1
    before = await standing(plant)
    assert before.standing.last_hour.breached >= 2

    await plant.change_leader()
    await plant.run(25.0)
    assert plant.alerts.kinds().count("violation") == 1
    after = await standing(plant)
    assert after.standing.last_hour.breached > before.standing.last_hour.breached
    assert after.standing.budget_left < before.standing.budget_left


@pytest.mark.parametrize(("service_s", "told"), [(2.0, []), (0.25, ["over"])])
async def test_a_quiet_window_before_a_change_of_leaders_ends_no_breach(
    service_s: float, told: list[str]
) -> None:
    plant = await running(Plant(agreed(1), slots=1, start_s=1.0))

    def told_of_it() -> list[str]:
        return [one.kind for one in plant.alerts.alerts if "response_p95" in one.summary]

    plant.service_s = 2.0
    plant.clients = lambda now: 4
    await plant.run(25.0)
    plant.clients = lambda now: 0
    await plant.run(15.0)
    assert told_of_it() == ["violation"]
    assert (await standing(plant)).verdict is Verdict.NO_DATA

    await plant.change_leader()
    plant.service_s = service_s
    plant.clients = lambda now: 4
    await plant.run(15.0)
    # It goes on, or it is over: neither is a second breach.
    assert told_of_it() == ["violation", *told]


async def test_more_instances_are_no_help_where_nothing_waits() -> None:
    """An application that takes two seconds takes two seconds, on however many instances."""
    plant = await running(Plant(concurrency=50))
    plant.service_s = 2.0
    plant.clients = lambda now: 4
    await plant.run(40.0)
    assert len(await plant.instances()) == 1
    assert "though nothing waits: more would not help" in (await plant.service()).detail
    assert "violation" in plant.alerts.kinds()


async def test_while_doors_are_silent_nothing_is_decided_about_the_load() -> None:
    plant = await running(Plant())
    plant.clients = lambda now: min(int(now), 30)
    await plant.run(30.0)
    count = len(await plant.instances())
    plant.door_is_silent = True
    await plant.run(60.0)
    assert len(await plant.instances()) == count
    assert [one.rule for one in await plant.decisions()][-1] == "held: no measurement"
    # A dead one is replaced all the same.
    plant.kill((await plant.instances())[0].instance_id)
    await plant.run(5.0)
    assert len(await plant.instances(InstanceState.READY)) == count


async def test_while_doors_are_silent_who_is_missing_comes_and_that_is_called_so() -> None:
    plant = Plant()
    plant.door_is_silent = True
    await running(plant, 30.0)
    decisions = await plant.decisions()
    assert "fewer than wanted" in [one.rule for one in decisions]
    assert not [one for one in decisions if one.rule.startswith("held") and one.actions]


async def test_an_agreement_that_cannot_be_read_changes_nothing_about_what_runs() -> None:
    plant = await running(Plant())
    await plant.deploy(agreement='name = "shop"\nhttp = "shop"\n[metrics.respons_p95]\nbreach="1s"')
    await plant.run(5.0)
    assert "its agreement cannot be read" in (await plant.service()).detail
    assert "respons_p95" in (await plant.service()).detail
    assert len(await plant.instances(InstanceState.READY)) == 1
    await plant.deploy(agreement=agreed(least=2))
    await plant.run(5.0)
    assert (await plant.service()).detail == ""
    assert len(await plant.instances(InstanceState.READY)) == 2


async def test_other_bounds_of_an_agreement_give_no_budget_back_and_other_promises_do() -> None:
    plant = await running(Plant(agreed(1), slots=2))
    plant.service_s = 2.0
    plant.clients = lambda now: 4
    await plant.run(20.0)
    breached = (await standing(plant)).standing.last_hour.breached
    assert breached >= 2
    await plant.deploy(agreement=agreed(2))
    await plant.run(12.0)
    assert (await standing(plant)).standing.last_hour.breached > breached
    await plant.deploy(agreement=agreed(2).replace('breach = "1s"', 'breach = "5s"'))
    await plant.run(12.0)
    # But for a window in which some are refused still, until the bound is lifted.
    assert (await standing(plant)).standing.last_hour.breached <= 1 < breached


class Lessons(AcceptedModels):
    """As if `tidegate learn` had seen the promise get worse by 0.1 s in each second."""

    def warnings(self, agreement: str) -> StoredModel | None:
        return StoredModel(
            subject=agreement,
            accepted=True,
            reason="seen often enough",
            parameters={"reconfiguration_s": 4.0, "slope_response_p95": 0.1},
            quality={},
            rows=99,
            from_s=0.0,
            to_s=1.0,
        )


async def test_a_warning_that_was_learned_moves_and_begins_no_new_budget() -> None:
    text = agreed().replace('warning = "20%"', 'warning = "learned"')
    plant = await running(Plant(text))
    plant.service_s = 2.0
    plant.clients = lambda now: 4
    await plant.run(12.0)
    before = await standing(plant)
    assert "warns at 800ms" in before.promises[0].evidence
    plant.learned = Lessons(None)
    await plant.change_leader()
    await plant.run(12.0)
    after = await standing(plant)
    # As far before the breach as it gets worse by in 4 s, and a quarter more.
    assert "warns at 500ms" in after.promises[0].evidence
    assert after.standing.last_hour.breached > before.standing.last_hour.breached


@pytest.mark.parametrize(
    ("text", "warns", "most"),
    [
        (agreed(1).replace('warning = "20%"', 'warning = "10%"'), "warns at 900ms", 1),
        (agreed(2) + "# in writing", "warns at 800ms", 2),
    ],
    ids=["another warning", "a comment and another number of instances"],
)
async def test_the_same_promises_in_another_agreement_give_no_budget_back(
    text: str, warns: str, most: int
) -> None:
    plant = await breached()
    before = await standing(plant)

    await plant.deploy(agreement=text)
    await plant.run(12.0)
    after = await standing(plant)
    assert warns in after.promises[0].evidence
    assert after.standing.last_hour.breached > before.standing.last_hour.breached
    assert after.standing.budget_left < before.standing.budget_left
    assert plant.alerts.kinds().count("violation") == 1, "one breach that goes on"
    configuration = plant.loop.services["shop"].configuration
    assert configuration is not None
    assert configuration.agreement.resources.replicas_max == most


async def test_numbers_beyond_all_that_are_measured_keep_nobody_from_serving() -> None:
    text = agreed(2, "capacity = 1e300").replace('breach = "1s"', 'breach = "99999999999999999s"')
    plant = await busy(2, 5.0, text)
    assert len(await plant.instances(InstanceState.READY)) == 1
    assert (await plant.service()).detail == ""


async def test_a_bug_in_the_loop_of_a_service_is_seen_by_whoever_looks_at_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = await running(Plant())

    def fails(*_: object) -> None:
        raise ZeroDivisionError("of no use")

    with monkeypatch.context() as broken:
        broken.setattr(ServiceAutoscaler, "decide", fails)
        await plant.run(2.0)
    detail = (await plant.service()).detail
    assert "a bug of ours keeps it from being looked after: ZeroDivisionError" in detail
    await plant.run(2.0)
    assert (await plant.service()).detail == ""


async def test_a_service_that_is_undeployed_is_forgotten() -> None:
    plant = await running(Plant())
    await plant.store.undeploy("shop")
    await plant.loop.run_once(plant.now + 10.0, await plant.epoch())
    assert not plant.loop.services


async def test_former_leader_cannot_order_instances() -> None:
    plant = await running(Plant())
    old, loop = await plant.epoch(), plant.loop
    await plant.change_leader()
    await plant.epoch()
    plant.kill(1)
    await plant._machine_turn()
    with pytest.raises(StaleEpoch):
        await loop.run_once(plant.now + 10.0, old)


async def test_a_probe_that_fails_while_doors_report_no_trouble_is_an_alert() -> None:
    plant = await busy(5, 10.0)
    plant.probe_failure = "connection refused"
    await plant.run(10.0)
    [alert] = [one for one in plant.alerts.alerts if one.kind == "disagreement"]
    assert "the probe fails: connection refused" in alert.summary
    plant.probe_failure = ""
    await plant.run(10.0)
    assert "doors and the probe say the same again" in plant.alerts.alerts[-1].summary


async def test_doors_that_all_have_died_are_an_alert() -> None:
    plant = await busy(5, 10.0)
    plant.door_is_silent, plant.probe_failure = True, "connection refused"
    await plant.run(15.0)
    [alert] = [one for one in plant.alerts.alerts if one.kind == "disagreement"]
    assert "no door reports, and the probe fails: connection refused" in alert.summary
    plant.door_is_silent, plant.probe_failure = False, ""
    await plant.run(10.0)
    over = plant.alerts.alerts[-1]
    assert (over.kind, over.of) == ("over", "disagreement")


async def test_a_comment_before_the_next_leaders_first_window_gives_no_budget_back() -> None:
    plant = await breached()
    before = await standing(plant)

    await plant.change_leader()
    await plant.run(0.5)
    await plant.deploy(agreement=agreed(1) + "# in writing")
    await plant.run(0.5)
    assert await standing(plant) == before
    await plant.run(12.0)

    after = await standing(plant)
    assert after.standing.last_hour.breached > before.standing.last_hour.breached
    assert plant.alerts.kinds().count("violation") == 1


async def test_a_breach_is_told_though_the_store_takes_no_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = await running(Plant(agreed(1), slots=1, start_s=1.0))

    async def refuses(*_: object) -> None:
        raise Unavailable("the store is away")

    for name in ("set_admission", "set_service_detail"):
        monkeypatch.setattr(plant.store, name, refuses)
    plant.service_s = 2.0
    plant.clients = lambda now: 8
    await plant.run(25.0)
    assert plant.alerts.kinds().count("violation") == 1


async def test_restarted_instance_has_the_start_time_of_its_restart() -> None:
    def instance(ready_at: float | None, number: int = 1) -> Instance:
        state = InstanceState.FAILED if ready_at is None else InstanceState.READY
        return Instance(
            instance_id=number,
            service="shop",
            version=1,
            state=state,
            ordered_at=100.0,
            ready_at=ready_at,
        )

    performance = ServicePerformance()
    assert [took_s for _, took_s in performance.see_starts([instance(102.0)])] == [2.0]
    # It dies, and its machine starts it again.
    assert not performance.see_starts([instance(None)])
    assert not performance.see_starts([instance(5000.0)])
    assert performance.start_s == 2.0
    # The next leader has not seen it before.
    following = ServicePerformance()
    assert not following.see_starts([instance(5000.0)])
    assert following.start_s == START_S


async def test_start_time_survives_placement_and_a_new_leader() -> None:
    plant = await running(Plant(agreed(least=2), start_s=1.5), 60.0)
    for one in await plant.instances():
        # Its machine is lost.
        del plant.servers[one.instance_id]
        epoch = await plant.epoch()
        await plant.store.set_instance(one.instance_id, epoch, state=InstanceState.ORDERED)
    await plant.run(5.0)
    assert len(await plant.instances(InstanceState.READY)) == 2

    await plant.change_leader()
    await plant.run(1.0)
    configuration = plant.loop.services["shop"].configuration
    assert configuration is not None
    assert configuration.performance.start_s == pytest.approx(1.5, abs=0.3)


async def test_superfluous_instance_becomes_the_missing_spare() -> None:
    plant = await running(Plant(slots=2))
    plant.clients = lambda now: 20 if now < 40.0 else 5
    await plant.run(20.0)
    assert len(await plant.instances(InstanceState.READY)) == 2
    # There is no slot for a spare until one of them is not needed any more.
    await plant.deploy(spares=1)
    await plant.run(80.0)
    ready = await plant.instances(InstanceState.READY)
    assert sorted(one.weight for one in ready) == [0.0, 1.0]
    assert await actions_of(plant, MakeSpare)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_it_settles_as_agreed_when_it_is_calm_again(seed: int) -> None:
    chance = random.Random(seed)
    plant = await running(Plant(agreed(least=2), spares=1, seed=seed))
    clients = 12
    plant.clients = lambda now: clients
    revision = 1
    for _ in range(25):
        await plant.run(chance.uniform(0.2, 4.0))
        able = [one for one in plant.servers.values() if not one.is_dead and not one.hangs]
        match chance.randrange(6):
            case 0 if len(able) > 1:
                plant.kill(chance.choice(able).instance_id)
            case 1 if len(able) > 1:
                victim = chance.choice(able)
                victim.hangs, victim.ejected = True, "nothing came back"
            case 2:
                revision += 1
                await plant.deploy(revision=str(revision))
            case 3:
                await plant.change_leader()
            case 4:
                clients = chance.randrange(1, 40)
            case _ if able:
                chance.choice(able).slowness = chance.choice([1.0, 1.0, 4.0])
        instances = await plant.instances()
        # Never too many: as agreed, one that comes before one goes, a spare; and those who stand in
        # for one that hangs, until that one is given up.
        hanging = {one.instance_id for one in plant.servers.values() if one.hangs}
        gone = (InstanceState.DRAINING, InstanceState.FAILED)
        there = [one for one in instances if one.state not in gone]
        assert len([one for one in there if one.instance_id not in hanging]) <= 8 + 1 + 1
    clients = 6
    for server in plant.servers.values():
        server.slowness = 1.0
    # What was too few once is remembered for five minutes.
    await plant.run(500.0)
    instances = await plant.instances()
    assert {(one.version, one.state) for one in instances} == {(revision, InstanceState.READY)}
    assert sum(one.is_spare for one in instances) == 1
    assert len(instances) == 3
    assert await plant.store.admission("shop") is None
    assert (await plant.service()).detail == ""
    assert plant.windows()[-2][1] < 0.8


async def test_decisions_are_at_the_time_of_people_and_say_why() -> None:
    plant = await running(Plant())
    plant.clients = lambda now: min(int(now), 20)
    await plant.run(40.0)
    [more] = [
        one
        for one in await plant.decisions()
        if one.rule == "more in hand than is answered in time"
    ]
    assert more.at > EPOCH_S
    assert "requests in hand" in more.reason
    assert more.inputs["capacity_per_s"] > 10.0
    assert more.outputs["needed"] == 2.0
    assert "another instance would be needed" in more.otherwise
