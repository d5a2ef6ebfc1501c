"""A leader dies in the middle of it: what it was about to do is finished by the next one."""

from __future__ import annotations

import pytest
from hosted_plant import Plant, agreed

from tidegate.control.services.loop import HostedServiceLoop
from tidegate.core.decisions import AnyAction
from tidegate.core.errors import Unavailable
from tidegate.core.services import InstanceState, ServiceSpec

pytestmark = pytest.mark.asyncio

# Three answer 20 clients with room, two without: nothing but what was decided says that three are
# wanted, neither the agreement's bounds nor the law.
CLIENTS = 20


async def three_serve() -> Plant:
    """Three instances, though at least one is agreed and two would do for a while."""
    plant = Plant(agreed(3), start_s=0.5)
    await plant.begin()
    plant.clients = lambda now: min(int(2.0 * now), 26) if now < 14.0 else CLIENTS
    await plant.run(20.0)
    assert len(await plant.instances(InstanceState.READY)) == 3
    return plant


async def wanted(plant: Plant) -> int:
    """What whoever leads now wants, at its first look."""
    while "shop" not in plant.loop.services:
        await plant.run(0.1)
    configuration = plant.loop.services["shop"].configuration
    assert configuration is not None
    return configuration.wanted


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
async def test_a_leader_that_dies_at_any_step_of_a_rollout_leaves_as_many_wanted(
    is_done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each order of the rollout is some leader's last: it dies before it, or right after it."""
    execute, orders = HostedServiceLoop._execute, 0
    dead: list[AnyAction] = []

    async def dies(
        self: HostedServiceLoop, spec: ServiceSpec, action: AnyAction, epoch: int
    ) -> None:
        nonlocal orders
        orders += 1
        is_last = orders % 2 == 0
        if is_done or not is_last:
            await execute(self, spec, action, epoch)
        if is_last:
            dead.append(action)
            raise Unavailable("this leader is no more")

    # Every second order by this, and the others by the next: between them all of them.
    for begun in (0, 1):
        orders = begun
        plant = await three_serve()
        with monkeypatch.context() as patched:
            patched.setattr(HostedServiceLoop, "_execute", dies)
            await plant.deploy(revision="2")
            for _ in range(160):
                before = len(dead)
                await plant.run(0.1)
                if len(dead) > before:
                    await plant.change_leader()
                    assert await wanted(plant) == 3, f"after {dead[-1]}"
                alive = await plant.instances(InstanceState.READY)
                assert len(alive) >= 3, f"after {dead[-1:]}"
        await plant.run(5.0)
        assert [(one.version, one.state) for one in await plant.instances()] == [
            (2, InstanceState.READY)
        ] * 3
        assert not plant.failures
    kinds = {type(one).__name__ for one in dead}
    assert kinds >= {"AddInstance", "DrainInstance", "RemoveInstance"}


async def test_a_leader_that_dies_before_it_orders_what_it_has_decided_is_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def dies(
        self: HostedServiceLoop, spec: ServiceSpec, action: AnyAction, epoch: int
    ) -> None:
        raise Unavailable("this leader is no more")

    plant = Plant(start_s=0.5)
    await plant.begin()
    plant.clients = lambda now: 4 if now >= 3.0 else 0
    await plant.run(10.0)
    assert await wanted(plant) == 1
    with monkeypatch.context() as patched:
        patched.setattr(HostedServiceLoop, "_execute", dies)
        plant.clients = lambda now: 18
        while await wanted(plant) == 1:
            await plant.run(0.1)
    await plant.change_leader()
    # Nobody has measured anything yet.
    assert await wanted(plant) == 2


async def test_next_leader_knows_the_capacity_of_an_instance() -> None:
    plant = await three_serve()
    loop = plant.loop.services["shop"].configuration
    assert loop is not None
    seen = loop.performance.usual_per_s
    assert seen == pytest.approx(16.0, rel=0.1)

    await plant.change_leader()
    assert await wanted(plant) == 3
    loop = plant.loop.services["shop"].configuration
    assert loop is not None
    assert loop.performance.usual_per_s == pytest.approx(seen, rel=0.06)
    assert loop.performance.is_learned


async def test_clients_who_come_while_leaders_change_are_answered_in_time() -> None:
    plant = Plant(agreed(6), start_s=1.0)
    await plant.begin()
    plant.clients = lambda now: min(int(now), 50)
    for _ in range(8):
        await plant.run(7.0)
        await plant.change_leader()
    await plant.run(10.0)
    assert max(p95_s for _, p95_s in plant.windows()) < 1.0
    assert "violation" not in plant.alerts.kinds()
    assert not plant.failures
