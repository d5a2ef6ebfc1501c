"""A queue goes to another node, and with it its goal: who consumes is steered on from there."""

from __future__ import annotations

import pytest
from backing import SQL_STORES, Backing, Connect, StartNode
from steered import QUEUE, WINDOW, Watch, Worker, fill, has_rate, level_of, steering

from tidegate.client.client import Client
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.lab.faults.proxy import TcpProxy

# Levels of two nodes are compared, each of which has its rate.
pytestmark = [
    pytest.mark.paced,
    pytest.mark.parametrize("backing", SQL_STORES[:1], indirect=True),
]

DELAY_S = 0.02
# What is not known of a model is not in the JSON that the store keeps.
MODEL = PrefetchModel(a=0.1, b=20.0, sample_s=0.1)
GOAL = PrefetchGoal(rate_per_s=150.0, sample_s=0.1, settle_s=1.6, model=MODEL)


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
        TcpProxy(first.address, DELAY_S) as one_way,
        TcpProxy(second.address, DELAY_S) as other_way,
    ):
        ways = f"{one_way.url},{other_way.url.removeprefix('tidegate://')}"
        far = await Client(ways, name="far").open()
        async with steering(first), Worker(far, prefetch=2, slots=1, handler_s=0.0):
            [before] = await watch.until(has_rate(150.0, 0.06), "150/s")
            level = level_of(before.control[-WINDOW:])
            await first.abort()
            await backing.declare_dead(first.member_id)
            [after] = await watch.until(
                lambda now: bool(now) and now[0].control[0].at > before.control[-1].at,
                "the other node steers",
            )
            assert after.control[0].level == pytest.approx(level, abs=3.0)
            await watch.until(has_rate(150.0, 0.08), "150/s at the other node")
        await far.close()
