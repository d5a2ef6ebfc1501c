"""Hosting in the store: services come in versions, instances are ordered, reported and removed."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from backing import SEVERAL_STORES, STORES, Backing

from tidegate.core.errors import ChangedMeanwhile, InvalidValue, StaleEpoch
from tidegate.core.machines import DETAIL_MAX
from tidegate.core.services import (
    NO_OVERRIDE,
    DoorSample,
    Instance,
    InstanceSample,
    InstanceState,
    ServiceOverride,
    ServiceSpec,
)
from tidegate.core.store import Store
from tidegate.storage.memory import cluster
from tidegate.storage.postgres import services
from tidegate.storage.postgres.services import package_digest

pytestmark = pytest.mark.parametrize("backing", [*STORES, *SEVERAL_STORES], indirect=True)

SHOP = ServiceSpec(
    name="shop", target="shop.web:app", agreement='http = "shop"', environment={"COLOUR": "blue"}
)


@pytest.fixture
async def epoch(store: Store) -> int:
    leading = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert leading is not None
    return leading


async def machine_of(store: Store, epoch: int) -> int:
    return (await store.add_machine("process", 2, None, epoch)).machine_id


async def test_a_version_counts_what_instances_are_started_anew_for(store: Store) -> None:
    first = await store.deploy(SHOP)
    assert (first.version, first.spec, first.detail) == (1, SHOP, "")
    same = msgspec.structs.replace(SHOP, concurrency=7, agreement="# another", spares=1)
    assert (await store.deploy(same)).version == 1
    assert (await store.deploy(msgspec.structs.replace(same, environment={}))).version == 2
    another = msgspec.structs.replace(same, environment={}, target="shop.new:app")
    assert (await store.deploy(another)).version == 3
    packed = msgspec.structs.replace(another, package=await store.put_package(b"code"))
    assert (await store.deploy(packed)).version == 4
    packed = msgspec.structs.replace(packed, folder="/srv/shop", revision="1f")
    assert (await store.deploy(packed)).version == 5
    assert [(s.spec, s.version) for s in await store.services()] == [(packed, 5)]
    (kept,) = await store.services()
    assert len(first.secret) > 30
    assert kept.secret == first.secret, "sessions go on"


async def test_a_version_is_known_while_it_is_deployed_or_has_instances(
    store: Store, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (cluster, services):
        monkeypatch.setattr(module, "PACKAGE_KEPT_S", -1.0)
    digest = await store.put_package(b"the old code")
    old = msgspec.structs.replace(SHOP, package=digest)
    await store.deploy(old)
    instance = await store.add_instance("shop", 1.0, epoch)
    await store.deploy(SHOP)
    assert await store.spec_of("shop", 1) == old
    assert await store.spec_of("shop", 2) == SHOP
    assert await store.package(digest) == b"the old code"
    quicker = msgspec.structs.replace(SHOP, concurrency=7)
    await store.deploy(quicker)
    assert await store.spec_of("shop", 2) == quicker, "the same version, as it is now"

    assert await store.remove_instance(instance.instance_id, epoch)
    await store.deploy(SHOP)
    assert await store.spec_of("shop", 1) is None
    assert await store.package(digest) is None
    await store.undeploy("shop")
    assert await store.spec_of("shop", 2) is None


async def test_of_two_who_steer_a_service_at_once_the_second_is_told(store: Store) -> None:
    held, bounded = ServiceOverride(instances=3), ServiceOverride(most=4, in_flight_max=100)
    assert not await store.steer_service("shop", held, NO_OVERRIDE), "there is no such service"
    assert (await store.deploy(SHOP)).by_hand == NO_OVERRIDE
    assert await store.steer_service("shop", held, NO_OVERRIDE)
    with pytest.raises(ChangedMeanwhile, match="somebody else"):
        await store.steer_service("shop", bounded, NO_OVERRIDE)
    assert await store.steer_service("shop", bounded, held)
    (kept,) = await store.services()
    assert kept.by_hand == bounded
    again = await store.deploy(msgspec.structs.replace(SHOP, target="shop.new:app"))
    assert again.by_hand == bounded, "a new version is steered as the old one"
    assert await store.steer_service("shop", NO_OVERRIDE, bounded)
    assert await store.steer_service("shop", held, NO_OVERRIDE)
    said = await asyncio.gather(
        *(store.steer_service("shop", ServiceOverride(instances=n), held) for n in range(4, 12)),
        return_exceptions=True,
    )
    assert [one for one in said if one is True] == [True]
    await store.undeploy("shop")
    assert (await store.deploy(SHOP)).by_hand == NO_OVERRIDE


async def test_invalid_service_is_not_deployed(store: Store) -> None:
    for wrong in (
        {"name": " "},
        {"target": "shop.web"},
        {"target": "../shop:app"},
        {"health_path": "health"},
        {"concurrency": 0},
        {"spares": -1},
        {"slots_per_machine": 0},
        {"deadline_s": 0.0},
        {"answer_timeout_s": float("inf")},
        {"body_bytes_max": -1},
        {"package": "latest"},
        {"environment": {"A=B": "c"}},
        {"environment": {"A": "\0"}},
    ):
        with pytest.raises(InvalidValue):
            await store.deploy(msgspec.structs.replace(SHOP, **wrong))
    assert await store.services() == []


async def test_an_instance_is_ordered_assigned_ready_and_removed(store: Store, epoch: int) -> None:
    with pytest.raises(InvalidValue, match="deploy it first"):
        await store.add_instance("shop", 1.0, epoch)
    await store.deploy(SHOP)
    made = await store.add_instance("shop", 0.0, epoch)
    assert (made.state, made.version, made.is_spare) == (InstanceState.ORDERED, 1, True)
    # In seconds since 1970: an hour is nothing there.
    assert made.ordered_at == pytest.approx(time.time(), abs=3600)
    machine_id = await machine_of(store, epoch)
    assert not await store.assign_instance(made.instance_id, machine_id + 1, epoch)
    assert not await store.assign_instance(made.instance_id + 1, machine_id, epoch)
    assert await store.assign_instance(made.instance_id, machine_id, epoch)

    async def report(state: InstanceState, address: str | None, detail: str = "") -> bool:
        return await store.report_instance(
            made.instance_id, machine_id, state, address, 5e9, detail
        )

    assert await report(InstanceState.STARTING, None, "is importing")
    (starting,) = await store.instances("shop")
    assert (starting.state, starting.detail) == (InstanceState.STARTING, "is importing")
    assert starting.ready_at is None
    assert await report(InstanceState.READY, "127.0.0.1:81")
    (ready,) = await store.instances()
    assert (ready.address, ready.free_memory_bytes, ready.detail) == ("127.0.0.1:81", 5e9, "")
    assert ready.ready_at is not None
    assert await report(InstanceState.READY, "127.0.0.1:81")
    assert await store.instances() == [ready], "nothing is new"
    assert await store.assign_instance(made.instance_id, machine_id, epoch)
    assert await store.instances() == [ready], "it is there already"
    assert await store.set_instance(made.instance_id, epoch, weight=2.5, concurrency=9, detail="x")
    (weighed,) = await store.instances()
    assert (weighed.weight, weighed.concurrency, weighed.detail) == (2.5, 9, "x")
    assert weighed.state is InstanceState.READY
    with pytest.raises(InvalidValue, match="0 or more"):
        await store.set_instance(made.instance_id, epoch, weight=-1.0)

    assert await store.remove_instance(made.instance_id, epoch)
    assert not await store.remove_instance(made.instance_id, epoch)
    assert not await store.set_instance(made.instance_id, epoch, weight=1.0)
    assert not await report(InstanceState.READY, "127.0.0.1:81"), "nobody wants it"
    assert (await store.add_instance("shop", 1.0, epoch)).instance_id > made.instance_id


async def test_machine_report_cannot_undo_the_leaders_state(store: Store, epoch: int) -> None:
    await store.deploy(SHOP)
    machine_id, other = await machine_of(store, epoch), await machine_of(store, epoch)
    instance_id = (await store.add_instance("shop", 1.0, epoch)).instance_id
    assert await store.assign_instance(instance_id, machine_id, epoch)

    async def state_after_report(state: InstanceState) -> tuple[InstanceState, str]:
        assert await store.report_instance(instance_id, machine_id, state, "h:1", 1.0, "says so")
        (instance,) = await store.instances("shop")
        return instance.state, instance.detail

    failed = InstanceState.FAILED
    assert await state_after_report(failed) == (failed, "says so")
    assert (await state_after_report(InstanceState.READY))[0] is InstanceState.READY
    for verdict in (InstanceState.DRAINING, InstanceState.FAILED):
        assert await store.set_instance(instance_id, epoch, state=verdict, detail="enough")
        assert await state_after_report(InstanceState.READY) == (verdict, "enough")
        assert not await store.assign_instance(instance_id, other, epoch)
    assert await store.set_instance(instance_id, epoch, state=InstanceState.STARTING)
    assert (await state_after_report(InstanceState.READY))[0] is InstanceState.READY

    assert await store.set_instance(instance_id, epoch, state=InstanceState.ORDERED)
    (anew,) = await store.instances()
    assert (anew.machine_id, anew.address, anew.ready_at) == (None, None, None)
    assert not await store.report_instance(
        instance_id, machine_id, InstanceState.READY, "h:1", 1.0, ""
    )


async def test_instances_of_a_removed_machine_are_ordered_again(store: Store, epoch: int) -> None:
    await store.deploy(SHOP)
    machine_id, other = await machine_of(store, epoch), await machine_of(store, epoch)
    ready, draining, failed, elsewhere = [
        (await store.add_instance("shop", 1.0, epoch)).instance_id for _ in range(4)
    ]
    for instance_id in (ready, draining, failed, elsewhere):
        there = other if instance_id == elsewhere else machine_id
        assert await store.assign_instance(instance_id, there, epoch)
        assert await store.report_instance(instance_id, there, InstanceState.READY, "h:1", 1.0, "")
    await store.set_instance(draining, epoch, state=InstanceState.DRAINING)
    await store.set_instance(failed, epoch, state=InstanceState.FAILED)

    assert await store.remove_machine(machine_id, epoch)

    left = {i.instance_id: (i.state, i.machine_id, i.address) for i in await store.instances()}
    assert left == {
        ready: (InstanceState.ORDERED, None, None),
        failed: (InstanceState.FAILED, None, None),
        elsewhere: (InstanceState.READY, other, "h:1"),
    }
    assert not await store.report_instance(
        ready, machine_id, InstanceState.READY, "h:1", 1.0, ""
    ), "the machine was only thought dead: what it runs is to end"


async def test_an_instance_is_ordered_when_it_was_until_it_has_lost_a_machine(
    store: Store, epoch: int
) -> None:
    await store.deploy(SHOP)
    one, other = await machine_of(store, epoch), await machine_of(store, epoch)
    ordered = await store.add_instance("shop", 1.0, epoch)
    number = ordered.instance_id

    async def ordered_at() -> float:
        [found] = await store.instances("shop")
        return found.ordered_at

    async def is_ready_on(machine_id: int) -> None:
        assert await store.assign_instance(number, machine_id, epoch)
        assert await store.report_instance(number, machine_id, InstanceState.READY, "h:1", 1.0, "")

    # It waits for its first machine, and comes to it.
    assert await store.set_instance(number, epoch, state=InstanceState.ORDERED)
    await is_ready_on(one)
    assert await ordered_at() == ordered.ordered_at

    assert await store.assign_instance(number, other, epoch)
    moved_at = await ordered_at()
    assert moved_at > ordered.ordered_at
    await is_ready_on(other)
    assert await store.set_instance(number, epoch, state=InstanceState.ORDERED)
    taken_at = await ordered_at()
    assert taken_at > moved_at
    await is_ready_on(other)
    assert await store.remove_machine(other, epoch)
    lost_at = await ordered_at()
    assert lost_at > taken_at
    await is_ready_on(one)
    assert await ordered_at() == lost_at

    # One that is not to come back is not ordered.
    assert await store.set_instance(number, epoch, state=InstanceState.FAILED)
    assert await store.remove_machine(one, epoch)
    assert await ordered_at() == lost_at


async def test_undeploying_takes_everything_of_a_service_along(store: Store, epoch: int) -> None:
    await store.deploy(SHOP)
    await store.deploy(msgspec.structs.replace(SHOP, name="other"))
    await store.add_instance("shop", 1.0, epoch)
    kept = await store.add_instance("other", 1.0, epoch)
    await store.set_admission("shop", 5, epoch)
    await store.report_door(sample("a"))

    assert await store.undeploy("shop")

    assert not await store.undeploy("shop")
    assert await store.instances() == [kept]
    await store.report_door(sample("a"))
    assert await store.door_samples("shop") == []
    assert (await store.deploy(SHOP)).version == 1
    assert await store.admission("shop") is None


def sample(door: str, **fields: object) -> DoorSample:
    return DoorSample(
        service="shop",
        door=door,
        at=1_700_000_000.0,
        address="127.0.0.1:80",
        accepted=3,
        response=[(0.1, 2), (float("inf"), 1)],
        instances=[InstanceSample(instance_id=4, outstanding=1, response=[(0.1, 2)])],
        **fields,  # type: ignore[arg-type]
    )


async def test_the_last_sample_of_each_door_is_kept_while_it_is_fresh(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.deploy(SHOP)
    for door, answered in (("b", 1), ("a", 1), ("b", 2)):
        await store.report_door(sample(door, answered=answered))
    assert await store.door_samples("other") == []
    assert await store.door_samples("shop") == [sample("a", answered=1), sample("b", answered=2)]
    for module in (cluster, services):
        monkeypatch.setattr(module, "DOOR_FRESH_S", -1.0)
    assert await store.door_samples("shop") == []


async def test_admission_detail_and_standings_are_the_leaders(store: Store, epoch: int) -> None:
    await store.deploy(SHOP)
    assert await store.admission("shop") is None
    await store.set_admission("shop", 40, epoch)
    await store.set_admission("nobody", 40, epoch)
    assert (await store.admission("shop"), await store.admission("nobody")) == (40, None)
    await store.set_admission("shop", None, epoch)
    assert await store.admission("shop") is None
    await store.set_service_detail("shop", "no spare is left\0" + "x" * DETAIL_MAX, epoch)
    assert (await store.services())[0].detail.startswith(r"no spare is left\x00xxx")
    assert (await store.deploy(SHOP)).detail != "", "it stays until the leader says otherwise"
    await store.keep_standing("shop", b'{"a":1}', epoch)
    await store.keep_standing("shop", b'{"a":2}', epoch)
    await store.keep_standing("queue", b"\0", epoch)
    assert await store.standings() == {"queue": b"\0", "shop": b'{"a":2}'}


async def test_sessions_of_one_that_drains_have_a_grace_unless_its_machine_ends(
    store: Store, epoch: int
) -> None:
    await store.deploy(SHOP)
    machine_id = await machine_of(store, epoch)
    number = (await store.add_instance("shop", 1.0, epoch)).instance_id
    assert await store.assign_instance(number, machine_id, epoch)

    async def report(state: InstanceState, free: float, resident: float | None = None) -> Instance:
        assert await store.report_instance(
            number, machine_id, state, "127.0.0.1:8001", free, "", resident
        )
        (found,) = await store.instances()
        return found

    ready = await report(InstanceState.READY, 4e9, 5e7)
    assert (ready.free_memory_bytes, ready.resident_bytes, ready.sessions_until) == (4e9, 5e7, None)
    await store.set_instance(number, epoch, state=InstanceState.DRAINING, sessions_until=1234.5)
    # What it reports, and a weight, change nothing about it; that its machine ends does.
    await store.set_instance(number, epoch, weight=0.5)
    draining = await report(InstanceState.READY, 3e9, 6e7)
    assert (draining.state, draining.sessions_until) == (InstanceState.DRAINING, 1234.5)
    assert (draining.free_memory_bytes, draining.resident_bytes) == (3e9, 6e7)
    ends = await report(InstanceState.DRAINING, 3e9, 6e7)
    assert (ends.state, ends.sessions_until) == (InstanceState.DRAINING, None)
    # One that is to serve again has none.
    await store.set_instance(number, epoch, state=InstanceState.DRAINING, sessions_until=1234.5)
    await store.set_instance(number, epoch, state=InstanceState.READY)
    assert (await store.instances())[0].sessions_until is None
    await store.set_instance(number, epoch, state=InstanceState.ORDERED)
    assert (await store.instances())[0].resident_bytes is None


async def test_configuration_is_kept_for_the_next_leader(store: Store, epoch: int) -> None:
    await store.deploy(SHOP)
    assert await store.kept_configuration("shop") is None
    await store.keep_configuration("shop", b'{"wanted":2}', epoch)
    await store.keep_configuration("shop", b'{"wanted":3}', epoch)
    await store.keep_configuration("nobody", b"{}", epoch)
    assert await store.kept_configuration("shop") == b'{"wanted":3}'
    assert await store.kept_configuration("nobody") is None
    await store.deploy(msgspec.structs.replace(SHOP, revision="2"))
    assert await store.kept_configuration("shop") == b'{"wanted":3}'

    await store.undeploy("shop")
    await store.deploy(SHOP)
    assert await store.kept_configuration("shop") is None


async def test_code_is_stored_once_and_goes_when_nobody_deploys_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = bytes(range(256)) * 8192
    digest = await store.put_package(code)
    assert await store.put_package(code) == digest
    unused = await store.put_package(b"unused")
    assert await store.package(digest) == code
    assert await store.package("0" * 64) is None
    spec = msgspec.structs.replace(SHOP, package=digest)
    await store.deploy(spec)
    assert await store.package(unused) == b"unused", "somebody may be about to deploy it"
    for module in (cluster, services):
        monkeypatch.setattr(module, "PACKAGE_KEPT_S", -1.0)
    await store.deploy(spec)
    assert (await store.package(digest), await store.package(unused)) == (code, None)


async def test_code_that_was_damaged_in_the_store_is_mended_by_who_puts_it_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = package_digest(b"code")
    with monkeypatch.context() as damage:
        for module in (cluster, services):
            damage.setattr(module, "package_digest", lambda _: digest)
        await store.put_package(b"c0de")
    assert await store.package(digest) == b"c0de"

    assert await store.put_package(b"code") == digest
    assert await store.package(digest) == b"code"


async def test_a_deposed_leader_orders_nothing(store: Store, backing: Backing, epoch: int) -> None:
    await store.deploy(SHOP)
    machine_id = await machine_of(store, epoch)
    instance = await store.add_instance("shop", 1.0, epoch)
    second = await store.join("second", "tidegate://here:2", 60.0)
    leading, _ = await store.leader()
    assert leading is not None
    await backing.declare_dead(leading)
    assert await store.lead(second) is not None

    for order in (
        store.add_instance("shop", 1.0, epoch),
        store.assign_instance(instance.instance_id, machine_id, epoch),
        store.set_instance(instance.instance_id, epoch, weight=0.0),
        store.remove_instance(instance.instance_id, epoch),
        store.set_admission("shop", 1, epoch),
        store.set_service_detail("shop", "mine", epoch),
        store.keep_standing("shop", b"mine", epoch),
        store.keep_configuration("shop", b"mine", epoch),
    ):
        with pytest.raises(StaleEpoch):
            await order

    assert await store.instances() == [instance]
    assert await store.standings() == {}


async def test_leader_sets_the_bound_of_machines(store: Store, epoch: int) -> None:
    assert await store.machines_bound() is None
    await store.bound_machines(0, epoch)
    assert await store.machines_bound() == 0
    await store.bound_machines(7, epoch)
    with pytest.raises(StaleEpoch):
        await store.bound_machines(9, epoch - 1)
    assert await store.machines_bound() == 7


async def test_two_that_deploy_at_once_make_one_service(store: Store, backing: Backing) -> None:
    another = backing.store()
    await another.open()
    try:
        made = await asyncio.gather(store.deploy(SHOP), another.deploy(SHOP))
        assert [service.version for service in made] == [1, 1]
    finally:
        await another.close()
