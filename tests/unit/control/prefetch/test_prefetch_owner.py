"""A queue goes to another node, and with it its goal: consumers are steered on from there."""

from __future__ import annotations

import pytest
from backing import Backing, Connect, StartNode
from steered import QUEUE, WINDOW, Watch, Worker, fill, level_of, rate_of, steering
from virtual_nodes import cable

from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel

DELAY_S = 0.02
MODEL = PrefetchModel(a=0.1, b=20.0, sample_s=0.1)
GOAL = PrefetchGoal(rate_per_s=150.0, sample_s=0.1, settle_s=1.6, model=MODEL)
SETTLED_S = 4.0


async def test_when_the_owner_is_killed_the_next_one_steers_on_from_there(
    start_node: StartNode, connect: Connect, backing: Backing
) -> None:
    first, second = await start_node(), await start_node()
    mq = await connect(second)
    admin = await connect(first)
    await admin.create_queue(QUEUE, policy=QueuePolicy(prefetch=GOAL))
    await fill(admin, 4000)
    watch = Watch(mq)
    async with (
        steering(second),
        cable(first.address, DELAY_S) as one_way,
        cable(second.address, DELAY_S) as other_way,
    ):
        ways = f"{one_way.url},{other_way.url.removeprefix('tidegate://')}"
        far = await Client(ways, name="far").open()
        async with steering(first), Worker(far, prefetch=2, slots=1, handler_s=0.0):
            before = (await watch.only(after_s=SETTLED_S)).control[-WINDOW:]
            assert rate_of(before) == pytest.approx(150.0, rel=0.03)
            await first.abort()
            await backing.declare_dead(first.member_id)
            after = await watch.only(after_s=SETTLED_S)
            assert after.control[0].at > before[-1].at
            assert after.control[0].level == pytest.approx(level_of(before), abs=3.0)
            assert rate_of(after.control[-WINDOW:]) == pytest.approx(150.0, rel=0.03)
        await far.close()
