"""The loop of a door: what the store wants is what the door does; a silent one changes nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import pytest
from door_under_test import OpenDoor
from http_client import ask
from hypothesis import given
from hypothesis import strategies as st
from stall import Stall, stalls
from waiting import eventually_async

from tidegate.cli.door import parse_networks, reached_at
from tidegate.control.services.door import DoorLoop, DoorShares, backends_of, door_parts
from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.services import (
    Backend,
    DoorSample,
    Instance,
    InstanceState,
    Service,
    ServiceSpec,
)
from tidegate.storage.memory import MemoryStore

SPEC = ServiceSpec(name="shop", target="shop:app", agreement="", concurrency=3)


def test_doors_hear_of_who_answers_and_of_nobody_else() -> None:
    def instance(number: int, state: InstanceState, address: str | None) -> Instance:
        return Instance(
            instance_id=number,
            service="shop",
            version=1,
            state=state,
            address=address,
            concurrency=9 if number == 2 else None,
            sessions_until=600.0 if number == 2 else None,
        )

    found = backends_of(
        [
            instance(1, InstanceState.READY, "[::1]:8001"),
            instance(2, InstanceState.DRAINING, "127.0.0.1:8002"),
            instance(3, InstanceState.READY, None),
            instance(4, InstanceState.STARTING, "127.0.0.1:8004"),
            instance(5, InstanceState.FAILED, "127.0.0.1:8005"),
            instance(6, InstanceState.READY, "nonsense"),
        ],
        concurrency=3,
    )
    assert [
        (b.name, b.host, b.port, b.concurrency, b.draining, b.sessions_until) for b in found
    ] == [
        ("i1", "::1", 8001, 3, False, None),
        ("i2", "127.0.0.1", 8002, 9, True, 600.0),
    ]


def seen_by(door: str, at: float, accepted: int = 0) -> DoorSample:
    return DoorSample(service="shop", door=door, at=at, address="", accepted=accepted)


def test_doors_share_the_admission_and_their_parts_add_up() -> None:
    def part(bound: int | None, doors: list[DoorSample], own: str) -> int | None:
        return DoorShares().share_of(bound, doors, own, 100.0)

    doors = [seen_by("a", 99.0), seen_by("b", 98.0), seen_by("c", 97.0), seen_by("dead", 50.0)]
    assert [part(10, doors, own) for own in ("a", "b", "c")] == [4, 3, 3]
    assert part(10, [], "a") == 10
    assert part(None, doors, "a") is None
    # A part of nothing would shut a door that the leader has not meant to shut.
    assert [part(1, doors, own) for own in ("a", "c")] == [1, 1]
    assert part(0, doors, "a") == 0


def test_a_door_that_is_asked_for_more_may_have_more_in_hand_and_none_has_nothing() -> None:
    shares = {own: DoorShares() for own in ("busy", "quiet")}

    def of_both(bound: int | None, second: int, busy: int, quiet: int) -> list[int | None]:
        at = float(second)
        samples = [seen_by("busy", at, busy), seen_by("quiet", at, quiet)]
        return [one.share_of(bound, samples, own, at) for own, one in shares.items()]

    # Nine of ten come to one of them: beyond the floors of both it has nine tenths.
    for second in range(10):
        assert of_both(None, second, 90 * second, 10 * second) == [None, None]
    assert of_both(100, 10, 900, 100) == [82, 18]
    # Whom nobody asks for anything has its floor, for those who come next.
    for second in range(11, 100):
        found = of_both(100, second, 90 * second, 100)
    assert found == [90, 10]


@given(
    st.integers(0, 10_000),
    st.dictionaries(st.text(min_size=1), st.floats(0.0, 1e9), min_size=1, max_size=8),
)
def test_parts_add_up_whatever_doors_are_asked_for(bound: int, asked: dict[str, float]) -> None:
    found = door_parts(bound, asked)
    assert sum(found.values()) == max(bound, min(bound, 1) * len(asked))
    assert min(found.values()) >= min(bound, 1)


class SilentAtTimes(MemoryStore):
    """A store whose computer is cut off now and then."""

    silent = False

    async def services(self) -> list[Service]:
        if self.silent:
            raise Unavailable("the store does not answer")
        return await super().services()


async def placed(store: MemoryStore, epoch: int, machine: int, stall: Stall, weight: float) -> int:
    instance = await store.add_instance("shop", weight, epoch)
    # What the leader orders has a number of its own; the stall answers for it.
    stall.instance_id = instance.instance_id
    assert await store.assign_instance(instance.instance_id, machine, epoch)
    assert await store.report_instance(
        instance.instance_id, machine, InstanceState.READY, f"127.0.0.1:{stall.port}", 1e9, ""
    )
    return instance.instance_id


async def test_a_door_follows_the_store_and_goes_on_without_it(open_door: OpenDoor) -> None:
    store = SilentAtTimes()
    epoch = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert epoch is not None
    await store.deploy(SPEC)
    machine = (await store.add_machine("process", 4, None, epoch)).machine_id
    now = 0.0
    door = await open_door()
    port = int(door.address.rpartition(":")[2])
    told: list[DoorSample] = []
    loop = DoorLoop(
        *(door, store, "shop"),
        told=lambda sample, *_: told.append(sample),
        address="http://shop.example:8080",
        clock=lambda: now,
    )
    async with stalls(2) as (one, two):
        # Nobody is there yet.
        await loop.run_once()
        assert (await ask(port)).status == 503
        first = await placed(store, epoch, machine, one, 1.0)
        second = await placed(store, epoch, machine, two, 0.0)
        await loop.run_once()
        assert {(await ask(port)).body for _ in range(6)} == {b"i1"}
        # The leader calls up the spare, drains the other, and lets in one request at a time.
        await store.set_instance(first, epoch, state=InstanceState.DRAINING)
        await store.set_instance(second, epoch, weight=1.0, concurrency=1)
        await store.set_admission("shop", 2, epoch)
        now += 1.0
        await loop.run_once()
        assert {(await ask(port)).body for _ in range(6)} == {b"i2"}
        two.gate.clear()
        held = [asyncio.create_task(ask(port, "/held")) for _ in range(2)]

        async def full() -> bool:
            return (await door.sample()).in_flight == 2

        await eventually_async(full, "both are in")
        assert (await ask(port)).status == 503
        two.gate.set()
        assert {one.status for one in await asyncio.gather(*held)} == {200}

        # The store is cut off: nothing changes, and here one sees on.
        store.silent = True
        await store.set_instance(first, epoch, state=InstanceState.READY)
        now += 1.0
        seen = len(told)
        await loop.run_once()
        assert "does not answer" in loop.trouble
        assert len(told) == seen + 1
        assert {(await ask(port)).body for _ in range(6)} == {b"i2"}

        # It is back, and is told all that came between: counts are totals.
        store.silent = False
        now += 1.0
        await loop.run_once()
        assert loop.trouble == ""
        (sample,) = await store.door_samples("shop")
        assert sample.door == told[-1].door
        assert sample.address == "http://shop.example:8080"
        assert sample.answered >= 20
        assert {(await ask(port)).body for _ in range(20)} == {b"i1", b"i2"}
        await store.undeploy("shop")
        await loop.run_once()
        assert (await ask(port)).status == 503


def test_a_door_on_all_addresses_is_reached_at_the_name_of_its_computer() -> None:
    assert reached_at("http://127.0.0.1:8080") == "http://127.0.0.1:8080"
    assert reached_at("http://[::1]:8080") == "http://[::1]:8080"
    # Whoever asked at 0.0.0.0 would ask its own computer, and not that of the door.
    here = socket.gethostname()
    assert reached_at("http://0.0.0.0:8080") == reached_at("http://[::]:8080")
    assert reached_at("http://0.0.0.0:8080") == f"http://{here}:8080"
    assert reached_at("http://0.0.0.0:8080", "shop.example") == "http://shop.example:8080"


def test_trust_option_takes_networks_only() -> None:
    assert parse_networks(["10.0.0.0/8", "::1"]) == ("10.0.0.0/8", "::1")
    with pytest.raises(InvalidValue, match=r"--trust '10\.0\.0\.1/8': .* write 10\.0\.0\.0/8"):
        parse_networks(["10.0.0.1/8"])


async def test_a_door_that_cannot_do_what_it_is_told_is_told_again() -> None:
    class Stubborn:
        """Refuses the first time."""

        def __init__(self) -> None:
            self.heard = 0

        async def set_backends(self, backends: object) -> None:
            self.heard += 1
            if self.heard == 1:
                raise Unavailable("not now")

        async def sample(self) -> DoorSample:
            return DoorSample(service="shop", door="d", at=0.0, address="")

    door, store, now = Stubborn(), MemoryStore(), 0.0
    await store.deploy(SPEC)
    loop = DoorLoop(door, store, "shop", clock=lambda: now)  # type: ignore[arg-type]
    await loop.run_once()
    assert loop.trouble == "not now"
    # What it sees is reported all the same.
    assert [one.trouble for one in await store.door_samples("shop")] == [""]
    now += 1.0
    await loop.run_once()
    assert (loop.trouble, door.heard) == ("", 2)
    assert [one.trouble for one in await store.door_samples("shop")] == ["not now"]
    await loop.run_once()
    assert door.heard == 2
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(loop.run(), 0.01)  # it never ends by itself


async def test_unconfirmed_door_setting_is_sent_again() -> None:
    class Losing:
        """Does what it is told, and is not always heard to have."""

        def __init__(self) -> None:
            self.loses = False
            self.backends: list[int] = []
            self.admission: int | None = None

        def _answer(self) -> None:
            if self.loses:
                raise Unavailable("did not answer")

        async def set_backends(self, backends: Sequence[Backend]) -> None:
            self.backends = [one.instance_id for one in backends]
            self._answer()

        async def set_admission(self, in_flight_max: int | None) -> None:
            self.admission = in_flight_max
            self._answer()

        async def sample(self) -> DoorSample:
            return DoorSample(service="shop", door="d", at=now, address="")

    def at(port: int) -> Stall:
        stall = Stall(0)
        stall.port = port
        return stall

    door, store, now = Losing(), MemoryStore(), 0.0
    epoch = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert epoch is not None
    await store.deploy(SPEC)
    machine = (await store.add_machine("process", 4, None, epoch)).machine_id
    first = await placed(store, epoch, machine, at(1), 1.0)
    second = await placed(store, epoch, machine, at(2), 1.0)
    loop = DoorLoop(door, store, "shop", clock=lambda: now, calendar=lambda: now)  # type: ignore[arg-type]
    await loop.run_once()
    assert (door.backends, door.admission) == ([first, second], None)

    # Their answers are lost, and meanwhile the leader thinks better of it.
    door.loses = True
    await store.report_instance(second, machine, InstanceState.READY, "nowhere", 1e9, "")
    await store.set_admission("shop", 5, epoch)
    now += 1.0
    await loop.run_once()
    assert (door.backends, door.admission) == ([first], 5)
    await store.report_instance(second, machine, InstanceState.READY, "127.0.0.1:2", 1e9, "")
    await store.set_admission("shop", None, epoch)
    door.loses = False
    now += 1.0
    await loop.run_once()
    assert (door.backends, door.admission, loop.trouble) == ([first, second], None, "")
