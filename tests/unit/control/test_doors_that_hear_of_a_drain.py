"""A door says which instances new clients may come to: a deploy waits for each door to say it."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.control.services.door import DoorLoop
from tidegate.core.errors import Unavailable
from tidegate.core.services import Backend, DoorSample, InstanceState, ServiceSpec
from tidegate.storage.memory import MemoryStore

SPEC = ServiceSpec(name="shop", target="shop:app", agreement="")


class SomeDoor:
    """Does what it is told, unless it is in trouble."""

    def __init__(self) -> None:
        self.is_in_trouble = False

    async def set_backends(self, backends: Sequence[Backend]) -> None:
        if self.is_in_trouble:
            raise Unavailable("did not answer")

    async def sample(self) -> DoorSample:
        return DoorSample(service="shop", door="d", at=0.0, address="")


async def test_a_door_reports_a_drain_when_it_has_heard_of_it() -> None:
    door, store, now = SomeDoor(), MemoryStore(), 0.0
    epoch = await store.lead(await store.join("leader", "tidegate://here:1", 60.0))
    assert epoch is not None
    await store.deploy(SPEC)
    machine_id = (await store.add_machine("process", 2, None, epoch)).machine_id
    numbers = []
    for port in (1, 2):
        number = (await store.add_instance("shop", 1.0, epoch)).instance_id
        assert await store.assign_instance(number, machine_id, epoch)
        address = f"127.0.0.1:{port}"
        await store.report_instance(number, machine_id, InstanceState.READY, address, None, "")
        numbers.append(number)
    old, new = numbers
    loop = DoorLoop(door, store, "shop", clock=lambda: now)  # type: ignore[arg-type]

    async def said_next() -> list[int] | None:
        nonlocal now
        now += 1.0
        await loop.run_once()
        (sample,) = await store.door_samples("shop")
        return sample.gives_to

    assert await said_next() is None, "it has heard of nobody yet"
    assert await said_next() == [old, new]

    await store.set_instance(old, epoch, state=InstanceState.DRAINING, sessions_until=60.0)
    assert await said_next() == [old, new], "it hears of it after this report"
    assert await said_next() == [new]

    door.is_in_trouble = True
    await store.set_instance(new, epoch, weight=0.5)
    for _ in range(5):
        said = await said_next()
    assert said is None, "it does not know what it gives to whom"
