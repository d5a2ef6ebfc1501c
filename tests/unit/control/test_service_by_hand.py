"""What a person says of an HTTP service goes before the law, and is given back without a trace."""

from __future__ import annotations

from hosted_plant import Plant, agreed

from tidegate.core.decisions import SetConcurrency
from tidegate.core.services import (
    NO_OVERRIDE,
    InstanceState,
    ServiceOverride,
    describe_override_change,
    override_problems,
)


async def _said(plant: Plant, by_hand: ServiceOverride) -> None:
    before = (await plant.service()).by_hand
    assert await plant.store.steer_service("shop", by_hand, before)


async def _serving(plant: Plant) -> int:
    return len(await plant.instances(InstanceState.READY))


async def _begun(plant: Plant) -> Plant:
    await plant.begin()
    await plant.run(5.0)
    return plant


async def test_instances_are_held_at_a_number_and_then_the_law_goes_on_from_there() -> None:
    plant = await _begun(Plant())
    plant.clients = lambda now: 2
    await plant.run(5.0)
    await _said(plant, ServiceOverride(instances=3))
    await plant.run(5.0)
    assert await _serving(plant) == 3
    assert "manual" in {one.rule for one in await plant.decisions()}
    # Longer than calm lasts before one fewer is enough.
    await plant.run(30.0)
    assert await _serving(plant) == 3

    await _said(plant, NO_OVERRIDE)
    await plant.run(5.0)
    assert await _serving(plant) == 3, "not at once: nobody knows yet what is enough"
    plant.clients = lambda now: 0
    await plant.run(60.0)
    assert await _serving(plant) == 1


async def test_the_next_leader_holds_what_was_held() -> None:
    plant = await _begun(Plant())
    await _said(plant, ServiceOverride(instances=3))
    await plant.run(5.0)
    await plant.change_leader()
    await plant.run(5.0)
    assert await _serving(plant) == 3


async def test_too_few_by_hand_is_said_to_be_too_few() -> None:
    plant = await _begun(Plant())
    await _said(plant, ServiceOverride(instances=1))
    plant.clients = lambda now: 40
    await plant.run(30.0)
    assert await _serving(plant) == 1
    assert "the most that a person has said" in (await plant.service()).detail


async def test_the_law_stays_between_bounds_that_a_person_has_set() -> None:
    plant = await _begun(Plant(agreed(most=2)))
    plant.clients = lambda now: 40
    await plant.run(40.0)
    assert await _serving(plant) == 2
    await _said(plant, ServiceOverride(most=5))
    await plant.run(40.0)
    assert 2 < await _serving(plant) <= 5
    # The next leader knows of it before it looks at what was kept.
    await plant.change_leader()
    await plant.run(2.0)
    assert await _serving(plant) > 2
    await _said(plant, ServiceOverride(least=1, most=1))
    await plant.run(20.0)
    assert await _serving(plant) == 1


async def test_requests_at_a_time_are_held_and_not_adapted() -> None:
    # It does two at a time, and may have forty: the law would lower that under load.
    plant = await _begun(Plant(concurrency=40, parallel=2))
    await _said(plant, ServiceOverride(instances=1, concurrency=5, in_flight_max=9))
    plant.clients = lambda now: 30
    await plant.run(40.0)
    (server,) = plant.servers.values()
    assert (server.in_service, plant.in_hand) == (5, 9)
    assert plant.refused > 0
    assert "held by hand: 9 requests at a time" in (await plant.service()).detail
    changes = [action for one in await plant.decisions() for action in one.actions]
    assert not [one for one in changes if isinstance(one, SetConcurrency)]
    assert await plant.store.admission("shop") is None, "the law's own bound is as it was"

    await _said(plant, NO_OVERRIDE)
    refused = plant.refused
    await plant.run(1.0)
    assert plant.refused == refused or await plant.store.admission("shop") is not None


def test_override_problems_name_invalid_overrides() -> None:
    assert override_problems(NO_OVERRIDE) == []
    assert (
        override_problems(
            ServiceOverride(instances=2, least=1, most=3, concurrency=1, in_flight_max=1)
        )
        == []
    )
    for wrong in (
        ServiceOverride(instances=0),
        ServiceOverride(most=10_001),
        ServiceOverride(concurrency=0),
        ServiceOverride(in_flight_max=-1),
        ServiceOverride(least=3, most=2),
        ServiceOverride(instances=4, most=3),
    ):
        assert override_problems(wrong), wrong
    assert describe_override_change(NO_OVERRIDE, NO_OVERRIDE) == ""
    assert describe_override_change(ServiceOverride(most=4), ServiceOverride(instances=3)) == (
        "instances automatic → 3, at most 4 → as agreed."
    )


def test_override_of_one_bound_moves_the_other() -> None:
    assert NO_OVERRIDE.bounds(1, 3) == (1, 3)
    assert ServiceOverride(least=5).bounds(1, 3) == (5, 5)
    assert ServiceOverride(most=1).bounds(2, 3) == (1, 1)
    assert ServiceOverride(least=1, most=9).bounds(2, 3) == (1, 9)
    assert ServiceOverride(least=2).bounds(1, None)[0] == 2
