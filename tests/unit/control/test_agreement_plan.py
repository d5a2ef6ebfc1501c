"""What an agreement takes is computed from what is known; what is not known is not guessed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tidegate.agreements.document import Agreement, parse_agreement
from tidegate.control.planning import (
    AvailableSlots,
    CapacityPlan,
    PlanningRequest,
    plan_capacity,
    planning_inputs,
)
from tidegate.telemetry.models import ModelRegistry, StoredModel


def orders(more: str = "", throughput: str = "breach = 250\nwarning = 300") -> Agreement:
    return parse_agreement(
        f'name = "orders"\nqueue = "orders.*"\n{more}\n[metrics.wait_p99]\nbreach = "6s"\n'
        f"[metrics.throughput]\n{throughput}",
        "orders.toml",
    )


def planned(
    agreement: Agreement, knowledge: ModelRegistry | None = None, **asked: object
) -> CapacityPlan:
    machines = asked.pop("machines", None)
    if isinstance(machines, int):
        asked["room"] = AvailableSlots.of_machines(machines, 1)
    said = PlanningRequest(**asked)  # type: ignore[arg-type]
    return plan_capacity(agreement, planning_inputs(agreement, said, knowledge), said)


def knowing(folder: Path) -> ModelRegistry:
    knowledge = ModelRegistry(folder, pytest.fail)
    now = datetime.now(UTC)

    def model(subject: str, **parameters: float) -> StoredModel:
        return StoredModel(subject, True, "", parameters, {}, 1, 0.0, 1.0)

    knowledge.add_models(
        "capacity",
        "run",
        now,
        [
            model("orders.eu", throughput_per_s=150.0, best_consumers=2.0),
            model("orders.us", throughput_per_s=100.0, best_consumers=3.0),
            model("invoices", throughput_per_s=1.0),
        ],
    )
    knowledge.add_models(
        "provisioning",
        "run",
        now,
        [model("fleet", boot_s=96.9, sla_delta=4.0, machine_capacity_per_s=200.0)],
    )
    knowledge.add_models(
        "http_capacity", "run", now, [model("shop", throughput_per_s=40.0, concurrency=10.0)]
    )
    return knowledge


def test_the_papers_warm_pool_and_the_replicas_that_the_load_takes() -> None:
    found = planned(orders("sla_delta = 4\ncapacity = 50"), slots_per_machine=4, boot_s=96.9)

    # 300 at 50 each, at most 95 % busy; four to a machine; ceil(4 · 96.9 / 200) = 2.
    assert (found.replicas, found.machines_working, found.machines_warm) == (7, 2, 2)
    assert found.machines == 4
    assert (found.state, found.unknown, found.missing) == ("offered", (), ())
    assert found.offer is not None
    assert found.offer.load_max_per_s == pytest.approx(7 * 47.5)
    assert found.prefetch == "keep-up"


def test_plan_prefers_learned_figures_to_the_agreement(tmp_path: Path) -> None:
    found = planned(orders("capacity = 1"), knowing(tmp_path), slots_per_machine=2)

    # Of the queues that it governs the one that does least.
    assert found.figures.capacity_per_s.value == 100.0
    assert found.figures.capacity_per_s.origin == "learned of orders.us"
    assert (found.replicas, found.machines_working, found.machines_warm) == (4, 2, 2)
    assert found.consumer_rate_per_s == pytest.approx(300.0 / 4 / 3)


def test_of_an_http_service_the_capacity_of_an_instance_was_learned(tmp_path: Path) -> None:
    shop = parse_agreement(
        'name = "shop"\nhttp = "shop"\n[metrics.throughput]\nbreach = 100\nwarning = 120',
        "shop.toml",
    )

    found = planned(shop, knowing(tmp_path))

    assert found.figures.capacity_per_s.origin == "learned of shop"
    # 120 at 40 each, of which a loop uses 85 %.
    assert (found.replicas, found.consumer_rate_per_s) == (4, None)
    assert found.offer is not None
    assert found.offer.load_max_per_s == pytest.approx(4 * 34.0)


def test_plan_for_waits_has_the_replicas_of_the_control_loop() -> None:
    """A short wait leaves replicas half idle: those that could just do it would breach it."""
    brief = parse_agreement(
        'name = "orders"\nqueue = "orders"\ncapacity = 30\n[metrics.wait_p99]\nbreach = "50ms"\n'
        "[metrics.throughput]\nbreach = 100\nwarning = 130",
        "orders.toml",
    )

    found = planned(brief)

    assert found.replicas == 9
    assert "no busier than 50%" in found.because[0]
    assert found.offer is not None
    assert found.offer.load_max_per_s == pytest.approx(9 * 15.0)


def test_plan_prefers_the_figures_of_the_command(tmp_path: Path) -> None:
    found = planned(
        orders("sla_delta = 0"), knowing(tmp_path), capacity_per_s=10.0, load_per_s=95.0
    )

    # 10/s, less what a p99 of 4.8 s takes: 9.04/s each.
    assert (found.replicas, found.machines_warm) == (11, 0)


def test_plan_reports_unknown_figures() -> None:
    found = planned(orders("replicas = { min = 2 }"))

    assert (found.replicas, found.machines_working, found.machines_warm) == (2, 2, None)
    assert found.state == "not known"
    assert len(found.unknown) == 3
    assert "whether they suffice is not known" in found.because[0]
    assert found.offer is not None
    assert found.offer.load_max_per_s is None


def test_not_enough_machines_refuse_the_agreement() -> None:
    found = planned(orders("capacity = 100"), machines=2)

    assert found.state == "refused"
    assert found.offer is None
    assert found.missing == ("4 replicas are needed, and 2 machine(s) of 1 slot(s) take 2",)
    # It still says what it would take.
    assert found.replicas == 4


def test_a_reduced_offer_promises_no_more_than_there_is() -> None:
    found = planned(orders('capacity = 100\ninsufficient = "reduce"'), machines=2)

    assert (found.state, found.replicas) == ("reduced", 2)
    assert found.offer is not None
    wait, throughput = found.offer.metrics
    assert (wait.warning, wait.breach) == pytest.approx((4.8, 6.0))
    # As far apart as before: 300 and 250.
    assert (throughput.warning, throughput.breach) == pytest.approx((190.0, 190.0 * 250 / 300))
    assert found.offer.load_max_per_s == 190.0


def test_work_comes_before_warmth() -> None:
    found = planned(
        orders('capacity = 100\nsla_delta = 4\ninsufficient = "reduce"'), machines=5, boot_s=50.0
    )

    # Two were to be kept warm, and one is left: it is enough for half of the growth.
    assert (found.replicas, found.machines_warm) == (4, 1)
    assert found.missing == (
        "2 machine(s) are to be kept warm, and there is room for 1 beside those at work",
    )
    assert found.offer is not None
    assert found.offer.sla_delta_per_s2 == pytest.approx(2.0)
    assert found.offer.metrics[1].warning == 300.0


def test_the_bounds_of_the_agreement_are_resources_too() -> None:
    refused = planned(orders("capacity = 100\nreplicas = { max = 2 }"))
    assert refused.missing == ("4 replicas are needed, and replicas.max is 2",)

    nothing = planned(
        orders('capacity = 100\nreplicas = { min = 2 }\ninsufficient = "reduce"'), machines=1
    )
    assert nothing.offer is None
    assert nothing.missing[-1] == "even reduced it needs 2 replica(s), and there is room for 1"


def test_plan_refuses_an_impossible_agreement() -> None:
    found = planned(orders("capacity = 1e-300\nsla_delta = 1e300"), boot_s=1e9)

    assert found.state == "refused"
    assert "replicas.max is 10000" in found.missing[0]
