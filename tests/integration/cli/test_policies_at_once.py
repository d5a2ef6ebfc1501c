"""Several people change what a queue promises at the same time: what each has said holds."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.cli.options import GoalOptions
from tidegate.cli.queues import change_policy
from tidegate.client.client import Client
from tidegate.core.errors import ChangedMeanwhile
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal


async def test_concurrent_policy_changes_are_all_kept(mq: Client) -> None:
    await mq.create_queue("orders")
    said = [{"lease_s": 30.0}, {"deliveries_max": 3}, {"paused": True}]

    # All of them read before any of them writes.
    await asyncio.gather(
        *(mq.set_policy("orders", **one) for one in said),
        change_policy(mq, "orders", {"length_max": 9}, GoalOptions(manual=5)),
    )

    policy = (await mq.queue("orders")).policy
    assert (policy.lease_s, policy.deliveries_max, policy.paused) == (30.0, 3, True)
    assert policy.length_max == 9
    assert policy.prefetch is not None
    assert policy.prefetch.manual == 5


async def test_a_policy_that_somebody_has_changed_meanwhile_is_left_alone(mq: Client) -> None:
    await mq.create_queue("orders")
    as_made = QueuePolicy()
    await mq.set_policy("orders", before=as_made, prefetch=PrefetchGoal())
    with pytest.raises(ChangedMeanwhile, match="policy of queue 'orders' meanwhile"):
        await mq.set_policy("orders", before=as_made, paused=True)
    assert (await mq.queue("orders")).policy == QueuePolicy(prefetch=PrefetchGoal())
    # Whose answer was lost, and who asks again, is not told of a stranger.
    await mq.set_policy("orders", before=as_made, prefetch=PrefetchGoal())
