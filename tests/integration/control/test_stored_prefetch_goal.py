"""A queue's prefetch goal comes back from a SQL store as it was set."""

from __future__ import annotations

import pytest
from backing import SQL_STORES, Connect, StartNode

from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel

pytestmark = pytest.mark.parametrize("backing", SQL_STORES[:1], indirect=True)

# What is not known of a model is not a number, and so not in the JSON that the store keeps.
MODEL = PrefetchModel(a=0.1, b=20.0, sample_s=0.1)
GOAL = PrefetchGoal(rate_per_s=150.0, sample_s=0.1, settle_s=1.6, model=MODEL)


async def test_another_node_reads_the_goal_and_its_model(
    start_node: StartNode, connect: Connect
) -> None:
    first, second = await start_node(), await start_node()
    await (await connect(first)).create_queue("orders", policy=QueuePolicy(prefetch=GOAL))

    found = (await (await connect(second)).queue("orders")).policy.prefetch

    # Text: two numbers that are none are not equal.
    assert str(found) == str(GOAL)
